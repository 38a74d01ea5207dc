//! Direct preference optimization ([Rafailov et al., 2023](https://arxiv.org/abs/2305.18290)): the model learns to prefer the
//! better of two answers to the worse one, relative to a reference model.
//!
//! - Rows: pairs of answers to one prompt, each answer a row.
//! - Loss: with `p` the log-probability of an answer under the model minus its log-probability under the reference, the
//!   loss of a pair is `-ln sigmoid(beta (p_better - p_worse))`. Its gradient equals the gradient of the answers'
//!   weighted cross entropies, with weights that depend only on the values, so it uses the same operation as other
//!   training. The reference's log-probabilities are computed once, before the first step.
//! - A step counts pairs.
//! - Score: the mean loss of a pair, and the fraction of pairs ranked right relative to the reference.

use anyhow::Result;
use burn::{module::Module, tensor::Tensor};
use hearth_model::{
    gpt::Gpt,
    ops::{Losses, Targets},
    text::tokenizer::Tokenizer,
};

use super::{Objective, RowKind, StepIndex, TrainingPass};
use crate::{
    data::loader::{Batch, RowSource},
    eval::{Score, Windows},
    interrupt::Interrupt,
    ranks::Group,
};

/// Direct preference optimization.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dpo {
    /// Weight of the difference to the reference model.
    pub(super) beta: f64,
}

impl Objective for Dpo {
    fn rows(&self) -> RowKind {
        RowKind::Pairs
    }

    fn uses_setting(&self, name: &str) -> bool {
        name == "beta"
    }

    fn takes_z_loss(&self) -> bool {
        false
    }

    fn step_size(&self, _n_tokens: usize, n_items: usize) -> (usize, &'static str) {
        (n_items, "pair")
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.references.as_ref().map_or(0, Vec::len) as f64
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        let (hidden, batch) = (pass.hidden(), pass.batch);
        let answers = Targets { ids: pass.targets.clone().inner(), weights: batch.weights.clone() };
        let token_losses = pass.gpt.valid().token_losses(hidden.clone().inner(), answers)?;
        let pairs = PairLosses::new(batch, &token_losses, self.beta);
        let loss = pairs.losses.iter().sum::<f64>() / index.total_weight;
        let weights = Some(pairs.weights(batch, index.total_weight));
        let objective = pass.gpt.loss(hidden, Targets { ids: pass.targets.clone(), weights });
        let plain = pass.gpt.device().autodiff().inner();
        Ok(Losses { objective, cross_entropy: Tensor::from_floats([loss as f32], &plain) })
    }

    fn has_reference(&self) -> bool {
        true
    }

    fn with_reference(
        &self,
        [train, val]: [&RowSource; 2],
        reference: Gpt,
        batch_size: usize,
        interrupt: &Interrupt,
    ) -> Result<Option<[RowSource; 2]>> {
        // With the operations that later compute the model's own log-probabilities: of evaluation, and of training.
        let evaluated = reference.valid().packed()?;
        let val = with_log_probs(val, batch_size, interrupt, |batch| token_losses(&evaluated, batch))?;
        drop(evaluated);
        let of_batch = |batch: &Batch| token_losses_in_training(&reference, batch);
        let train = with_log_probs(train, batch_size, interrupt, of_batch)?;
        Ok(train.zip(val).map(<[RowSource; 2]>::from))
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        let mut own = Vec::new();
        let batches = source.pairs().into_iter().flat_map(|pairs| pairs.batches(windows.batch_size));
        let batches = batches.take(windows.max_batches.unwrap_or(usize::MAX)).enumerate();
        for (_, batch) in batches.filter(|(number, _)| group.is_mine(*number)) {
            let pairs = PairLosses::new(&batch, &token_losses(gpt, &batch)?, self.beta);
            // Bits, since a message between ranks has not all floats.
            own.push((pairs.losses.into_iter().map(f64::to_bits).collect::<Vec<_>>(), pairs.n_right));
        }
        let (losses, n_right): (Vec<_>, Vec<_>) = group.in_turn(own)?.into_iter().unzip();
        let losses: Vec<f64> = losses.into_iter().flatten().map(f64::from_bits).collect();
        let n_right: usize = n_right.into_iter().sum();
        let n = losses.len().max(1);
        let loss = losses.iter().sum::<f64>() / n as f64;
        Ok(Score { loss, n_targets: losses.len(), accuracy: Some(n_right as f64 / n as f64) })
    }

    fn bits_per_byte(&self, _score: &Score, _source: &RowSource, _tokenizer: &Tokenizer) -> Option<f64> {
        None
    }
}

/// The losses of a batch's pairs, and their gradients.
#[derive(Clone, Debug, PartialEq)]
struct PairLosses {
    /// The loss of each pair, in nats.
    losses: Vec<f64>,
    /// The derivative of each pair's loss with respect to its margin.
    slopes: Vec<f64>,
    /// Number of pairs whose better answer is preferred.
    n_right: usize,
}

impl PairLosses {
    /// Computed from the cross entropies of the batch's tokens, `[batch_size * seq_len]` in nats; only the tokens of
    /// answers matter.
    fn new(batch: &Batch, token_losses: &[f32], beta: f64) -> PairLosses {
        let references = batch.references.as_deref().unwrap_or_default();
        let log_probs = log_probs(batch, token_losses);
        let mut found = PairLosses { losses: Vec::new(), slopes: Vec::new(), n_right: 0 };
        for ([better, worse], reference) in log_probs.as_chunks().0.iter().zip(references) {
            let [of_better, of_worse] = reference.map(f64::from);
            let margin = beta * ((better - of_better) - (worse - of_worse));
            // `ln(1 + exp(-margin))`, without overflow.
            found.losses.push((-margin).max(0.0) + (-margin.abs()).exp().ln_1p());
            found.slopes.push(-beta / (1.0 + margin.exp()));
            found.n_right += usize::from(margin > 0.0);
        }
        found
    }

    /// The weights of the tokens' cross entropies whose sum has the gradient of the pairs' losses, divided by `n_pairs`.
    fn weights(&self, batch: &Batch, n_pairs: f64) -> Vec<f32> {
        let trained = batch.weights.as_deref().unwrap_or_default();
        let rows = trained.chunks_exact(batch.seq_len.max(1)).enumerate();
        // More cross entropy of the better answer is less margin.
        let of_row = |row: usize| self.slopes[row / 2] / n_pairs * if row.is_multiple_of(2) { -1.0 } else { 1.0 };
        rows.flat_map(|(row, trained)| trained.iter().map(move |trained| trained * of_row(row) as f32)).collect()
    }
}

/// The log-probability of each row's answer, in nats.
fn log_probs(batch: &Batch, token_losses: &[f32]) -> Vec<f64> {
    let trained = batch.weights.as_deref().unwrap_or_default();
    let rows = token_losses.chunks_exact(batch.seq_len.max(1)).zip(trained.chunks_exact(batch.seq_len.max(1)));
    rows.map(|(losses, trained)| {
        let answer = losses.iter().zip(trained).filter(|(_, trained)| **trained > 0.0);
        -answer.map(|(loss, _)| f64::from(*loss)).sum::<f64>()
    })
    .collect()
}

/// The cross entropies of a batch's tokens under `gpt`, which must be without autodiff.
fn token_losses(gpt: &Gpt, batch: &Batch) -> Result<Vec<f32>> {
    let (inputs, targets) = batch.to_device(&gpt.device());
    let hidden = gpt.forward(inputs, batch.context(None));
    Ok(gpt.token_losses(hidden, Targets { ids: targets, weights: batch.weights.clone() })?)
}

/// As [`token_losses`], but for a model with autodiff: its hidden states are computed by the operations of training.
fn token_losses_in_training(gpt: &Gpt, batch: &Batch) -> Result<Vec<f32>> {
    let (inputs, targets) = batch.to_device(&gpt.device().autodiff());
    let hidden = gpt.clone().no_grad().forward(inputs, batch.context(None)).inner();
    let targets = Targets { ids: targets.inner(), weights: batch.weights.clone() };
    Ok(gpt.valid().token_losses(hidden, targets)?)
}

/// Adds the log-probabilities of its pairs' answers under a reference model to `source`; `None` if a signal came
/// meanwhile. `token_losses` computes that model's cross entropies of a batch's tokens.
fn with_log_probs(
    source: &RowSource,
    batch_size: usize,
    interrupt: &Interrupt,
    token_losses: impl Fn(&Batch) -> Result<Vec<f32>>,
) -> Result<Option<RowSource>> {
    let Some(pairs) = source.pairs() else { return Ok(Some(source.clone())) };
    let mut references = Vec::with_capacity(pairs.n_pairs());
    for batch in pairs.batches(batch_size) {
        if interrupt.exit_code().is_some() {
            return Ok(None);
        }
        let log_probs = log_probs(&batch, &token_losses(&batch)?);
        references.extend(log_probs.as_chunks().0.iter().map(|pair: &[f64; 2]| pair.map(|log_prob| log_prob as f32)));
    }
    Ok(Some(RowSource::Pairs(pairs.with_references(references))))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::cell::Cell;

    use super::*;
    use crate::data::{loader::Pairs, tokenizer_build::BuiltTokenizer};

    #[test]
    fn signal_stops_the_computation_of_reference_log_probabilities() {
        let tokenizer = BuiltTokenizer::characters("abcd", 4).unwrap().open().unwrap();
        let answer = |last: u32| (vec![0, 1, last], vec![false, false, true]);
        let pairs = (0..5).map(|_| [answer(2), answer(3)]);
        let source = RowSource::Pairs(Pairs::new(pairs, 4, &tokenizer).unwrap());
        let count_until = |signal_at: usize| {
            let (interrupt, n_batches) = (Interrupt::default(), Cell::new(0));
            let found = with_log_probs(&source, 2, &interrupt, |batch| {
                n_batches.set(n_batches.get() + 1);
                if n_batches.get() == signal_at {
                    interrupt.receive(2);
                }
                Ok(vec![1.0; batch.targets.len()])
            });
            (found.unwrap().is_some(), n_batches.get())
        };
        assert_eq!(count_until(1), (false, 1));
        assert_eq!(count_until(2), (false, 2));
        assert_eq!(count_until(9), (true, 3));
    }

    #[test]
    fn dpo_loss_and_gradient_weights_match_the_formula_for_the_margin() {
        // Two rows of two tokens; in the first row, only the second token belongs to the answer.
        let batch = Batch {
            batch_size: 2,
            weights: Some(vec![0.0, 1.0, 1.0, 1.0]),
            references: Some(vec![[-1.5, -2.0]]),
            ..Batch::empty(2)
        };
        let found = PairLosses::new(&batch, &[9.0, 1.0, 0.5, 2.5], 0.5);
        // The margin: 0.5 ((-1 + 1.5) - (-3 + 2)) = 0.75.
        let sigmoid = 1.0 / (1.0 + (-0.75_f64).exp());
        assert!((found.losses[0] + sigmoid.ln()).abs() < 1e-12);
        assert_eq!(found.n_right, 1);
        let slope = 0.5 * (1.0 - sigmoid);
        let expected = [0.0, slope, -slope, -slope].map(|weight| (weight / 4.0) as f32);
        for (found, expected) in found.weights(&batch, 4.0).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-7);
        }
        // A margin whose exponential overflows.
        let certain = PairLosses::new(&batch, &[0.0, 0.0, 3e5, 3e5], 1.0);
        assert!(
            certain.losses[0].abs() < 1e-12 && certain.weights(&batch, 1.0).iter().all(|weight| weight.is_finite())
        );
        let wrong = PairLosses::new(&batch, &[0.0, 3e5, 0.0, 0.0], 1.0);
        assert!(wrong.losses[0] > 1e5 && wrong.losses[0].is_finite() && wrong.n_right == 0);
    }
}
