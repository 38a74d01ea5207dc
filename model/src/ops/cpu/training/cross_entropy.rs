//! The training loss, fused with the output projection.

use std::{borrow::Cow, ops::Range, sync::Arc};

use burn::backend::flex::FlexTensor;

use super::{
    add_rows, dims,
    frozen::Matrix,
    multiplied,
    product::{Accumulate, View, new_product, shared_product},
    sum_of_rows, tensor, values,
};
use crate::ops::{
    LossOptions, Precision,
    cpu::{
        self, Panels, for_each_isa,
        math::{exp, largest, sum, tanh},
        thread_pool,
    },
    types::TrainingOp,
};

/// Maximum number of logits in memory; the logits of a whole batch never exist.
const LOGITS_AT_ONCE: usize = 1 << 24;

/// Rows per pass over the weight's gradient with a large vocabulary: with fewer, memory bandwidth would be the limit.
const MIN_ROWS: usize = 128;

/// Values computed per row: its cross entropy, the logarithm of the softmax's denominator, and with label smoothing the
/// mean cross entropy of all tokens.
const PER_ROW: usize = 3;

/// Number of rows whose logits are in memory together.
pub fn rows_at_once(vocab_size: usize) -> usize {
    (LOGITS_AT_ONCE / vocab_size.max(1)).max(MIN_ROWS)
}

/// Inputs: hidden states `[n_rows, d_model]`, and unless they are frozen, the weight `[vocab_size, d_model]` and, if
/// there is one, the bias `[vocab_size]`. Output `[2]`: the loss to minimise and the cross entropy, as means or
/// weighted sums ([`Targets`](crate::ops::Targets)); only the first has gradients.
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
    /// The arithmetic of products with a weight that trains.
    pub(in crate::ops) precision: Precision,
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
        let (hidden, counted) = (values(&inputs[0]), self.counted_rows());
        // The rows that count, and the weight of each in the gradients.
        let n_counted = counted.as_ref().map_or(n_rows, Vec::len);
        let row_of = |n: usize| counted.as_ref().map_or(n, |counted| counted[n]);
        let share = |n: usize| self.weights.as_ref().map_or(1.0 / n_rows as f32, |weights| weights[row_of(n)]);
        let hidden = counted.as_deref().map_or(Cow::from(hidden), |counted| rows_of(hidden, counted, d_model).into());
        let mut of_hidden = Vec::with_capacity(if is_recorded { n_counted * d_model } else { 0 });
        let mut of_weight = Vec::new();
        let mut of_bias = vec![0.0; if trains_weight && bias.is_some() { vocab_size } else { 0 }];
        let mut losses = vec![0.0; PER_ROW * n_counted];
        let chunk = rows_at_once(vocab_size);
        for first in (0..n_counted).step_by(chunk) {
            let rows = first..n_counted.min(first + chunk);
            let hidden = &hidden[rows.start * d_model..rows.end * d_model];
            let hidden = View::new(hidden, [rows.len(), d_model], d_model);
            let mut logits = weight.multiply(hidden, bias);
            let losses = thread_pool::SharedMut::new(&mut losses[PER_ROW * rows.start..PER_ROW * rows.end]);
            thread_pool::parallel_chunks(&mut logits, vocab_size, |row, logits| {
                let n = rows.start + row;
                #[expect(unsafe_code, reason = "threads write disjoint values of one slice")]
                // SAFETY: each row is claimed once.
                let loss = unsafe { losses.part(PER_ROW * row..PER_ROW * (row + 1)) };
                let target = self.target(row_of(n), vocab_size);
                loss_row(logits, target, self.options, is_recorded.then(|| share(n)), loss);
            });
            let of_logits = View::new(&logits, [rows.len(), vocab_size], vocab_size);
            if is_recorded {
                of_hidden.extend(weight.multiply_back(of_logits));
            }
            if trains_weight {
                let operands = [of_logits.transposed(), hidden];
                if first == 0 {
                    of_weight = new_product(operands, None, self.precision);
                } else {
                    shared_product(&mut of_weight, operands, Accumulate::Itself, self.precision);
                }
                if bias.is_some() {
                    add_rows(&mut of_bias, &sum_of_rows(&logits, vocab_size));
                }
            }
        }
        if trains_weight && n_counted == 0 {
            of_weight = vec![0.0; vocab_size * d_model];
        }
        let output = self.reduce(&losses, counted.as_deref());
        let of_hidden = match &counted {
            Some(counted) if is_recorded => at_rows(&of_hidden, counted, [n_rows, d_model]),
            _ => of_hidden,
        };
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
        saved.into_iter().map(|saved| Some(multiplied(saved, values(gradient)[0]))).collect()
    }
}

impl LinearCrossEntropy {
    /// With a weight that is an input.
    pub(in crate::ops) fn new(
        targets: Vec<i32>,
        weights: Option<Vec<f32>>,
        options: LossOptions,
        precision: Precision,
    ) -> Self {
        Self { targets, weights, options, precision, frozen: None }
    }

    /// The output without gradients, for hidden states `[n_rows, d_model]` and a packed weight `[vocab_size, d_model]`.
    pub(in crate::ops) fn of_packed(&self, hidden: &[f32], weight: &Panels, bias: Option<&[f32]>) -> [f32; 2] {
        let [vocab_size, d_model] = weight.dims();
        assert_eq!(self.targets.len() * d_model, hidden.len(), "targets, one for each row");
        let counted = self.counted_rows();
        let hidden = counted.as_deref().map_or(Cow::from(hidden), |counted| rows_of(hidden, counted, d_model).into());
        let logits = |rows: Range<usize>| cpu::linear(&hidden[rows.start * d_model..rows.end * d_model], weight, bias);
        self.reduce(&self.row_losses(vocab_size, counted.as_deref(), logits), counted.as_deref())
    }

    /// The cross entropy of each counted row (every row, if none are left out). `logits` returns the logits of a range
    /// of these rows, before any soft cap.
    pub(in crate::ops) fn cross_entropies(
        &self,
        vocab_size: usize,
        counted: Option<&[usize]>,
        logits: impl Fn(Range<usize>) -> Vec<f32>,
    ) -> Vec<f32> {
        self.row_losses(vocab_size, counted, logits).into_iter().step_by(PER_ROW).collect()
    }

    /// As [`cross_entropies`](Self::cross_entropies), with all values of each row: `[n_counted, PER_ROW]`.
    fn row_losses(
        &self,
        vocab_size: usize,
        counted: Option<&[usize]>,
        logits: impl Fn(Range<usize>) -> Vec<f32>,
    ) -> Vec<f32> {
        let chunk = rows_at_once(vocab_size);
        let mut losses = vec![0.0; PER_ROW * counted.map_or(self.targets.len(), <[usize]>::len)];
        for (n, losses) in losses.chunks_mut(PER_ROW * chunk).enumerate() {
            let rows = n * chunk..n * chunk + losses.len() / PER_ROW;
            let mut logits = logits(rows.clone());
            let losses = thread_pool::SharedMut::new(losses);
            thread_pool::parallel_chunks(&mut logits, vocab_size, |row, logits| {
                #[expect(unsafe_code, reason = "threads write disjoint values of one slice")]
                // SAFETY: each row is claimed once.
                let loss = unsafe { losses.part(PER_ROW * row..PER_ROW * (row + 1)) };
                let n = rows.start + row;
                let target = self.target(counted.map_or(n, |counted| counted[n]), vocab_size);
                loss_row(logits, target, self.options, None, loss);
            });
        }
        losses
    }

    /// The rows with a weight above 0; `None` if all have one. The others, such as prompts and padding in fine-tuning,
    /// cost nothing.
    pub(in crate::ops) fn counted_rows(&self) -> Option<Vec<usize>> {
        let weights = self.weights.as_ref()?;
        assert_eq!(weights.len(), self.targets.len(), "weights, one for each row");
        let counted: Vec<usize> = (0..weights.len()).filter(|&row| weights[row] != 0.0).collect();
        (counted.len() < weights.len()).then_some(counted)
    }

    fn target(&self, row: usize, vocab_size: usize) -> usize {
        let target = usize::try_from(self.targets[row]).unwrap_or(usize::MAX);
        assert!(target < vocab_size, "target {target} of a vocabulary of {vocab_size}");
        target
    }

    /// The objective and the cross entropy, from the losses of each counted row.
    fn reduce(&self, losses: &[f32], counted: Option<&[usize]>) -> [f32; 2] {
        let (mut loss, mut square, mut of_all) = (0.0, 0.0, 0.0);
        for (n, [of_row, log_z, of_all_tokens]) in losses.as_chunks::<PER_ROW>().0.iter().enumerate() {
            let row = counted.map_or(n, |counted| counted[n]);
            let weight = self.weights.as_ref().map_or(1.0, |weights| f64::from(weights[row]));
            loss += f64::from(*of_row) * weight;
            square += f64::from(*log_z).powi(2) * weight;
            of_all += f64::from(*of_all_tokens) * weight;
        }
        let total = if self.weights.is_some() { 1.0 } else { self.targets.len() as f64 };
        let loss = loss / total;
        let LossOptions { z_loss, label_smoothing, .. } = self.options;
        let smoothed = match label_smoothing {
            0.0 => loss,
            share => (1.0 - share) * loss + share * of_all / total,
        };
        [(smoothed + z_loss * square / total) as f32, loss as f32]
    }
}

/// Some rows of a matrix with rows of `width` values.
pub(super) fn rows_of(matrix: &[f32], rows: &[usize], width: usize) -> Vec<f32> {
    rows.iter().flat_map(|row| &matrix[row * width..(row + 1) * width]).copied().collect()
}

/// A matrix `[n_rows, width]` with these values in some of its rows, and 0 in the others.
fn at_rows(values: &[f32], rows: &[usize], [n_rows, width]: [usize; 2]) -> Vec<f32> {
    let mut matrix = vec![0.0; n_rows * width];
    for (values, row) in values.chunks_exact(width).zip(rows) {
        matrix[row * width..(row + 1) * width].copy_from_slice(values);
    }
    matrix
}

for_each_isa!(loss_row(
    logits: &mut [f32],
    target: usize,
    options: LossOptions,
    share: Option<f32>,
    losses: &mut [f32]
) = loss_row_body);

/// Puts the cross entropy of a row of logits, `ln(Z)` and with label smoothing the mean cross entropy of all tokens into `losses`.
/// With a `share`, replaces the logits by the gradient of the loss with respect to them, times `share`: `p - 1` for the target, `p`
/// elsewhere; with a z-loss, `p` times `1 + 2 z_loss ln(Z)`; with label smoothing, the 1 is spread; with a soft cap, all times its
/// derivative.
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
    let sum = sum(logits, |logit| exp::<FUSED>(logit - largest));
    let log_z = largest + sum.ln();
    let smoothing = options.label_smoothing as f32;
    let of_all_tokens = if smoothing == 0.0 {
        0.0
    } else {
        sum.ln() - self::sum(logits, |logit| logit - largest) / logits.len() as f32
    };
    losses.copy_from_slice(&[sum.ln() - (of_target - largest), log_z, of_all_tokens]);
    let Some(share) = share else { return };
    let of_each = share * smoothing / logits.len() as f32;
    let factor = share / sum * (1.0 + 2.0 * options.z_loss as f32 * log_z);
    match cap {
        None if smoothing == 0.0 => {
            logits.iter_mut().for_each(|logit| *logit = exp::<FUSED>(*logit - largest) * factor);
        }
        None => logits.iter_mut().for_each(|logit| *logit = exp::<FUSED>(*logit - largest) * factor - of_each),
        Some(cap) => logits.iter_mut().for_each(|logit| {
            let tanh = *logit / cap;
            *logit = (exp::<FUSED>(*logit - largest) * factor - of_each) * (1.0 - tanh * tanh);
        }),
    }
    let tanh = cap.map_or(0.0, |cap| of_target / cap);
    logits[target] -= share * (1.0 - smoothing) * (1.0 - tanh * tanh);
}
