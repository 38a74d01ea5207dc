//! Where numbers are in a page of the KV cache on the CPU.

use std::ops::Range;

use super::{KvElement, kv_element::FOUR};
use crate::ops::PAGE_SIZE;

/// The pages of a layer's pool of keys, or of values. All ranges are in elements of the pool.
///
/// A page has its tokens' keys or values, and behind them their scales if its dtype has scales: for each head, those of the
/// page's tokens side by side. Keys are `[n_kv_heads, head_dim, 16 tokens]`, and values `[n_kv_heads, 16 tokens, head_dim]`: what
/// attention reads of a page for one head is one run of memory.
/// In 8 bits, four numbers that are multiplied at a time are side by side: keys are `[n_kv_heads, head_dim / 4, 16 tokens, 4
/// dims]` and values `[n_kv_heads, 4, head_dim, 4 tokens]`.
#[derive(Clone, Copy)]
pub(super) struct PageLayout {
    n_kv_heads: usize,
    /// `head_dim` rounded up to a multiple of [`KvElement::DIM_UNIT`].
    head_dim: usize,
    scale_len: usize,
}

/// Bytes of a token in a pool of 8-bit numbers: an even number, since the tensor of such a pool has elements of 2 bytes.
pub(in crate::ops) fn q8_row_len(heads: [usize; 2]) -> usize {
    PageLayout::of::<i8>(heads).page_len() / PAGE_SIZE
}

impl PageLayout {
    /// For pools of `E`.
    pub(super) fn of<E: KvElement>([n_kv_heads, head_dim]: [usize; 2]) -> Self {
        Self { n_kv_heads, head_dim: head_dim.next_multiple_of(E::DIM_UNIT), scale_len: E::SCALE_LEN }
    }

    /// Elements of a page.
    #[inline(always)]
    pub(super) fn page_len(self) -> usize {
        PAGE_SIZE * self.n_kv_heads * (self.head_dim + self.scale_len)
    }

    /// A page.
    #[inline(always)]
    pub(super) fn page(self, page: usize) -> Range<usize> {
        page * self.page_len()..(page + 1) * self.page_len()
    }

    /// The keys, or the values, of a page and head.
    #[inline(always)]
    pub(super) fn block(self, page: usize, kv_head: usize) -> Range<usize> {
        let len = PAGE_SIZE * self.head_dim;
        let start = page * self.page_len() + kv_head * len;
        start..start + len
    }

    /// The value of a slot and head, `[head_dim]`.
    #[inline(always)]
    pub(super) fn value(self, slot: usize, kv_head: usize) -> Range<usize> {
        let start = self.block(slot / PAGE_SIZE, kv_head).start + slot % PAGE_SIZE * self.head_dim;
        start..start + self.head_dim
    }

    /// Where a dimension of a token's value is in a [`block`](Self::block) of 8-bit numbers.
    #[inline(always)]
    pub(super) fn value_place(self, dim: usize, token: usize) -> usize {
        (token / FOUR * self.head_dim + dim) * FOUR + token % FOUR
    }

    /// The scales of a page and head, one for each token.
    #[inline(always)]
    pub(super) fn scales(self, page: usize, kv_head: usize) -> Range<usize> {
        let len = PAGE_SIZE * self.scale_len;
        let start = page * self.page_len() + PAGE_SIZE * self.n_kv_heads * self.head_dim + kv_head * len;
        start..start + len
    }
}
