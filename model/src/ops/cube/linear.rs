//! `x W^T`, over packed weights that are widened in registers.
//!
//! For few rows, some lanes share an output: lane `l` takes the units `l`, `l + lanes`, ... of the weight's row, in
//! order, and the lanes' sums are added as a tree. How many lanes depends on the weight alone, so a row of the output
//! has one order of summation, however many rows are computed with it.

use burn_cubecl::{
    cubecl::{self, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    decode::{decode, scale_of},
    matrix::{Format, Matrix},
    rowwise::{empty, nonlinear},
    tiled::TILE,
};
use crate::config::Activation;

/// Lanes of a workgroup.
const WORKGROUP: usize = 128;
/// Rows of the input that a workgroup multiplies at a time, at most: each weight is widened once for all of them.
const MAX_ROWS: usize = 8;
/// Bytes of weights to ask of memory at the same time: a big card's bandwidth times its latency.
const BYTES_IN_FLIGHT: usize = 4 << 20;
/// Rows of the input from which tiles in shared memory are used ...
const TILED_FROM: usize = 64;
/// ... where there are so many of them that a big card is not left idle.
const TILED_FROM_TILES: usize = 128;

/// What a product is joined with.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    /// Added to each row: `[d_out]`.
    pub(super) bias: Option<CubeTensor>,
    /// Added: `[n_rows, d_out]`.
    pub(super) residual: Option<CubeTensor>,
    /// RMSNorm of the input comes first; its weight `[d_in]`. Not together with a residual.
    pub(super) norm: Option<CubeTensor>,
}

/// How a product is joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct LinearOptions {
    /// Of the norm, where there is one.
    pub(in crate::ops) eps: f32,
    /// Of the norm, where there is one.
    pub(in crate::ops) weight_offset: f32,
    /// The left half of the outputs gates the right half: what comes back is half as wide.
    pub(in crate::ops) gate: Option<Activation>,
}

/// How a kernel is cut; each is compiled by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    format: Format,
    /// Lanes that share an output.
    lanes: usize,
    /// Outputs of a lane: the inputs that it reads serve all of them.
    outputs: usize,
    /// Rows of the input.
    rows: usize,
    /// Whether the weight's rows are whole units, so that the input is read in vectors.
    whole_units: bool,
    has_bias: bool,
    beside: Beside,
    gate: Option<Activation>,
}

/// What the buffer beside the bias is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Beside {
    Nothing,
    Residual,
    Norm,
}

/// Whether the kernel for so many rows takes the norm before and the gate after into itself.
pub(in crate::ops) fn joins(n_rows: usize, matrix: &Matrix) -> bool {
    !takes_tiles(n_rows, matrix)
}

fn takes_tiles(n_rows: usize, matrix: &Matrix) -> bool {
    n_rows >= TILED_FROM && n_rows.div_ceil(TILE) * matrix.d_out.div_ceil(TILE) >= TILED_FROM_TILES
}

/// `x [n_rows, d_in]` to `[n_rows, d_out]`, or half of it where there is a gate.
pub(super) fn linear(x: CubeTensor, matrix: &Matrix, joined: Joined, options: LinearOptions) -> CubeTensor {
    let x = into_contiguous(x);
    let n_rows = x.meta.shape()[0];
    let width = if options.gate.is_some() { matrix.d_out / 2 } else { matrix.d_out };
    let output = empty(&x, [n_rows, width]);
    let joined = Joined {
        bias: joined.bias.map(into_contiguous),
        residual: joined.residual.map(into_contiguous),
        norm: joined.norm.map(into_contiguous),
    };
    if takes_tiles(n_rows, matrix) {
        super::tiled::launch(x, matrix, joined, &output);
    } else if n_rows > 0 {
        launch(x, matrix, joined, options, &output);
    }
    output
}

fn launch(x: CubeTensor, matrix: &Matrix, joined: Joined, options: LinearOptions, output: &CubeTensor) {
    let n_rows = x.meta.shape()[0];
    let Matrix { d_out, d_in, format, .. } = *matrix;
    let units = matrix.units();
    // Few outputs need many lanes each to keep the memory busy.
    let enough = BYTES_IN_FLIGHT / (format.unit_words() * size_of::<u32>() * d_out).max(1);
    let lanes = enough.min(units).next_power_of_two().clamp(32, WORKGROUP);
    let (beside, tensor) = match (joined.residual, joined.norm) {
        (Some(residual), _) => (Beside::Residual, Some(residual)),
        (None, Some(norm)) => (Beside::Norm, Some(norm)),
        (None, None) => (Beside::Nothing, None),
    };
    let plan = Plan {
        format,
        lanes,
        outputs: 4,
        rows: n_rows.next_power_of_two().min(MAX_ROWS),
        whole_units: d_in.is_multiple_of(format.unit()),
        has_bias: joined.bias.is_some(),
        beside,
        gate: options.gate,
    };
    let row_groups = n_rows.div_ceil(plan.rows);
    let out_groups = d_out.div_ceil(WORKGROUP / lanes * plan.outputs);
    let client = output.client.clone();
    let absent = || matrix.scales.clone().into_buffer_arg();
    let or_absent = |tensor: Option<CubeTensor>| tensor.map_or_else(absent, CubeTensor::into_buffer_arg);
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: rows, outputs and units are kept below the sizes of what they index; absent operands are not read.
    unsafe {
        gemv::launch_unchecked(
            &client,
            grid(row_groups, out_groups),
            CubeDim::new_1d(WORKGROUP as u32),
            if plan.whole_units { 4 } else { 1 },
            format.unit_words(),
            x.into_buffer_arg(),
            matrix.words.clone().into_buffer_arg(),
            matrix.scales.clone().into_buffer_arg(),
            or_absent(joined.bias),
            or_absent(tensor),
            output.clone().into_buffer_arg(),
            n_rows,
            d_in,
            d_out,
            units,
            matrix.scale_words(),
            row_groups,
            options.eps,
            options.weight_offset,
            plan,
        );
    }
}

/// `inner * outer` workgroups, numbered with `inner` running fastest; see [`workgroup`].
pub(super) fn grid(inner: usize, outer: usize) -> CubeCount {
    let n = inner * outer;
    // A dimension holds 65535 at most.
    let x = n.min(1 << 15);
    CubeCount::Static(x as u32, n.div_ceil(x.max(1)) as u32, 1)
}

/// The number of this workgroup in a [`grid`]; may be beyond the last.
#[cube]
pub(super) fn workgroup() -> usize {
    CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn gemv<N: Size, W: Size>(
    x: &[Vector<f32, N>],
    words: &[Vector<u32, W>],
    scales: &[u32],
    bias: &[f32],
    beside: &[f32],
    output: &mut [f32],
    n_rows: usize,
    d_in: usize,
    d_out: usize,
    units: usize,
    scale_words: usize,
    row_groups: usize,
    eps: f32,
    weight_offset: f32,
    #[comptime] plan: Plan,
) {
    let lanes = comptime!(plan.lanes);
    let outputs = comptime!(plan.outputs);
    let rows = comptime!(plan.rows);
    let unit_len = comptime!(plan.format.unit());
    let x_len = N::value();
    let n_sums = comptime!(outputs * rows);
    // Of a gated lane's outputs, half are gates and half are what they let through.
    let distinct = comptime!(if plan.gate.is_some() { outputs / 2 } else { outputs });
    let width = d_out / comptime!(outputs / distinct);

    let lane = UNIT_POS_X as usize % lanes;
    let group = UNIT_POS_X as usize / lanes;
    let number = workgroup();
    let first_row = number % row_groups * rows;
    let first_output = (number / row_groups * comptime!(WORKGROUP / plan.lanes) + group) * distinct;

    let mut sums = Array::<f32>::new(n_sums);
    #[unroll]
    for n in 0..n_sums {
        sums[n] = 0.0f32;
    }

    let mut squares = Array::<f32>::new(rows);
    #[unroll]
    for r in 0..rows {
        squares[r] = 0.0f32;
    }

    let mut unit = lane;
    while unit < units {
        let mut loaded = Array::<Vector<u32, W>>::new(outputs);
        let mut scale = Array::<f32>::new(outputs);
        #[unroll]
        for o in 0..outputs {
            let place = clamp_max(first_output + comptime!(o % distinct), width - 1);
            let row = place + comptime!(o / distinct) * width;
            loaded[o] = words[row * units + unit];
            scale[o] = scale_of(scales, row * scale_words, unit, comptime!(plan.format));
        }
        #[unroll]
        for part in 0..comptime!(unit_len / 4) {
            let mut weights = Array::<f32>::new(comptime!(outputs * 4));
            #[unroll]
            for o in 0..outputs {
                #[unroll]
                for i in 0..4usize {
                    let weight = decode(loaded[o], comptime!(part * 4 + i), comptime!(plan.format));
                    weights[comptime!(o * 4 + i)] = weight * scale[o];
                }
            }
            #[unroll]
            for r in 0..rows {
                let row = clamp_max(first_row + r, n_rows - 1);
                let mut inputs = Array::<f32>::new(4usize);
                if comptime!(plan.whole_units) {
                    let vector = x[(row * d_in + unit * unit_len) / x_len + part];
                    #[unroll]
                    for i in 0..4usize {
                        inputs[i] = vector.extract(i);
                    }
                } else {
                    #[unroll]
                    for i in 0..4usize {
                        let input = unit * unit_len + comptime!(part * 4 + i);
                        inputs[i] = 0.0f32;
                        if input < d_in {
                            inputs[i] = x[row * d_in + input].extract(0usize);
                        }
                    }
                }
                if comptime!(plan.beside == Beside::Norm) {
                    #[unroll]
                    for i in 0..4usize {
                        let input = unit * unit_len + comptime!(part * 4 + i);
                        squares[r] = fma(inputs[i], inputs[i], squares[r]);
                        // Where there is no such input, it is 0.
                        inputs[i] *= beside[clamp_max(input, d_in - 1)] + weight_offset;
                    }
                }
                #[unroll]
                for o in 0..outputs {
                    let n = comptime!(o * rows + r);
                    let mut sum = sums[n];
                    #[unroll]
                    for i in 0..4usize {
                        sum = fma(weights[comptime!(o * 4 + i)], inputs[i], sum);
                    }
                    sums[n] = sum;
                }
            }
        }
        unit += lanes;
    }

    let mut shared = Shared::<[f32]>::new_slice(comptime!(n_sums * WORKGROUP));
    if comptime!(plan.beside == Beside::Norm) {
        #[unroll]
        for r in 0..rows {
            shared[r * WORKGROUP + UNIT_POS_X as usize] = squares[r];
        }
        add_lanes(&mut shared, rows, lanes);
        #[unroll]
        for r in 0..rows {
            let square = shared[r * WORKGROUP + group * lanes];
            let scale = 1.0f32 / (square / f32::cast_from(d_in) + eps).sqrt();
            #[unroll]
            for o in 0..outputs {
                let n = comptime!(o * rows + r);
                sums[n] *= scale;
            }
        }
        // Everyone has read it before it is written again.
        sync_cube();
    }
    #[unroll]
    for n in 0..n_sums {
        shared[n * WORKGROUP + UNIT_POS_X as usize] = sums[n];
    }
    add_lanes(&mut shared, n_sums, lanes);
    // One lane for each output of the group.
    let mut n = lane;
    while n < comptime!(distinct * rows) {
        let row = first_row + n % rows;
        let out = first_output + n / rows;
        if row < n_rows && out < width {
            let mut value = shared[n * WORKGROUP + group * lanes];
            if comptime!(plan.has_bias) {
                value += bias[out];
            }
            if comptime!(plan.gate.is_some()) {
                let mut other = shared[(n + comptime!(distinct * rows)) * WORKGROUP + group * lanes];
                if comptime!(plan.has_bias) {
                    other += bias[out + width];
                }
                value = nonlinear(value, comptime!(plan.gate.unwrap_or(Activation::Relu))) * other;
            }
            if comptime!(plan.beside == Beside::Residual) {
                value += beside[row * width + out];
            }
            output[row * width + out] = value;
        }
        n += lanes;
    }
}

/// Adds up the first `n` rows of a workgroup's values over the lanes of each group, as a tree, into the group's first.
#[cube]
fn add_lanes(values: &mut Shared<[f32]>, #[comptime] n: usize, #[comptime] lanes: usize) {
    let lane = UNIT_POS_X as usize % lanes;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(lanes.ilog2() as usize) {
        let half = comptime!(lanes >> (step + 1));
        if lane < half {
            #[unroll]
            for row in 0..n {
                let at = row * WORKGROUP + UNIT_POS_X as usize;
                values[at] += values[at + half];
            }
        }
        sync_cube();
    }
}

#[cube]
fn clamp_max(value: usize, most: usize) -> usize {
    select(value < most, value, most)
}
