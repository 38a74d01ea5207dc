//! Muon's update: Newton-Schulz iterations. Most matrices are updated by one thread each.

use std::cmp::Reverse;

use burn::tensor::Tensor;

use super::product::{Accumulate, RightOperand, View, product_at, product_into};
use crate::ops::{
    MuonParam, MuonStep, Precision,
    cpu::{
        panel_layout::PANEL,
        tensors::{Values, all_changed, values},
        thread_pool,
    },
};

/// Values per task of passes over memory.
const AT_ONCE: usize = 1 << 14;

/// Multiply-adds per iteration up to which one thread updates a matrix alone: with less work, threads would mostly wait
/// for each other.
const MAX_ALONE: usize = 1 << 26;

/// With at least this many matrices per thread, one thread updates each matrix alone, whatever its size.
const MANY: usize = 4;

/// [`muon`](crate::ops::muon).
pub(in crate::ops) fn muon(params: Vec<MuonParam>, step: &MuonStep) -> Vec<(Tensor<1>, Tensor<1>)> {
    let (mut all_values, mut momenta) = (Vec::new(), Vec::new());
    let mut gradients: Vec<(Values, Vec<usize>, usize)> = Vec::new();
    for MuonParam { value, gradient, momentum, rows, width } in params {
        all_values.push(value);
        momenta.push(momentum.unwrap_or_else(|| gradient.zeros_like()));
        gradients.push((values(gradient), rows, width));
    }
    let mut new_momenta = Vec::new();
    let new_values = all_changed(all_values, |all_values| {
        new_momenta = all_changed(momenta, |momenta| {
            let mut matrices = Vec::new();
            for ((value, momentum), (gradient, rows, width)) in all_values.into_iter().zip(momenta).zip(&gradients) {
                let (mut value, mut momentum, mut gradient) = (value, momentum, gradient.as_slice());
                for &n_rows in rows {
                    let n_values = n_rows * width;
                    let parts = (
                        value.split_off_mut(..n_values),
                        momentum.split_off_mut(..n_values),
                        gradient.split_off(..n_values),
                    );
                    let (Some(value), Some(momentum), Some(gradient)) = parts else {
                        unreachable!("the rows are those of the parameter")
                    };
                    matrices.push(Matrix { value, momentum, gradient, n_rows, width: *width });
                }
            }
            update_all(&mut matrices, step);
        });
    });
    new_values.into_iter().zip(new_momenta).collect()
}

fn update_all(matrices: &mut [Matrix<'_>], step: &MuonStep) {
    // The largest first, so that all threads end at about the same time.
    matrices.sort_by_key(|matrix| Reverse(matrix.work()));
    let are_many = matrices.len() >= MANY * thread_pool::n_threads();
    let n_shared = if are_many { 0 } else { matrices.partition_point(|matrix| matrix.work() > MAX_ALONE) };
    let (shared, alone) = matrices.split_at_mut(n_shared);
    shared.iter_mut().for_each(|matrix| matrix.update(step, Threads::All));
    thread_pool::parallel_for_each(alone, |matrix| matrix.update(step, Threads::One));
}

/// One matrix of a parameter, `[n_rows, width]`.
struct Matrix<'a> {
    value: &'a mut [f32],
    momentum: &'a mut [f32],
    gradient: &'a [f32],
    n_rows: usize,
    width: usize,
}

impl Matrix<'_> {
    /// Multiply-adds of an iteration.
    fn work(&self) -> usize {
        let (short, long) = (self.n_rows.min(self.width), self.n_rows.max(self.width));
        short * short * (short + 2 * long)
    }

    fn update(&mut self, step: &MuonStep, threads: Threads) {
        let (beta, rest) = (step.momentum as f32, (1.0 - step.momentum) as f32);
        let gradient = self.gradient;
        threads.for_chunks(self.momentum, AT_ONCE, |chunk, momentum| {
            let gradient = &gradient[chunk * AT_ONCE..];
            momentum
                .iter_mut()
                .zip(gradient)
                .for_each(|(momentum, gradient)| *momentum = *momentum * beta + gradient * rest);
        });
        let mut direction = self.momentum.to_vec();
        if step.nesterov {
            threads.for_chunks(&mut direction, AT_ONCE, |chunk, direction| {
                let gradient = &gradient[chunk * AT_ONCE..];
                direction
                    .iter_mut()
                    .zip(gradient)
                    .for_each(|(value, gradient)| *value = *value * beta + gradient * rest);
            });
        }
        let change = orthogonalized(direction, [self.n_rows, self.width], step.iterations, threads);
        let kept = (1.0 - step.lr * step.weight_decay) as f32;
        let rate = step.rate_of([self.n_rows, self.width]) as f32;
        threads.for_chunks(self.value, AT_ONCE, |chunk, value| {
            let change = &change[chunk * AT_ONCE..];
            value.iter_mut().zip(change).for_each(|(value, change)| *value = *value * kept - rate * change);
        });
    }
}

/// Who computes an update. The bits do not depend on it.
#[derive(Clone, Copy)]
enum Threads {
    /// The calling thread.
    One,
    /// All threads together.
    All,
}

impl Threads {
    fn for_chunks(self, values: &mut [f32], width: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
        match self {
            Self::One => values.chunks_mut(width).enumerate().for_each(|(number, values)| run(number, values)),
            Self::All => thread_pool::parallel_chunks(values, width, run),
        }
    }

    /// Replaces rows of `output`, `row_stride` values apart.
    fn multiply(self, output: &mut [f32], row_stride: usize, [lhs, rhs]: [View<'_>; 2]) {
        match self {
            Self::One => product_into(output, row_stride, lhs, RightOperand::View(rhs), Accumulate::Nothing),
            Self::All => product_at(output, (0, row_stride), [lhs, rhs], Accumulate::Nothing, Precision::F32),
        }
    }

    /// A product `[n, n]` that is symmetric: the part above the diagonal is computed, in blocks of columns, and mirrored.
    fn multiply_symmetric(self, output: &mut [f32], n: usize, [lhs, rhs]: [View<'_>; 2]) {
        let n_inner = lhs.n_cols();
        let width = (n / 8).next_multiple_of(PANEL).max(2 * PANEL);
        for start in (0..n).step_by(width) {
            let end = n.min(start + width);
            let operands = [lhs.part(0..end, 0..n_inner), rhs.part(0..n_inner, start..end)];
            self.multiply(&mut output[start..], n, operands);
        }
        for row in 1..n {
            for column in 0..row {
                output[row * n + column] = output[column * n + row];
            }
        }
    }
}

/// Approximates the nearest matrix with orthonormal rows or columns. The Gram matrix of the shorter side is the smaller product.
fn orthogonalized(matrix: Vec<f32>, dims: [usize; 2], iterations: usize, threads: Threads) -> Vec<f32> {
    let squares: f64 = matrix.chunks(AT_ONCE).map(|part| f64::from(part.iter().map(|x| x * x).sum::<f32>())).sum();
    let factor = (1.0 / (squares.sqrt() + MuonStep::NORM_EPS)) as f32;
    let mut x = matrix;
    x.iter_mut().for_each(|x| *x *= factor);
    let [n_rows, width] = dims;
    let (is_tall, short) = (n_rows > width, n_rows.min(width));
    let [a, b, c] = MuonStep::COEFFICIENTS.map(|coefficient| coefficient as f32);
    let (mut gram, mut polynomial) = (vec![0.0; short * short], vec![0.0; short * short]);
    let mut next = vec![0.0; x.len()];
    for _ in 0..iterations {
        let view = View::new(&x, dims, width);
        let operands = if is_tall { [view.transposed(), view] } else { [view, view.transposed()] };
        threads.multiply_symmetric(&mut gram, short, operands);
        let square = View::new(&gram, [short, short], short);
        threads.multiply_symmetric(&mut polynomial, short, [square, square]);
        polynomial.iter_mut().zip(&gram).for_each(|(square, gram)| *square = c * *square + b * gram);
        polynomial.iter_mut().step_by(short + 1).for_each(|diagonal| *diagonal += a);
        let polynomial = View::new(&polynomial, [short, short], short);
        threads.multiply(&mut next, width, if is_tall { [view, polynomial] } else { [polynomial, view] });
        std::mem::swap(&mut x, &mut next);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::noise;

    #[test]
    fn muon_update_is_bit_identical_by_one_thread_and_by_all() {
        for dims in [[1, 7], [40, 70], [70, 40], [300, 300]] {
            let n_values = dims[0] * dims[1];
            let step = MuonStep { lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.1, iterations: 5 };
            let updated = |threads| {
                let (mut value, mut momentum, gradient) = (noise(n_values, 1), noise(n_values, 2), noise(n_values, 3));
                Matrix {
                    value: &mut value,
                    momentum: &mut momentum,
                    gradient: &gradient,
                    n_rows: dims[0],
                    width: dims[1],
                }
                .update(&step, threads);
                [value, momentum].concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(updated(Threads::One), updated(Threads::All), "{dims:?}");
        }
    }

    #[test]
    fn symmetric_product_has_the_bits_of_the_whole_product() {
        for [n, n_inner] in [[1, 3], [64, 20], [150, 33], [600, 10]] {
            let x = noise(n * n_inner, 4);
            let view = View::new(&x, [n, n_inner], n_inner);
            let (mut half, mut whole) = (vec![0.0; n * n], vec![0.0; n * n]);
            Threads::One.multiply_symmetric(&mut half, n, [view, view.transposed()]);
            Threads::One.multiply(&mut whole, n, [view, view.transposed()]);
            assert!(half.iter().zip(&whole).all(|(half, whole)| half.to_bits() == whole.to_bits()), "{n} x {n_inner}");
        }
    }
}
