//! The optimizer's passes over a parameter: AdamW, and the sum of squares for clipping.

use burn_cubecl::{
    cubecl::{self, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::launch::{LANES, add_lanes, grid, workgroup, writable};
use crate::ops::AdamWStep;

/// Values whose squares a workgroup adds.
const SQUARES: usize = LANES * 32;

/// [`adamw`](crate::ops::adamw) of `[value, gradient, first moment, second moment]`, `[n_values]` each: the new value and
/// moments.
pub(super) fn adamw([value, gradient, first, second]: [CubeTensor; 4], step: AdamWStep) -> [CubeTensor; 3] {
    let gradient = into_contiguous(gradient);
    let [value, first, second] = [value, first, second].map(writable);
    let len = value.meta.shape()[0];
    let [correction1, correction2] = step.corrections();
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: a lane has one value of each tensor.
    unsafe {
        adamw_values::launch_unchecked(
            &value.client,
            grid(len.div_ceil(LANES), 1),
            CubeDim::new_1d(LANES as u32),
            value.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            first.clone().into_buffer_arg(),
            second.clone().into_buffer_arg(),
            len,
            step.beta1 as f32,
            (1.0 - step.beta1) as f32,
            step.beta2 as f32,
            (1.0 - step.beta2) as f32,
            (step.lr / correction1) as f32,
            correction2.sqrt() as f32,
            step.eps as f32,
            (1.0 - step.lr * step.weight_decay) as f32,
        );
    }
    [value, first, second]
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and numbers of a kernel")]
fn adamw_values(
    value: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    len: usize,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    rate: f32,
    root_correction: f32,
    eps: f32,
    kept: f32,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < len {
        let by = gradient[at];
        let mean = first[at] * beta1 + by * rest1;
        let square = second[at] * beta2 + by * by * rest2;
        first[at] = mean;
        second[at] = square;
        value[at] = value[at] * kept - mean * rate / (square.sqrt() / root_correction + eps);
    }
}

/// Number of partial sums that [`square_sums`] returns for this many values.
pub(in crate::ops) fn n_square_sums(len: usize) -> usize {
    len.div_ceil(SQUARES)
}

/// Writes the sums of the squares of `values [n_values]` to `sums`, from `start` on, in place.
pub(super) fn square_sums(sums: CubeTensor, values: CubeTensor, start: usize) -> CubeTensor {
    let values = into_contiguous(values);
    let len = values.meta.shape()[0];
    if len > 0 {
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each workgroup reads its own values and writes one sum.
        unsafe {
            add_squares::launch_unchecked(
                &sums.client,
                grid(n_square_sums(len), 1),
                CubeDim::new_1d(LANES as u32),
                values.into_buffer_arg(),
                sums.clone().into_buffer_arg(),
                len,
                start,
            );
        }
    }
    sums
}

#[cube(launch_unchecked)]
fn add_squares(values: &[f32], sums: &mut [f32], len: usize, start: usize) {
    let lane = UNIT_POS_X as usize;
    let number = workgroup();
    if number * SQUARES >= len {
        terminate!();
    }
    let mut squares = Shared::<[f32]>::new_slice(LANES);
    let mut sum = f32::new(0.0);
    let mut at = number * SQUARES + lane;
    let end = clamp_max((number + 1) * SQUARES, len);
    while at < end {
        let value = values[at];
        sum = fma(value, value, sum);
        at += LANES;
    }
    squares[lane] = sum;
    add_lanes(&mut squares, 1usize, LANES, LANES);
    if lane == 0 {
        sums[start + number] = squares[0];
    }
}
