//! `x W^T + b`.

use burn::tensor::{DType, Tensor};

use super::{
    Weight,
    cpu::{self, Panels},
    cube,
    weight::Form,
};

/// Rows of the weight that are widened at a time when it is stored narrower than f32: the scratch stays small, and the
/// matrix is never held twice.
const WIDENED_ROWS: usize = 2048;

/// Multiplies each row by the weight: `x [n_rows, d_in]` to `[n_rows, d_out]`, in f32.
///
/// `bias` is `[d_out]`.
pub fn linear(x: Tensor<2>, weight: &Weight, bias: Option<Tensor<1>>) -> Tensor<2> {
    let product = match weight.form() {
        Form::Packed(panels) => return packed(x, panels, bias),
        Form::OnGpu(matrix) => return cube::linear(x, matrix, bias, None),
        Form::Stored(weight) if weight.dtype() == DType::F32 => x.matmul(weight.transpose()),
        Form::Stored(weight) => widened(x, weight),
    };
    match bias {
        Some(bias) => product + bias.unsqueeze(),
        None => product,
    }
}

/// [`linear`], plus `residual [n_rows, d_out]`.
pub fn linear_add(x: Tensor<2>, weight: &Weight, bias: Option<Tensor<1>>, residual: Tensor<2>) -> Tensor<2> {
    match weight.form() {
        Form::OnGpu(matrix) => cube::linear(x, matrix, bias, Some(residual)),
        _ => residual + linear(x, weight, bias),
    }
}

fn packed(x: Tensor<2>, panels: &Panels, bias: Option<Tensor<1>>) -> Tensor<2> {
    let [n_rows, _] = x.dims();
    let [d_out, _] = panels.dims();
    let (x, bias) = (cpu::values(x), bias.map(cpu::values));
    let output = cpu::linear(x.as_slice(), panels, bias.as_ref().map(|bias| bias.as_slice()));
    cpu::tensor(output, [n_rows, d_out])
}

/// The sum runs in f32 over weights widened a slice at a time.
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
