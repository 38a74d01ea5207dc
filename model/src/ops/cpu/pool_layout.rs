//! The layout of the KV cache's pools on the CPU.

use std::ops::Range;

use super::{KvElement, kv_element::FOUR};
use crate::ops::PAGE_SIZE;

/// A layer's pool of keys, or of values: `[n_kv_heads, n_pages]` blocks. For one head, consecutive pages of a sequence
/// are contiguous: memory delivers a contiguous range several times as fast as pieces with gaps. All ranges are in
/// elements of the pool.
///
/// A block has the keys or values of a page's 16 tokens and one head, followed by their scales if its dtype has scales.
/// Keys are `[head_dim, 16 tokens]`, and values `[16 tokens, head_dim]`. In 8 bits, four numbers that are multiplied at
/// a time are side by side: keys are `[head_dim / 4, 16 tokens, 4 dims]` and values `[4, head_dim, 4 tokens]`.
#[derive(Clone, Copy)]
pub(super) struct PoolLayout {
    n_kv_heads: usize,
    n_pages: usize,
    /// `head_dim` rounded up to a multiple of [`KvElement::DIM_UNIT`].
    head_dim: usize,
    scale_len: usize,
}

/// Bytes per token in a pool of 8-bit numbers, rounded up to an even number, since the tensor of such a pool has
/// elements of 2 bytes.
pub(in crate::ops) fn q8_row_len(heads: [usize; 2]) -> usize {
    pool_len::<i8>(1, heads) / PAGE_SIZE
}

/// Elements of a pool of `n_pages` pages for `heads`, `[n_kv_heads, head_dim]`.
pub(super) fn pool_len<E: KvElement>(n_pages: usize, [n_kv_heads, head_dim]: [usize; 2]) -> usize {
    n_kv_heads * n_pages * PAGE_SIZE * (head_dim.next_multiple_of(E::DIM_UNIT) + E::SCALE_LEN)
}

impl PoolLayout {
    /// The layout of `pool` for `heads`, `[n_kv_heads, head_dim]`.
    pub(super) fn of<E: KvElement>(pool: &[E], heads: [usize; 2]) -> Self {
        let [n_kv_heads, head_dim] = heads;
        let n_pages = pool.len() / pool_len::<E>(1, heads).max(1);
        Self { n_kv_heads, n_pages, head_dim: head_dim.next_multiple_of(E::DIM_UNIT), scale_len: E::SCALE_LEN }
    }

    /// The keys, or the values, of a page and head.
    #[inline(always)]
    pub(super) fn block(self, page: usize, kv_head: usize) -> Range<usize> {
        let start = (kv_head * self.n_pages + page) * self.block_len();
        start..start + PAGE_SIZE * self.head_dim
    }

    /// Elements of a block, with its scales.
    #[inline(always)]
    fn block_len(self) -> usize {
        PAGE_SIZE * (self.head_dim + self.scale_len)
    }

    /// The value of a slot and head, `[head_dim]`.
    #[inline(always)]
    pub(super) fn value(self, slot: usize, kv_head: usize) -> Range<usize> {
        let start = self.block(slot / PAGE_SIZE, kv_head).start + slot % PAGE_SIZE * self.head_dim;
        start..start + self.head_dim
    }

    /// The index of a dimension of a token's value in a [`block`](Self::block) of 8-bit numbers.
    #[inline(always)]
    pub(super) fn value_place(self, dim: usize, token: usize) -> usize {
        (token / FOUR * self.head_dim + dim) * FOUR + token % FOUR
    }

    /// The scales of a page and head, one for each token.
    #[inline(always)]
    pub(super) fn scales(self, page: usize, kv_head: usize) -> Range<usize> {
        let start = self.block(page, kv_head).end;
        start..start + PAGE_SIZE * self.scale_len
    }

    /// Copies a page to another one.
    pub(super) fn copy_page<E: Copy>(self, pool: &mut [E], from: usize, to: usize) {
        for kv_head in 0..self.n_kv_heads {
            let [from, to] = [from, to].map(|page| self.block(page, kv_head).start);
            pool.copy_within(from..from + self.block_len(), to);
        }
    }
}
