//! `x W^T + b`, and low-rank updates of it.

use std::mem;
#[cfg(feature = "gpu")]
use std::sync::Arc;

use burn::tensor::{DType, Tensor};

use super::{
    LoraParts, NormParts, Weight,
    cpu::{self, Panels},
    dropout, gated, records_gradients,
    row_updates::{RowUpdate, add_lora_reference, add_row_updates},
    training::{apply, is_on_cpu},
    weight::Form,
};
#[cfg(feature = "gpu")]
use super::{
    NormOptions,
    cube::{self, LinearOptions, Matrix},
    training::{apply_on_gpu, trains_on_gpu},
};
use crate::config::Activation;
#[cfg(feature = "gpu")]
use crate::config::NormKind;

/// Rows of a 16-bit weight that are widened to f32 at a time, so that the matrix is never held twice.
const WIDENED_ROWS: usize = 2048;

/// A matrix, its bias, and low-rank updates of it.
#[derive(Clone, Debug)]
pub(crate) struct LinearParts<'a> {
    /// `[d_out, d_in]`.
    pub(crate) weight: &'a Weight,
    /// `[d_out]`.
    pub(crate) bias: Option<Tensor<1>>,
    /// Low-rank updates that apply to all rows.
    pub(crate) lora: Option<LoraParts>,
    /// Low-rank updates that apply to some rows, by adapters served beside the model.
    pub(crate) by_row: Vec<RowUpdate<'a>>,
}

#[cfg(feature = "gpu")]
impl LinearParts<'_> {
    fn has_updates(&self) -> bool {
        self.lora.is_some() || !self.by_row.is_empty()
    }
}

/// Multiplies each row by the weight: `x [n_rows, d_in]` to `[n_rows, d_out]`, in f32.
///
/// `bias` is `[d_out]`.
pub(crate) fn linear(x: Tensor<2>, weight: &Weight, bias: Option<Tensor<1>>) -> Tensor<2> {
    let precision = weight.precision();
    let product = match weight.form() {
        Form::Packed(panels) if records_gradients(&x.device()) => {
            let bias = bias.map(|bias| cpu::values(bias.inner()).as_slice().to_vec());
            return apply(vec![x.into()], cpu::FrozenLinear { weight: panels.clone(), bias, lora: None });
        }
        Form::Packed(panels) => return packed(x, panels, bias),
        #[cfg(feature = "gpu")]
        Form::OnGpu(matrix) => return cube::linear(x, matrix, bias, None),
        Form::Stored(weight) if weight.dtype() == DType::F32 && is_on_cpu(&x.device()) => {
            let operands = [x.into(), weight.into()].into_iter().chain(bias.map(Into::into));
            return apply(operands.collect(), cpu::Linear { precision });
        }
        #[cfg(feature = "gpu")]
        Form::Stored(weight) if weight.dtype() == DType::F32 && trains_on_gpu(&x.device()) => {
            let operands = [x.into(), weight.into()].into_iter().chain(bias.map(Into::into));
            return apply_on_gpu(operands.collect(), cube::training::Linear { precision });
        }
        Form::Stored(weight) if weight.dtype() == DType::F32 => x.matmul(weight.transpose()),
        Form::Stored(weight) => widened(x, weight),
    };
    match bias {
        Some(bias) => product + bias.unsqueeze(),
        None => product,
    }
}

/// Calls `multiply` with `x [n_rows, d_in]` and `part` without its [per-row updates](LinearParts::by_row), then adds
/// these to the result: `[n_rows, d_out]`.
fn with_row_updates(
    x: Tensor<2>,
    mut part: LinearParts<'_>,
    multiply: impl FnOnce(Tensor<2>, LinearParts<'_>) -> Tensor<2>,
) -> Tensor<2> {
    let updates = mem::take(&mut part.by_row);
    if updates.is_empty() {
        return multiply(x, part);
    }
    let output = multiply(x.clone(), part);
    add_row_updates(output, x, &updates)
}

/// [`linear`] with the updates of `part`, if it has any.
pub(crate) fn linear_with_lora(x: Tensor<2>, part: LinearParts<'_>) -> Tensor<2> {
    with_row_updates(x, part, linear_with_whole_lora)
}

/// [`linear`] with the updates of all rows, if there are any.
fn linear_with_whole_lora(x: Tensor<2>, part: LinearParts<'_>) -> Tensor<2> {
    let LinearParts { weight, bias, lora, .. } = part;
    let Some(lora) = lora else { return linear(x, weight, bias) };
    let LoraParts { values, shape, dropout: dropped } = lora;
    match weight.form() {
        Form::Packed(weight) if records_gradients(&x.device()) => {
            let bias = bias.map(|bias| cpu::values(bias.inner()).as_slice().to_vec());
            let op = cpu::FrozenLinear { weight: weight.clone(), bias, lora: Some((shape, dropped)) };
            apply(vec![x.into(), values.into()], op)
        }
        _ if is_on_cpu(&x.device()) && !records_gradients(&x.device()) => {
            let (output, values) = (linear(x.clone(), weight, bias), cpu::values(values));
            let x = cpu::values(x);
            cpu::changed(output, |output| cpu::add_lora(output, x.as_slice(), values.as_slice(), &shape))
        }
        _ => {
            let output = linear(x.clone(), weight, bias);
            add_lora_reference(output, dropout(x, dropped), values, &shape)
        }
    }
}

/// [`linear_with_lora`] plus `residual [n_rows, d_out]`, which is added before the [per-row
/// updates](LinearParts::by_row).
pub(crate) fn linear_add(x: Tensor<2>, part: LinearParts<'_>, residual: Tensor<2>) -> Tensor<2> {
    with_row_updates(x, part, |x, part| match part.weight.form() {
        #[cfg(feature = "gpu")]
        Form::OnGpu(matrix) if part.lora.is_none() => cube::linear(x, matrix, part.bias, Some(residual)),
        _ => super::add_update(residual, linear_with_whole_lora(x, part), 1.0, None),
    })
}

/// [`linear_with_lora`] of the normalized rows.
pub(crate) fn normed_linear(x: Tensor<2>, norm: NormParts, part: LinearParts<'_>) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if let Some(matrix) = fused_matrix(&x, &norm, &part) {
        return cube::normed_linear(x, norm.weight, matrix, part.bias, fused_options(norm.options, None));
    }
    linear_with_lora(super::norm(x, norm.weight, norm.bias, norm.options), part)
}

/// [`gated`] of [`normed_linear`]: `[n_rows, d_out / 2]`.
pub(crate) fn normed_gated(x: Tensor<2>, norm: NormParts, part: LinearParts<'_>, kind: Activation) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if let Some(matrix) = fused_matrix(&x, &norm, &part) {
        return cube::normed_linear(x, norm.weight, matrix, part.bias, fused_options(norm.options, Some(kind)));
    }
    gated(normed_linear(x, norm, part), kind)
}

/// The GPU's matrix, if one kernel fuses the norm with the product.
#[cfg(feature = "gpu")]
fn fused_matrix<'a>(x: &Tensor<2>, norm: &NormParts, part: &LinearParts<'a>) -> Option<&'a Arc<Matrix>> {
    let is_simple = norm.options.kind == NormKind::RmsNorm && norm.bias.is_none();
    match part.weight.form() {
        Form::OnGpu(matrix) if is_simple && !part.has_updates() && cube::can_fuse(x.dims()[0], matrix) => Some(matrix),
        _ => None,
    }
}

#[cfg(feature = "gpu")]
fn fused_options(norm: NormOptions, gate: Option<Activation>) -> LinearOptions {
    LinearOptions { eps: norm.eps as f32, weight_offset: norm.weight_offset, gate }
}

fn packed(x: Tensor<2>, panels: &Panels, bias: Option<Tensor<1>>) -> Tensor<2> {
    let [n_rows, _] = x.dims();
    let [d_out, _] = panels.dims();
    let (x, bias) = (cpu::values(x), bias.map(cpu::values));
    let output = cpu::linear(x.as_slice(), panels, bias.as_ref().map(|bias| bias.as_slice()));
    cpu::tensor(output, [n_rows, d_out])
}

/// The product in f32, with the weight widened a slice at a time.
fn widened(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    let [d_out, d_in] = weight.dims();
    let slices = (0..d_out)
        .step_by(WIDENED_ROWS)
        .map(|row| {
            let rows = weight.clone().slice([row..(row + WIDENED_ROWS).min(d_out), 0..d_in]);
            x.clone().matmul(rows.cast(DType::F32).transpose())
        })
        .collect();
    Tensor::cat(slices, 1)
}
