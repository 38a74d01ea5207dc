//! The residual stream: updates that are added to it, dropout, and tensors that are used twice.

use std::sync::{Arc, atomic::AtomicBool};

use burn::tensor::{Tensor, TensorData};

use super::{
    Dropout, Placement, cpu,
    training::{apply, apply_on_its_device},
    types::AddUpdate,
};

/// `residual + multiplier * dropout(update)`, all `[n_rows, width]`.
pub(crate) fn add_update(
    residual: Tensor<2>,
    update: Tensor<2>,
    multiplier: f64,
    dropout: Option<Dropout>,
) -> Tensor<2> {
    if Placement::of(&residual.device()) == Placement::Gpu {
        let update = self::dropout(update, dropout);
        return residual + if multiplier == 1.0 { update } else { update * multiplier };
    }
    apply_on_its_device(vec![update.into(), residual.into()], AddUpdate { multiplier, dropout })
}

/// `x [n_rows, width]` with some values set to 0 and the others divided by the share that is kept; `x` itself without
/// dropout.
pub(crate) fn dropout(x: Tensor<2>, dropout: Option<Dropout>) -> Tensor<2> {
    let Some(dropout) = dropout else { return x };
    match Placement::of(&x.device()) {
        Placement::Gpu => dropout_reference(x, dropout),
        _ => apply_on_its_device(vec![x.into()], AddUpdate { multiplier: 1.0, dropout: Some(dropout) }),
    }
}

/// [`dropout`] with factors made on the CPU: the same values are dropped on every device.
pub(crate) fn dropout_reference(x: Tensor<2>, dropout: Dropout) -> Tensor<2> {
    let factors = TensorData::new(cpu::dropout_factors(x.shape().num_elements(), dropout), x.shape());
    let factors = Tensor::from_data(factors, &x.device());
    x * factors
}

/// `x` twice, for two uses. Burn would add the gradients of both uses in an extra operation; on the CPU, [`cpu::Fork`]
/// adds them in place.
pub(crate) fn fork<const D: usize>(x: Tensor<D>) -> [Tensor<D>; 2] {
    if Placement::of(&x.device()) != Placement::CpuTraining {
        return [x.clone(), x];
    }
    // Only the gradient of a tensor that an operation made can be taken out of the backward pass, to be added to in place.
    let x: Tensor<D> = apply(vec![x.into()], cpu::Pass);
    let has_sum = Arc::<AtomicBool>::default();
    [x.clone(), x].map(|x| apply(vec![x.into()], cpu::Fork { has_sum: has_sum.clone() }))
}

/// `left + right`, `[n_values]` each: sums of gradients. On the CPU in place, unless something else shares `left`.
pub fn add_gradients(left: Tensor<1>, right: Tensor<1>) -> Tensor<1> {
    assert_eq!(left.dims(), right.dims(), "gradients of one parameter");
    match Placement::of(&left.device()) {
        Placement::Cpu => cpu::add_gradients(left, right),
        _ => left + right,
    }
}
