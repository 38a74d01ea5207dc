//! `x W^T` for many rows with the device's matrix instructions: the weight is widened to f32, some of its rows at a time,
//! and multiplied as in training.

use burn::tensor::DType;
use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    tensor::CubeTensor,
};

use super::{
    epilogue::Epilogue,
    launch::{LANES, empty, grid, part, workgroup},
    matrix::{Format, Matrix},
    product::{self, Causal, Operand, Product},
    unpack::{high_bits_of, minimum_of, scale_of, weight},
};
use crate::ops::Precision;

/// Numbers that a lane writes at a time.
const TOGETHER: usize = 4;
/// Numbers of the widened weight in memory, at most: 256 MB. Fewer in tests, whose matrices take several slices.
const MAX_WEIGHTS: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };
/// Rows of a slice of the weight are a multiple of this, so that slices of the bias and the output begin where a buffer may.
const OUTPUTS: usize = 128;

/// Whether [`launch`] can multiply by the matrix on its device.
pub(super) fn has_body(matrix: &Matrix) -> bool {
    matrix.d_in.is_multiple_of(TOGETHER) && product::has_instructions(&matrix.words.client)
}

/// `x [n_rows, d_in]` times the transposed matrix, with bias and residual: `[n_rows, d_out]`.
pub(super) fn launch(x: &CubeTensor, matrix: &Matrix, epilogue: &Epilogue) -> CubeTensor {
    let [n_rows, d_in] = x.meta.shape().dims::<2>();
    let output = match &epilogue.residual {
        Some(residual) => residual.copy(),
        None => empty(x, [n_rows, matrix.d_out]),
    };
    let width = matrix.units() * matrix.format.unit();
    let slice = (MAX_WEIGHTS / width / OUTPUTS * OUTPUTS).max(OUTPUTS);
    for first in (0..matrix.d_out).step_by(slice) {
        let n = slice.min(matrix.d_out - first);
        let weights = if matrix.format == Format::F32 {
            part(&matrix.words, first * width, [n * width].into(), DType::F32)
        } else {
            widen(matrix, first, n, width)
        };
        let bias = epilogue.bias.as_ref().map(|bias| part(bias, first, [n].into(), DType::F32));
        let product = Product {
            a: Operand::new(x, d_in),
            b: Operand::new(&weights, width).transposed(),
            dims: [n_rows, n, d_in],
            batch: 1,
            causal: (Causal::No, 0),
            bias: bias.as_ref(),
            precision: Precision::F32,
        };
        let target = part(&output, first, [n_rows * matrix.d_out - first].into(), DType::F32);
        product.write(&target, matrix.d_out, epilogue.residual.is_some());
    }
    output
}

/// Rows of the weight: `[n, width]`.
fn widen(matrix: &Matrix, first: usize, n: usize, width: usize) -> CubeTensor {
    let weights = empty(&matrix.words, [n, width]);
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: a lane has one of the units of these rows, and writes its numbers.
    unsafe {
        widen_units::launch_unchecked(
            &matrix.words.client,
            grid((n * matrix.units()).div_ceil(LANES), 1),
            CubeDim::new_1d(LANES as u32),
            TOGETHER,
            matrix.format.vector(),
            matrix.words.clone().into_buffer_arg(),
            matrix.scales.clone().into_buffer_arg(),
            weights.clone().into_buffer_arg(),
            first,
            n,
            matrix.units(),
            matrix.scale_words(),
            matrix.format,
            matrix.format.element(),
        );
    }
    weights
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn widen_units<E: Numeric, N: Size, W: Size>(
    words: &[Vector<E, W>],
    scales: &[u32],
    weights: &mut [Vector<f32, N>],
    first: usize,
    n_rows: usize,
    units: usize,
    scale_words: usize,
    #[comptime] format: Format,
    #[define(E)] _element: ElemType,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_rows * units {
        let (row, unit) = (first + at / units, at % units);
        let loaded = words[row * units + unit];
        let scale = scale_of(scales, row * scale_words, unit, format);
        let minimum = minimum_of(scales, row * scale_words, unit, format);
        let high_bits = high_bits_of(scales, row * scale_words, unit, format);
        #[unroll]
        for part in 0..comptime!(format.unit() / TOGETHER) {
            let mut values = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for i in 0..TOGETHER {
                values.insert(i, weight(loaded, comptime!(part * TOGETHER + i), scale, minimum, high_bits, format));
            }
            weights[at * comptime!(format.unit() / TOGETHER) + part] = values;
        }
    }
}
