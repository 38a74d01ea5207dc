//! Short convolutions of recurrent layers.

use std::cell::RefCell;

use burn::backend::flex::FlexTensor;

use super::{ROWS_AT_ONCE, dims, tensor, values};
use crate::ops::{
    cpu::{
        StridedRows, for_each_isa,
        math::exp,
        multiply_add,
        recurrent::Conv,
        thread_pool::{self, SharedMut},
    },
    types::{RecurrentRows, TrainingOp},
};

/// Channels of a task.
const CHANNELS: usize = 128;

/// Inputs: `x [n_rows, channels]`, the weight `[channels, kernel]` and an optional bias `[channels]`. See
/// [`short_conv`](crate::ops::short_conv::short_conv).
#[derive(Debug)]
pub(in crate::ops) struct Convolve {
    pub(in crate::ops) rows: RecurrentRows,
    pub(in crate::ops) has_silu: bool,
}

/// Memory of one thread, reused for all its tasks; `n` channels each.
#[derive(Default)]
struct Scratch {
    /// Transposed weights and biases, `[kernel + 1, n]`.
    weights: Vec<f32>,
    /// Gradients of the weights and biases, for a few rows and for all.
    of_few: Vec<f32>,
    of_all: Vec<f32>,
    /// The gradient of a row's sum.
    of_sum: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Convolve {
    fn conv<'a>(&self, inputs: &'a [FlexTensor]) -> Conv<'a> {
        let [channels, kernel] = dims(&inputs[1]);
        let bias = inputs.get(2).map(values);
        Conv { weight: values(&inputs[1]), bias, channels, kernel, has_silu: self.has_silu }
    }
}

impl TrainingOp<FlexTensor> for Convolve {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let output = {
            let conv = self.conv(inputs);
            conv.forward(StridedRows::of(values(&inputs[0]), conv.channels), self.rows.spans(), None)
        };
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
        let conv = self.conv(inputs);
        let (x, gradient) = (values(&inputs[0]), values(gradient));
        let (channels, kernel) = (conv.channels, conv.kernel);
        let mut of_x = thread_pool::new_zeros(x.len());
        // For each channel, a row of weights followed by its bias.
        let mut of_weights = vec![0.0; channels * (kernel + 1)];
        let (shared_x, shared_weights) = (SharedMut::new(&mut of_x), SharedMut::new(&mut of_weights));
        thread_pool::parallel_for(channels.div_ceil(CHANNELS), |task| {
            let first = task * CHANNELS;
            let n = CHANNELS.min(channels - first);
            let block = Block { conv: &conv, x, gradient, first, n, of_x: &shared_x };
            SCRATCH.with_borrow_mut(|scratch| {
                block.backward(&self.rows, scratch);
                let places = first * (kernel + 1)..(first + n) * (kernel + 1);
                #[expect(unsafe_code, reason = "threads write disjoint rows of one matrix")]
                // SAFETY: each channel is in one task.
                let places = unsafe { shared_weights.part(places) };
                for (channel, row) in places.chunks_exact_mut(kernel + 1).enumerate() {
                    row.iter_mut().enumerate().for_each(|(j, place)| *place = scratch.of_all[j * n + channel]);
                }
            });
        });
        let of_bias = inputs
            .get(2)
            .map(|_| Some(tensor(of_weights.chunks_exact(kernel + 1).map(|row| row[kernel]).collect(), [channels])));
        let of_weight = of_weights.chunks_exact(kernel + 1).flat_map(|row| &row[..kernel]).copied().collect();
        let of_weight = Some(tensor(of_weight, [channels, kernel]));
        [Some(tensor(of_x, dims(&inputs[0]))), of_weight].into_iter().chain(of_bias).collect()
    }
}

/// A range of channels, for all rows.
struct Block<'a> {
    conv: &'a Conv<'a>,
    x: &'a [f32],
    gradient: &'a [f32],
    first: usize,
    n: usize,
    of_x: &'a SharedMut<'a, f32>,
}

impl Block<'_> {
    /// Leaves the gradients of weights and biases in `scratch.of_all`.
    fn backward(&self, rows: &RecurrentRows, scratch: &mut Scratch) {
        let Self { conv, x, gradient, first, n, of_x } = *self;
        let (channels, kernel) = (conv.channels, conv.kernel);
        let Scratch { weights, of_few, of_all, of_sum } = scratch;
        conv.columns(first, n, weights);
        for sums in [&mut *of_few, of_all] {
            sums.clear();
            sums.resize((kernel + 1) * n, 0.0);
        }
        of_sum.resize(n, 0.0);
        let place = |row: usize| row * channels + first..row * channels + first + n;
        for span in rows.spans() {
            for row in span.rows.clone() {
                // Inputs before the span are 0.
                let taps = || (0..kernel).filter_map(|j| Some((j, (row + j + 1).checked_sub(kernel)?)));
                let taps = || taps().filter(|(_, row)| *row >= span.rows.start);
                let of_sum = &mut of_sum[..n];
                of_sum.copy_from_slice(&weights[kernel * n..]);
                if conv.has_silu {
                    taps().for_each(|(j, row)| add_product(&x[place(row)], &weights[j * n..][..n], of_sum));
                    of_silu(of_sum, &gradient[place(row)]);
                } else {
                    of_sum.copy_from_slice(&gradient[place(row)]);
                }
                for (j, row) in taps() {
                    #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
                    // SAFETY: each channel is in one task.
                    let of_x = unsafe { of_x.part(place(row)) };
                    add_product(of_sum, &weights[j * n..][..n], of_x);
                    add_product(of_sum, &x[place(row)], &mut of_few[j * n..][..n]);
                }
                of_few[kernel * n..].iter_mut().zip(&*of_sum).for_each(|(sum, value)| *sum += value);
                if (row + 1).is_multiple_of(ROWS_AT_ONCE) || row + 1 == rows.n_rows() {
                    of_all.iter_mut().zip(&mut *of_few).for_each(|(sum, few)| *sum += std::mem::take(few));
                }
            }
        }
    }
}

for_each_isa!(add_product(one: &[f32], other: &[f32], sum: &mut [f32]) = add_product_body);

#[inline(always)]
fn add_product_body<const FUSED: bool>(one: &[f32], other: &[f32], sum: &mut [f32]) {
    for ((sum, &one), &other) in sum.iter_mut().zip(one).zip(other) {
        *sum = multiply_add::<FUSED>(one, other, *sum);
    }
}

for_each_isa!(of_silu(x: &mut [f32], gradient: &[f32]) = of_silu_body);

/// Replaces `x` by `gradient` times the derivative of SiLU there.
#[inline(always)]
fn of_silu_body<const FUSED: bool>(x: &mut [f32], gradient: &[f32]) {
    for (x, gradient) in x.iter_mut().zip(gradient) {
        let share = 1.0 / (1.0 + exp::<FUSED>(-*x));
        *x = gradient * share * (1.0 + *x * (1.0 - share));
    }
}
