//! The feed-forward network up to its last matrix.

use burn::tensor::Tensor;

use super::{
    LinearParts, Mlp, NormParts, activate, clamped_swiglu, gated, linear_with_lora, normed_gated, normed_linear, xielu,
};

/// `act(up(x))`, or gated `act(gate(x)) * up(x)`, or as [`clamped_swiglu`] gates, of the rows of `x [n_rows, d_model]`, normalized first if there is a norm:
/// `[n_rows, d_ff]`.
pub(crate) fn normed_mlp(x: Tensor<2>, norm: Option<NormParts>, mlp: &Mlp<LinearParts<'_>>) -> Tensor<2> {
    let Mlp { up, activation, xielu: numbers, gated: is_gated, clamped, .. } = mlp;
    let (up, activation) = (up.clone(), *activation);
    let x = match norm {
        Some(norm) if *is_gated && clamped.is_none() => return normed_gated(x, norm, up, activation),
        Some(norm) => normed_linear(x, norm, up),
        None => linear_with_lora(x, up),
    };
    match (numbers, clamped) {
        (Some(numbers), _) => xielu(x, numbers.clone()),
        (None, Some(clamped)) => clamped_swiglu(x, *clamped),
        (None, None) if *is_gated => gated(x, activation),
        (None, None) => activate(x, activation),
    }
}
