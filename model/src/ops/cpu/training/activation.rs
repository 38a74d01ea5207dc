//! Activations of the MLP, plain and gated.

use burn::backend::flex::FlexTensor;

use super::{dims, tensor, values};
use crate::{
    config::Activation,
    ops::{
        cpu::{
            self, for_each_isa,
            math::{exp, upper_tail},
            thread_pool,
        },
        types::{Activate, TrainingOp},
    },
};

impl TrainingOp<FlexTensor> for Activate {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let [n_rows, width] = dims(&inputs[0]);
        let d_ff = if self.is_gated { width / 2 } else { width };
        let forward = if self.is_gated { cpu::gated } else { cpu::activate };
        (tensor(forward(values(&inputs[0]), d_ff, self.kind), [n_rows, d_ff]), Vec::new())
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
        let (x, gradient) = (values(&inputs[0]), values(gradient));
        let d_ff = if self.is_gated { width / 2 } else { width };
        let output = thread_pool::new_chunks(x.len(), width, |row, output| {
            let (x, gradient) = (&x[row * width..][..width], &gradient[row * d_ff..][..d_ff]);
            let (gate, up) = x.split_at(d_ff);
            let (of_gate, of_up) = output.split_at_mut(d_ff);
            backward_row(gate, up, gradient, self.kind, of_gate, of_up);
        });
        vec![Some(tensor(output, [n_rows, width]))]
    }
}

for_each_isa!(backward_row(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    kind: Activation,
    of_gate: &mut [f32],
    of_up: &mut [f32]
) = backward_row_body);

/// Without a gate, `up` and `of_up` are empty.
#[inline(always)]
fn backward_row_body<const FUSED: bool>(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    kind: Activation,
    of_gate: &mut [f32],
    of_up: &mut [f32],
) {
    match kind {
        Activation::Relu => each(gate, up, gradient, of_gate, of_up, |x| (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 })),
        Activation::ReluSquared => each(gate, up, gradient, of_gate, of_up, |x| {
            let positive = x.max(0.0);
            (positive * positive, 2.0 * positive)
        }),
        Activation::Silu => each(gate, up, gradient, of_gate, of_up, |x| {
            let share = 1.0 / (1.0 + exp::<FUSED>(-x));
            (x * share, share * (1.0 + x * (1.0 - share)))
        }),
        Activation::GeluTanh => each(gate, up, gradient, of_gate, of_up, |x| {
            const ROOT: f32 = 0.797_884_6; // sqrt(2 / pi)
            let square = x * x;
            let inner = ROOT * x * (1.0 + 0.044_715 * square);
            // (1 + tanh(inner)) / 2
            let share = 1.0 / (1.0 + exp::<FUSED>(-2.0 * inner));
            let of_inner = ROOT * (1.0 + 3.0 * 0.044_715 * square);
            (x * share, share + 2.0 * x * share * (1.0 - share) * of_inner)
        }),
        Activation::Gelu => each(gate, up, gradient, of_gate, of_up, |x| {
            const DENSITY: f32 = 0.398_942_3; // 1 / sqrt(2 pi)
            let tail = upper_tail::<FUSED>(x);
            let below = if x < 0.0 { tail } else { 1.0 - tail };
            (x * below, below + x * DENSITY * exp::<FUSED>(-0.5 * x * x))
        }),
    }
}

/// `f` returns the value of the activation and its derivative.
#[inline(always)]
fn each(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    of_gate: &mut [f32],
    of_up: &mut [f32],
    f: impl Fn(f32) -> (f32, f32),
) {
    if up.is_empty() {
        for ((of_gate, &x), gradient) in of_gate.iter_mut().zip(gate).zip(gradient) {
            *of_gate = gradient * f(x).1;
        }
        return;
    }
    for ((((of_gate, of_up), &x), up), gradient) in of_gate.iter_mut().zip(of_up).zip(gate).zip(up).zip(gradient) {
        let (value, derivative) = f(x);
        *of_gate = gradient * up * derivative;
        *of_up = gradient * value;
    }
}
