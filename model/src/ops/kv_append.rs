//! Writing new keys and values into the pools of a cache.
//!
//! Pools are `[n_slots, kv_width]`, in pages of [`PAGE_SIZE`](crate::kv_cache::PAGE_SIZE) slots. How keys lie within
//! their page is the device's affair: [`attention_paged`](super::attention_paged) on the same device knows.

use burn::tensor::{IndexingUpdateOp, Tensor};

use super::{Slots, cpu};

/// Stores keys `rows [n_rows, kv_width]` at `slots`, in place. Slots must differ.
pub fn append_keys(pool: &mut Tensor<2>, rows: Tensor<2>, slots: &Slots) {
    if cpu::is_cpu(&pool.device()) {
        cpu::update(pool, |pool| cpu::append_keys(pool, cpu::values(rows).as_slice(), slots.host()));
    } else {
        append_rows(pool, rows, slots);
    }
}

/// Stores values `rows [n_rows, kv_width]` at `slots`, in place. Slots must differ.
pub fn append_values(pool: &mut Tensor<2>, rows: Tensor<2>, slots: &Slots) {
    append_rows(pool, rows, slots);
}

/// Stores `rows [n_rows, width]` in the rows `slots` of `pool [n_slots, width]`, in place.
pub fn append_rows(pool: &mut Tensor<2>, rows: Tensor<2>, slots: &Slots) {
    let dtype = pool.dtype();
    pool.inplace(|pool| pool.select_assign(0, slots.tensor(), rows.cast(dtype), IndexingUpdateOp::Assign));
}
