//! LayerNorm and RMSNorm.

use std::ops::Range;

use burn::backend::flex::FlexTensor;

use super::{ROWS_AT_ONCE, add_rows, dims, tensor, values};
use crate::{
    config::NormKind,
    ops::{
        NormOptions,
        cpu::{
            self, for_each_isa,
            math::{sum, sum_of_pairs},
            thread_pool::{self, SharedMut},
        },
        types::{Normalize, TrainingOp},
    },
};

impl TrainingOp<FlexTensor> for Normalize {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let bias = inputs.get(2).map(values);
        let output = cpu::norm(values(&inputs[0]), values(&inputs[1]), bias, self.0);
        (tensor(output, dims(&inputs[0])), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [n_rows, width] = dims(&inputs[0]);
        let part = NormedPart { columns: 0..width, weight: values(&inputs[1]), options: self.0 };
        let mut of_x = thread_pool::new_zeros(n_rows * width);
        let [of_weight, of_bias] = norm_gradients(values(&inputs[0]), values(gradient), &[part], &mut of_x, width);
        let of_bias = inputs.get(2).map(|_| Some(tensor(of_bias, [width])));
        let of_weight = Some(tensor(of_weight, [width]));
        [Some(tensor(of_x, [n_rows, width])), of_weight].into_iter().chain(of_bias).collect()
    }
}

/// Columns of a matrix that are normalized in groups of `weight.len()`.
pub(super) struct NormedPart<'a> {
    pub(super) columns: Range<usize>,
    pub(super) weight: &'a [f32],
    pub(super) options: NormOptions,
}

/// Writes the gradients of the normalized columns of `x [n_rows, width]` to `of_x`. Returns the gradients of the
/// weights, part by part, and of the biases in the same layout.
pub(super) fn norm_gradients(
    x: &[f32],
    gradient: &[f32],
    parts: &[NormedPart<'_>],
    of_x: &mut [f32],
    width: usize,
) -> [Vec<f32>; 2] {
    let n_rows = x.len() / width;
    let n_weights = parts.iter().map(|part| part.weight.len()).sum();
    // For each group of rows: the sums for the weights, then those for the biases.
    let mut partial = vec![0.0; n_rows.div_ceil(ROWS_AT_ONCE) * 2 * n_weights];
    let shared = SharedMut::new(of_x);
    thread_pool::parallel_chunks(&mut partial, 2 * n_weights, |group, sums| {
        let (of_weights, of_biases) = sums.split_at_mut(n_weights);
        for row in group * ROWS_AT_ONCE..n_rows.min((group + 1) * ROWS_AT_ONCE) {
            let mut first = 0;
            for NormedPart { columns, weight, options } in parts {
                let sums = first..first + weight.len();
                first = sums.end;
                for start in columns.clone().step_by(weight.len()) {
                    let range = row * width + start..row * width + start + weight.len();
                    #[expect(unsafe_code, reason = "threads write disjoint rows of one matrix")]
                    // SAFETY: each group of rows is claimed once.
                    let of_x = unsafe { shared.part(range.clone()) };
                    let (of_weight, of_bias) = (&mut of_weights[sums.clone()], &mut of_biases[sums.clone()]);
                    backward_row(&x[range.clone()], &gradient[range], weight, *options, of_x, of_weight, of_bias);
                }
            }
        }
    });
    let mut of_weights = vec![0.0; 2 * n_weights];
    add_rows(&mut of_weights, &partial);
    let of_biases = of_weights.split_off(n_weights);
    [of_weights, of_biases]
}

for_each_isa!(backward_row(
    x: &[f32],
    gradient: &[f32],
    weight: &[f32],
    options: NormOptions,
    of_x: &mut [f32],
    of_weight: &mut [f32],
    of_bias: &mut [f32]
) = backward_row_body);

/// With `n = (x - mean) r`, where `r` is 1 over the root, and `h = gradient * weight`: the gradient of `x` is `r (h -
/// mean(h) - n mean(h n))`. RMSNorm leaves out `mean` and `mean(h)`.
#[inline(always)]
fn backward_row_body<const FUSED: bool>(
    x: &[f32],
    gradient: &[f32],
    weight: &[f32],
    options: NormOptions,
    of_x: &mut [f32],
    of_weight: &mut [f32],
    of_bias: &mut [f32],
) {
    let width = x.len() as f32;
    let is_centred = options.kind == NormKind::LayerNorm;
    let mean = if is_centred { sum(x, |x| x) / width } else { 0.0 };
    let mean_square = sum(x, |x| (x - mean) * (x - mean)) / width;
    let r = 1.0 / (mean_square + options.eps as f32).sqrt();
    let offset = options.weight_offset;
    for ((of_x, gradient), weight) in of_x.iter_mut().zip(gradient).zip(weight) {
        *of_x = gradient * (weight + offset);
    }
    let mean_h = if is_centred { sum(of_x, |h| h) / width } else { 0.0 };
    let mean_hn = sum_of_pairs(of_x, x, |h, x| h * ((x - mean) * r)) / width;
    for ((((of_x, &x), &gradient), of_weight), of_bias) in
        of_x.iter_mut().zip(x).zip(gradient).zip(of_weight).zip(of_bias)
    {
        let normed = (x - mean) * r;
        *of_x = r * (*of_x - mean_h - normed * mean_hn);
        *of_weight += gradient * normed;
        *of_bias += gradient;
    }
}
