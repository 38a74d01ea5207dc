//! `x W^T` for many rows, with tiles of both matrices in shared memory.

use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    tensor::CubeTensor,
};

use super::{
    epilogue::Epilogue,
    launch::{grid, workgroup},
    matrix::{Format, Matrix},
    unpack::{high_bits_of, minimum_of, scale_of, weight},
};

/// Rows and outputs of a tile.
const TILE: usize = 64;
/// Inputs of a step.
const DEPTH: usize = 16;
/// Rows and outputs of a lane.
const PART: usize = 4;
/// Lanes along a side of a tile.
const SIDE: usize = TILE / PART;
/// Avoids bank conflicts of lanes that write one column, and aligns a lane's reads to 16 bytes.
const PITCH: usize = TILE + 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    format: Format,
    has_bias: bool,
    has_residual: bool,
}

pub(super) fn launch(x: CubeTensor, matrix: &Matrix, epilogue: Epilogue, output: &CubeTensor) {
    let n_rows = x.meta.shape()[0];
    let Matrix { d_out, d_in, format, .. } = *matrix;
    let plan = Plan { format, has_bias: epilogue.bias.is_some(), has_residual: epilogue.residual.is_some() };
    let row_tiles = n_rows.div_ceil(TILE);
    let client = output.client.clone();
    let absent = || matrix.scales.clone().into_buffer_arg();
    let or_absent = |tensor: Option<CubeTensor>| tensor.map_or_else(absent, CubeTensor::into_buffer_arg);
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: rows, outputs and inputs are kept below the sizes of their operands; missing operands are not read.
    unsafe {
        tiled::launch_unchecked(
            &client,
            grid(row_tiles, d_out.div_ceil(TILE)),
            CubeDim::new_1d((SIDE * SIDE) as u32),
            format.vector(),
            x.into_buffer_arg(),
            matrix.words.clone().into_buffer_arg(),
            matrix.scales.clone().into_buffer_arg(),
            or_absent(epilogue.bias),
            or_absent(epilogue.residual),
            output.clone().into_buffer_arg(),
            n_rows,
            d_in,
            d_out,
            matrix.units(),
            matrix.scale_words(),
            row_tiles,
            plan,
            format.element(),
        );
    }
}

/// A workgroup computes a tile of outputs, step by step along the inner dimension: loads a tile of inputs and one of weights into
/// shared memory, then each lane multiplies its part. One function, since the steps share the lane's registers.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn tiled<E: Numeric, W: Size>(
    x: &[f32],
    words: &[Vector<E, W>],
    scales: &[u32],
    bias: &[f32],
    residual: &[f32],
    output: &mut [f32],
    n_rows: usize,
    d_in: usize,
    d_out: usize,
    units: usize,
    scale_words: usize,
    row_tiles: usize,
    #[comptime] plan: Plan,
    #[define(E)] _element: ElemType,
) {
    let unit_len = comptime!(plan.format.unit());
    // Units of the weight in a step's tile, and in one of its rows.
    let row_units = comptime!(DEPTH / plan.format.unit());
    let tile_units = comptime!(TILE * DEPTH / plan.format.unit());
    let lane = UNIT_POS_X as usize;
    let number = workgroup();
    let first_row = number % row_tiles * TILE;
    let first_output = number / row_tiles * TILE;
    let row = lane / SIDE * PART;
    let out = lane % SIDE * PART;

    let mut x_tile = Shared::<[f32]>::new_slice(comptime!(DEPTH * PITCH));
    let mut w_tile = Shared::<[f32]>::new_slice(comptime!(DEPTH * PITCH));
    let mut sums = Array::<f32>::new(comptime!(PART * PART));
    #[unroll]
    for n in 0..comptime!(PART * PART) {
        sums[n] = 0.0f32;
    }

    let n_steps = d_in.div_ceil(DEPTH);
    for step in 0..n_steps {
        // The input: adjacent lanes load adjacent inputs.
        #[unroll]
        for pass in 0..comptime!(TILE * DEPTH / (SIDE * SIDE)) {
            let at = pass * comptime!(SIDE * SIDE) + lane;
            let (tile_row, depth) = (at / DEPTH, at % DEPTH);
            let input = step * DEPTH + depth;
            let mut value = 0.0f32;
            if first_row + tile_row < n_rows && input < d_in {
                value = x[(first_row + tile_row) * d_in + input];
            }
            x_tile[depth * PITCH + tile_row] = value;
        }
        // The weight, unit by unit.
        let mut at = lane;
        while at < tile_units {
            let tile_out = at / row_units;
            let part = at % row_units;
            let unit = step * row_units + part;
            let inside = first_output + tile_out < d_out && unit < units;
            let weight_row = select(inside, first_output + tile_out, 0);
            let unit = select(inside, unit, 0);
            let loaded = words[weight_row * units + unit];
            let first = weight_row * scale_words;
            let scale = select(inside, scale_of(scales, first, unit, comptime!(plan.format)), 0.0f32);
            let minimum = select(inside, minimum_of(scales, first, unit, comptime!(plan.format)), 0.0f32);
            let high_bits = high_bits_of(scales, first, unit, comptime!(plan.format));
            #[unroll]
            for i in 0..unit_len {
                w_tile[(part * unit_len + i) * PITCH + tile_out] =
                    weight(loaded, i, scale, minimum, high_bits, comptime!(plan.format));
            }
            at += comptime!(SIDE * SIDE);
        }
        sync_cube();
        for depth in 0..DEPTH {
            let mut weights = Array::<f32>::new(PART);
            #[unroll]
            for o in 0..PART {
                weights[o] = w_tile[depth * PITCH + out + o];
            }
            #[unroll]
            for r in 0..PART {
                let value = x_tile[depth * PITCH + row + r];
                #[unroll]
                for o in 0..PART {
                    let n = comptime!(r * PART + o);
                    sums[n] = fma(weights[o], value, sums[n]);
                }
            }
        }
        sync_cube();
    }

    #[unroll]
    for r in 0..PART {
        #[unroll]
        for o in 0..PART {
            let at_row = first_row + row + r;
            let at_out = first_output + out + o;
            if at_row < n_rows && at_out < d_out {
                let mut value = sums[comptime!(r * PART + o)];
                if comptime!(plan.has_bias) {
                    value += bias[at_out];
                }
                if comptime!(plan.has_residual) {
                    value += residual[at_row * d_out + at_out];
                }
                output[at_row * d_out + at_out] = value;
            }
        }
    }
}
