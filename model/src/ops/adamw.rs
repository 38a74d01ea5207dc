//! The optimizer's update of one parameter.

use burn::tensor::Tensor;

use super::{AdamWStep, Placement, cpu, cube};

/// One update by AdamW ([Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101), algorithm 2): the new value and
/// averages of gradients and of squared gradients, `[n_values]` each. Without `moments` these begin at 0.
///
/// One pass over memory, in place where nothing else shares the tensors.
///
/// # Panics
/// When the tensors differ in length, or gradients are recorded.
pub fn adamw(
    value: Tensor<1>,
    gradient: Tensor<1>,
    moments: Option<[Tensor<1>; 2]>,
    step: AdamWStep,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    assert_eq!(value.dims(), gradient.dims(), "the gradient of another parameter");
    let moments = moments.unwrap_or_else(|| [gradient.zeros_like(), gradient.zeros_like()]);
    match Placement::of(&value.device()) {
        Placement::Cpu => {
            let rates = [step.lr / step.corrections()[0], step.corrections()[1].sqrt()];
            cpu::adamw(value, gradient, moments, rates, step)
        }
        Placement::Gpu => cube::adamw(value, gradient, moments, step),
        Placement::CpuTraining | Placement::GpuTraining => adamw_reference(value, gradient, moments, step),
    }
}

/// [`adamw`] in plain Burn operations.
pub(crate) fn adamw_reference(
    value: Tensor<1>,
    gradient: Tensor<1>,
    [first, second]: [Tensor<1>; 2],
    step: AdamWStep,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let AdamWStep { lr, beta1, beta2, eps, weight_decay, .. } = step;
    let [correction1, correction2] = step.corrections();
    let square = gradient.clone().square();
    let first = first.mul_scalar(beta1) + gradient.mul_scalar(1.0 - beta1);
    let second = second.mul_scalar(beta2) + square.mul_scalar(1.0 - beta2);
    let root = second.clone().sqrt().div_scalar(correction2.sqrt()).add_scalar(eps);
    let change = first.clone().mul_scalar(lr / correction1) / root;
    let value = if weight_decay > 0.0 { value.mul_scalar(1.0 - lr * weight_decay) } else { value };
    (value - change, [first, second])
}
