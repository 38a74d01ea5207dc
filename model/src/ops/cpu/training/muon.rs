//! Muon's update: Newton-Schulz iterations by all threads, and one pass over memory for the rest.

use burn::tensor::Tensor;

use super::product::{Plus, View, shared_product};
use crate::ops::{
    MuonStep, Precision,
    cpu::{
        tensors::{changed, values},
        thread_pool::{self, SharedMut},
    },
};

/// Values per task.
const AT_ONCE: usize = 1 << 14;

/// [`muon`](crate::ops::muon).
pub(in crate::ops) fn muon(
    value: Tensor<1>,
    gradient: Tensor<1>,
    momentum: Tensor<1>,
    step: &MuonStep,
) -> (Tensor<1>, Tensor<1>) {
    let gradient = values(gradient);
    let gradient = gradient.as_slice();
    let (beta, rest) = (step.momentum as f32, (1.0 - step.momentum) as f32);
    let mut direction = vec![0.0; gradient.len()];
    let momentum = changed(momentum, |momentum| {
        let shared = SharedMut::new(&mut direction);
        thread_pool::parallel_chunks(momentum, AT_ONCE, |chunk, momentum| {
            let range = chunk * AT_ONCE..chunk * AT_ONCE + momentum.len();
            #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
            // SAFETY: chunks do not overlap, and each index is claimed once.
            let direction = unsafe { shared.part(range.clone()) };
            for ((momentum, &gradient), direction) in momentum.iter_mut().zip(&gradient[range]).zip(direction) {
                let fresh = gradient * rest;
                *momentum = *momentum * beta + fresh;
                *direction = if step.nesterov { *momentum * beta + fresh } else { *momentum };
            }
        });
    });
    let kept = (1.0 - step.lr * step.weight_decay) as f32;
    let mut first = 0;
    let value = changed(value, |value| {
        for &n_rows in &step.rows {
            let range = first * step.width..(first + n_rows) * step.width;
            first += n_rows;
            let change = orthogonalized(&direction[range.clone()], [n_rows, step.width], step.iterations);
            let rate = step.rate_of(n_rows) as f32;
            thread_pool::parallel_chunks(&mut value[range], AT_ONCE, |chunk, value| {
                let change = &change[chunk * AT_ONCE..][..value.len()];
                value.iter_mut().zip(change).for_each(|(value, change)| *value = *value * kept - rate * change);
            });
        }
    });
    (value, momentum)
}

/// Approximates the nearest matrix with orthonormal rows or columns.
fn orthogonalized(matrix: &[f32], [n_rows, n_columns]: [usize; 2], iterations: usize) -> Vec<f32> {
    let squares: f64 = matrix.chunks(AT_ONCE).map(|part| f64::from(part.iter().map(|x| x * x).sum::<f32>())).sum();
    let factor = (1.0 / (squares.sqrt() + MuonStep::NORM_EPS)) as f32;
    // The Gram matrix of the shorter side is the smaller product.
    let is_tall = n_rows > n_columns;
    let (short, long) = if is_tall { (n_columns, n_rows) } else { (n_rows, n_columns) };
    let mut x = if is_tall { transposed(matrix, n_columns) } else { matrix.to_vec() };
    x.iter_mut().for_each(|x| *x *= factor);
    let [a, b, c] = MuonStep::COEFFICIENTS.map(|coefficient| coefficient as f32);
    let (mut gram, mut polynomial) = (vec![0.0; short * short], vec![0.0; short * short]);
    let mut next = vec![0.0; x.len()];
    for _ in 0..iterations {
        let view = View::new(&x, [short, long], long);
        shared_product(&mut gram, [view, view.transposed()], Plus::Nothing, Precision::F32);
        let square = View::new(&gram, [short, short], short);
        // The Gram matrix is symmetric.
        shared_product(&mut polynomial, [square, square], Plus::Nothing, Precision::F32);
        polynomial.iter_mut().zip(&gram).for_each(|(square, gram)| *square = c * *square + b * gram);
        polynomial.iter_mut().step_by(short + 1).for_each(|diagonal| *diagonal += a);
        let polynomial = View::new(&polynomial, [short, short], short);
        shared_product(&mut next, [polynomial, view], Plus::Nothing, Precision::F32);
        std::mem::swap(&mut x, &mut next);
    }
    if is_tall { transposed(&x, n_rows) } else { x }
}

/// A matrix with rows of `width` values, transposed.
fn transposed(matrix: &[f32], width: usize) -> Vec<f32> {
    let n_rows = matrix.len() / width;
    let mut columns = vec![0.0; matrix.len()];
    thread_pool::parallel_chunks(&mut columns, n_rows, |column, values| {
        values.iter_mut().zip(matrix[column..].iter().step_by(width)).for_each(|(to, from)| *to = *from);
    });
    columns
}
