//! Masked language modeling ([BERT](https://arxiv.org/abs/1810.04805), 3.1): an encoder predicts tokens that are hidden from it.
//!
//! - Rows: parts of texts, or texts. [`Masking`](crate::data::loader::Masking) hides some of their tokens, different
//!   ones in each epoch.
//! - Loss: the mean cross entropy of the tokens that were chosen.
//! - A step counts these tokens.
//! - Score: the mean cross entropy of the split's chosen tokens, which are the same in each evaluation.

use anyhow::Result;
use hearth_model::{gpt::Gpt, ops::Losses, text::tokenizer::Tokenizer};

use super::{Objective, StepIndex, TrainingPass, next_token::scaled};
use crate::{
    data::loader::{Batch, MaskSettings, RowSource},
    eval::{Score, Windows, score_in},
    ranks::Group,
};

/// Masked language modeling.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskedLm {
    pub(super) masks: MaskSettings,
}

impl Objective for MaskedLm {
    fn uses_setting(&self, name: &str) -> bool {
        ["mask_ratio", "whole_words"].contains(&name)
    }

    fn masks(&self) -> Option<MaskSettings> {
        Some(self.masks)
    }

    fn step_size(&self, n_tokens: usize, _n_items: usize) -> (usize, &'static str) {
        (n_tokens, "token")
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.total_weight()
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        Ok(scaled(pass.batch, index, |weights| pass.cross_entropy(weights)))
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        score_in(group, gpt, source, windows)
    }

    fn bits_per_byte(&self, _score: &Score, _source: &RowSource, _tokenizer: &Tokenizer) -> Option<f64> {
        None
    }
}
