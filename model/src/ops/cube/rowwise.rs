//! Embeddings, norms and activations: one pass over each row.

use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    launch::{LANES, add_lanes, empty, grid, workgroup},
    matrix::{Format, Matrix},
    unpack::{high_bits_of, minimum_of, scale_of, weight},
};
use crate::{
    config::{Activation, NormKind},
    ops::NormOptions,
};

/// Rows `ids` of the matrix: `[n, d_in]`.
pub(super) fn embedding(ids: CubeTensor, matrix: &Matrix) -> CubeTensor {
    let ids = into_contiguous(ids);
    let n = ids.meta.shape()[0];
    let output = empty(&ids, [n, matrix.d_in]);
    let n_units = n * matrix.units();
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: each unit is one of the output's; inputs are kept below the row's width and ids below the number of rows.
    unsafe {
        embed::launch_unchecked(
            &output.client,
            grid(n_units.div_ceil(LANES), 1),
            CubeDim::new_1d(LANES as u32),
            matrix.format.vector(),
            ids.into_buffer_arg(),
            matrix.words.clone().into_buffer_arg(),
            matrix.scales.clone().into_buffer_arg(),
            output.clone().into_buffer_arg(),
            n_units,
            matrix.d_out,
            matrix.units(),
            matrix.d_in,
            matrix.scale_words(),
            matrix.format,
            matrix.format.element(),
        );
    }
    output
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn embed<E: Numeric, W: Size>(
    ids: &[i32],
    words: &[Vector<E, W>],
    scales: &[u32],
    output: &mut [f32],
    n_units: usize,
    n_entries: usize,
    units: usize,
    d_in: usize,
    scale_words: usize,
    #[comptime] format: Format,
    #[define(E)] _element: ElemType,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_units {
        // A negative id is a very large number.
        let id = usize::cast_from(ids[at / units]);
        let row = select(id < n_entries, id, n_entries - 1);
        let unit = at % units;
        let loaded = words[row * units + unit];
        let scale = scale_of(scales, row * scale_words, unit, format);
        let minimum = minimum_of(scales, row * scale_words, unit, format);
        let high_bits = high_bits_of(scales, row * scale_words, unit, format);
        #[unroll]
        for i in 0..comptime!(format.unit()) {
            let input = unit * comptime!(format.unit()) + i;
            if input < d_in {
                output[at / units * d_in + input] = weight(loaded, i, scale, minimum, high_bits, format);
            }
        }
    }
}

/// [`take_rows`](crate::ops::take_rows) of `x [n_rows, width]`.
pub(super) fn take_rows(x: CubeTensor, rows: CubeTensor) -> CubeTensor {
    let [x, rows] = [x, rows].map(into_contiguous);
    let ([_, width], [n]) = (x.meta.shape().dims::<2>(), rows.meta.shape().dims::<1>());
    let output = empty(&x, [n, width]);
    if n > 0 {
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each lane writes one value of the output; the caller guarantees that the rows exist in the input.
        unsafe {
            take::launch_unchecked(
                &output.client,
                grid((n * width).div_ceil(LANES), 1),
                CubeDim::new_1d(LANES as u32),
                x.into_buffer_arg(),
                rows.into_buffer_arg(),
                output.clone().into_buffer_arg(),
                n * width,
                width,
            );
        }
    }
    output
}

#[cube(launch_unchecked)]
fn take(x: &[f32], rows: &[i32], output: &mut [f32], len: usize, width: usize) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < len {
        output[at] = x[usize::cast_from(rows[at / width]) * width + at % width];
    }
}

/// [`norm`](crate::ops::norm) of `x [n_rows, width]`, with an optional bias and residual.
pub(super) fn norm(
    x: CubeTensor,
    weight: CubeTensor,
    [bias, residual]: [Option<CubeTensor>; 2],
    options: NormOptions,
) -> CubeTensor {
    let [x, weight] = [x, weight].map(into_contiguous);
    let [n_rows, width] = x.meta.shape().dims::<2>();
    let output = empty(&x, [n_rows, width]);
    if n_rows == 0 {
        return output;
    }
    let (has_bias, has_residual) = (bias.is_some(), residual.is_some());
    let [bias, residual] = [bias, residual].map(|tensor| tensor.map_or_else(|| weight.clone(), into_contiguous));
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: each workgroup has its own row and stays within the row's width.
    unsafe {
        norm_rows::launch_unchecked(
            &output.client,
            grid(n_rows, 1),
            CubeDim::new_1d(LANES as u32),
            x.into_buffer_arg(),
            weight.into_buffer_arg(),
            bias.into_buffer_arg(),
            residual.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            n_rows,
            width,
            options.eps as f32,
            options.weight_offset,
            options.kind == NormKind::LayerNorm,
            has_bias,
            has_residual,
        );
    }
    output
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn norm_rows(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    residual: &[f32],
    output: &mut [f32],
    n_rows: usize,
    width: usize,
    eps: f32,
    weight_offset: f32,
    #[comptime] centred: bool,
    #[comptime] has_bias: bool,
    #[comptime] has_residual: bool,
) {
    let row = workgroup();
    if row >= n_rows {
        terminate!();
    }
    let lane = UNIT_POS_X as usize;
    let mut sums = Shared::<[f32]>::new_slice(LANES);
    let mut mean = f32::new(0.0);
    if comptime!(centred) {
        let mut sum = f32::new(0.0);
        let mut at = lane;
        while at < width {
            sum += x[row * width + at];
            at += LANES;
        }
        sums[lane] = sum;
        add_lanes(&mut sums, 1usize, LANES, LANES);
        mean = sums[0] / f32::cast_from(width);
        // All lanes have read it before it is overwritten.
        sync_cube();
    }
    let mut sum = f32::new(0.0);
    let mut at = lane;
    while at < width {
        let value = x[row * width + at] - mean;
        sum = fma(value, value, sum);
        at += LANES;
    }
    sums[lane] = sum;
    add_lanes(&mut sums, 1usize, LANES, LANES);
    let scale = 1.0f32 / (sums[0] / f32::cast_from(width) + eps).sqrt();
    let mut at = lane;
    while at < width {
        let mut value = (x[row * width + at] - mean) * scale * (weight[at] + weight_offset);
        if comptime!(has_bias) {
            value += bias[at];
        }
        if comptime!(has_residual) {
            value += residual[row * width + at];
        }
        output[row * width + at] = value;
        at += LANES;
    }
}

/// [`activate`](crate::ops::activate) of `x [n_rows, width]`, or [`gated`](crate::ops::gated) to half the width.
pub(super) fn activate(x: CubeTensor, kind: Activation, is_gated: bool) -> CubeTensor {
    let x = into_contiguous(x);
    let [n_rows, width] = x.meta.shape().dims::<2>();
    let d_ff = if is_gated { width / 2 } else { width };
    let output = empty(&x, [n_rows, d_ff]);
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: a lane has one value of the output, and reads only that value's row.
    unsafe {
        activate_values::launch_unchecked(
            &output.client,
            grid((n_rows * d_ff).div_ceil(LANES), 1),
            CubeDim::new_1d(LANES as u32),
            x.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            n_rows * d_ff,
            d_ff,
            kind,
            is_gated,
        );
    }
    output
}

#[cube(launch_unchecked)]
fn activate_values(
    x: &[f32],
    output: &mut [f32],
    len: usize,
    d_ff: usize,
    #[comptime] kind: Activation,
    #[comptime] is_gated: bool,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < len {
        if comptime!(is_gated) {
            let gate = at / d_ff * 2 * d_ff + at % d_ff;
            output[at] = nonlinear(x[gate], kind) * x[gate + d_ff];
        } else {
            output[at] = nonlinear(x[at], kind);
        }
    }
}

#[cube]
pub(super) fn nonlinear(x: f32, #[comptime] kind: Activation) -> f32 {
    match comptime!(kind) {
        Activation::Relu => max(x, 0.0f32),
        Activation::ReluSquared => max(x, 0.0f32) * max(x, 0.0f32),
        Activation::Silu => x * sigmoid(x),
        // (1 + tanh(y)) / 2 is sigmoid(2 y).
        Activation::GeluTanh => x * sigmoid(1.595_769_f32 * (x + 0.044_715f32 * x * x * x)),
        Activation::Gelu => 0.5f32 * x * (1.0f32 + Erf::erf(x * 0.707_106_77f32)),
    }
}

#[cube]
pub(super) fn sigmoid(x: f32) -> f32 {
    // WGSL guarantees nothing about infinities.
    1.0f32 / (1.0f32 + min(-x, 80.0f32).exp())
}
