//! Texts that are read whole and become one vector each: alone, or several that belong together.

use std::sync::Arc;

use anyhow::Result;
use hearth_model::{TokenId, text::tokenizer::Tokenizer};

use super::{Batch, Documents, Packing, in_batches};

/// Items with the same number of texts each, such as a question and its answer.
#[derive(Clone, Debug)]
pub struct Items {
    /// The texts of item `n` begin with document `texts_per_item * n`. Each is a row.
    documents: Arc<Documents>,
    texts_per_item: usize,
    /// The class of each item; empty if they have none.
    classes: Arc<Vec<u32>>,
    /// The margin of each item; empty if they have none.
    margins: Arc<Vec<f64>>,
    /// Where the second text of each row begins, if rows are pairs of texts; empty if none is.
    second_texts: Arc<Vec<Option<usize>>>,
}

/// Which rows of a batch belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchItems {
    /// Rows of an item, which follow each other.
    pub texts_per_item: usize,
    /// The class of each item; empty if they have none.
    pub classes: Vec<u32>,
    /// By how much the first text of each item should be nearer to its second than to its third; empty if that is not said.
    pub margins: Vec<f64>,
    /// Where the second text of each row begins, if rows are pairs of texts; empty if none is.
    pub second_texts: Vec<Option<usize>>,
}

impl Items {
    /// Items of `texts_per_item` texts each, as token ids.
    ///
    /// # Errors
    /// There are no items, or a text has no tokens or more than `seq_len`.
    pub fn new(
        items: impl IntoIterator<Item = Vec<Vec<TokenId>>>,
        texts_per_item: usize,
        seq_len: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Items> {
        let texts = items.into_iter().flatten().map(|mut ids| {
            // All tokens are inputs, but the last token of a document is only a target: so it is there twice.
            ids.extend(ids.last().copied());
            let is_read = vec![true; ids.len()];
            (ids, is_read)
        });
        let documents = Documents::of_examples(texts, (seq_len, Packing::Off), tokenizer)?;
        Ok(Items {
            documents: Arc::new(documents),
            texts_per_item,
            classes: Arc::default(),
            margins: Arc::default(),
            second_texts: Arc::default(),
        })
    }

    /// These items, which have one text each, with their classes, and where the second text of each begins, if it is a
    /// pair of texts.
    #[must_use]
    pub fn with_classes(self, classes: Vec<u32>, second_texts: Vec<Option<usize>>) -> Items {
        assert!(
            [classes.len(), second_texts.len(), self.documents.n_rows()] == [self.n_items(); 3],
            "one for each item"
        );
        let has_pairs = second_texts.iter().any(Option::is_some);
        let second_texts = if has_pairs { second_texts } else { Vec::new() };
        Items { classes: Arc::new(classes), second_texts: Arc::new(second_texts), ..self }
    }

    /// The same items of three texts each with their margins.
    #[must_use]
    pub fn with_margins(self, margins: Vec<f64>) -> Items {
        assert!((margins.len(), self.texts_per_item) == (self.n_items(), 3), "one for each item, with a negative");
        Items { margins: Arc::new(margins), ..self }
    }

    /// The number of items.
    pub fn n_items(&self) -> usize {
        self.documents.n_rows() / self.texts_per_item
    }

    /// The texts, in the order of the items.
    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    /// The batch of the items `numbers`.
    pub(super) fn batch(&self, numbers: &[u64]) -> Batch {
        let n = self.texts_per_item as u64;
        let rows: Vec<u64> = numbers.iter().flat_map(|&number| n * number..n * (number + 1)).collect();
        let chosen = |row: &u64| self.second_texts.get(*row as usize).copied();
        let items = BatchItems {
            texts_per_item: self.texts_per_item,
            classes: numbers.iter().filter_map(|&number| self.classes.get(number as usize).copied()).collect(),
            margins: numbers.iter().filter_map(|&number| self.margins.get(number as usize).copied()).collect(),
            second_texts: rows.iter().filter_map(chosen).collect(),
        };
        Batch { items: Some(items), ..self.documents.batch(&rows) }
    }

    /// All items in order, `batch_size` at a time.
    pub(crate) fn batches(&self, batch_size: usize) -> impl Iterator<Item = Batch> {
        in_batches(self.n_items() as u64, batch_size).map(|numbers| self.batch(&numbers))
    }
}

impl Batch {
    /// The number of items to which the rows belong.
    pub fn n_items(&self) -> usize {
        self.items.as_ref().map_or(0, |items| self.batch_size / items.texts_per_item)
    }

    /// The number of tokens of each row's text, where each row has one text.
    pub fn text_lens(&self) -> Vec<usize> {
        let weights = self.weights.as_deref().unwrap_or_default();
        let rows = weights.chunks_exact(self.seq_len.max(1));
        rows.map(|row| row.iter().filter(|weight| **weight > 0.0).count()).collect()
    }
}
