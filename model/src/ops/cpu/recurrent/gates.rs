//! The gates of recurrences.

use crate::ops::cpu::{StridedRows, for_each_isa, math::exp};

/// [`delta_gates`](crate::ops::recurrence::delta_gates) of `ba [n_rows, 2 n_v_heads]`.
pub(in crate::ops) fn delta_gates(ba: &[f32], a_log: &[f32], dt_bias: &[f32]) -> Vec<f32> {
    let mut gates = vec![0.0; ba.len()];
    let width = 2 * a_log.len();
    for (ba, gates) in ba.chunks_exact(width).zip(gates.chunks_exact_mut(width)) {
        let ((b, a), (decays, betas)) = (ba.split_at(width / 2), gates.split_at_mut(width / 2));
        time_steps(a, dt_bias, decays);
        logs_of_decays(a_log, decays);
        sigmoid(b, betas);
    }
    gates
}

/// [`state_space_gates`](crate::ops::recurrence::state_space_gates) of `dt [n_rows, n_v_heads]`.
pub(in crate::ops) fn state_space_gates(
    n_rows: usize,
    dt: StridedRows<'_>,
    [a_log, dt_bias]: [&[f32]; 2],
    limits: [f32; 2],
) -> Vec<f32> {
    let n_heads = a_log.len();
    let mut gates = vec![0.0; 2 * n_rows * n_heads];
    for (row, gates) in gates.chunks_exact_mut(2 * n_heads).enumerate() {
        let (decays, steps) = gates.split_at_mut(n_heads);
        time_steps(dt.row(row), dt_bias, steps);
        steps.iter_mut().for_each(|step| *step = step.max(limits[0]).min(limits[1]));
        decays.copy_from_slice(steps);
        logs_of_decays(a_log, decays);
    }
    gates
}

for_each_isa!(time_steps(x: &[f32], bias: &[f32], steps: &mut [f32]) = time_steps_body);

/// `ln(1 + e^(x + bias))`, without overflow.
#[inline(always)]
fn time_steps_body<const FUSED: bool>(x: &[f32], bias: &[f32], steps: &mut [f32]) {
    for ((step, x), bias) in steps.iter_mut().zip(x).zip(bias) {
        let x = x + bias;
        *step = x.max(0.0) + exp::<FUSED>(-x.abs()).ln_1p();
    }
}

for_each_isa!(logs_of_decays(a_log: &[f32], steps: &mut [f32]) = logs_of_decays_body);

#[inline(always)]
fn logs_of_decays_body<const FUSED: bool>(a_log: &[f32], steps: &mut [f32]) {
    steps.iter_mut().zip(a_log).for_each(|(step, &a_log)| *step *= -exp::<FUSED>(a_log));
}

for_each_isa!(sigmoid(x: &[f32], output: &mut [f32]) = sigmoid_body);

#[inline(always)]
fn sigmoid_body<const FUSED: bool>(x: &[f32], output: &mut [f32]) {
    output.iter_mut().zip(x).for_each(|(output, &x)| *output = 1.0 / (1.0 + exp::<FUSED>(-x)));
}
