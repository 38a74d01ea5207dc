//! Writing new keys and values into the pools of a cache.
//!
//! Pools are `[n_slots, kv_width]`, in pages of [`PAGE_SIZE`](crate::kv_cache::PAGE_SIZE) slots. How keys lie within
//! their page is the device's affair: [`attention_paged`](super::attention_paged) on the same device knows.

use burn::tensor::{Device, IndexingUpdateOp, Tensor};
use rayon::{iter::ParallelIterator, slice::ParallelSliceMut};

use super::{Slots, cpu};

/// A pool of zeros, `[n_slots, width]`, that has its memory already: the system would give it page by page, as slots are
/// written to for the first time, and might have none left by then.
pub fn new_pool([n_slots, width]: [usize; 2], device: &Device) -> Tensor<2> {
    let mut pool = Tensor::zeros([n_slots, width], device);
    if cpu::is_cpu(device) {
        cpu::update(&mut pool, |pool| pool.par_chunks_mut(1 << 20).for_each(|part| part.fill(0.0)));
    }
    pool
}

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
