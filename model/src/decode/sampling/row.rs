//! A row of logits for sampling: the whole vocabulary, or only the most likely tokens, which a GPU can select itself.

use std::{borrow::Cow, collections::BTreeSet};

use crate::{
    TokenId,
    error::{Error, Result},
};

/// The part of a row of logits that sampling needs to give the same result as with the whole row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogitDemand {
    /// The whole row.
    Whole,
    /// The most likely tokens, and some other tokens.
    Best {
        /// Number of most likely tokens; the lower id comes first among equals.
        n: usize,
        /// Tokens whose logits are needed whatever their rank.
        also: BTreeSet<TokenId>,
    },
}

/// Logits of the next token. A part that satisfies the [demand](LogitDemand) gives the same result as the whole row.
#[derive(Clone, Debug, PartialEq)]
pub enum LogitRow<'a> {
    /// All tokens: `[vocab_size]`.
    Whole(Cow<'a, [f32]>),
    /// The most likely tokens with their ids, in the order of [`LogitDemand::Best`], followed by others, each once.
    Best(Cow<'a, [(TokenId, f32)]>),
}

impl LogitDemand {
    /// Maximum number of most likely tokens to request: beyond this, reading the whole row is as fast.
    pub const MAX_BEST: usize = 256;

    /// The demand for choosing among the `k` most likely tokens, after arbitrary changes of the logits of `changed`.
    ///
    /// A token that is among the `k` most likely after the changes had fewer than `k` unchanged tokens before it, and
    /// at most all changed ones, so before the changes it was among the first `k + changed.len()`.
    pub(super) fn of_top(k: usize, changed: BTreeSet<TokenId>) -> Self {
        match k.saturating_add(changed.len()) {
            n if n <= Self::MAX_BEST => Self::Best { n, also: changed },
            _ => Self::Whole,
        }
    }

    /// A need that covers both.
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
    /// The logits of all tokens, `[vocab_size]`.
    ///
    /// # Errors
    /// [`Error::Logits`] if only a part was read.
    pub fn whole(&self) -> Result<&[f32]> {
        match self {
            Self::Whole(logits) => Ok(logits),
            Self::Best(logits) => {
                let what =
                    format!("the logits of the whole vocabulary are needed, but only {} were read back", logits.len());
                Err(Error::Logits { what })
            }
        }
    }

    /// Number of logits.
    pub fn n_logits(&self) -> usize {
        match self {
            Self::Whole(logits) => logits.len(),
            Self::Best(logits) => logits.len(),
        }
    }

    /// The row with some tokens excluded.
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
