//! The feed-forward network up to its last matrix.

use burn::tensor::Tensor;

use super::{LinearParts, Mlp, NormParts, activate, gated, linear_with_lora, normed_gated, normed_linear, xielu};

/// `act(up(x))`, or gated `act(gate(x)) * up(x)`, of the rows of `x [n_rows, d_model]`, normalized first if there is a norm:
/// `[n_rows, d_ff]`.
pub(crate) fn normed_mlp(x: Tensor<2>, norm: Option<NormParts>, mlp: &Mlp<LinearParts<'_>>) -> Tensor<2> {
    let Mlp { up, activation, xielu: numbers, gated: is_gated, .. } = mlp;
    let (up, activation) = (up.clone(), *activation);
    let x = match norm {
        Some(norm) if *is_gated => return normed_gated(x, norm, up, activation),
        Some(norm) => normed_linear(x, norm, up),
        None => linear_with_lora(x, up),
    };
    match numbers {
        Some(numbers) => xielu(x, numbers.clone()),
        None if *is_gated => gated(x, activation),
        None => activate(x, activation),
    }
}
