//! Rotary positions and the way into the cache, in one pass over what the projection gives.

use burn::tensor::DType;
use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    device::element,
    linear::{grid, workgroup},
    rowwise::empty,
};

/// Lanes of a workgroup.
const LANES: usize = 256;
/// The largest number of f16.
const MOST_F16: f32 = 65504.0;

/// How a row of queries, keys and values is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct Heads {
    pub(in crate::ops) n_heads: usize,
    pub(in crate::ops) n_kv_heads: usize,
    pub(in crate::ops) head_dim: usize,
    /// Pairs of a head that are rotated; 0 for none.
    pub(in crate::ops) half: usize,
}

/// Rotates queries and keys of `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` by `angles [n_rows, 2 half]`, cosines
/// before sines, and stores keys and values in the rows `slots [n_rows]` of their pools. Gives the queries,
/// `[n_rows, n_heads * head_dim]`, and the pools.
pub(super) fn rope_append(
    [qkv, angles, slots]: [CubeTensor; 3],
    [keys, values]: [CubeTensor; 2],
    heads: Heads,
) -> [CubeTensor; 3] {
    let [qkv, angles, slots] = [qkv, angles, slots].map(into_contiguous);
    // In place, unless somebody else holds the pool.
    let writable = |pool: CubeTensor| if pool.can_mut() && pool.is_contiguous() { pool } else { pool.copy() };
    let [keys, values] = [keys, values].map(writable);
    let n_rows = qkv.meta.shape()[0];
    let Heads { n_heads, n_kv_heads, head_dim, .. } = heads;
    let queries = empty(&qkv, [n_rows, n_heads * head_dim]);
    let len = n_rows * (n_heads + 2 * n_kv_heads) * head_dim;
    let is_f16 = keys.dtype == DType::F16;
    if len > 0 {
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a lane has one value of `qkv`; slots are rows of the pools by contract.
        unsafe {
            rotate_and_store::launch_unchecked(
                &queries.client,
                grid(len.div_ceil(LANES), 1),
                CubeDim::new_1d(LANES as u32),
                qkv.into_buffer_arg(),
                angles.into_buffer_arg(),
                slots.into_buffer_arg(),
                queries.clone().into_buffer_arg(),
                keys.clone().into_buffer_arg(),
                values.clone().into_buffer_arg(),
                len,
                heads,
                is_f16,
                element(&keys),
            );
        }
    }
    [queries, keys, values]
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn rotate_and_store<E: Numeric>(
    qkv: &[f32],
    angles: &[f32],
    slots: &[i32],
    queries: &mut [f32],
    keys: &mut [E],
    values: &mut [E],
    len: usize,
    #[comptime] heads: Heads,
    #[comptime] is_f16: bool,
    #[define(E)] _element: ElemType,
) {
    let head_dim = comptime!(heads.head_dim);
    let half = comptime!(heads.half);
    let q_width = comptime!(heads.n_heads * heads.head_dim);
    let kv_width = comptime!(heads.n_kv_heads * heads.head_dim);
    let width = comptime!(q_width + 2 * kv_width);
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < len {
        let row = at / width;
        let column = at % width;
        let dim = column % head_dim;
        let mut value = qkv[at];
        if column < q_width + kv_width {
            if dim < half {
                let angle = row * 2 * half + dim;
                value = value * angles[angle] - qkv[at + half] * angles[angle + half];
            } else if dim < 2 * half {
                let angle = row * 2 * half + dim - half;
                value = value * angles[angle] + qkv[at - half] * angles[angle + half];
            }
        }
        if column < q_width {
            queries[row * q_width + column] = value;
        } else {
            let slot = usize::cast_from(slots[row]);
            if comptime!(is_f16) {
                // Nothing infinite comes out of finite numbers.
                value = min(max(value, f32::new(-MOST_F16)), f32::new(MOST_F16));
            }
            if column < q_width + kv_width {
                keys[slot * kv_width + column - q_width] = E::cast_from(value);
            } else {
                values[slot * kv_width + column - q_width - kv_width] = E::cast_from(value);
            }
        }
    }
}
