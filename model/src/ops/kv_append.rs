//! Storing new keys and values in the pools of the KV cache.
//!
//! Pools are `[n_slots, row_len]`, in pages of [`PAGE_SIZE`](super::PAGE_SIZE) slots, with
//! [`row_len`](super::KvDtype::row_len) of their dtype. The layout within a page depends on the device, and is the one
//! that [`attention_paged`](super::attention::attention_paged) reads there.

use std::ops::Range;

use burn::tensor::{DType, Device, IndexingUpdateOp, Tensor};
use half::{bf16, f16};

use super::{AttentionOptions, KvDtype, Placement, Rotation, Slots, cpu, cube, rope};

/// A pool of zeros for `heads`, `[n_kv_heads, head_dim]`, whose memory is committed now: otherwise the system would
/// allocate it as slots are written, and might then be out of memory.
pub(crate) fn new_pool(n_slots: usize, heads: [usize; 2], dtype: KvDtype, device: &Device) -> Tensor<2> {
    let shape = [n_slots, dtype.row_len(heads)];
    match (Placement::of(device), dtype) {
        (Placement::Cpu, KvDtype::F32) => cpu::pool_of_zeros::<f32>(shape),
        (Placement::Cpu, KvDtype::F16) => cpu::pool_of_zeros::<f16>(shape),
        (Placement::Cpu, KvDtype::Q8) => cpu::pool_of_zeros::<bf16>(shape),
        _ => Tensor::zeros(shape, (device, dtype.of_tensors())),
    }
}

/// Stores keys `rows [n_rows, n_kv_heads * head_dim]` at `slots`, in place. Slots must differ.
pub(crate) fn append_keys(pool: &mut Tensor<2>, rows: Tensor<2>, slots: &Slots, heads: [usize; 2]) {
    if Placement::of(&pool.device()) != Placement::Cpu {
        return append_rows(pool, rows, slots);
    }
    let (rows, slots) = (cpu::values(rows), slots.host());
    match KvDtype::of(pool) {
        KvDtype::F16 => cpu::update::<f16>(pool, |pool| cpu::append_keys(pool, rows.as_slice(), slots, heads)),
        KvDtype::Q8 => cpu::update::<i8>(pool, |pool| cpu::append_keys(pool, rows.as_slice(), slots, heads)),
        KvDtype::F32 => cpu::update::<f32>(pool, |pool| cpu::append_keys(pool, rows.as_slice(), slots, heads)),
    }
}

/// Stores values `rows [n_rows, n_kv_heads * head_dim]` at `slots`, in place. Slots must differ.
pub(crate) fn append_values(pool: &mut Tensor<2>, rows: Tensor<2>, slots: &Slots, heads: [usize; 2]) {
    if Placement::of(&pool.device()) != Placement::Cpu {
        return append_rows(pool, rows, slots);
    }
    let (rows, slots) = (cpu::values(rows), slots.host());
    match KvDtype::of(pool) {
        KvDtype::F16 => cpu::update::<f16>(pool, |pool| cpu::append_values(pool, rows.as_slice(), slots, heads)),
        KvDtype::Q8 => cpu::update::<i8>(pool, |pool| cpu::append_values(pool, rows.as_slice(), slots, heads)),
        KvDtype::F32 => cpu::update::<f32>(pool, |pool| cpu::append_values(pool, rows.as_slice(), slots, heads)),
    }
}

/// Stores `rows [n_rows, width]` in the rows `slots` of `pool [n_slots, width]`, in place: the reference. Values beyond
/// the pool's range become its largest, so that finite numbers stay finite.
fn append_rows(pool: &mut Tensor<2>, rows: Tensor<2>, slots: &Slots) {
    let rows = match pool.dtype() {
        DType::F16 => rows.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32()).cast(DType::F16),
        _ => rows,
    };
    pool.inplace(|pool| pool.select_assign(0, slots.tensor(), rows, IndexingUpdateOp::Assign));
}

/// Copies pages in place in a pool for `heads`, `[n_kv_heads, head_dim]`. `from` and `to` list every slot of these
/// pages.
pub(crate) fn copy_pages(pool: &mut Tensor<2>, [from, to]: [&Slots; 2], heads: [usize; 2]) {
    if Placement::of(&pool.device()) == Placement::Cpu {
        let slots = [from.host(), to.host()];
        return match KvDtype::of(pool) {
            KvDtype::F16 => cpu::update::<f16>(pool, |pool| cpu::copy_pages(pool, slots, heads)),
            KvDtype::Q8 => cpu::update::<i8>(pool, |pool| cpu::copy_pages(pool, slots, heads)),
            KvDtype::F32 => cpu::update::<f32>(pool, |pool| cpu::copy_pages(pool, slots, heads)),
        };
    }
    pool.inplace(|pool| {
        let rows = pool.clone().select(0, from.tensor());
        pool.select_assign(0, to.tensor(), rows, IndexingUpdateOp::Assign)
    });
}

/// Stores `keys_and_values [n_rows, 2 * n_kv_heads * head_dim]` at `slots` of their pools, in place. Slots must differ.
pub(crate) fn append(
    keys_and_values: Tensor<2>,
    [keys, values]: [&mut Tensor<2>; 2],
    slots: &Slots,
    heads: [usize; 2],
) {
    let ([n_rows, _], width) = (keys_and_values.dims(), heads.into_iter().product::<usize>());
    let part = |columns: Range<usize>| keys_and_values.clone().slice([0..n_rows, columns]);
    append_keys(keys, part(0..width), slots, heads);
    append_values(values, part(width..2 * width), slots, heads);
}

/// Rotates the queries and keys in `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, if there is a rotation, and
/// stores keys and values in their pools, in place. Returns the queries, `[n_rows, n_heads * head_dim]`.
pub(crate) fn rope_append(
    qkv: Tensor<2>,
    rotation: Option<&Rotation>,
    [keys, values]: [&mut Tensor<2>; 2],
    slots: &Slots,
    options: &AttentionOptions,
) -> Tensor<2> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let [n_rows, _] = qkv.dims();
    if Placement::of(&qkv.device()) == Placement::Gpu {
        let angles = rotation.map(|rotation| rotation.table().tensor());
        return cube::rope_append(qkv, angles, [keys, values], slots.tensor(), options);
    }
    let qkv = qkv.reshape([n_rows, n_heads + 2 * n_kv_heads, head_dim]);
    let part = |x: &Tensor<3>, heads: Range<usize>| {
        let width = heads.len() * head_dim;
        x.clone().slice([0..n_rows, heads, 0..head_dim]).reshape([n_rows, width])
    };
    // Queries and keys are rotated alike, so they are rotated together.
    let n_rotated = n_heads + n_kv_heads;
    let qk = qkv.clone().slice([0..n_rows, 0..n_rotated, 0..head_dim]);
    let qk = match rotation {
        Some(rotation) => rope(qk, rotation),
        None => qk,
    };
    append_keys(keys, part(&qk, n_heads..n_rotated), slots, [n_kv_heads, head_dim]);
    append_values(values, part(&qkv, n_rotated..n_rotated + n_kv_heads), slots, [n_kv_heads, head_dim]);
    part(&qk, 0..n_heads)
}
