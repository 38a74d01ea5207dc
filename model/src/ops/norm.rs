//! LayerNorm and RMSNorm over the last dimension.

use burn::tensor::Tensor;

use super::{NormOptions, NormParts, Placement, cpu, cube, training::apply_on_its_device, types::Normalize};
use crate::config::NormKind;

/// Normalizes each row of `x [n_rows, width]` and scales it by `weight [width]`, plus `bias [width]`.
///
/// LayerNorm: `(x - mean) / sqrt(var + eps)`; RMSNorm: `x / sqrt(mean(x^2) + eps)`.
pub(crate) fn norm(x: Tensor<2>, weight: Tensor<1>, bias: Option<Tensor<1>>, options: NormOptions) -> Tensor<2> {
    match Placement::of(&x.device()) {
        Placement::Cpu => {
            let dims = x.dims();
            let (x, weight, bias) = (cpu::values(x), cpu::values(weight), bias.map(cpu::values));
            let bias = bias.as_ref().map(|bias| bias.as_slice());
            cpu::tensor(cpu::norm(x.as_slice(), weight.as_slice(), bias, options), dims)
        }
        Placement::Gpu => cube::norm(x, NormParts { weight, bias, options }, None),
        Placement::CpuTraining | Placement::GpuTraining => {
            let operands = [x.into(), weight.into()].into_iter().chain(bias.map(Into::into));
            apply_on_its_device(operands.collect(), Normalize(options))
        }
    }
}

/// The [`norm`] of `x [n_rows, width]`, added to `residual [n_rows, width]`.
pub(crate) fn norm_add(x: Tensor<2>, norm: NormParts, residual: Tensor<2>) -> Tensor<2> {
    match Placement::of(&x.device()) {
        Placement::Gpu => cube::norm(x, norm, Some(residual)),
        _ => super::add_update(residual, self::norm(x, norm.weight, norm.bias, norm.options), 1.0, None),
    }
}

/// [`norm`] in plain Burn operations.
pub(crate) fn norm_reference(
    x: Tensor<2>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    options: NormOptions,
) -> Tensor<2> {
    let centred = match options.kind {
        NormKind::LayerNorm => {
            let mean = x.clone().mean_dim(1);
            x - mean
        }
        NormKind::RmsNorm => x,
    };
    let mean_square = centred.clone().square().mean_dim(1);
    let normed = centred * (mean_square + options.eps).sqrt().recip();
    let weight = if options.weight_offset == 0.0 { weight } else { weight + options.weight_offset };
    let scaled = normed * weight.unsqueeze();
    match bias {
        Some(bias) => scaled + bias.unsqueeze(),
        None => scaled,
    }
}
