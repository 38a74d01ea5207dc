//! Sequence to sequence: an encoder-decoder reads a source and learns to write its target ([Sutskever et al.,
//! 2014](https://arxiv.org/abs/1409.3215)).
//!
//! - Rows: targets, each with a source. The decoder's inputs are the start token and the target shifted by one token:
//!   teacher forcing.
//! - Loss: the mean cross entropy of the targets' tokens, smoothed if `objective.label_smoothing` says so.
//! - A step counts pairs.
//! - Score: the mean cross entropy of the split's targets, in nats per token, without smoothing.

use anyhow::Result;
use hearth_model::{gpt::Gpt, ops::Losses, text::tokenizer::Tokenizer};

use super::{Objective, RowKind, StepIndex, TrainingPass, next_token::scaled};
use crate::{
    data::loader::{Batch, RowSource},
    eval::{Score, Windows, score_in},
    ranks::Group,
};

/// Sequence to sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seq2Seq {
    pub(super) label_smoothing: f64,
}

impl Objective for Seq2Seq {
    fn rows(&self) -> RowKind {
        RowKind::Translations
    }

    fn uses_setting(&self, name: &str) -> bool {
        name == "label_smoothing"
    }

    fn step_size(&self, _n_tokens: usize, n_items: usize) -> (usize, &'static str) {
        (n_items, "pair")
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.total_weight()
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        Ok(scaled(pass.batch, index, |weights| pass.smoothed_cross_entropy(weights, self.label_smoothing)))
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        score_in(group, gpt, source, windows)
    }

    fn bits_per_byte(&self, score: &Score, source: &RowSource, tokenizer: &Tokenizer) -> Option<f64> {
        let share = score.n_targets as f64 / source.n_targets() as f64;
        Some(score.bits_per_byte(source.target_bytes(tokenizer) as f64 * share))
    }
}
