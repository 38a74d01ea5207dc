//! Short convolutions.

use std::cell::RefCell;

use super::States;
use crate::ops::{
    cpu::{
        StridedRows, for_each_isa,
        math::exp,
        multiply_add,
        thread_pool::{self, SharedMut},
    },
    types::RecurrentSpan,
};

/// Channels of a task, at least: as few as keep a cache line's neighbours together.
const FEW_CHANNELS: usize = 128;
/// Tasks per thread that are enough.
const FEW_TASKS: usize = 4;
/// Inputs below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 13;

/// Inputs that are added in one pass; kernels are rarely longer.
const MOST_AT_ONCE: usize = 4;

/// A convolution in memory; see [`ShortConv`](crate::ops::types::ShortConv).
pub(in crate::ops) struct Conv<'a> {
    /// `[channels, kernel]`.
    pub(in crate::ops) weight: &'a [f32],
    /// `[channels]`.
    pub(in crate::ops) bias: Option<&'a [f32]>,
    pub(in crate::ops) channels: usize,
    pub(in crate::ops) kernel: usize,
    pub(in crate::ops) has_silu: bool,
}

thread_local! {
    /// A task's weights `[kernel, n]` and biases `[n]`, and the inputs before a span, `[kernel - 1, n]`.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = RefCell::default();
}

impl Conv<'_> {
    /// [`short_conv`](crate::ops::short_conv::short_conv) of `x [n_rows, channels]`.
    pub(in crate::ops) fn forward(
        &self,
        x: StridedRows<'_>,
        spans: &[RecurrentSpan],
        states: Option<&States<'_>>,
    ) -> Vec<f32> {
        let n_rows: usize = spans.iter().map(|span| span.rows.len()).sum();
        let mut output = thread_pool::new_zeros(n_rows * self.channels);
        let shared = SharedMut::new(&mut output);
        let enough = self.channels / (FEW_TASKS * thread_pool::n_threads());
        let per_task = if n_rows * self.channels < PARALLEL_WORK { self.channels } else { enough.max(FEW_CHANNELS) };
        let n_tasks = self.channels.div_ceil(per_task.max(1));
        thread_pool::parallel_for(n_tasks, |task| {
            let first = task * per_task;
            let n = per_task.min(self.channels - first);
            SCRATCH.with_borrow_mut(|[weights, past]| {
                self.columns(first, n, weights);
                spans.iter().for_each(|span| self.span(x, span, states, [first, n], weights, past, &shared));
            });
        });
        output
    }

    /// Transposed weights of `n` channels from `first` on, followed by the biases, which are 0 if the convolution has
    /// none.
    pub(in crate::ops::cpu) fn columns(&self, first: usize, n: usize, weights: &mut Vec<f32>) {
        let kernel = self.kernel;
        weights.clear();
        weights.resize((kernel + 1) * n, 0.0);
        let rows = &self.weight[first * kernel..(first + n) * kernel];
        for (j, column) in weights.chunks_exact_mut(n).take(kernel).enumerate() {
            column.iter_mut().zip(rows.chunks_exact(kernel)).for_each(|(place, row)| *place = row[j]);
        }
        if let Some(bias) = self.bias {
            weights[kernel * n..].copy_from_slice(&bias[first..first + n]);
        }
    }

    /// `n` channels of a span.
    #[expect(clippy::too_many_arguments, reason = "what a task has")]
    fn span(
        &self,
        x: StridedRows<'_>,
        span: &RecurrentSpan,
        states: Option<&States<'_>>,
        [first, n]: [usize; 2],
        weights: &[f32],
        past: &mut Vec<f32>,
        output: &SharedMut<'_, f32>,
    ) {
        let (channels, before) = (self.channels, self.kernel - 1);
        // The inputs before the span, the oldest first.
        past.clear();
        past.resize(before * n, 0.0);
        let place = |j: usize| {
            let (states, slot) = states.zip(span.slot)?;
            #[expect(unsafe_code, reason = "threads change disjoint parts of states")]
            // SAFETY: spans have different slots, and each channel is in one task.
            Some(unsafe { states.part(slot, j * channels + first, n) })
        };
        if !span.is_first {
            for (j, past) in past.chunks_exact_mut(n).enumerate() {
                place(j).into_iter().for_each(|place| past.copy_from_slice(place));
            }
        }
        // Input `at - before` of the span.
        let input = |at: usize| match at < before {
            true => &past[at * n..][..n],
            false => &x.row(span.rows.start + at - before)[first..][..n],
        };
        for (at, row) in span.rows.clone().enumerate() {
            #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
            // SAFETY: each channel is in one task.
            let output = unsafe { output.part(row * channels + first..row * channels + first + n) };
            let inputs: [&[f32]; MOST_AT_ONCE] =
                std::array::from_fn(|j| if j < self.kernel { input(at + j) } else { &[] });
            taps(&inputs[..self.kernel.min(MOST_AT_ONCE)], weights, &weights[self.kernel * n..], output);
            for j in MOST_AT_ONCE..self.kernel {
                add_tap(input(at + j), &weights[j * n..][..n], output);
            }
            if self.has_silu {
                silu(output);
            }
        }
        for j in 0..before {
            if let Some(place) = place(j) {
                place.copy_from_slice(input(span.rows.len() + j));
            }
        }
    }
}

for_each_isa!(taps(inputs: &[&[f32]], weights: &[f32], biases: &[f32], output: &mut [f32]) = taps_body);

/// The sum of the inputs times their weights, from the oldest on, added to the biases.
#[inline(always)]
fn taps_body<const FUSED: bool>(inputs: &[&[f32]], weights: &[f32], biases: &[f32], output: &mut [f32]) {
    match *inputs {
        [a] => known_taps::<FUSED, 1>([a], weights, biases, output),
        [a, b] => known_taps::<FUSED, 2>([a, b], weights, biases, output),
        [a, b, c] => known_taps::<FUSED, 3>([a, b, c], weights, biases, output),
        [a, b, c, d] => known_taps::<FUSED, 4>([a, b, c, d], weights, biases, output),
        _ => unreachable!("one to {MOST_AT_ONCE} inputs"),
    }
}

#[inline(always)]
fn known_taps<const FUSED: bool, const K: usize>(
    inputs: [&[f32]; K],
    weights: &[f32],
    biases: &[f32],
    output: &mut [f32],
) {
    let n = output.len();
    let inputs = inputs.map(|input| &input[..n]);
    let columns: [&[f32]; K] = std::array::from_fn(|j| &weights[j * n..(j + 1) * n]);
    let biases = &biases[..n];
    for at in 0..n {
        let mut sum = biases[at];
        for j in 0..K {
            sum = multiply_add::<FUSED>(columns[j][at], inputs[j][at], sum);
        }
        output[at] = sum;
    }
}

for_each_isa!(add_tap(input: &[f32], weights: &[f32], output: &mut [f32]) = add_tap_body);

#[inline(always)]
fn add_tap_body<const FUSED: bool>(input: &[f32], weights: &[f32], output: &mut [f32]) {
    for ((output, &input), &weight) in output.iter_mut().zip(input).zip(weights) {
        *output = multiply_add::<FUSED>(weight, input, *output);
    }
}

for_each_isa!(silu(x: &mut [f32]) = silu_body);

#[inline(always)]
fn silu_body<const FUSED: bool>(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x /= 1.0 + exp::<FUSED>(-*x));
}
