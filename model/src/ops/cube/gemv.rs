//! `x W^T` over packed weights, which are widened in registers.
//!
//! For few rows, several lanes share an output: lane `l` takes the units `l`, `l + lanes`, ... of the weight's row, in
//! order, and a tree adds the lanes' sums. The number of lanes depends on the weight alone, so the order of summation
//! of a row does not depend on the number of rows.

use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    epilogue::{Epilogue, LinearOptions},
    gemm_tensor_core, gemm_tiled,
    launch::{add_lanes, empty, grid, workgroup},
    matrix::{Format, Matrix},
    rowwise::nonlinear,
    unpack::{high_bits_of, minimum_of, scale_of, weight},
};
use crate::config::Activation;

/// Lanes of a workgroup.
const WORKGROUP: usize = 128;
/// Maximum number of input rows that a workgroup multiplies at a time: each weight is widened once for all of them.
/// With more, a lane needs so many registers that an H200 runs too few workgroups at a time.
const MAX_ROWS: usize = 4;
/// Bytes of weights in flight: a large GPU's bandwidth times its latency.
const BYTES_IN_FLIGHT: usize = 4 << 20;
/// Bytes of weights in flight per lane, with one row. A matrix with few outputs gives each multiprocessor of a large
/// GPU only four workgroups, and these use its bandwidth only with this many bytes in flight.
const LANE_BYTES: usize = 128;
/// Rows from which tiles in shared memory are used: enough to occupy a large GPU. An H200 takes 36 ms for 64 rows of a Llama 1B
/// in tiles and 14 ms without, for 128 rows 36 and 56.
const TILED_FROM: usize = 128;
/// Rows from which matrix instructions are used, if the device has them. With fewer rows than both limits, a row's bits
/// do not depend on the other rows.
const WIDENED_FROM: usize = 128;

/// The compile-time parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub(super) format: Format,
    /// Lanes that share an output.
    pub(super) lanes: usize,
    /// Outputs per lane; the lane loads the inputs once for all of them.
    pub(super) outputs: usize,
    /// Units per output that a lane loads before it uses the first.
    pub(super) depth: usize,
    /// Rows of the input.
    pub(super) rows: usize,
    /// Whether the weight's rows are whole units without padding, so that inputs are read as vectors.
    whole_units: bool,
    has_bias: bool,
    has_residual: bool,
    has_norm: bool,
    gate: Option<Activation>,
}

impl Plan {
    /// For `n_rows` rows of inputs.
    pub(super) fn new(n_rows: usize, matrix: &Matrix, epilogue: &Epilogue, gate: Option<Activation>) -> Self {
        let Matrix { d_out, d_in, format, .. } = *matrix;
        let units = matrix.units();
        // Few outputs need many lanes each to keep the memory busy.
        let enough = BYTES_IN_FLIGHT / (format.unit_words() * size_of::<u32>() * d_out).max(1);
        let lanes = enough.min(units).next_power_of_two().clamp(32, WORKGROUP);
        let rows = n_rows.next_power_of_two().min(MAX_ROWS);
        // Quantized weights are small, so loading inputs dominates: compute more outputs per lane.
        let outputs = if rows == 1 && format.is_quantized() { 8 } else { 4 };
        let depth = match format {
            _ if format.is_quantized() => 1,
            _ if rows == 1 => LANE_BYTES / (outputs * format.unit_words() * size_of::<u32>()),
            Format::F16 => 2,
            _ => 1,
        };
        Self {
            format,
            lanes,
            outputs,
            depth: depth.min(units.div_ceil(lanes)).max(1),
            rows,
            // False if a row ends within a unit or a block: the input's next elements then belong to the next row.
            whole_units: d_in == units * format.unit(),
            has_bias: epilogue.bias.is_some(),
            has_residual: epilogue.residual.is_some(),
            has_norm: epilogue.norm.is_some(),
            gate,
        }
    }
}

/// The kernels for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// Several lanes share an output.
    Few,
    Tiled,
    /// By matrix instructions.
    Widened,
}

impl Body {
    fn of(n_rows: usize, matrix: &Matrix) -> Self {
        match n_rows {
            WIDENED_FROM.. if gemm_tensor_core::has_body(matrix) => Self::Widened,
            TILED_FROM.. => Self::Tiled,
            _ => Self::Few,
        }
    }
}

/// Whether the kernel for `n_rows` rows fuses the norm before the product and the gate after it.
pub(in crate::ops) fn can_fuse(n_rows: usize, matrix: &Matrix) -> bool {
    Body::of(n_rows, matrix) == Body::Few
}

/// `x [n_rows, d_in]` to `[n_rows, d_out]`, or half of that if there is a gate.
pub(super) fn linear(x: CubeTensor, matrix: &Matrix, epilogue: Epilogue, options: LinearOptions) -> CubeTensor {
    let x = into_contiguous(x);
    let n_rows = x.meta.shape()[0];
    let width = if options.gate.is_some() { matrix.d_out / 2 } else { matrix.d_out };
    let epilogue = Epilogue {
        bias: epilogue.bias.map(into_contiguous),
        residual: epilogue.residual.map(into_contiguous),
        norm: epilogue.norm.map(into_contiguous),
    };
    let body = Body::of(n_rows, matrix);
    if body == Body::Widened {
        return gemm_tensor_core::launch(&x, matrix, &epilogue);
    }
    let output = empty(&x, [n_rows, width]);
    match body {
        _ if n_rows == 0 => (),
        Body::Tiled => gemm_tiled::launch(x, matrix, epilogue, &output),
        _ => {
            let plan = Plan::new(n_rows, matrix, &epilogue, options.gate);
            launch(plan, x, matrix, epilogue, options, &output);
        }
    }
    output
}

/// Computes the product by the kernel of `plan`.
pub(super) fn launch(
    plan: Plan,
    x: CubeTensor,
    matrix: &Matrix,
    epilogue: Epilogue,
    options: LinearOptions,
    output: &CubeTensor,
) {
    let n_rows = x.meta.shape()[0];
    let Matrix { d_out, d_in, format, .. } = *matrix;
    let units = matrix.units();
    let row_groups = n_rows.div_ceil(plan.rows);
    let out_groups = d_out.div_ceil(WORKGROUP / plan.lanes * plan.outputs);
    let client = output.client.clone();
    let absent = || matrix.scales.clone().into_buffer_arg();
    let or_absent = |tensor: Option<CubeTensor>| tensor.map_or_else(absent, CubeTensor::into_buffer_arg);
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: rows, outputs and units are kept below the sizes of their operands; missing operands are not read.
    unsafe {
        gemv::launch_unchecked(
            &client,
            grid(row_groups, out_groups),
            CubeDim::new_1d(WORKGROUP as u32),
            if plan.whole_units { 4 } else { 1 },
            format.vector(),
            x.clone().into_buffer_arg(),
            matrix.words.clone().into_buffer_arg(),
            matrix.scales.clone().into_buffer_arg(),
            or_absent(epilogue.bias),
            or_absent(epilogue.residual),
            epilogue.norm.unwrap_or(x).into_buffer_arg(),
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
            format.element(),
        );
    }
}

/// A group of lanes computes some outputs of a few rows: each lane adds up every `lanes`-th unit, then the lanes' sums are added
/// and the epilogue is applied. One function, since all phases share the lane's registers.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn gemv<E: Numeric, N: Size, W: Size>(
    x: &[Vector<f32, N>],
    words: &[Vector<E, W>],
    scales: &[u32],
    bias: &[f32],
    residual: &[f32],
    norm: &[Vector<f32, N>],
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
    #[define(E)] _element: ElemType,
) {
    let lanes = comptime!(plan.lanes);
    let outputs = comptime!(plan.outputs);
    let depth = comptime!(plan.depth);
    let rows = comptime!(plan.rows);
    let unit_len = comptime!(plan.format.unit());
    let n_sums = comptime!(outputs * rows);
    // With a gate, half of a lane's outputs are gates for the other half.
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

    let mut first_unit = lane;
    while first_unit < units {
        // Load everything before the first of it is used.
        let mut loaded = Array::<Vector<E, W>>::new(comptime!(outputs * depth));
        let mut scales_of = Array::<f32>::new(comptime!(outputs * depth));
        let mut minima_of = Array::<f32>::new(comptime!(outputs * depth));
        let mut high_bits = Array::<u32>::new(comptime!(outputs * depth));
        #[unroll]
        for d in 0..depth {
            let unit = clamp_max(first_unit + d * lanes, units - 1);
            #[unroll]
            for o in 0..outputs {
                let place = clamp_max(first_output + comptime!(o % distinct), width - 1);
                let row = place + comptime!(o / distinct) * width;
                let n = comptime!(d * outputs + o);
                loaded[n] = words[row * units + unit];
                scales_of[n] = scale_of(scales, row * scale_words, unit, comptime!(plan.format));
                minima_of[n] = minimum_of(scales, row * scale_words, unit, comptime!(plan.format));
                high_bits[n] = high_bits_of(scales, row * scale_words, unit, comptime!(plan.format));
            }
        }
        #[unroll]
        for d in 0..depth {
            let unit = first_unit + d * lanes;
            if unit < units {
                #[unroll]
                for part in 0..comptime!(unit_len / 4) {
                    let mut weights = Array::<f32>::new(comptime!(outputs * 4));
                    #[unroll]
                    for o in 0..outputs {
                        #[unroll]
                        for i in 0..4usize {
                            let n = comptime!(d * outputs + o);
                            let index = comptime!(part * 4 + i);
                            let (scale, minimum) = (scales_of[n], minima_of[n]);
                            weights[comptime!(o * 4 + i)] =
                                weight(loaded[n], index, scale, minimum, high_bits[n], comptime!(plan.format));
                        }
                    }
                    let mut norms = Array::<f32>::new(4usize);
                    if comptime!(plan.has_norm) {
                        norms = four(norm, 0, unit * unit_len, part, d_in, comptime!(plan.whole_units));
                    }
                    #[unroll]
                    for r in 0..rows {
                        let row = clamp_max(first_row + r, n_rows - 1);
                        let mut inputs = four(x, row * d_in, unit * unit_len, part, d_in, comptime!(plan.whole_units));
                        if comptime!(plan.has_norm) {
                            #[unroll]
                            for i in 0..4usize {
                                squares[r] = fma(inputs[i], inputs[i], squares[r]);
                                inputs[i] *= norms[i] + weight_offset;
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
            }
        }
        first_unit += comptime!(depth * lanes);
    }

    let mut shared = Shared::<[f32]>::new_slice(comptime!(n_sums * WORKGROUP));
    if comptime!(plan.has_norm) {
        #[unroll]
        for r in 0..rows {
            shared[r * WORKGROUP + UNIT_POS_X as usize] = squares[r];
        }
        add_lanes(&mut shared, rows, lanes, WORKGROUP);
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
        // All lanes have read it before it is overwritten.
        sync_cube();
    }
    #[unroll]
    for n in 0..n_sums {
        shared[n * WORKGROUP + UNIT_POS_X as usize] = sums[n];
    }
    add_lanes(&mut shared, n_sums, lanes, WORKGROUP);
    // One lane per output of the group.
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
            if comptime!(plan.has_residual) {
                value += residual[row * width + out];
            }
            output[row * width + out] = value;
        }
        n += lanes;
    }
}

/// The values `4 part` to `4 part + 3` after `column` of a row of width `d_in` that starts at `row`; 0 beyond its end.
#[cube]
fn four<N: Size>(
    values: &[Vector<f32, N>],
    row: usize,
    column: usize,
    #[comptime] part: usize,
    d_in: usize,
    #[comptime] in_vectors: bool,
) -> Array<f32> {
    let mut four = Array::<f32>::new(4usize);
    if comptime!(in_vectors) {
        let vector = values[(row + column) / N::value() + part];
        #[unroll]
        for i in 0..4usize {
            four[i] = vector.extract(i);
        }
    } else {
        #[unroll]
        for i in 0..4usize {
            let at = column + comptime!(part * 4 + i);
            four[i] = 0.0f32;
            if at < d_in {
                four[i] = values[row + at].extract(0usize);
            }
        }
    }
    four
}

#[cube]
fn clamp_max(value: usize, most: usize) -> usize {
    select(value < most, value, most)
}
