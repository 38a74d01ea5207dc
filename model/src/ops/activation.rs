//! Activation functions of the MLP.

use burn::tensor::{Tensor, activation};

#[cfg(feature = "gpu")]
use super::cube;
use super::{
    cpu,
    training::{Activate, apply_anywhere, trains_on},
};
use crate::config::Activation;

/// Applies `kind` to each value of `x [n_rows, d_ff]`.
pub(crate) fn activate(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if cube::is_cube(&x.device()) {
        return cube::activate(x, kind);
    }
    if trains_on(&x.device()) {
        return apply_anywhere(&x.device(), vec![x.into()], Activate { kind, is_gated: false });
    }
    if !cpu::is_cpu(&x.device()) {
        return activate_reference(x, kind);
    }
    let dims = x.dims();
    cpu::tensor(cpu::activate(cpu::values(x).as_slice(), dims[1], kind), dims)
}

/// [`activate`] in plain Burn operations.
pub(crate) fn activate_reference(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    match kind {
        Activation::Relu => activation::relu(x),
        Activation::ReluSquared => activation::relu(x).square(),
        Activation::Gelu => activation::gelu(x),
        Activation::GeluTanh => activation::gelu_approximate(x),
        Activation::Silu => activation::silu(x),
    }
}

/// `cap * tanh(x / cap)` of each value: limits it to `-cap..cap` and hardly changes small ones ([Gemma
/// 2](https://arxiv.org/abs/2408.00118), 2).
pub(crate) fn soft_cap<const D: usize>(x: Tensor<D>, cap: f64) -> Tensor<D> {
    if !cpu::is_cpu(&x.device()) {
        return soft_cap_reference(x, cap);
    }
    cpu::changed(x, |x| cpu::soft_cap(x, cap as f32))
}

/// [`soft_cap`] in plain Burn operations.
pub(crate) fn soft_cap_reference<const D: usize>(x: Tensor<D>, cap: f64) -> Tensor<D> {
    (x / cap).tanh() * cap
}

/// `act(gate) * up` for `gate_up [n_rows, 2 * d_ff]`, whose left half is the gate: `[n_rows, d_ff]`.
pub(crate) fn gated(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    #[cfg(feature = "gpu")]
    if cube::is_cube(&gate_up.device()) {
        return cube::gated(gate_up, kind);
    }
    if trains_on(&gate_up.device()) {
        return apply_anywhere(&gate_up.device(), vec![gate_up.into()], Activate { kind, is_gated: true });
    }
    if !cpu::is_cpu(&gate_up.device()) {
        return gated_reference(gate_up, kind);
    }
    cpu::tensor(cpu::gated(cpu::values(gate_up).as_slice(), width / 2, kind), [n_rows, width / 2])
}

/// [`gated`] in plain Burn operations.
pub(crate) fn gated_reference(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    let gate = gate_up.clone().slice([0..n_rows, 0..width / 2]);
    let up = gate_up.slice([0..n_rows, width / 2..width]);
    activate_reference(gate, kind) * up
}
