//! Products of rows, value by value.

use crate::ops::cpu::{StridedRows, for_each_isa, math::exp, thread_pool};

/// Values below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 15;

/// `a * b`, each `n_rows` long.
pub(in crate::ops) fn product(n_rows: usize, a: StridedRows<'_>, b: StridedRows<'_>) -> Vec<f32> {
    let width = a.width();
    let run = |row: usize, output: &mut [f32]| {
        output.copy_from_slice(a.row(row));
        multiply(output, b.row(row));
    };
    if n_rows * width < PARALLEL_WORK {
        let mut output = vec![0.0; n_rows * width];
        output.chunks_exact_mut(width).enumerate().for_each(|(row, output)| run(row, output));
        return output;
    }
    thread_pool::new_chunks(n_rows * width, width, run)
}

/// Multiplies `values` by the rows of `factors`.
pub(in crate::ops) fn multiply_rows(values: &mut [f32], factors: StridedRows<'_>) {
    change_rows(values, factors, multiply);
}

/// Multiplies `values` by the sigmoids of the rows of `gates`.
pub(in crate::ops) fn gate_rows(values: &mut [f32], gates: StridedRows<'_>) {
    change_rows(values, gates, gate);
}

fn change_rows(values: &mut [f32], others: StridedRows<'_>, change: impl Fn(&mut [f32], &[f32]) + Sync) {
    let width = others.width();
    let run = |row: usize, values: &mut [f32]| change(values, others.row(row));
    if values.len() < PARALLEL_WORK {
        values.chunks_exact_mut(width).enumerate().for_each(|(row, values)| run(row, values));
    } else {
        thread_pool::parallel_chunks(values, width, run);
    }
}

for_each_isa!(gate(values: &mut [f32], gates: &[f32]) = gate_body);

#[inline(always)]
fn gate_body<const FUSED: bool>(values: &mut [f32], gates: &[f32]) {
    values.iter_mut().zip(gates).for_each(|(value, &gate)| *value /= 1.0 + exp::<FUSED>(-gate));
}

for_each_isa!(multiply(values: &mut [f32], factors: &[f32]) = multiply_body);

#[inline(always)]
fn multiply_body<const FUSED: bool>(values: &mut [f32], factors: &[f32]) {
    values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
}
