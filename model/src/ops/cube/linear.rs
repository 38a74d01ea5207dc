//! `x W^T`, over packed weights that are widened in registers.
//!
//! For few rows, some lanes share an output: lane `l` takes the units `l`, `l + lanes`, ... of the weight's row, in
//! order, and the lanes' sums are added as a tree. How many lanes depends on the weight alone, so a row of the output
//! has one order of summation, however many rows are computed with it.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    kernel::into_contiguous,
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};

use super::{
    decode::{decode, scale_of},
    matrix::{Format, Matrix},
};

/// Lanes of a workgroup.
const WORKGROUP: usize = 128;
/// Rows of the input that a workgroup multiplies at a time, at most: each weight is widened once for all of them.
const MAX_ROWS: usize = 8;
/// Bytes of weights to ask of memory at the same time: a big card's bandwidth times its latency.
const BYTES_IN_FLIGHT: usize = 4 << 20;
/// Rows of the input from which tiles in shared memory are used.
const TILED_FROM: usize = 17;

/// What is added to a product: at most one row of values for all rows, and one value for each.
#[derive(Clone, Debug, Default)]
pub(super) struct Added {
    /// `[d_out]`.
    pub(super) bias: Option<CubeTensor>,
    /// `[n_rows, d_out]`.
    pub(super) residual: Option<CubeTensor>,
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
    has_residual: bool,
}

/// `x [n_rows, d_in]` to `[n_rows, d_out]`.
pub(super) fn linear(x: CubeTensor, matrix: &Matrix, added: Added) -> CubeTensor {
    let x = into_contiguous(x);
    let n_rows = x.meta.shape()[0];
    let shape = Shape::new([n_rows, matrix.d_out]);
    let output = empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), shape, DType::F32);
    let added = Added { bias: added.bias.map(into_contiguous), residual: added.residual.map(into_contiguous) };
    if n_rows >= TILED_FROM {
        super::tiled::launch(x, matrix, added, &output);
    } else if n_rows > 0 {
        launch(x, matrix, added, &output);
    }
    output
}

fn launch(x: CubeTensor, matrix: &Matrix, added: Added, output: &CubeTensor) {
    let n_rows = x.meta.shape()[0];
    let Matrix { d_out, d_in, format, .. } = *matrix;
    let units = matrix.units();
    // Few outputs need many lanes each to keep the memory busy.
    let enough = BYTES_IN_FLIGHT / (format.unit_words() * size_of::<u32>() * d_out).max(1);
    let lanes = enough.min(units).next_power_of_two().clamp(32, WORKGROUP);
    let plan = Plan {
        format,
        lanes,
        outputs: 4,
        rows: n_rows.next_power_of_two().min(MAX_ROWS),
        whole_units: d_in.is_multiple_of(format.unit()),
        has_bias: added.bias.is_some(),
        has_residual: added.residual.is_some(),
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
            or_absent(added.bias),
            or_absent(added.residual),
            output.clone().into_buffer_arg(),
            n_rows,
            d_in,
            d_out,
            units,
            matrix.scale_words(),
            row_groups,
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
    residual: &[f32],
    output: &mut [f32],
    n_rows: usize,
    d_in: usize,
    d_out: usize,
    units: usize,
    scale_words: usize,
    row_groups: usize,
    #[comptime] plan: Plan,
) {
    let lanes = comptime!(plan.lanes);
    let outputs = comptime!(plan.outputs);
    let rows = comptime!(plan.rows);
    let unit_len = comptime!(plan.format.unit());
    let x_len = N::value();
    let n_sums = comptime!(outputs * rows);

    let lane = UNIT_POS_X as usize % lanes;
    let group = UNIT_POS_X as usize / lanes;
    let number = workgroup();
    let first_row = number % row_groups * rows;
    let first_output = (number / row_groups * comptime!(WORKGROUP / plan.lanes) + group) * outputs;

    let mut sums = Array::<f32>::new(n_sums);
    #[unroll]
    for n in 0..n_sums {
        sums[n] = 0.0f32;
    }

    let mut unit = lane;
    while unit < units {
        let mut loaded = Array::<Vector<u32, W>>::new(outputs);
        let mut scale = Array::<f32>::new(outputs);
        #[unroll]
        for o in 0..outputs {
            let row = clamp_max(first_output + o, d_out - 1);
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
    #[unroll]
    for n in 0..n_sums {
        shared[n * WORKGROUP + UNIT_POS_X as usize] = sums[n];
    }
    sync_cube();
    #[unroll]
    for step in 0..comptime!(plan.lanes.ilog2() as usize) {
        let half = comptime!(plan.lanes >> (step + 1));
        if lane < half {
            #[unroll]
            for n in 0..n_sums {
                let at = n * WORKGROUP + UNIT_POS_X as usize;
                shared[at] += shared[at + half];
            }
        }
        sync_cube();
    }
    // One lane for each sum of the group.
    let mut n = lane;
    while n < n_sums {
        let row = first_row + n % rows;
        let out = first_output + n / rows;
        if row < n_rows && out < d_out {
            let mut value = shared[n * WORKGROUP + group * lanes];
            if comptime!(plan.has_bias) {
                value += bias[out];
            }
            if comptime!(plan.has_residual) {
                value += residual[row * d_out + out];
            }
            output[row * d_out + out] = value;
        }
        n += lanes;
    }
}

#[cube]
fn clamp_max(value: usize, most: usize) -> usize {
    select(value < most, value, most)
}
