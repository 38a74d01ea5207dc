//! A row of logits as a choice is made from it: of the whole vocabulary, or of the most likely tokens alone, which a GPU
//! finds by itself rather than hand over everything.

use std::{borrow::Cow, collections::BTreeSet};

use crate::{
    TokenId,
    error::{Error, Result},
};

/// What of a row of logits a choice needs to be the one that it is from the whole row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowNeeds {
    /// All of it.
    Whole,
    /// The most likely tokens, and some more.
    Best {
        /// So many of the most likely tokens; the lower id comes first among equals.
        n: usize,
        /// Tokens whose logits are needed wherever they rank.
        also: BTreeSet<TokenId>,
    },
}

/// Logits of what comes next. Whatever is made of them is the same from either, where the part is what was
/// [needed](RowNeeds).
#[derive(Clone, Debug, PartialEq)]
pub enum LogitRow<'a> {
    /// Of every token: `[vocab_size]`.
    Whole(Cow<'a, [f32]>),
    /// Of the most likely tokens with their ids, in the order of [`RowNeeds::Best`], and behind them of others, each once.
    Best(Cow<'a, [(TokenId, f32)]>),
}

impl RowNeeds {
    /// More of the most likely tokens are not asked for: then the whole row comes as soon.
    pub const MAX_BEST: usize = 256;

    /// For a choice among the `k` most likely tokens, after the logits of `changed` have been changed in any way.
    ///
    /// Without those, a token among the `k` most likely had fewer than `k` others before it, and then none but the changed
    /// ones can have been before it in addition: it was among the first `k + changed.len()`.
    pub(super) fn of_top(k: usize, changed: BTreeSet<TokenId>) -> Self {
        match k.saturating_add(changed.len()) {
            n if n <= Self::MAX_BEST => Self::Best { n, also: changed },
            _ => Self::Whole,
        }
    }

    /// What suffices for both choices.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Best { n, mut also }, Self::Best { n: other, also: others }) => {
                also.extend(others);
                Self::Best { n: n.max(other), also }
            }
            _ => Self::Whole,
        }
    }
}

impl LogitRow<'_> {
    /// The logits of every token, `[vocab_size]`.
    ///
    /// # Errors
    /// [`Error::Logits`] if only a part was asked for.
    pub fn whole(&self) -> Result<&[f32]> {
        match self {
            Self::Whole(logits) => Ok(logits),
            Self::Best(logits) => {
                let what = format!("the whole vocabulary's are needed, {} were read off the device", logits.len());
                Err(Error::Logits { what })
            }
        }
    }

    /// How many tokens it has the logits of.
    pub fn n_logits(&self) -> usize {
        match self {
            Self::Whole(logits) => logits.len(),
            Self::Best(logits) => logits.len(),
        }
    }

    /// The same with some tokens ruled out.
    #[must_use]
    pub fn without(&self, ids: &BTreeSet<TokenId>) -> LogitRow<'static> {
        match self {
            Self::Whole(logits) => {
                let mut allowed = logits.to_vec();
                for &id in ids {
                    if let Some(logit) = allowed.get_mut(id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                LogitRow::Whole(allowed.into())
            }
            Self::Best(logits) => {
                let allowed = |&(id, logit)| (id, if ids.contains(&id) { f32::NEG_INFINITY } else { logit });
                LogitRow::Best(logits.iter().map(allowed).collect())
            }
        }
    }
}

impl<'a> From<&'a LogitRow<'_>> for LogitRow<'a> {
    fn from(row: &'a LogitRow<'_>) -> Self {
        match row {
            LogitRow::Whole(logits) => Self::Whole(Cow::Borrowed(logits)),
            LogitRow::Best(logits) => Self::Best(Cow::Borrowed(logits)),
        }
    }
}

impl<'a> From<&'a [f32]> for LogitRow<'a> {
    fn from(logits: &'a [f32]) -> Self {
        Self::Whole(Cow::Borrowed(logits))
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for LogitRow<'a> {
    fn from(logits: &'a [f32; N]) -> Self {
        Self::Whole(Cow::Borrowed(logits))
    }
}

impl<'a> From<&'a Vec<f32>> for LogitRow<'a> {
    fn from(logits: &'a Vec<f32>) -> Self {
        Self::Whole(Cow::Borrowed(logits))
    }
}
