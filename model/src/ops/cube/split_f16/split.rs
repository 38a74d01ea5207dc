//! Splits rows of f32, and of weights in any format, into rows of f16: the nearest numbers and the remainders.
//!
//! Rows are first scaled by powers of two to the top of f16's range, so that nothing overflows and remainders do not
//! underflow.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};
use half::f16;

use super::super::{
    launch::{empty, grid, workgroup},
    matrix::{Format, Matrix},
    unpack::{high_bits_of, minimum_of, scale_of, weight},
};

/// Lanes of a workgroup.
const LANES: usize = 256;
/// Numbers of f16 that a lane writes at a time.
const TOGETHER: usize = 4;

/// Numbers in a row of the weight, padding included.
pub(super) fn row_len(matrix: &Matrix) -> usize {
    matrix.units() * matrix.format.unit()
}

/// Rows of the input in f16: `[2 n_filled, width]`, first the nearest numbers, then the remainders.
pub(super) struct Rows {
    pub(super) first: usize,
    pub(super) n: usize,
    /// Rows with padding.
    pub(super) n_filled: usize,
    pub(super) halves: CubeTensor,
    /// Per-row rescale factors: `[n]`.
    pub(super) scales: CubeTensor,
}

impl Rows {
    pub(super) fn new(x: &CubeTensor, first: usize, [n, n_filled]: [usize; 2], width: usize) -> Self {
        let halves = empty_halves(x, [2 * n_filled, width]);
        let scales = empty(x, [n]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a workgroup has one of the rows, and its lanes keep within it, in `x` and in the output.
        unsafe {
            split_rows::launch_unchecked(
                &x.client,
                grid(n, 1),
                CubeDim::new_1d(LANES as u32),
                TOGETHER,
                x.clone().into_buffer_arg(),
                halves.clone().into_buffer_arg(),
                scales.clone().into_buffer_arg(),
                first,
                n,
                n_filled,
                x.meta.shape()[1],
                width,
            );
        }
        Self { first, n, n_filled, halves, scales }
    }
}

/// Rows of the weight in f16: `[n, width]`.
pub(super) struct Weights {
    pub(super) first: usize,
    pub(super) n: usize,
    /// The nearest numbers.
    pub(super) nearest: CubeTensor,
    /// The remainders, unless they are zero.
    pub(super) rest: Option<CubeTensor>,
    /// Per-row rescale factors, `[n]`; `None` if the rows are unscaled.
    pub(super) scales: Option<CubeTensor>,
}

impl Weights {
    pub(super) fn new(matrix: &Matrix, first: usize, n: usize) -> Self {
        let width = row_len(matrix);
        let words = &matrix.words;
        if matrix.format == Format::F16 {
            let bytes = |rows: usize| (rows * width * size_of::<f16>()) as u64;
            let handle = words.handle.clone().offset_start(bytes(first));
            let behind = handle.size_in_used() - bytes(n);
            let shape = Shape::new([n, width]);
            let handle = handle.offset_end(behind);
            let nearest =
                CubeTensor::new_contiguous(words.client.clone(), words.device.clone(), shape, handle, DType::F16);
            return Self { first, n, nearest, rest: None, scales: None };
        }
        let nearest = empty_halves(words, [n, width]);
        // The nearest f16 has all bits of a bf16, except for numbers some 2^30 below the row's largest.
        let rest = matrix.format.is_quantized().then(|| empty_halves(words, [n, width]));
        let scales = empty(words, [n]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a workgroup has one of the rows, and its lanes keep within it, in the matrix and in the output.
        unsafe {
            split_weights::launch_unchecked(
                &words.client,
                grid(n, 1),
                CubeDim::new_1d(LANES as u32),
                TOGETHER,
                matrix.format.vector(),
                words.clone().into_buffer_arg(),
                matrix.scales.clone().into_buffer_arg(),
                nearest.clone().into_buffer_arg(),
                rest.as_ref().unwrap_or(&nearest).clone().into_buffer_arg(),
                scales.clone().into_buffer_arg(),
                first,
                n,
                matrix.units(),
                matrix.scale_words(),
                matrix.format,
                rest.is_some(),
                matrix.format.element(),
            );
        }
        Self { first, n, nearest, rest, scales: Some(scales) }
    }
}

fn empty_halves(like: &CubeTensor, dims: [usize; 2]) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(dims), DType::F16)
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn split_rows<N: Size>(
    x: &[f32],
    halves: &mut [Vector<f16, N>],
    scales: &mut [f32],
    first: usize,
    n_rows: usize,
    n_filled: usize,
    d_in: usize,
    width: usize,
) {
    // A workgroup beyond the last row repeats the last one's work.
    let number = workgroup();
    let row = select(number < n_rows, number, n_rows - 1);
    let start = (first + row) * d_in;
    let mut most = f32::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < d_in {
        most = max(most, x[start + at].abs());
        at += LANES;
    }
    let exponent = exponent_of(most);
    if UNIT_POS_X == 0 {
        scales[row] = down_again(exponent);
    }
    let factor = to_the_top(exponent);
    let vectors = width / TOGETHER;
    let mut part = UNIT_POS_X as usize;
    while part < vectors {
        let mut nearest = Vector::<f16, N>::new(f16::new(0.0));
        let mut rest = Vector::<f16, N>::new(f16::new(0.0));
        #[unroll]
        for i in 0..TOGETHER {
            let input = part * TOGETHER + i;
            let mut value = f32::new(0.0);
            if input < d_in {
                value = x[start + input] * factor;
            }
            let near = to_11_bits(value);
            nearest.insert(i, f16::cast_from(near));
            rest.insert(i, f16::cast_from(to_11_bits(value - near)));
        }
        halves[row * vectors + part] = nearest;
        halves[(n_filled + row) * vectors + part] = rest;
        part += LANES;
    }
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn split_weights<E: Numeric, N: Size, W: Size>(
    words: &[Vector<E, W>],
    scales: &[u32],
    nearest: &mut [Vector<f16, N>],
    rest: &mut [Vector<f16, N>],
    row_scales: &mut [f32],
    first: usize,
    n_rows: usize,
    units: usize,
    scale_words: usize,
    #[comptime] format: Format,
    #[comptime] has_rest: bool,
    #[define(E)] _element: ElemType,
) {
    let unit_len = comptime!(format.unit());
    // A workgroup beyond the last row repeats the last one's work.
    let number = workgroup();
    let row = select(number < n_rows, number, n_rows - 1);
    let scales_start = (first + row) * scale_words;
    let mut most = f32::new(0.0);
    let mut unit = UNIT_POS_X as usize;
    while unit < units {
        let loaded = words[(first + row) * units + unit];
        let scale = scale_of(scales, scales_start, unit, format);
        let minimum = minimum_of(scales, scales_start, unit, format);
        let high_bits = high_bits_of(scales, scales_start, unit, format);
        #[unroll]
        for i in 0..unit_len {
            most = max(most, weight(loaded, i, scale, minimum, high_bits, format).abs());
        }
        unit += LANES;
    }
    let exponent = exponent_of(most);
    if UNIT_POS_X == 0 {
        row_scales[row] = down_again(exponent);
    }
    let factor = to_the_top(exponent);
    let mut unit = UNIT_POS_X as usize;
    while unit < units {
        let loaded = words[(first + row) * units + unit];
        let scale = scale_of(scales, scales_start, unit, format);
        let minimum = minimum_of(scales, scales_start, unit, format);
        let high_bits = high_bits_of(scales, scales_start, unit, format);
        #[unroll]
        for part in 0..comptime!(unit_len / TOGETHER) {
            let mut near = Vector::<f16, N>::new(f16::new(0.0));
            let mut left = Vector::<f16, N>::new(f16::new(0.0));
            #[unroll]
            for i in 0..TOGETHER {
                let index = comptime!(part * TOGETHER + i);
                let value = weight(loaded, index, scale, minimum, high_bits, format) * factor;
                let nearest_value = to_11_bits(value);
                near.insert(i, f16::cast_from(nearest_value));
                left.insert(i, f16::cast_from(to_11_bits(value - nearest_value)));
            }
            let at = (row * units + unit) * comptime!(unit_len / TOGETHER) + part;
            nearest[at] = near;
            if comptime!(has_rest) {
                rest[at] = left;
            }
        }
        unit += LANES;
    }
}

/// The biased exponent of the largest of the lanes' values, which are not negative.
#[cube]
fn exponent_of(value: f32) -> u32 {
    let lane = UNIT_POS_X as usize;
    let mut most = Shared::<[f32]>::new_slice(LANES);
    most[lane] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(LANES.ilog2() as usize) {
        let half = comptime!(LANES >> (step + 1));
        if lane < half {
            most[lane] = max(most[lane], most[lane + half]);
        }
        sync_cube();
    }
    let exponent = u32::reinterpret(most[0]) >> 23u32;
    // Limits that make both factors normal numbers: rows below 2^-97 are negligible, and values that are not finite
    // stay so.
    clamp(exponent, 30u32, 254u32)
}

/// The power of two that scales values with this exponent to 2^14 and above, below f16's largest, 65504.
#[cube]
fn to_the_top(exponent: u32) -> f32 {
    f32::reinterpret((268u32 - exponent) << 23u32)
}

/// The nearest number with f16's 11 bits, since devices differ in how they round to f16. NaN stays NaN: some devices'
/// NaN has all bits set, and would be rounded to 0.
#[cube]
fn to_11_bits(value: f32) -> f32 {
    let bits = u32::reinterpret(value);
    let rounded = f32::reinterpret((bits + 0xfffu32 + ((bits >> 13u32) & 1u32)) & 0xffff_e000u32);
    select((bits & 0x7f80_0000u32) == 0x7f80_0000u32, value, rounded)
}

/// One over [`to_the_top`].
#[cube]
fn down_again(exponent: u32) -> f32 {
    f32::reinterpret((exponent - 14u32) << 23u32)
}
