//! Activation functions of the MLP.

use burn::tensor::{Tensor, activation};

use super::{Placement, cpu, cube, training::apply_on_its_device, types::Activate};
use crate::config::{Activation, ClampedSwiglu};

/// Applies `kind` to each value of `x [n_rows, d_ff]`.
pub(crate) fn activate(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    match Placement::of(&x.device()) {
        Placement::Cpu => {
            let dims = x.dims();
            cpu::tensor(cpu::activate(cpu::values(x).as_slice(), dims[1], kind), dims)
        }
        Placement::Gpu => cube::activate(x, kind),
        Placement::CpuTraining | Placement::GpuTraining => {
            apply_on_its_device(vec![x.into()], Activate { kind, is_gated: false })
        }
    }
}

/// `x * sigmoid(gates)`, both `[n_rows, width]`.
pub(crate) fn sigmoid_gated(x: Tensor<2>, gates: Tensor<2>) -> Tensor<2> {
    match Placement::of(&x.device()) {
        Placement::Cpu => {
            let gates = cpu::columns(gates);
            cpu::changed(x, |values| cpu::gate_rows(values, gates.rows()))
        }
        Placement::Gpu | Placement::CpuTraining | Placement::GpuTraining => x * activation::sigmoid(gates),
    }
}

/// GELU of a few values on the host.
pub(crate) fn gelu_of(values: &[f32]) -> Vec<f64> {
    cpu::activate(values, values.len(), Activation::Gelu).into_iter().map(f64::from).collect()
}

/// [`activate`] in plain Burn operations.
#[cfg(test)]
pub(crate) fn activate_reference(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    match kind {
        Activation::Relu => activation::relu(x),
        Activation::ReluSquared => activation::relu(x).square(),
        Activation::Gelu => activation::gelu(x),
        Activation::GeluTanh => activation::gelu_approximate(x),
        Activation::Silu => activation::silu(x),
    }
}

/// xIELU ([Huang and Schlag, 2024](https://arxiv.org/abs/2411.13010)) of each value of `x [n_rows, d_ff]`: `p x^2 +
/// beta x` above 0, else `n (e^min(x, eps) - 1 - x) + beta x`. The `numbers [4]` are the inverse softplus of `p` and of
/// `n - beta`, `beta` and `eps`; the last two have no gradient.
pub(crate) fn xielu(x: Tensor<2>, numbers: Tensor<1>) -> Tensor<2> {
    match Placement::of(&x.device()) {
        Placement::Cpu => {
            let [_, width] = x.dims();
            let numbers = cpu::XieluNumbers::of(cpu::values(numbers).as_slice());
            cpu::changed(x, |x| cpu::xielu(x, width, numbers))
        }
        _ => xielu_reference(x, numbers),
    }
}

/// [`xielu`] in plain Burn operations.
pub(crate) fn xielu_reference(x: Tensor<2>, numbers: Tensor<1>) -> Tensor<2> {
    let dims = x.dims();
    let number = |at: usize| numbers.clone().narrow(0, at, 1).reshape([1, 1]).expand(dims);
    let softplus = |x: Tensor<2>| x.exp().log1p();
    let (beta, eps) = (number(2).detach(), number(3).detach());
    let above = x.clone() * x.clone() * softplus(number(0));
    let limited = x.clone().mask_where(x.clone().greater(eps.clone()), eps);
    let below = (limited.exp() - 1.0 - x.clone()) * (softplus(number(1)) + beta.clone());
    below.mask_where(x.clone().greater_elem(0.0), above) + x * beta
}

/// The clamped gate of `gate_up [n_rows, 2 * d_ff]`, whose left half is the gate: `[n_rows, d_ff]`. See [`ClampedSwiglu`].
pub(crate) fn clamped_swiglu(gate_up: Tensor<2>, clamped: ClampedSwiglu) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    match Placement::of(&gate_up.device()) {
        Placement::Cpu => {
            let mut output = vec![0.0; n_rows * width / 2];
            cpu::clamped_swiglu_into(cpu::values(gate_up).as_slice(), width / 2, clamped, &mut output);
            cpu::tensor(output, [n_rows, width / 2])
        }
        _ => clamped_swiglu_reference(gate_up, clamped),
    }
}

/// [`clamped_swiglu`] in plain Burn operations.
pub(crate) fn clamped_swiglu_reference(gate_up: Tensor<2>, ClampedSwiglu { alpha, limit }: ClampedSwiglu) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    let gate = gate_up.clone().slice([0..n_rows, 0..width / 2]).clamp_max(limit);
    let up = gate_up.slice([0..n_rows, width / 2..width]).clamp(-limit, limit);
    let sigmoid = activation::sigmoid(gate.clone() * alpha);
    (up + 1.0) * gate * sigmoid
}

/// `cap * tanh(x / cap)` of each value: limits it to `-cap..cap` and hardly changes small ones ([Gemma
/// 2](https://arxiv.org/abs/2408.00118), 2).
pub(crate) fn soft_cap<const D: usize>(x: Tensor<D>, cap: f64) -> Tensor<D> {
    match Placement::of(&x.device()) {
        Placement::Cpu => cpu::changed(x, |x| cpu::soft_cap(x, cap as f32)),
        _ => soft_cap_reference(x, cap),
    }
}

/// [`soft_cap`] in plain Burn operations.
pub(crate) fn soft_cap_reference<const D: usize>(x: Tensor<D>, cap: f64) -> Tensor<D> {
    (x / cap).tanh() * cap
}

/// `act(gate) * up` for `gate_up [n_rows, 2 * d_ff]`, whose left half is the gate: `[n_rows, d_ff]`.
pub(crate) fn gated(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    match Placement::of(&gate_up.device()) {
        Placement::Cpu => {
            cpu::tensor(cpu::gated(cpu::values(gate_up).as_slice(), width / 2, kind), [n_rows, width / 2])
        }
        Placement::Gpu => cube::gated(gate_up, kind),
        Placement::CpuTraining | Placement::GpuTraining => {
            apply_on_its_device(vec![gate_up.into()], Activate { kind, is_gated: true })
        }
    }
}

/// [`gated`] in plain Burn operations.
#[cfg(test)]
pub(crate) fn gated_reference(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    let gate = gate_up.clone().slice([0..n_rows, 0..width / 2]);
    let up = gate_up.slice([0..n_rows, width / 2..width]);
    activate_reference(gate, kind) * up
}
