//! Texts that are read whole and become one vector each: alone, or several that belong together.

use std::sync::Arc;

use anyhow::Result;
use hearth_model::{TokenId, tokenizer::Tokenizer};

use super::{Batch, Documents, Packing, in_batches};

/// Items of as many texts each, such as a question and its answer.
#[derive(Clone, Debug)]
pub struct Items {
    /// The texts of item `n` begin with document `texts_per_item * n`. Each is a row.
    documents: Arc<Documents>,
    texts_per_item: usize,
}

/// Which rows of a batch belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchItems {
    /// Rows of an item, which follow each other.
    pub texts_per_item: usize,
}

impl Items {
    /// Items of `texts_per_item` texts each, as token ids.
    ///
    /// # Errors
    /// There are none, or a text has no tokens or more than `seq_len`.
    pub fn new(
        items: impl IntoIterator<Item = Vec<Vec<TokenId>>>,
        texts_per_item: usize,
        seq_len: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Items> {
        let texts = items.into_iter().flatten().map(|mut ids| {
            // All tokens are inputs, and the last token of a document is none: it is there twice.
            ids.extend(ids.last().copied());
            let is_read = vec![true; ids.len()];
            (ids, is_read)
        });
        let documents = Documents::of_examples(texts, (seq_len, Packing::Off), tokenizer)?;
        Ok(Items { documents: Arc::new(documents), texts_per_item })
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
        let items = BatchItems { texts_per_item: self.texts_per_item };
        Batch { items: Some(items), ..self.documents.batch(&rows) }
    }

    /// All items in order, `batch_size` at a time.
    pub(crate) fn batches(&self, batch_size: usize) -> impl Iterator<Item = Batch> {
        in_batches(self.n_items() as u64, batch_size).map(|numbers| self.batch(&numbers))
    }
}

impl Batch {
    /// The number of items whose texts the rows are.
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
