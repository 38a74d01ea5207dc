//! The cross entropy of the next token.
//!
//! - Rows: parts of texts, texts, or examples.
//! - Loss: the mean cross entropy of the targets, weighted by their weights. Prompts have weight 0. With a prediction
//!   head, plus a weight times the sum of the head's cross entropies over the same divisor: a target is predicted by
//!   the row before its own, if both rows belong to one text.
//! - A step counts the weight of its targets: without weights, tokens.
//! - Score: the mean cross entropy of the split's targets, in nats per token.

use anyhow::Result;
use hearth_model::{gpt::Gpt, ops::Losses, text::tokenizer::Tokenizer};

use super::{Objective, StepIndex, TrainingPass};
use crate::{
    data::loader::{Batch, RowSource},
    eval::{Score, Windows, score_in},
    ranks::Group,
};

/// The cross entropy of the next token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NextToken {
    /// The weight of the prediction head's loss; 0 without a head.
    pub(super) mtp: f64,
}

impl Objective for NextToken {
    fn uses_setting(&self, name: &str) -> bool {
        // Above 0, `keep` makes the objective another one.
        ["keep", "mtp"].contains(&name)
    }

    fn step_size(&self, n_tokens: usize, _n_items: usize) -> (usize, &'static str) {
        (n_tokens, "token")
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.total_weight()
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        if self.mtp == 0.0 {
            return Ok(scaled(pass.batch, index, |weights| pass.cross_entropy(weights)));
        }
        let hidden = pass.hidden();
        let mut losses = scaled(pass.batch, index, |weights| pass.cross_entropy_of(hidden.clone(), weights));
        let total = if index.total_weight == 0.0 { 1.0 } else { index.total_weight };
        let (ids, mut weights) = pass.batch.second_targets();
        weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) * self.mtp / total) as f32);
        losses.objective = losses.objective + pass.head_cross_entropy(hidden, (ids, weights))?;
        Ok(losses)
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        score_in(group, gpt, source, windows)
    }

    fn bits_per_byte(&self, score: &Score, source: &RowSource, tokenizer: &Tokenizer) -> Option<f64> {
        let share = score.n_targets as f64 / source.n_targets() as f64;
        Some(score.bits_per_byte(source.target_bytes(tokenizer) as f64 * share))
    }
}

/// The losses that `cross_entropy` computes with target weights, scaled to the batch's part of the step `index`.
pub(super) fn scaled(
    batch: &Batch,
    index: StepIndex,
    cross_entropy: impl FnOnce(Option<Vec<f32>>) -> Losses,
) -> Losses {
    // With weights, the loss is a weighted sum, so each weight is divided by the weight of the step. Without, it is a mean over the
    // micro-batch, which is multiplied by the micro-batch's share of the step.
    let (share, weights) = match &batch.weights {
        None => (batch.total_weight() / index.total_weight, None),
        Some(weights) => {
            // A step may have only texts that are read but not trained.
            let total = if index.total_weight == 0.0 { 1.0 } else { index.total_weight };
            let shares = weights.iter().map(|&weight| (f64::from(weight) / total) as f32);
            (1.0, Some(shares.collect()))
        }
    };
    let Losses { objective, cross_entropy } = cross_entropy(weights);
    Losses { objective: objective.mul_scalar(share), cross_entropy: cross_entropy.mul_scalar(share) }
}
