//! Preferences: pairs of a better and a worse answer to one prompt.

use std::sync::Arc;

use anyhow::Result;
use hearth_model::{TokenId, text::tokenizer::Tokenizer};

use super::{Batch, Documents, Packing, in_batches};

/// Pairs, and the reference model's log-probabilities for them.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The better answer of pair `n` is document `2 n`, the worse one follows. Each is a row.
    documents: Arc<Documents>,
    /// The log-probabilities of both answers under the reference model, in nats; empty if they are not known yet.
    references: Arc<Vec<[f32; 2]>>,
}

impl Pairs {
    /// Pairs of token ids with whether each is part of the answer: first the better answer, then the worse one.
    ///
    /// # Errors
    /// There are no pairs, or an answer has fewer than two tokens or more than `seq_len` inputs.
    pub fn new(
        pairs: impl IntoIterator<Item = [(Vec<TokenId>, Vec<bool>); 2]>,
        seq_len: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Pairs> {
        let documents = Documents::of_examples(pairs.into_iter().flatten(), (seq_len, Packing::Off), tokenizer)?;
        Ok(Pairs { documents: Arc::new(documents), references: Arc::default() })
    }

    /// These pairs with the log-probabilities of the reference model, two for each pair.
    #[must_use]
    pub fn with_references(&self, references: Vec<[f32; 2]>) -> Pairs {
        assert_eq!(references.len(), self.n_pairs(), "references, one for each pair");
        Pairs { documents: self.documents.clone(), references: Arc::new(references) }
    }

    /// The number of pairs.
    pub fn n_pairs(&self) -> usize {
        self.documents.n_rows() / 2
    }

    /// The documents: better and worse answers alternate.
    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    /// The batch of the pairs `numbers`, two rows each.
    pub(super) fn batch(&self, numbers: &[u64]) -> Batch {
        let rows: Vec<u64> = numbers.iter().flat_map(|&number| [2 * number, 2 * number + 1]).collect();
        let reference = |&number: &u64| self.references.get(number as usize).copied().unwrap_or_default();
        Batch { references: Some(numbers.iter().map(reference).collect()), ..self.documents.batch(&rows) }
    }

    /// All pairs in order, `batch_size` at a time.
    pub(crate) fn batches(&self, batch_size: usize) -> impl Iterator<Item = Batch> {
        in_batches(self.n_pairs() as u64, batch_size).map(|numbers| self.batch(&numbers))
    }
}
