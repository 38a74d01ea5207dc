//! The training loss, fused with the output projection.

use std::{ops::Range, sync::Arc};

use burn::backend::flex::FlexTensor;

use super::{
    add_rows, dims,
    frozen::Matrix,
    multiplied,
    product::{Plus, View, shared_product},
    shared_gradient::SharedGradient,
    sum_of_rows, tensor, values,
};
use crate::ops::{
    LossOptions, Precision,
    cpu::{
        self, Panels, for_each_isa,
        math::{exp, tanh},
        thread_pool,
    },
    training::TrainingOp,
};

/// Maximum number of logits in memory; the logits of a whole batch never exist.
const LOGITS_AT_ONCE: usize = 1 << 24;

/// Rows per pass over the weight's gradient with a large vocabulary: with fewer, memory bandwidth would be the limit.
const MIN_ROWS: usize = 128;

/// Rows whose logits are in memory together.
pub(super) fn rows_at_once(vocab_size: usize) -> usize {
    (LOGITS_AT_ONCE / vocab_size.max(1)).max(MIN_ROWS)
}

/// Inputs: hidden states `[n_rows, d_model]`, and unless they are frozen, the weight `[vocab_size, d_model]` and, if there is
/// one, the bias `[vocab_size]`. Output: what is minimised and the cross entropy, `[2]`, as means or weighted sums
/// ([`Targets`](crate::ops::Targets)); only the first has gradients.
///
/// The forward pass computes the gradients too, chunk by chunk of rows, since it has the probabilities then; backward
/// multiplies them by the gradient of the loss. (The idea is [Liger Kernel](https://arxiv.org/abs/2410.10989)'s.)
#[derive(Debug)]
pub(in crate::ops) struct LinearCrossEntropy {
    /// One per row, below `vocab_size`.
    pub(in crate::ops) targets: Vec<i32>,
    /// One for each row, if rows do not all count alike.
    pub(in crate::ops) weights: Option<Vec<f32>>,
    pub(in crate::ops) options: LossOptions,
    /// A weight and a bias that do not train.
    pub(in crate::ops) frozen: Option<(Arc<Panels>, Option<Vec<f32>>)>,
    /// Of the products with a weight that trains.
    pub(in crate::ops) precision: Precision,
    /// Where the weight's gradient waits for that of its use as embeddings.
    pub(in crate::ops) of_both_uses: Option<SharedGradient>,
}

impl TrainingOp<FlexTensor> for LinearCrossEntropy {
    fn forward(&self, inputs: &[FlexTensor], wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let is_recorded = wanted.contains(&true);
        let [n_rows, d_model] = dims(&inputs[0]);
        let (weight, vocab_size, bias) = match &self.frozen {
            Some((panels, bias)) => (Matrix::Packed(panels), panels.dims()[0], bias.as_deref()),
            None => {
                let [vocab_size, _] = dims(&inputs[1]);
                let weight = View::new(values(&inputs[1]), [vocab_size, d_model], d_model);
                (Matrix::Plain(weight, self.precision), vocab_size, inputs.get(2).map(values))
            }
        };
        let trains_weight = wanted[1..].contains(&true);
        assert_eq!(self.targets.len(), n_rows, "targets, one for each row");
        let weights = self.weights.as_deref();
        assert!(weights.is_none_or(|weights| weights.len() == n_rows), "weights, one for each row");
        // What each row counts in the gradients.
        let share = |row: usize| weights.map_or(1.0 / n_rows as f32, |weights| weights[row]);
        let mut of_hidden = vec![0.0; if is_recorded { n_rows * d_model } else { 0 }];
        let mut of_weight = vec![0.0; if trains_weight { vocab_size * d_model } else { 0 }];
        let mut of_bias = vec![0.0; if trains_weight && bias.is_some() { vocab_size } else { 0 }];
        // Of each row: the cross entropy, and the logarithm of the denominator.
        let mut losses = vec![0.0; 2 * n_rows];
        let chunk = rows_at_once(vocab_size).min(n_rows.max(1));
        let mut logits = vec![0.0; chunk * vocab_size];
        for (n, targets) in self.targets.chunks(chunk).enumerate() {
            let rows = n * chunk..n * chunk + targets.len();
            let hidden = &values(&inputs[0])[rows.start * d_model..rows.end * d_model];
            let hidden = View::new(hidden, [rows.len(), d_model], d_model);
            let logits = &mut logits[..rows.len() * vocab_size];
            weight.multiply(hidden, bias, logits);
            let losses = thread_pool::SharedMut::new(&mut losses[2 * rows.start..2 * rows.end]);
            thread_pool::parallel_chunks(logits, vocab_size, |row, logits| {
                let share = share(rows.start + row);
                if share == 0.0 {
                    logits.fill(0.0);
                    return;
                }
                let target = usize::try_from(targets[row]).unwrap_or(usize::MAX);
                assert!(target < vocab_size, "target {target} of a vocabulary of {vocab_size}");
                #[expect(unsafe_code, reason = "threads write disjoint values of one slice")]
                // SAFETY: each row is claimed once.
                let loss = unsafe { losses.part(2 * row..2 * row + 2) };
                loss_row(logits, target, self.options, is_recorded.then_some(share), loss);
            });
            if is_recorded {
                let of_hidden = &mut of_hidden[rows.start * d_model..rows.end * d_model];
                weight.multiply_back(logits, [rows.len(), vocab_size], of_hidden);
            }
            if trains_weight {
                let of_logits = View::new(logits, [rows.len(), vocab_size], vocab_size);
                let plus = if n == 0 { Plus::Nothing } else { Plus::Itself };
                shared_product(&mut of_weight, [of_logits.transposed(), hidden], plus, self.precision);
                if bias.is_some() {
                    add_rows(&mut of_bias, &sum_of_rows(logits, vocab_size));
                }
            }
        }
        let output = self.reduce(&losses);
        let saved = [
            is_recorded.then(|| tensor(of_hidden, [n_rows, d_model])),
            trains_weight.then(|| tensor(of_weight, [vocab_size, d_model])),
            bias.filter(|_| trains_weight).map(|_| tensor(of_bias, [vocab_size])),
        ];
        (tensor(output.to_vec(), [2]), saved.into_iter().flatten().collect())
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn backward(
        &self,
        _inputs: &[FlexTensor],
        saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let mut gradients: Vec<_> =
            saved.into_iter().map(|saved| Some(multiplied(saved, values(gradient)[0]))).collect();
        if let (Some(of_both_uses), [_, of_weight, ..]) = (&self.of_both_uses, &mut gradients[..]) {
            of_both_uses.leave(of_weight.take());
        }
        gradients
    }
}

impl LinearCrossEntropy {
    /// The same for a weight that does not train, `[vocab_size, d_model]`, and hidden states `[n_rows, d_model]`.
    pub(in crate::ops) fn of_packed(&self, hidden: &[f32], weight: &Panels, bias: Option<&[f32]>) -> [f32; 2] {
        let [vocab_size, d_model] = weight.dims();
        assert_eq!(self.targets.len() * d_model, hidden.len(), "targets, one for each row");
        let logits = |rows: Range<usize>| cpu::linear(&hidden[rows.start * d_model..rows.end * d_model], weight, bias);
        self.reduce(&self.row_losses(vocab_size, logits))
    }

    /// For each row the cross entropy and the logarithm of the denominator, `[n_rows, 2]`; those of rows that count nothing
    /// are 0. `logits` gives those of some rows, before any soft cap.
    pub(in crate::ops) fn row_losses(&self, vocab_size: usize, logits: impl Fn(Range<usize>) -> Vec<f32>) -> Vec<f32> {
        let chunk = rows_at_once(vocab_size);
        let mut losses = vec![0.0; 2 * self.targets.len()];
        for (n, losses) in losses.chunks_mut(2 * chunk).enumerate() {
            let rows = n * chunk..n * chunk + losses.len() / 2;
            let mut logits = logits(rows.clone());
            let losses = thread_pool::SharedMut::new(losses);
            thread_pool::parallel_chunks(&mut logits, vocab_size, |row, logits| {
                let row_of_all = rows.start + row;
                if self.weights.as_ref().is_some_and(|weights| weights[row_of_all] == 0.0) {
                    return;
                }
                let target = usize::try_from(self.targets[row_of_all]).unwrap_or(usize::MAX);
                assert!(target < vocab_size, "target {target} of a vocabulary of {vocab_size}");
                #[expect(unsafe_code, reason = "threads write disjoint values of one slice")]
                // SAFETY: each row is claimed once.
                let loss = unsafe { losses.part(2 * row..2 * row + 2) };
                loss_row(logits, target, self.options, None, loss);
            });
        }
        losses
    }

    /// What is minimised, and the cross entropy, from those of each row and the logarithm of its denominator.
    fn reduce(&self, losses: &[f32]) -> [f32; 2] {
        let weights = self.weights.as_deref();
        let (mut loss, mut square) = (0.0, 0.0);
        for (row, [of_row, log_z]) in losses.as_chunks::<2>().0.iter().enumerate() {
            let weight = weights.map_or(1.0, |weights| f64::from(weights[row]));
            loss += f64::from(*of_row) * weight;
            square += f64::from(*log_z).powi(2) * weight;
        }
        let n_counted = if weights.is_some() { 1.0 } else { self.targets.len() as f64 };
        let loss = loss / n_counted;
        [(loss + self.options.z_loss * square / n_counted) as f32, loss as f32]
    }
}

for_each_isa!(loss_row(
    logits: &mut [f32],
    target: usize,
    options: LossOptions,
    share: Option<f32>,
    losses: &mut [f32]
) = loss_row_body);

/// Puts the cross entropy of a row of logits and `ln(Z)` into `losses`. With a `share`, replaces the logits by the gradient
/// of the loss with respect to them, times `share`: `p - 1` for the target, `p` elsewhere; with a z-loss, `p` times `1 + 2
/// z_loss ln(Z)`; with a soft cap, all times its derivative.
#[inline(always)]
fn loss_row_body<const FUSED: bool>(
    logits: &mut [f32],
    target: usize,
    options: LossOptions,
    share: Option<f32>,
    losses: &mut [f32],
) {
    let cap = options.softcap.map(|cap| cap as f32);
    if let Some(cap) = cap {
        logits.iter_mut().for_each(|logit| *logit = cap * tanh::<FUSED>(*logit / cap));
    }
    let largest = largest(logits);
    // A target far below the largest logit has probability 0 in f32, but a finite loss.
    let of_target = logits[target];
    let mut sums = [0.0f32; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += exp::<FUSED>(logit - largest);
        }
    }
    for (sum, &logit) in sums.iter_mut().zip(rest) {
        *sum += exp::<FUSED>(logit - largest);
    }
    let sum: f32 = sums.iter().sum();
    let log_z = largest + sum.ln();
    losses.copy_from_slice(&[sum.ln() - (of_target - largest), log_z]);
    let Some(share) = share else { return };
    let factor = share / sum * (1.0 + 2.0 * options.z_loss as f32 * log_z);
    match cap {
        None => logits.iter_mut().for_each(|logit| *logit = exp::<FUSED>(*logit - largest) * factor),
        Some(cap) => logits.iter_mut().for_each(|logit| {
            let tanh = *logit / cap;
            *logit = exp::<FUSED>(*logit - largest) * factor * (1.0 - tanh * tanh);
        }),
    }
    let tanh = cap.map_or(0.0, |cap| of_target / cap);
    logits[target] -= share * (1.0 - tanh * tanh);
}

/// The largest value, ignoring NaN.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for (largest, &value) in largest.iter_mut().zip(chunk) {
            *largest = if value > *largest { value } else { *largest };
        }
    }
    for (largest, &value) in largest.iter_mut().zip(rest) {
        *largest = if value > *largest { value } else { *largest };
    }
    largest.iter().fold(f32::NEG_INFINITY, |one, &other| if other > one { other } else { one })
}
