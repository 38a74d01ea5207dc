//! The training loss, fused with the output projection.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::{
    LANES, largest_of_lanes,
    linear::{multiply, multiply_onto, multiply_padded, sums_of_columns},
    soft_capped, sum_of_lanes,
};
use crate::ops::{
    LossOptions, Precision,
    cube::{
        launch::{empty, grid, workgroup},
        product::{Causal, Operand, Product},
        tensors::{in_i32, plain, wrap},
    },
    types::{GPU_LOGITS_AT_ONCE, TrainingOp},
};

/// Rows of logits begin at a multiple of this, for products that read several numbers at a time.
const ALIGNED: usize = 4;
/// Smaller than any logit; WGSL guarantees nothing about infinities.
const LOWEST: f32 = -3e38;

/// Inputs: hidden states `[n_rows, d_model]`, the weight `[vocab_size, d_model]` and, if there is one, the bias
/// `[vocab_size]`. Output `[2]`: the loss to minimise and the cross entropy; only the first has gradients.
///
/// As on the CPU, the forward pass computes the gradients too, chunk by chunk of rows.
#[derive(Debug)]
pub(in crate::ops) struct LinearCrossEntropy {
    ids: CubeTensor,
    /// Weight of each row, `[n_rows]`.
    shares: CubeTensor,
    options: LossOptions,
    precision: Precision,
}

/// Options of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Parts {
    has_bias: bool,
    has_softcap: bool,
    is_recorded: bool,
}

impl LinearCrossEntropy {
    /// For the rows of `hidden`, with the token to predict from each row and its weight; see
    /// [`Targets`](crate::ops::Targets).
    ///
    /// # Panics
    /// When the number of targets or weights is not the number of rows.
    pub(in crate::ops) fn new(
        (ids, weights): (Tensor<1, Int>, Option<Vec<f32>>),
        options: LossOptions,
        precision: Precision,
        hidden: &Tensor<2>,
    ) -> Self {
        let n_rows = hidden.dims()[0];
        assert_eq!(ids.dims(), [n_rows], "targets, one for each row");
        let shares = weights.unwrap_or_else(|| vec![1.0 / n_rows as f32; n_rows]);
        assert_eq!(shares.len(), n_rows, "weights, one for each row");
        let device = hidden.device().inner();
        let shares = plain(Tensor::<1>::from_data(TensorData::new(shares, [n_rows]), &device));
        Self { ids: plain(in_i32(ids)), shares, options, precision }
    }

    /// The output without gradients, for a weight of any layout: `to_logits` returns the logits of some rows without the bias,
    /// `[n, vocab_size]`.
    pub(in crate::ops) fn of_logits(
        &self,
        vocab_size: usize,
        bias: Option<Tensor<1>>,
        to_logits: impl Fn(Range<usize>) -> Tensor<2>,
    ) -> Tensor<1> {
        let n_rows = self.shares.meta.shape()[0];
        let (losses, bias) = (empty(&self.shares, [n_rows, 2]), bias.map(plain));
        let chunk = rows_at_once(&self.shares, vocab_size);
        for first in (0..n_rows).step_by(chunk) {
            let logits = plain(to_logits(first..n_rows.min(first + chunk)));
            self.rows((&logits, vocab_size), bias.as_ref(), &losses, first, false);
        }
        wrap(self.add(losses))
    }

    fn product<'a>(&self, a: Operand<'a>, b: Operand<'a>, dims: [usize; 3]) -> Product<'a> {
        Product { a, b, dims, batch: 1, causal: (Causal::No, 0), bias: None, precision: self.precision }
    }

    /// Computes the losses of the rows from `first` on, whose logits are `[n_rows, stride]`. If `is_recorded`, overwrites the
    /// logits with their gradients, and the padding of each row with 0; otherwise their content is undefined afterwards.
    fn rows(
        &self,
        (logits, vocab_size): (&CubeTensor, usize),
        bias: Option<&CubeTensor>,
        losses: &CubeTensor,
        first: usize,
        is_recorded: bool,
    ) {
        let [n_rows, stride] = logits.meta.shape().dims::<2>();
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each workgroup has its own row; ids are only compared with columns; a missing bias is not read.
        unsafe {
            loss_rows::launch_unchecked(
                &logits.client,
                grid(n_rows, 1),
                CubeDim::new_1d(LANES as u32),
                logits.clone().into_buffer_arg(),
                losses.clone().into_buffer_arg(),
                self.ids.clone().into_buffer_arg(),
                self.shares.clone().into_buffer_arg(),
                bias.unwrap_or(&self.shares).clone().into_buffer_arg(),
                n_rows,
                first,
                vocab_size,
                stride,
                self.options.softcap.unwrap_or(1.0) as f32,
                self.options.z_loss as f32,
                Parts { has_bias: bias.is_some(), has_softcap: self.options.softcap.is_some(), is_recorded },
            );
        }
    }

    /// The output, from the losses of all rows: `losses [n_rows, 2]`.
    fn add(&self, losses: CubeTensor) -> CubeTensor {
        let n_rows = losses.meta.shape()[0];
        let output = empty(&losses, [2]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: the lanes of one workgroup read the losses and shares of all rows, and one writes both sums.
        unsafe {
            add_losses::launch_unchecked(
                &output.client,
                grid(1, 1),
                CubeDim::new_1d(LANES as u32),
                losses.into_buffer_arg(),
                self.shares.clone().into_buffer_arg(),
                output.clone().into_buffer_arg(),
                n_rows,
                self.options.z_loss as f32,
            );
        }
        output
    }
}

/// Rows of `stride` logits that are in memory together.
fn rows_at_once(like: &CubeTensor, stride: usize) -> usize {
    let in_a_buffer = like.client.properties().memory.max_page_size as usize / size_of::<f32>();
    (GPU_LOGITS_AT_ONCE.min(in_a_buffer) / stride.max(1)).max(1)
}

impl TrainingOp<CubeTensor> for LinearCrossEntropy {
    fn forward(&self, inputs: &[CubeTensor], wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        let (is_recorded, trains_weight) = (wanted.contains(&true), wanted[1..].contains(&true));
        let hidden = wrap::<2>(inputs[0].clone());
        let ([n_rows, d_model], [vocab_size, _]) = (hidden.dims(), inputs[1].meta.shape().dims::<2>());
        let bias = inputs.get(2);
        let losses = empty(&inputs[0], [n_rows, 2]);
        let weight = Operand::new(&inputs[1], d_model);
        let of_all =
            self.product(Operand::new(&inputs[0], d_model), weight.transposed(), [n_rows, vocab_size, d_model]);
        let stride = if of_all.has_kernel() { vocab_size.next_multiple_of(ALIGNED) } else { vocab_size };
        let chunk = rows_at_once(&inputs[0], stride);
        let mut of_hidden = Vec::new();
        let (mut of_weight, mut of_bias) = (None::<CubeTensor>, None::<Tensor<1>>);
        for first in (0..n_rows).step_by(chunk) {
            let rows = plain(hidden.clone().slice([first..n_rows.min(first + chunk), 0..d_model]));
            let n = rows.meta.shape()[0];
            let these = Operand::new(&rows, d_model);
            let to_logits = self.product(these, weight.transposed(), [n, vocab_size, d_model]);
            let logits = multiply_padded(to_logits, stride);
            self.rows((&logits, vocab_size), bias, &losses, first, is_recorded);
            if is_recorded {
                let of_logits = Operand::new(&logits, stride);
                of_hidden.push(wrap::<2>(multiply(self.product(of_logits, weight, [n, d_model, vocab_size]))));
                if trains_weight {
                    if bias.is_some() {
                        let sums = wrap::<1>(sums_of_columns(&logits)).slice(0..vocab_size);
                        of_bias = Some(of_bias.map_or_else(|| sums.clone(), |sum| sum + sums.clone()));
                    }
                    let part = self.product(of_logits.transposed(), these, [vocab_size, d_model, n]);
                    of_weight = Some(multiply_onto(of_weight, part));
                }
            }
        }
        let of_hidden = is_recorded.then(|| Tensor::cat(of_hidden, 0));
        let saved = [of_hidden.map(plain), of_weight, of_bias.map(plain)];
        (self.add(losses), saved.into_iter().flatten().collect())
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn backward(
        &self,
        _inputs: &[CubeTensor],
        saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        _wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let factor = wrap::<1>(gradient.clone()).slice(0..1);
        let scaled = |saved: &CubeTensor| match saved.meta.shape().num_dims() {
            1 => plain(wrap::<1>(saved.clone()) * factor.clone()),
            _ => plain(wrap::<2>(saved.clone()) * factor.clone().reshape([1, 1])),
        };
        saved.iter().map(|saved| Some(scaled(saved))).collect()
    }
}

/// Computes the cross entropy and the logarithm of the denominator of a row of logits. If recorded, the logits become
/// gradients. The formulas are the same as on the CPU.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn loss_rows(
    logits: &mut [f32],
    losses: &mut [f32],
    ids: &[i32],
    shares: &[f32],
    bias: &[f32],
    n_rows: usize,
    first: usize,
    vocab_size: usize,
    stride: usize,
    softcap: f32,
    z_loss: f32,
    #[comptime] parts: Parts,
) {
    let row = workgroup();
    if row >= n_rows {
        terminate!();
    }
    let lane = UNIT_POS_X as usize;
    let start = row * stride;
    let of_all = first + row;
    let share = shares[of_all];
    // A negative id is a very large number.
    let target = usize::cast_from(ids[of_all]);
    let mut shared = Shared::<[f32]>::new_slice(LANES);

    // A lane has the same columns in all loops, so it reads only what it wrote itself.
    let mut largest = f32::new(LOWEST);
    let mut column = lane;
    while column < vocab_size {
        let mut logit = logits[start + column];
        if comptime!(parts.has_bias) {
            logit += bias[column];
        }
        if comptime!(parts.has_softcap) {
            logit = soft_capped(logit, softcap);
        }
        logits[start + column] = logit;
        largest = max(largest, logit);
        column += LANES;
    }
    shared[lane] = largest;
    let largest = largest_of_lanes(&mut shared);

    let mut sum = f32::new(0.0);
    let mut of_target = f32::new(0.0);
    column = lane;
    while column < vocab_size {
        let difference = logits[start + column] - largest;
        sum += difference.exp();
        if column == target {
            of_target = difference;
        }
        column += LANES;
    }
    shared[lane] = sum;
    let sum = sum_of_lanes(&mut shared);
    shared[lane] = of_target;
    let of_target = sum_of_lanes(&mut shared);
    let log_sum = sum.ln();
    if lane == 0 {
        // A row of weight 0 may have any target, and its loss may be NaN. A token outside the vocabulary gets a huge
        // loss: a kernel cannot return an error.
        let loss = select(target < vocab_size, log_sum - of_target, 3e38f32);
        losses[2 * of_all] = select(share == 0.0f32, 0.0f32, loss);
        losses[2 * of_all + 1] = select(share == 0.0f32, 0.0f32, largest + log_sum);
    }

    if comptime!(parts.is_recorded) {
        let factor = share / sum * (1.0f32 + 2.0f32 * z_loss * (largest + log_sum));
        column = lane;
        while column < vocab_size {
            let logit = logits[start + column];
            let mut gradient = (logit - largest).exp() * factor;
            if column == target {
                gradient -= share;
            }
            if comptime!(parts.has_softcap) {
                let capped = logit / softcap;
                gradient *= 1.0f32 - capped * capped;
            }
            logits[start + column] = select(share == 0.0f32, 0.0f32, gradient);
            column += LANES;
        }
        if vocab_size + lane < stride {
            logits[start + vocab_size + lane] = 0.0f32;
        }
    }
}

#[cube(launch_unchecked)]
fn add_losses(losses: &[f32], shares: &[f32], output: &mut [f32], n_rows: usize, z_loss: f32) {
    let lane = UNIT_POS_X as usize;
    let mut loss = f32::new(0.0);
    let mut square = f32::new(0.0);
    let mut row = lane;
    while row < n_rows {
        let log_z = losses[2 * row + 1];
        loss = fma(losses[2 * row], shares[row], loss);
        square = fma(log_z * log_z, shares[row], square);
        row += LANES;
    }
    let mut shared = Shared::<[f32]>::new_slice(LANES);
    shared[lane] = loss;
    let loss = sum_of_lanes(&mut shared);
    shared[lane] = square;
    let square = sum_of_lanes(&mut shared);
    if lane == 0 {
        output[0] = loss + z_loss * square;
        output[1] = loss;
    }
}
