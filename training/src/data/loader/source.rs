//! Sources from which rows are cut.

use std::sync::Arc;

use hearth_model::text::tokenizer::Tokenizer;

use super::{Batch, Documents, Items, Masking, Pairs, Translations};
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
    /// A stream or documents with tokens that are masked.
    Masked(Arc<MaskedRows>),
    /// Texts that become vectors.
    Items(Items),
    /// Targets with their sources.
    Translations(Translations),
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
            Self::Masked(masked) => masked.rows.n_tokens(),
            Self::Items(items) => items.documents().n_tokens(),
            Self::Translations(translations) => translations.n_tokens(),
        }
    }

    /// The number of rows of `seq_len` inputs, or of pairs.
    pub fn n_rows(&self, seq_len: usize) -> u64 {
        match self {
            Self::Stream(tokens) => tokens.len().saturating_sub(1) / seq_len.max(1) as u64,
            Self::Documents(documents) => documents.n_rows() as u64,
            Self::Pairs(pairs) => pairs.n_pairs() as u64,
            Self::Masked(masked) => masked.rows.n_rows(masked.text_len(seq_len)),
            Self::Items(items) => items.n_items() as u64,
            Self::Translations(translations) => translations.n_pairs() as u64,
        }
    }

    /// Tokens of an epoch of rows of `seq_len` inputs.
    pub fn tokens_per_epoch(&self, seq_len: usize) -> u64 {
        match self {
            Self::Stream(_) => self.n_rows(seq_len) * seq_len as u64,
            Self::Masked(masked) if masked.is_stream() => self.n_rows(seq_len) * seq_len as u64,
            // Rows may be shorter.
            Self::Documents(_) | Self::Pairs(_) | Self::Masked(_) | Self::Items(_) | Self::Translations(_) => {
                self.n_tokens()
            }
        }
    }

    /// The number of targets.
    pub fn n_targets(&self) -> u64 {
        match self {
            // The first token is never predicted.
            Self::Stream(tokens) => tokens.len().saturating_sub(1),
            Self::Documents(documents) => documents.n_targets(),
            Self::Pairs(pairs) => pairs.documents().n_targets(),
            Self::Masked(masked) => masked.rows.n_targets(),
            Self::Items(items) => items.documents().n_targets(),
            Self::Translations(translations) => translations.targets().n_targets(),
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
            Self::Masked(masked) => masked.rows.target_bytes(tokenizer),
            Self::Items(items) => items.documents().target_bytes(),
            Self::Translations(translations) => translations.targets().target_bytes(),
        }
    }

    /// The documents that rows consist of, if they do.
    pub fn documents(&self) -> Option<&Documents> {
        match self {
            Self::Stream(_) => None,
            Self::Documents(documents) => Some(documents),
            Self::Pairs(pairs) => Some(pairs.documents()),
            Self::Masked(masked) => masked.rows.documents(),
            Self::Items(items) => Some(items.documents()),
            Self::Translations(translations) => Some(translations.targets()),
        }
    }

    /// The pairs, if rows are answers of pairs.
    pub fn pairs(&self) -> Option<&Pairs> {
        match self {
            Self::Pairs(pairs) => Some(pairs),
            Self::Stream(_) | Self::Documents(_) | Self::Masked(_) | Self::Items(_) | Self::Translations(_) => None,
        }
    }

    /// The items, if rows are texts that become vectors.
    pub fn items(&self) -> Option<&Items> {
        match self {
            Self::Items(items) => Some(items),
            Self::Stream(_) | Self::Documents(_) | Self::Pairs(_) | Self::Masked(_) | Self::Translations(_) => None,
        }
    }

    /// Whether there is something to predict.
    pub fn has_targets(&self) -> bool {
        match self {
            Self::Stream(tokens) => tokens.len() > 1,
            Self::Documents(documents) => documents.n_targets() > 0,
            Self::Pairs(pairs) => pairs.n_pairs() > 0,
            Self::Masked(masked) => masked.rows.has_targets(),
            Self::Items(items) => items.n_items() > 0,
            Self::Translations(translations) => translations.n_pairs() > 0,
        }
    }
}

/// The step number whose masks are used in evaluations; no run reaches it.
const EVALUATION: u64 = u64::MAX;

/// A split whose tokens are masked.
#[derive(Clone, Debug)]
pub struct MaskedRows {
    pub(super) rows: RowSource,
    masking: Masking,
}

impl MaskedRows {
    /// The rows of `rows`, which must be a stream or documents, with tokens that are masked.
    pub fn new(rows: RowSource, masking: Masking) -> MaskedRows {
        MaskedRows { rows, masking }
    }

    /// The rows without masks.
    pub(crate) fn unmasked(&self) -> &RowSource {
        &self.rows
    }

    /// Tokens that a row of `seq_len` takes from the split. Documents have been encoded with their special tokens.
    pub(crate) fn text_len(&self, seq_len: usize) -> usize {
        if self.is_stream() { self.masking.text_len(seq_len) } else { seq_len }
    }

    fn is_stream(&self) -> bool {
        matches!(self.rows, RowSource::Stream(_))
    }

    /// A batch of the split's rows as the model reads it: see [`Masking::mask`].
    pub(super) fn masked(&self, batch: Batch, step: u64, first_row: u64) -> Batch {
        let batch = if self.is_stream() { self.masking.framed(&batch) } else { batch };
        self.masking.mask(batch, step, first_row)
    }

    /// A batch as evaluations have it, with its first row's number in the split: always with the same masks.
    pub(crate) fn evaluated(&self, batch: Batch, first_row: u64) -> Batch {
        self.masked(batch, EVALUATION, first_row)
    }
}
