//! KL divergence from a model's earlier predictions, fused with the output projection.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;

use super::{
    cross_entropy::{rows_at_once, rows_of},
    dims,
    frozen::Matrix,
    multiplied,
    product::View,
    tensor, values,
};
use crate::ops::{
    cpu::{
        Panels, for_each_isa,
        math::{exp, largest, tanh},
        thread_pool,
    },
    types::TrainingOp,
};

/// Input: hidden states `[n_rows, d_model]`. Output: the sum of the rows' divergences times their shares, `[1]`.
///
/// As for [`LinearCrossEntropy`](super::LinearCrossEntropy), the forward pass computes the gradient too, chunk by chunk of rows.
#[derive(Debug)]
pub(in crate::ops) struct LinearDivergence {
    /// The output matrix and its bias, which do not train.
    pub(in crate::ops) output: (Arc<Panels>, Option<Vec<f32>>),
    /// The hidden states of the model before, `[n_rows, d_model]`.
    pub(in crate::ops) former: Vec<f32>,
    /// Weight of each row; rows of weight 0 are skipped.
    pub(in crate::ops) shares: Vec<f32>,
    pub(in crate::ops) softcap: Option<f64>,
}

impl TrainingOp<FlexTensor> for LinearDivergence {
    fn forward(&self, inputs: &[FlexTensor], wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let is_recorded = wanted.contains(&true);
        let [n_rows, d_model] = dims(&inputs[0]);
        let ((panels, bias), hidden) = (&self.output, values(&inputs[0]));
        let vocab_size = panels.dims()[0];
        assert!(
            self.shares.len() == n_rows && self.former.len() == hidden.len(),
            "a share and a former state for each row"
        );
        let counted: Vec<usize> = (0..n_rows).filter(|&row| self.shares[row] != 0.0).collect();
        let mut of_hidden = vec![0.0; if is_recorded { n_rows * d_model } else { 0 }];
        let mut losses = vec![0.0; counted.len()];
        let chunk = rows_at_once(vocab_size);
        let weight = Matrix::Packed(panels);
        for (rows, losses) in counted.chunks(chunk).zip(losses.chunks_mut(chunk)) {
            // The rows of the model with the adapter, then the rows without it.
            let both = [hidden, &self.former].map(|all| rows_of(all, rows, d_model)).concat();
            let mut logits = weight.multiply(View::new(&both, [2 * rows.len(), d_model], d_model), bias.as_deref());
            let (now, before) = logits.split_at_mut(rows.len() * vocab_size);
            let losses = thread_pool::SharedMut::new(losses);
            thread_pool::parallel_chunks(now, vocab_size, |row, now| {
                let before = &before[row * vocab_size..][..vocab_size];
                #[expect(unsafe_code, reason = "threads write disjoint values of one slice")]
                // SAFETY: each row is claimed once.
                let loss = unsafe { losses.part(row..row + 1) };
                divergence_row(now, before, self.softcap, self.shares[rows[row]], loss);
            });
            if is_recorded {
                let of_rows = weight.multiply_back(View::new(now, [rows.len(), vocab_size], vocab_size));
                for (&row, of_row) in rows.iter().zip(of_rows.chunks_exact(d_model)) {
                    of_hidden[row * d_model..][..d_model].copy_from_slice(of_row);
                }
            }
        }
        let sum: f64 =
            counted.iter().zip(&losses).map(|(&row, &loss)| f64::from(self.shares[row]) * f64::from(loss)).sum();
        let saved = is_recorded.then(|| tensor(of_hidden, [n_rows, d_model]));
        (tensor(vec![sum as f32], [1]), saved.into_iter().collect())
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

for_each_isa!(divergence_row(
    now: &mut [f32],
    before: &[f32],
    softcap: Option<f64>,
    share: f32,
    loss: &mut [f32]
) = divergence_row_body);

/// Puts `sum q (ln q - ln p)` of a row into `loss`, where `p` and `q` are the probabilities by the logits `now` and `before`, and
/// replaces `now` by its gradient times `share`: `p - q`, with a soft cap times its derivative.
#[inline(always)]
fn divergence_row_body<const FUSED: bool>(
    now: &mut [f32],
    before: &[f32],
    softcap: Option<f64>,
    share: f32,
    loss: &mut [f32],
) {
    let cap = softcap.map(|cap| cap as f32);
    let capped = |logit: f32| cap.map_or(logit, |cap| cap * tanh::<FUSED>(logit / cap));
    now.iter_mut().for_each(|logit| *logit = capped(*logit));
    // A soft cap keeps the order, so the largest is found first.
    let (largest_now, largest_before) = (largest(now), capped(largest(before)));
    let (mut sums, mut moments) = ([[0.0f32; 16]; 2], [0.0f32; 16]);
    let (chunks, rest) = now.as_chunks::<16>();
    let (chunks_before, rest_before) = before.as_chunks::<16>();
    let mut add = |lane: usize, now: f32, before: f32| {
        let (now, before) = (now - largest_now, capped(before) - largest_before);
        let weight = exp::<FUSED>(before);
        sums[0][lane] += exp::<FUSED>(now);
        sums[1][lane] += weight;
        moments[lane] += weight * (before - now);
    };
    for (now, before) in chunks.iter().zip(chunks_before) {
        for lane in 0..16 {
            add(lane, now[lane], before[lane]);
        }
    }
    for (lane, (&now, &before)) in rest.iter().zip(rest_before).enumerate() {
        add(lane, now, before);
    }
    let [sum_now, sum_before]: [f32; 2] = sums.map(|sums| sums.iter().sum());
    let moment: f32 = moments.iter().sum();
    loss[0] = moment / sum_before + sum_now.ln() - sum_before.ln();
    let (of_now, of_before) = (share / sum_now, share / sum_before);
    for (now, &before) in now.iter_mut().zip(before) {
        let difference =
            exp::<FUSED>(*now - largest_now) * of_now - exp::<FUSED>(capped(before) - largest_before) * of_before;
        let tanh = cap.map_or(0.0, |cap| *now / cap);
        *now = difference * (1.0 - tanh * tanh);
    }
}
