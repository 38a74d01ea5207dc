//! `x W^T + b`, and low-rank updates of it.

use std::{mem, sync::Arc};

use burn::tensor::{DType, Tensor};

use super::{
    LoraParts, NormParts, Placement, Weight,
    cpu::{self, Panels},
    cube::{self, Matrix},
    dropout, gated,
    row_updates::{RowUpdate, add_lora_reference, add_row_updates},
    training::{apply, apply_on_gpu},
    weight::WeightForm,
};
use crate::config::{Activation, NormKind};

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
    /// Low-rank updates of some rows, from adapters that are served beside the model.
    pub(crate) by_row: Vec<RowUpdate<'a>>,
}

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
    match (weight.form(), Placement::of(&x.device())) {
        (WeightForm::Packed(panels), Placement::Cpu) => packed(x, panels, bias),
        (WeightForm::Packed(panels), _) => {
            let op = cpu::FrozenLinear { weight: panels.clone(), bias: frozen_bias(bias), lora: None };
            apply(vec![x.into()], op)
        }
        (WeightForm::OnGpu(matrix), _) => cube::linear(x, matrix, bias, None),
        (WeightForm::Stored(weight), _) if weight.dtype() != DType::F32 => with_bias(widened(x, weight), bias),
        (WeightForm::Stored(weight), Placement::Cpu | Placement::CpuTraining) => {
            let operands = [x.into(), weight.into()].into_iter().chain(bias.map(Into::into));
            apply(operands.collect(), cpu::Linear { precision })
        }
        (WeightForm::Stored(weight), Placement::GpuTraining) => {
            let operands = [x.into(), weight.into()].into_iter().chain(bias.map(Into::into));
            apply_on_gpu(operands.collect(), cube::training::Linear { precision })
        }
        (WeightForm::Stored(weight), Placement::Gpu) => with_bias(x.matmul(weight.transpose()), bias),
    }
}

/// The reference's last step.
fn with_bias(product: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    match bias {
        Some(bias) => product + bias.unsqueeze(),
        None => product,
    }
}

/// A frozen bias, for a packed weight while gradients are recorded.
pub(super) fn frozen_bias(bias: Option<Tensor<1>>) -> Option<Vec<f32>> {
    bias.map(|bias| cpu::values(bias.inner()).as_slice().to_vec())
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

/// [`linear`] with the low-rank updates of all rows, if there are any.
fn linear_with_whole_lora(x: Tensor<2>, part: LinearParts<'_>) -> Tensor<2> {
    let LinearParts { weight, bias, lora, .. } = part;
    let Some(lora) = lora else { return linear(x, weight, bias) };
    let LoraParts { values, shape, dropout: dropped } = lora;
    match (Placement::of(&x.device()), weight.form()) {
        (Placement::CpuTraining, WeightForm::Packed(weight)) => {
            let lora = Some((shape, dropped));
            let op = cpu::FrozenLinear { weight: weight.clone(), bias: frozen_bias(bias), lora };
            apply(vec![x.into(), values.into()], op)
        }
        (Placement::Cpu, _) => {
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
        WeightForm::OnGpu(matrix) if part.lora.is_none() => cube::linear(x, matrix, part.bias, Some(residual)),
        _ => super::add_update(residual, linear_with_whole_lora(x, part), 1.0, None),
    })
}

/// [`linear_with_lora`] of the normalized rows.
pub(crate) fn normed_linear(x: Tensor<2>, norm: NormParts, part: LinearParts<'_>) -> Tensor<2> {
    if let Some(matrix) = fused_matrix(&x, &norm, &part) {
        return cube::normed_linear(x, norm, matrix, part.bias, None);
    }
    linear_with_lora(super::norm(x, norm.weight, norm.bias, norm.options), part)
}

/// [`gated`] of [`normed_linear`]: `[n_rows, d_out / 2]`.
pub(crate) fn normed_gated(x: Tensor<2>, norm: NormParts, part: LinearParts<'_>, kind: Activation) -> Tensor<2> {
    if let Some(matrix) = fused_matrix(&x, &norm, &part) {
        return cube::normed_linear(x, norm, matrix, part.bias, Some(kind));
    }
    gated(normed_linear(x, norm, part), kind)
}

/// The GPU's matrix, if one kernel fuses the norm with the product.
fn fused_matrix<'a>(x: &Tensor<2>, norm: &NormParts, part: &LinearParts<'a>) -> Option<&'a Arc<Matrix>> {
    let is_simple = norm.options.kind == NormKind::RmsNorm && norm.bias.is_none();
    match part.weight.form() {
        WeightForm::OnGpu(matrix) if is_simple && !part.has_updates() && cube::can_fuse(x.dims()[0], matrix) => {
            Some(matrix)
        }
        _ => None,
    }
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
