//! The norm of gradients, and clipping in place.

use burn::tensor::Tensor;

use crate::ops::{
    cpu::{
        for_each_isa, multiply_add,
        tensors::{changed, tensor, values},
        thread_pool,
    },
    types::CLIP_EPS,
};

/// Values per partial sum: with the number of values, all that the order of summation depends on.
const AT_ONCE: usize = 1 << 14;

/// [`clip_norm`](crate::ops::clip_norm).
pub(in crate::ops) fn clip_norm(gradients: Vec<Tensor<1>>, max_norm: f64) -> (Tensor<1>, Vec<Tensor<1>>) {
    let squares: Vec<f64> = gradients.iter().map(square_sum).collect();
    let (norm, gradients) = clip_part(&squares, gradients, max_norm);
    (tensor(vec![norm], [1]), gradients)
}

/// The sum of the squares of a gradient.
pub(in crate::ops) fn square_sum(gradient: &Tensor<1>) -> f64 {
    sum_of_squares(values(gradient.clone()).as_slice())
}

/// [`clip_part`](crate::ops::clip_part).
pub(in crate::ops) fn clip_part(squares: &[f64], gradients: Vec<Tensor<1>>, max_norm: f64) -> (f32, Vec<Tensor<1>>) {
    let norm = squares.iter().sum::<f64>().sqrt();
    let factor = max_norm / (norm + CLIP_EPS);
    let gradients = match max_norm > 0.0 && factor < 1.0 {
        true => gradients.into_iter().map(|gradient| scaled(gradient, factor as f32)).collect(),
        false => gradients,
    };
    (norm as f32, gradients)
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let mut partial = vec![0.0; values.len().div_ceil(AT_ONCE)];
    thread_pool::parallel_chunks(&mut partial, 1, |chunk, sum| {
        let start = chunk * AT_ONCE;
        squares(&values[start..values.len().min(start + AT_ONCE)], &mut sum[0]);
    });
    partial.into_iter().map(f64::from).sum()
}

fn scaled(gradient: Tensor<1>, factor: f32) -> Tensor<1> {
    changed(gradient, |values| {
        thread_pool::parallel_chunks(values, AT_ONCE, |_, values| values.iter_mut().for_each(|value| *value *= factor));
    })
}

for_each_isa!(squares(values: &[f32], sum: &mut f32) = squares_body);

#[inline(always)]
fn squares_body<const FUSED: bool>(values: &[f32], sum: &mut f32) {
    const LANES: usize = 32;
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum = multiply_add::<FUSED>(value, value, *sum);
        }
    }
    *sum = sums.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>();
}
