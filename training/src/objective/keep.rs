//! The next token, while an adapter changes nothing else ([Li and Hoiem, 2016](https://arxiv.org/abs/1606.09282)).
//!
//! - Rows: as for the next token, and texts without targets, on which predictions should stay unchanged.
//! - Loss: as for the next token, plus a weight times the mean divergence from the predictions of the model without its adapter, over
//!   all tokens that are read but not trained.
//! - A step counts the weight of its targets, as for the next token. The mean divergence is over its context tokens, which are read but
//!   not trained.
//! - Score: as for the next token; the penalty is not part of it.

use anyhow::Result;
use burn::{module::Module, tensor::Tensor};
use hearth_model::{gpt::Gpt, ops::Losses, text::tokenizer::Tokenizer};

use super::{
    Objective, StepIndex, TrainingPass,
    next_token::{NextToken, scaled},
};
use crate::{
    data::loader::{Batch, RowSource},
    eval::{Score, Windows},
    ranks::Group,
};

/// The next token with a penalty on changed predictions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// The weight of the penalty, above 0.
    pub(super) weight: f64,
}

impl Objective for Keep {
    fn uses_setting(&self, name: &str) -> bool {
        name == "keep"
    }

    fn step_size(&self, n_tokens: usize, n_items: usize) -> (usize, &'static str) {
        NextToken::default().step_size(n_tokens, n_items)
    }

    fn weight(&self, batch: &Batch) -> f64 {
        NextToken::default().weight(batch)
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        if pass.batch.n_context_tokens() == 0 {
            return NextToken::default().losses(pass, index);
        }
        let hidden = pass.hidden();
        let mut losses = scaled(pass.batch, index, |weights| pass.cross_entropy_of(hidden.clone(), weights));
        losses.objective = losses.objective + self.penalty(pass, hidden, index);
        Ok(losses)
    }

    fn compares_with_base(&self) -> bool {
        true
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        NextToken::default().score(gpt, source, windows, group)
    }

    fn bits_per_byte(&self, score: &Score, source: &RowSource, tokenizer: &Tokenizer) -> Option<f64> {
        NextToken::default().bits_per_byte(score, source, tokenizer)
    }
}

impl Keep {
    /// The micro-batch's part of the penalty, `[1]`.
    fn penalty(&self, pass: &TrainingPass<'_>, hidden: Tensor<2>, index: StepIndex) -> Tensor<1> {
        // On the same device, so that the same operations run.
        let base = pass.gpt.clone().without_lora().no_grad();
        let former = base.forward(pass.inputs.clone(), pass.batch.context(None)).inner();
        let share = (self.weight / index.n_context_tokens as f64) as f32;
        let shares = pass.batch.context_tokens.iter().flatten().map(|is_context| if *is_context { share } else { 0.0 });
        pass.gpt.divergence(hidden, former, shares.collect())
    }
}
