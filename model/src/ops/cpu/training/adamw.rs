//! AdamW's update in one pass over memory.

use burn::tensor::Tensor;

use crate::ops::{
    AdamWStep,
    cpu::{
        for_each_isa, multiply_add,
        tensors::{changed, values},
        thread_pool::{self, SharedMut},
    },
};

/// Values per task.
const AT_ONCE: usize = 1 << 14;

/// [`adamw`](crate::ops::adamw); `rate` is the learning rate divided by the first bias correction, and
/// `root_correction` the root of the second.
pub(in crate::ops) fn adamw(
    value: Tensor<1>,
    gradient: Tensor<1>,
    [first, second]: [Tensor<1>; 2],
    [rate, root_correction]: [f64; 2],
    step: AdamWStep,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let gradient = values(gradient);
    let gradient = gradient.as_slice();
    let numbers = Numbers {
        beta1: step.beta1 as f32,
        rest1: (1.0 - step.beta1) as f32,
        beta2: step.beta2 as f32,
        rest2: (1.0 - step.beta2) as f32,
        per_root: (1.0 / root_correction) as f32,
        eps: step.eps as f32,
        rate: rate as f32,
        kept: (1.0 - step.lr * step.weight_decay) as f32,
    };
    let (mut new_first, mut new_second) = (None, None);
    let value = changed(value, |value| {
        new_first = Some(changed(first, |first| {
            new_second = Some(changed(second, |second| {
                let (first, second) = (SharedMut::new(first), SharedMut::new(second));
                thread_pool::parallel_chunks(value, AT_ONCE, |chunk, value| {
                    let range = chunk * AT_ONCE..chunk * AT_ONCE + value.len();
                    #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
                    // SAFETY: chunks do not overlap, and each index is claimed once.
                    let (first, second) = unsafe { (first.part(range.clone()), second.part(range.clone())) };
                    update(value, &gradient[range], first, second, &numbers);
                });
            }));
        }));
    });
    match (new_first, new_second) {
        (Some(first), Some(second)) => (value, [first, second]),
        _ => unreachable!("`changed` calls what it is given"),
    }
}

/// Settings of the update that all values share.
pub(super) struct Numbers {
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    per_root: f32,
    eps: f32,
    rate: f32,
    kept: f32,
}

for_each_isa!(update(
    value: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    numbers: &Numbers
) = update_body);

#[inline(always)]
fn update_body<const FUSED: bool>(
    value: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    numbers: &Numbers,
) {
    let Numbers { beta1, rest1, beta2, rest2, per_root, eps, rate, kept } = *numbers;
    for (((value, &gradient), first), second) in value.iter_mut().zip(gradient).zip(first).zip(second) {
        *first = multiply_add::<FUSED>(*first, beta1, gradient * rest1);
        *second = multiply_add::<FUSED>(*second, beta2, gradient * gradient * rest2);
        *value = *value * kept - rate * *first / multiply_add::<FUSED>(second.sqrt(), per_root, eps);
    }
}
