//! What rows are cut from.

use std::sync::Arc;

use super::{Documents, Pairs};
use crate::shard::Tokens;

/// A split of the data, as a run uses it. Clones share the tokens.
#[derive(Clone, Debug)]
pub enum RowSource {
    /// One stream of tokens: rows begin anywhere in a text.
    Stream(Tokens),
    /// Documents, placed whole in rows.
    Documents(Arc<Documents>),
    /// Preferences.
    Pairs(Pairs),
}

impl From<Tokens> for RowSource {
    fn from(tokens: Tokens) -> Self {
        Self::Stream(tokens)
    }
}

impl From<Documents> for RowSource {
    fn from(documents: Documents) -> Self {
        Self::Documents(Arc::new(documents))
    }
}

impl RowSource {
    /// The number of tokens.
    pub fn n_tokens(&self) -> u64 {
        match self {
            Self::Stream(tokens) => tokens.len(),
            Self::Documents(documents) => documents.n_tokens(),
            Self::Pairs(pairs) => pairs.documents().n_tokens(),
        }
    }

    /// The number of rows of `seq_len` inputs, or of pairs.
    pub fn n_rows(&self, seq_len: usize) -> u64 {
        match self {
            Self::Stream(tokens) => tokens.len().saturating_sub(1) / seq_len.max(1) as u64,
            Self::Documents(documents) => documents.n_rows() as u64,
            Self::Pairs(pairs) => pairs.n_pairs() as u64,
        }
    }

    /// Whether there is something to predict.
    pub fn has_targets(&self) -> bool {
        match self {
            Self::Stream(tokens) => tokens.len() > 1,
            Self::Documents(documents) => documents.n_targets() > 0,
            Self::Pairs(pairs) => pairs.n_pairs() > 0,
        }
    }
}
