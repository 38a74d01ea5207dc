//! The nonlinearities of the feed-forward network.

use burn::tensor::{Tensor, activation};

use crate::config::Activation;

/// Applies `kind` to each value of `x [n_rows, d_ff]`.
pub fn activate(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    match kind {
        Activation::Relu => activation::relu(x),
        Activation::Gelu => activation::gelu(x),
        Activation::GeluTanh => activation::gelu_approximate(x),
        Activation::Silu => activation::silu(x),
    }
}

/// `act(gate) * up` for `gate_up [n_rows, 2 * d_ff]`, whose left half is the gate: `[n_rows, d_ff]`.
pub fn gated(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    let gate = gate_up.clone().slice([0..n_rows, 0..width / 2]);
    let up = gate_up.slice([0..n_rows, width / 2..width]);
    activate(gate, kind) * up
}
