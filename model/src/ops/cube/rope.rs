//! Rotation of queries and keys, and storing keys and values, in one pass over the projection's output.

use burn::tensor::DType;
use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    device::element,
    launch::{LANES, empty, grid, workgroup, writable},
};

/// The largest number of f16.
const MOST_F16: f32 = 65504.0;

/// The layout of a row of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct HeadLayout {
    pub(in crate::ops) n_heads: usize,
    pub(in crate::ops) n_kv_heads: usize,
    pub(in crate::ops) head_dim: usize,
    /// Number of pairs per head that are rotated; 0 for none.
    pub(in crate::ops) half: usize,
}

impl HeadLayout {
    /// Values that a lane takes at a time.
    fn vector(&self) -> usize {
        if self.head_dim.is_multiple_of(4) && self.half.is_multiple_of(4) { 4 } else { 1 }
    }
}

/// Rotates queries and keys of `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` by `angles [n_rows, 2 half]`,
/// cosines before sines, and stores keys and values in the rows `slots [n_rows]` of their pools. Returns the queries,
/// `[n_rows, n_heads * head_dim]`, and the pools.
pub(super) fn rope_append(
    [qkv, angles, slots]: [CubeTensor; 3],
    pools: [CubeTensor; 2],
    heads: HeadLayout,
) -> [CubeTensor; 3] {
    let [qkv, angles, slots] = [qkv, angles, slots].map(into_contiguous);
    let [keys, values] = pools.map(writable);
    let n_rows = qkv.meta.shape()[0];
    let HeadLayout { n_heads, n_kv_heads, head_dim, .. } = heads;
    let queries = empty(&qkv, [n_rows, n_heads * head_dim]);
    let len = n_rows * (n_heads + 2 * n_kv_heads) * head_dim / heads.vector();
    let is_f16 = keys.dtype == DType::F16;
    if len > 0 {
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a lane has one vector of `qkv`; slots are rows of the pools by contract.
        unsafe {
            rotate_and_store::launch_unchecked(
                &queries.client,
                grid(len.div_ceil(LANES), 1),
                CubeDim::new_1d(LANES as u32),
                heads.vector(),
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
fn rotate_and_store<E: Numeric, V: Size>(
    qkv: &[Vector<f32, V>],
    angles: &[Vector<f32, V>],
    slots: &[i32],
    queries: &mut [Vector<f32, V>],
    keys: &mut [Vector<E, V>],
    values: &mut [Vector<E, V>],
    len: usize,
    #[comptime] heads: HeadLayout,
    #[comptime] is_f16: bool,
    #[define(E)] _element: ElemType,
) {
    // All lengths in vectors.
    let head_dim = comptime!(heads.head_dim / heads.vector());
    let half = comptime!(heads.half / heads.vector());
    let q_width = comptime!(heads.n_heads * head_dim);
    let kv_width = comptime!(heads.n_kv_heads * head_dim);
    let width = comptime!(q_width + 2 * kv_width);
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < len {
        let row = at / width;
        let column = at % width;
        if column < q_width + kv_width {
            let dim = column % head_dim;
            let value = rotated(qkv, angles, at - dim, dim, row * 2 * half, half);
            if column < q_width {
                queries[row * q_width + column] = value;
            } else {
                let slot = usize::cast_from(slots[row]);
                keys[slot * kv_width + column - q_width] = storable::<E, V>(value, is_f16);
            }
        } else {
            let slot = usize::cast_from(slots[row]);
            values[slot * kv_width + column - q_width - kv_width] = storable::<E, V>(qkv[at], is_f16);
        }
    }
}

/// Vector `dim` of the head that starts at `head`, rotated by the row's angles, which start at `angle`. `half` is the
/// number of rotated pairs, in vectors; 0 for none.
#[cube]
pub(super) fn rotated<V: Size>(
    values: &[Vector<f32, V>],
    angles: &[Vector<f32, V>],
    head: usize,
    dim: usize,
    angle: usize,
    #[comptime] half: usize,
) -> Vector<f32, V> {
    let mut value = values[head + dim];
    if comptime!(half > 0) {
        if dim < half {
            let at = angle + dim;
            value = value * angles[at] - values[head + dim + half] * angles[at + half];
        } else if dim < 2 * half {
            let at = angle + dim - half;
            value = value * angles[at] + values[head + dim - half] * angles[at + half];
        }
    }
    value
}

/// Rounds a vector to the pool's type; finite numbers stay finite.
#[cube]
pub(super) fn storable<E: Numeric, V: Size>(value: Vector<f32, V>, #[comptime] is_f16: bool) -> Vector<E, V> {
    let mut value = value;
    if comptime!(is_f16) {
        value = min(max(value, Vector::new(-MOST_F16)), Vector::new(MOST_F16));
    }
    Vector::cast_from(value)
}
