//! Writing new keys or values into the pool.

use burn::tensor::{IndexingUpdateOp, Int, Tensor};

/// Stores `rows [n_rows, kv_width]` in `pool [n_slots, kv_width]` at `slots [n_rows]`, in place. Slots must differ.
pub fn kv_append(pool: &mut Tensor<2>, rows: Tensor<2>, slots: Tensor<1, Int>) {
    let dtype = pool.dtype();
    pool.inplace(|pool| pool.select_assign(0, slots, rows.cast(dtype), IndexingUpdateOp::Assign));
}
