//! Norms of queries and keys, in one pass over the projection's output.

use burn_cubecl::{
    cubecl::{self, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::launch::{LANES, add_lanes, empty, grid, workgroup};
use crate::{
    config::{NormKind, QkNormSpan},
    ops::NormOptions,
};

/// Lanes of a part, at least.
const FEWEST: usize = 32;

/// The parts of a row of queries, keys and values that are normalized separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct QkNorm {
    pub(in crate::ops) n_heads: usize,
    pub(in crate::ops) n_kv_heads: usize,
    pub(in crate::ops) head_dim: usize,
    pub(in crate::ops) span: QkNormSpan,
}

impl QkNorm {
    /// Parts of the queries, and of the keys or of the values.
    fn parts(&self) -> [usize; 2] {
        match self.span {
            QkNormSpan::Head => [self.n_heads, self.n_kv_heads],
            QkNormSpan::AllHeads => [1, 1],
            QkNormSpan::EachHead => unreachable!("`qk_norm` computes it by Burn's operations"),
        }
    }

    /// The width of a part of the queries, and of one of the keys or of the values.
    pub(super) fn widths(&self) -> [usize; 2] {
        let [q_parts, kv_parts] = self.parts();
        [self.n_heads * self.head_dim / q_parts, self.n_kv_heads * self.head_dim / kv_parts]
    }

    /// Lanes of a part.
    fn lanes(&self) -> usize {
        self.widths()[0].next_power_of_two().clamp(FEWEST, LANES)
    }
}

/// `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` with queries and keys normalized, and values unchanged.
pub(super) fn qk_norm(qkv: CubeTensor, weights: [CubeTensor; 2], heads: QkNorm, options: NormOptions) -> CubeTensor {
    let (qkv, [q_weight, k_weight]) = (into_contiguous(qkv), weights.map(into_contiguous));
    let [n_rows, width] = qkv.meta.shape().dims::<2>();
    let output = empty(&qkv, [n_rows, width]);
    let [q_parts, kv_parts] = heads.parts();
    let n_parts = n_rows * (q_parts + 2 * kv_parts);
    if n_parts > 0 {
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: lanes stay within a part, parts beyond the last are not written, and weights have the width of a
        // part.
        unsafe {
            norm_parts::launch_unchecked(
                &output.client,
                grid(n_parts.div_ceil(LANES / heads.lanes()), 1),
                CubeDim::new_1d(LANES as u32),
                qkv.into_buffer_arg(),
                q_weight.into_buffer_arg(),
                k_weight.into_buffer_arg(),
                output.clone().into_buffer_arg(),
                n_parts,
                options.eps as f32,
                options.weight_offset,
                heads,
                options.kind == NormKind::LayerNorm,
            );
        }
    }
    output
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn norm_parts(
    qkv: &[f32],
    q_weight: &[f32],
    k_weight: &[f32],
    output: &mut [f32],
    n_parts: usize,
    eps: f32,
    weight_offset: f32,
    #[comptime] heads: QkNorm,
    #[comptime] centred: bool,
) {
    let lanes = comptime!(heads.lanes());
    let q_parts = comptime!(heads.parts()[0]);
    let kv_parts = comptime!(heads.parts()[1]);
    let q_width = comptime!(heads.widths()[0]);
    let kv_width = comptime!(heads.widths()[1]);
    let of_row = comptime!(q_parts + 2 * kv_parts);
    let row_width = comptime!((heads.n_heads + 2 * heads.n_kv_heads) * heads.head_dim);

    let lane = UNIT_POS_X as usize % lanes;
    let number = workgroup() * comptime!(LANES / heads.lanes()) + UNIT_POS_X as usize / lanes;
    let part = number % of_row;
    let is_query = part < q_parts;
    let is_value = part >= comptime!(q_parts + kv_parts);
    // A group beyond the last part has width 0: it writes nothing, but takes part in barriers.
    let mut width = select(is_query, q_width, kv_width);
    let mut start = part * q_width;
    if !is_query {
        start = comptime!(q_parts * q_width) + (part - q_parts) * kv_width;
    }
    start += number / of_row * row_width;
    if number >= n_parts {
        width = usize::cast_from(0u32);
    }

    let mut sums = Shared::<[f32]>::new_slice(LANES);
    let mut mean = f32::new(0.0);
    if comptime!(centred) {
        let mut sum = f32::new(0.0);
        let mut at = lane;
        while at < width {
            sum += qkv[start + at];
            at += lanes;
        }
        sums[UNIT_POS_X as usize] = sum;
        add_lanes(&mut sums, 1usize, lanes, LANES);
        mean = sums[UNIT_POS_X as usize - lane] / f32::cast_from(width);
        // All lanes have read it before it is overwritten.
        sync_cube();
    }
    let mut sum = f32::new(0.0);
    let mut at = lane;
    while at < width {
        let value = qkv[start + at] - mean;
        sum = fma(value, value, sum);
        at += lanes;
    }
    sums[UNIT_POS_X as usize] = sum;
    add_lanes(&mut sums, 1usize, lanes, LANES);
    let scale = 1.0f32 / (sums[UNIT_POS_X as usize - lane] / f32::cast_from(width) + eps).sqrt();
    let mut at = lane;
    while at < width {
        let mut value = qkv[start + at];
        if !is_value {
            let mut weight = weight_offset;
            if is_query {
                weight += q_weight[at];
            } else {
                weight += k_weight[at];
            }
            value = (value - mean) * scale * weight;
        }
        output[start + at] = value;
        at += lanes;
    }
}
