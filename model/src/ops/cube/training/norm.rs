//! LayerNorm and RMSNorm, of rows and of the heads of queries and keys.

use burn::tensor::Tensor;
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::LANES;
use crate::{
    config::{NormKind, QkNormSpan},
    ops::{
        AttentionOptions, NormOptions,
        cube::{
            launch::{add_lanes, empty, grid, workgroup},
            qk_norm::{QkNorm, qk_norm},
            rowwise,
            tensors::{plain, wrap},
        },
        types::{Normalize, QkNormalize, TrainingOp},
    },
};

/// Lanes of a part, at least.
const FEWEST: usize = 32;
/// Maximum number of partial sums of a weight's gradient; they are added at the end.
const SUMS: usize = 256;

/// The parts of a matrix that are normalized separately, with one weight: `n` in all, `per_row` in each row, side by
/// side from column `start` on.
#[derive(Clone, Copy)]
struct NormedParts {
    n: usize,
    per_row: usize,
    row_width: usize,
    start: usize,
    width: usize,
}

impl NormedParts {
    /// Lanes of a part.
    fn lanes(&self) -> usize {
        self.width.next_power_of_two().clamp(FEWEST, LANES)
    }

    /// Writes the gradients of these parts of `x` to `of_x`. Returns the gradients of the weight and of a bias,
    /// `[width]` each, if `wanted`.
    fn backward(
        self,
        [x, weight, gradient, of_x]: [&CubeTensor; 4],
        options: NormOptions,
        wanted: bool,
    ) -> Option<[CubeTensor; 2]> {
        let is_centred = options.kind == NormKind::LayerNorm;
        let Self { n, per_row, row_width, start, width } = self;
        let stats = empty(x, [n, 2]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each group of lanes stays within its own part, and groups beyond the last part write nothing.
        unsafe {
            parts_back::launch_unchecked(
                &x.client,
                grid(n.div_ceil(LANES / self.lanes()), 1),
                CubeDim::new_1d(LANES as u32),
                x.clone().into_buffer_arg(),
                weight.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                of_x.clone().into_buffer_arg(),
                stats.clone().into_buffer_arg(),
                n,
                per_row,
                row_width,
                start,
                width,
                options.eps as f32,
                options.weight_offset,
                self.lanes(),
                is_centred,
            );
        }
        if !wanted {
            return None;
        }
        let parts_a_sum = n.div_ceil(SUMS).max(1);
        let n_sums = n.div_ceil(parts_a_sum);
        let sums = empty(x, [n_sums, 2 * width]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each lane has one column of some parts, and writes its own two sums.
        unsafe {
            params_back::launch_unchecked(
                &x.client,
                grid(width.div_ceil(LANES), n_sums),
                CubeDim::new_1d(LANES as u32),
                x.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                stats.into_buffer_arg(),
                sums.clone().into_buffer_arg(),
                n,
                per_row,
                row_width,
                start,
                width,
                parts_a_sum,
                n_sums,
            );
        }
        let sums: Tensor<1> = wrap::<2>(sums).sum_dim(0).reshape([2 * width]);
        Some([0..width, width..2 * width].map(|columns| plain(sums.clone().slice([columns]))))
    }
}

impl TrainingOp<CubeTensor> for Normalize {
    fn forward(&self, inputs: &[CubeTensor], _wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        let bias = inputs.get(2).cloned();
        (rowwise::norm(inputs[0].clone(), inputs[1].clone(), [bias, None], self.0), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let [n, width] = x.meta.shape().dims::<2>();
        let of_x = empty(x, [n, width]);
        let parts = NormedParts { n, per_row: 1, row_width: width, start: 0, width };
        let of_params = parts.backward([x, weight, gradient, &of_x], self.0, wanted[1..].contains(&true));
        let [of_weight, of_bias] = of_params.map_or([None, None], |both| both.map(Some));
        [Some(of_x), of_weight, of_bias].into_iter().take(inputs.len()).collect()
    }
}

impl TrainingOp<CubeTensor> for QkNormalize {
    fn forward(&self, inputs: &[CubeTensor], _wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.options;
        let heads = QkNorm { n_heads, n_kv_heads, head_dim, span: self.span };
        let weights = [inputs[1].clone(), inputs[2].clone()];
        (qk_norm(inputs[0].clone(), weights, heads, self.norm), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.options;
        let [n_rows, row_width] = inputs[0].meta.shape().dims::<2>();
        // Values are not normalized.
        let of_qkv = gradient.copy();
        let columns = [(0, n_heads), (n_heads * head_dim, n_kv_heads)];
        let of_weights = columns.into_iter().enumerate().map(|(norm, (start, n_heads))| {
            let (per_row, width) = match self.span {
                QkNormSpan::Head => (n_heads, head_dim),
                QkNormSpan::AllHeads => (1, n_heads * head_dim),
                QkNormSpan::EachHead => unreachable!("`qk_norm` computes it by Burn's operations"),
            };
            let parts = NormedParts { n: n_rows * per_row, per_row, row_width, start, width };
            let operands = [&inputs[0], &inputs[1 + norm], gradient, &of_qkv];
            parts.backward(operands, self.norm, wanted[1 + norm]).map(|[of_weight, _]| of_weight)
        });
        let of_weights: Vec<_> = of_weights.collect();
        [Some(of_qkv)].into_iter().chain(of_weights).collect()
    }
}

/// With `n = (x - mean) r`, where `r` is 1 over the root, and `h = gradient * weight`: the gradient of `x` is `r (h -
/// mean(h) - n mean(h n))`. RMSNorm leaves out `mean` and `mean(h)`. `stats` gets `mean` and `r`.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn parts_back(
    x: &[f32],
    weight: &[f32],
    gradient: &[f32],
    of_x: &mut [f32],
    stats: &mut [f32],
    n_parts: usize,
    per_row: usize,
    row_width: usize,
    start: usize,
    part_width: usize,
    eps: f32,
    weight_offset: f32,
    #[comptime] lanes: usize,
    #[comptime] is_centred: bool,
) {
    let unit = UNIT_POS_X as usize;
    let lane = unit % lanes;
    let number = workgroup() * comptime!(LANES / lanes) + unit / lanes;
    // A group beyond the last part has width 0: it writes nothing, but takes part in barriers.
    let mut width = part_width;
    if number >= n_parts {
        width = usize::cast_from(0u32);
    }
    let first = number / per_row * row_width + start + number % per_row * part_width;
    let n_values = f32::cast_from(part_width);

    let mut sums = Shared::<[f32]>::new_slice(comptime!(2 * LANES));
    let mut mean = f32::new(0.0);
    if comptime!(is_centred) {
        let mut sum = f32::new(0.0);
        let mut at = lane;
        while at < width {
            sum += x[first + at];
            at += lanes;
        }
        sums[unit] = sum;
        add_lanes(&mut sums, 1usize, lanes, LANES);
        mean = sums[unit - lane] / n_values;
        // All lanes have read it before it is overwritten.
        sync_cube();
    }
    let mut square = f32::new(0.0);
    let mut at = lane;
    while at < width {
        let value = x[first + at] - mean;
        square = fma(value, value, square);
        at += lanes;
    }
    sums[unit] = square;
    add_lanes(&mut sums, 1usize, lanes, LANES);
    let r = 1.0f32 / (sums[unit - lane] / n_values + eps).sqrt();
    sync_cube();

    let mut sum_h = f32::new(0.0);
    let mut sum_hn = f32::new(0.0);
    at = lane;
    while at < width {
        let h = gradient[first + at] * (weight[at] + weight_offset);
        sum_h += h;
        sum_hn = fma(h, (x[first + at] - mean) * r, sum_hn);
        at += lanes;
    }
    sums[unit] = sum_h;
    sums[LANES + unit] = sum_hn;
    add_lanes(&mut sums, 2usize, lanes, LANES);
    let mut mean_h = f32::new(0.0);
    if comptime!(is_centred) {
        mean_h = sums[unit - lane] / n_values;
    }
    let mean_hn = sums[LANES + unit - lane] / n_values;

    at = lane;
    while at < width {
        let h = gradient[first + at] * (weight[at] + weight_offset);
        let normed = (x[first + at] - mean) * r;
        of_x[first + at] = r * (h - mean_h - normed * mean_hn);
        at += lanes;
    }
    if lane == 0 && number < n_parts {
        stats[2 * number] = mean;
        stats[2 * number + 1] = r;
    }
}

/// Sums over some parts: `gradient * n` for the weight, then `gradient` for the bias.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn params_back(
    x: &[f32],
    gradient: &[f32],
    stats: &[f32],
    sums: &mut [f32],
    n_parts: usize,
    per_row: usize,
    row_width: usize,
    start: usize,
    width: usize,
    parts_a_sum: usize,
    n_sums: usize,
) {
    let in_width = width.div_ceil(LANES);
    let number = workgroup() / in_width;
    let column = workgroup() % in_width * LANES + UNIT_POS_X as usize;
    if number < n_sums && column < width {
        let mut of_weight = f32::new(0.0);
        let mut of_bias = f32::new(0.0);
        let mut part = number * parts_a_sum;
        let end = clamp_max(part + parts_a_sum, n_parts);
        while part < end {
            let at = part / per_row * row_width + start + part % per_row * width + column;
            let by = gradient[at];
            of_weight = fma(by, (x[at] - stats[2 * part]) * stats[2 * part + 1], of_weight);
            of_bias += by;
            part += 1;
        }
        sums[number * 2 * width + column] = of_weight;
        sums[number * 2 * width + width + column] = of_bias;
    }
}
