//! What rows are cut from.

use std::sync::Arc;

use hearth_model::tokenizer::Tokenizer;

use super::{Documents, Pairs};
use crate::data::shard::Tokens;

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

    /// Tokens of an epoch of rows of `seq_len` inputs.
    pub fn tokens_per_epoch(&self, seq_len: usize) -> u64 {
        match self {
            Self::Stream(_) => self.n_rows(seq_len) * seq_len as u64,
            // Rows may be shorter.
            Self::Documents(_) | Self::Pairs(_) => self.n_tokens(),
        }
    }

    /// The number of targets.
    pub fn n_targets(&self) -> u64 {
        match self {
            // The first token is never predicted.
            Self::Stream(tokens) => tokens.len().saturating_sub(1),
            Self::Documents(documents) => documents.n_targets(),
            Self::Pairs(pairs) => pairs.documents().n_targets(),
        }
    }

    /// Bytes of text that the targets represent.
    pub fn target_bytes(&self, tokenizer: &Tokenizer) -> u64 {
        match self {
            Self::Stream(tokens) => {
                let mut first = [0];
                tokens.read(0, &mut first);
                tokens.n_bytes().saturating_sub(tokenizer.text_bytes(&first))
            }
            Self::Documents(documents) => documents.target_bytes(),
            Self::Pairs(pairs) => pairs.documents().target_bytes(),
        }
    }

    /// The documents that rows consist of, if they do.
    pub fn documents(&self) -> Option<&Documents> {
        match self {
            Self::Stream(_) => None,
            Self::Documents(documents) => Some(documents),
            Self::Pairs(pairs) => Some(pairs.documents()),
        }
    }

    /// The pairs, if rows are answers of pairs.
    pub fn pairs(&self) -> Option<&Pairs> {
        match self {
            Self::Pairs(pairs) => Some(pairs),
            Self::Stream(_) | Self::Documents(_) => None,
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
