//! The residual stream: updates that are added to it, dropout, and tensors that are used twice.

use burn::tensor::{Tensor, TensorData};

use super::{
    Dropout, cpu,
    training::{AddUpdate, apply, apply_anywhere, is_on_cpu, trains_on},
};

/// `residual + multiplier * dropout(update)`, all `[n_rows, width]`.
pub(crate) fn add_update(
    residual: Tensor<2>,
    update: Tensor<2>,
    multiplier: f64,
    dropout: Option<Dropout>,
) -> Tensor<2> {
    let device = residual.device();
    if is_on_cpu(&device) || trains_on(&device) {
        return apply_anywhere(&device, vec![update.into(), residual.into()], AddUpdate { multiplier, dropout });
    }
    let update = self::dropout(update, dropout);
    residual + if multiplier == 1.0 { update } else { update * multiplier }
}

/// `x [n_rows, width]` with some values set to 0 and the others divided by the share that is kept; `x` itself without
/// dropout.
pub(crate) fn dropout(x: Tensor<2>, dropout: Option<Dropout>) -> Tensor<2> {
    let Some(dropout) = dropout else { return x };
    let device = x.device();
    if is_on_cpu(&device) || trains_on(&device) {
        return apply_anywhere(&device, vec![x.into()], AddUpdate { multiplier: 1.0, dropout: Some(dropout) });
    }
    dropout_reference(x, dropout)
}

/// [`dropout`] with factors made on the CPU: the same values are dropped on every device.
pub(crate) fn dropout_reference(x: Tensor<2>, dropout: Dropout) -> Tensor<2> {
    let factors = TensorData::new(cpu::dropout_factors(x.shape().num_elements(), dropout), x.shape());
    let factors = Tensor::from_data(factors, &x.device());
    x * factors
}

/// `x` twice, for two uses. Burn would add the gradients of both uses by an operation of its own; on the CPU, ours does.
///
/// If gradients are recorded, the loss must depend on both: otherwise the gradient of neither is counted.
pub(crate) fn fork<const D: usize>(x: Tensor<D>) -> [Tensor<D>; 2] {
    let device = x.device();
    if !(is_on_cpu(&device) && super::records_gradients(&device)) {
        return [x.clone(), x];
    }
    let of_both_uses = cpu::SharedGradient::default();
    [x.clone(), x].map(|x| apply(vec![x.into()], cpu::Fork { of_both_uses: of_both_uses.clone() }))
}

/// `left + right`, `[n_values]` each: sums of gradients. On the CPU in place, unless something else shares `left`.
pub fn add_gradients(left: Tensor<1>, right: Tensor<1>) -> Tensor<1> {
    assert_eq!(left.dims(), right.dims(), "gradients of one parameter");
    if cpu::is_cpu(&left.device()) { cpu::add_gradients(left, right) } else { left + right }
}
