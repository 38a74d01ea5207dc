//! Linear layers with bias and low-rank updates, and MLPs, in place.

use burn::tensor::Tensor;

use super::{
    matmul::{Store, has_gated, linear_into},
    packed_matrix::Panels,
    row_updates::{RowUpdate, add_row_updates},
    rowwise::{XieluNumbers, activate_rows, clamped_swiglu_into, gated_into, xielu},
    tensors::{Values, values},
};
use crate::ops::types::Mlp;

/// A matrix, its bias, and updates of some rows by adapters, in memory.
pub(in crate::ops) struct LinearMemory<'a> {
    pub(super) weight: &'a Panels,
    pub(super) bias: Option<Values>,
    pub(super) updates: Vec<RowUpdate<'a>>,
}

impl<'a> LinearMemory<'a> {
    pub(in crate::ops) fn new(weight: &'a Panels, bias: Option<Tensor<1>>, updates: Vec<RowUpdate<'a>>) -> Self {
        Self { weight, bias: bias.map(values), updates }
    }

    pub(super) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_ref().map(Values::as_slice)
    }

    pub(super) fn multiply(&self, input: &[f32], store: Store, output: &mut [f32]) {
        linear_into(input, self.weight, self.bias(), store, output);
        if !self.updates.is_empty() {
            add_row_updates(output, self.weight.dims()[0], input, &self.updates);
        }
    }

    /// Whether gated values can be stored right away: updates come before the activation.
    pub(super) fn can_gate(&self) -> bool {
        self.updates.is_empty() && has_gated(self.weight)
    }
}

/// Writes the input of the MLP's last matrix, `[n_rows, d_ff]`, to `inner`; `wide` is scratch memory.
pub(super) fn mlp_into(input: &[f32], mlp: &Mlp<LinearMemory<'_>>, wide: &mut Vec<f32>, inner: &mut Vec<f32>) {
    let Mlp { up, activation, xielu: xielu_numbers, gated, clamped, .. } = mlp;
    let [d_up, d_model] = up.weight.dims();
    if !gated {
        product(input, up, inner);
        return match xielu_numbers {
            Some(numbers) => xielu(inner, d_up, XieluNumbers::of(values(numbers.clone()).as_slice())),
            None => activate_rows(inner, d_up, *activation),
        };
    }
    let d_ff = d_up / 2;
    resize(inner, input.len() / d_model * d_ff);
    match clamped {
        Some(clamped) => {
            product(input, up, wide);
            clamped_swiglu_into(wide, d_ff, *clamped, inner);
        }
        None if up.can_gate() => up.multiply(input, Store::Gated(*activation), inner),
        None => {
            product(input, up, wide);
            gated_into(wide, d_ff, *activation, inner);
        }
    }
}

/// Writes the product to `output`; returns the number of rows.
pub(super) fn product(x: &[f32], linear: &LinearMemory<'_>, output: &mut Vec<f32>) -> usize {
    let [d_out, d_in] = linear.weight.dims();
    let n_rows = x.len() / d_in;
    resize(output, n_rows * d_out);
    linear.multiply(x, Store::Set, output);
    n_rows
}

/// Resizes a buffer that is then overwritten.
pub(super) fn resize(values: &mut Vec<f32>, len: usize) {
    values.resize(len, 0.0);
}
