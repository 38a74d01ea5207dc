//! RMSNorm with a gate, after recurrences.

use burn::tensor::{Tensor, activation::silu};

use super::{
    cpu,
    training::apply,
    types::{GateOrder, GatedNormOptions, Placement},
};

/// Normalizes each group of `options.width` values of `x [n_rows, width]` and gates it with `silu(z)`, `z [n_rows, width]`,
/// before or after. The weight is as wide as a group, or as a row.
///
/// # Panics
/// Unless the shapes agree.
pub(crate) fn gated_norm(x: Tensor<2>, z: Tensor<2>, weight: Tensor<1>, options: GatedNormOptions) -> Tensor<2> {
    let dims @ [_, width] = x.dims();
    assert_eq!(z.dims(), dims, "a gate for each value");
    let [n_weights] = weight.dims();
    assert!(width.is_multiple_of(options.width) && [options.width, width].contains(&n_weights), "groups of a row");
    match Placement::of(&x.device()) {
        Placement::Cpu => {
            let (x, z, weight) = (cpu::values(x), cpu::columns(z), cpu::values(weight));
            cpu::tensor(cpu::gated_norm(x.as_slice(), z.rows(), weight.as_slice(), options), dims)
        }
        Placement::CpuTraining => apply(vec![x.into(), z.into(), weight.into()], cpu::NormalizeGated(options)),
        _ => gated_norm_reference(x, z, weight, options),
    }
}

/// [`gated_norm`] in plain Burn operations.
pub(crate) fn gated_norm_reference(
    x: Tensor<2>,
    z: Tensor<2>,
    weight: Tensor<1>,
    GatedNormOptions { width, eps, order }: GatedNormOptions,
) -> Tensor<2> {
    let dims @ [n_rows, row_width] = x.dims();
    let n_groups = row_width / width;
    let x = if order == GateOrder::BeforeNorm { x * silu(z.clone()) } else { x };
    let groups = x.reshape([n_rows, n_groups, width]);
    let mean_square = groups.clone().square().mean_dim(2);
    let normed = groups * (mean_square + eps).sqrt().recip();
    let weight = weight.clone().reshape([1, weight.dims()[0] / width, width]);
    let scaled = (normed * weight).reshape(dims);
    if order == GateOrder::AfterNorm { scaled * silu(z) } else { scaled }
}
