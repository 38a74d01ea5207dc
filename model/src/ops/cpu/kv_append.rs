//! Stores keys and values in the pages of the KV cache, after norms and rotation.

use std::ops::Range;

use super::{
    KvElement,
    pool_layout::PoolLayout,
    rowwise::{NormValues, norm_heads, qk_norm_row, rope_row},
    thread_pool::{self, SharedMut},
};
use crate::ops::{AttentionOptions, PAGE_SIZE, PagedRows, QkNormParts, Slots};

/// Keys of a page, which are stored side by side.
const LANES: usize = PAGE_SIZE;
/// Values below which one thread is faster. Most time goes into cache misses on the pages: a key writes one line per
/// dimension.
const PARALLEL_WORK: usize = 1 << 13;
/// Rows in a piece of work, at least.
const PIECE_ROWS: usize = 4;
/// Maximum pieces of work per thread: with several, a descheduled thread does not delay the others.
const PIECES_PER_THREAD: usize = 4;

/// The pools of a step, its rows' slots in them, and how the rows attend.
pub(in crate::ops) struct PagedValues<'a, E> {
    /// Keys and values.
    pub(in crate::ops) pools: [&'a mut [E]; 2],
    pub(in crate::ops) slots: &'a Slots,
    pub(in crate::ops) sequences: &'a [PagedRows],
    pub(in crate::ops) options: &'a AttentionOptions,
    /// Cosines and sines.
    pub(in crate::ops) rotation: Option<[&'a [f32]; 2]>,
    /// Factor of each row's queries.
    pub(in crate::ops) query_factors: Option<&'a [f32]>,
}

/// Stores keys `rows [n, n_kv_heads * head_dim]` at `slots` of `pool`.
pub(in crate::ops) fn append_keys<E: KvElement>(pool: &mut [E], rows: &[f32], slots: &[i32], heads: [usize; 2]) {
    let pool = SharedPool::new(pool, heads);
    for (row, &slot) in rows.chunks_exact(heads.iter().product()).zip(slots) {
        #[expect(unsafe_code, reason = "the same code stores rows of several threads")]
        // SAFETY: no other thread has the pool.
        unsafe {
            append_key(&pool, row, slot);
        }
    }
}

/// Stores values `rows [n, n_kv_heads * head_dim]` at `slots` of `pool`.
pub(in crate::ops) fn append_values<E: KvElement>(pool: &mut [E], rows: &[f32], slots: &[i32], heads: [usize; 2]) {
    let pool = SharedPool::new(pool, heads);
    for (row, &slot) in rows.chunks_exact(heads.iter().product()).zip(slots) {
        #[expect(unsafe_code, reason = "the same code stores rows of several threads")]
        // SAFETY: no other thread has the pool.
        unsafe {
            append_value(&pool, row, slot);
        }
    }
}

/// Copies whole pages. `from` and `to` list every slot of these pages.
pub(in crate::ops) fn copy_pages<E: KvElement>(pool: &mut [E], [from, to]: [&[i32]; 2], heads: [usize; 2]) {
    let layout = PoolLayout::of(pool, heads);
    for (from, to) in from.iter().zip(to).step_by(PAGE_SIZE) {
        layout.copy_page(pool, *from as usize / PAGE_SIZE, *to as usize / PAGE_SIZE);
    }
}

/// A pool to which threads store different rows.
struct SharedPool<'a, E> {
    elements: SharedMut<'a, E>,
    layout: PoolLayout,
    head_dim: usize,
}

impl<'a, E: KvElement> SharedPool<'a, E> {
    fn new(pool: &'a mut [E], heads: [usize; 2]) -> Self {
        let layout = PoolLayout::of(pool, heads);
        Self { elements: SharedMut::new(pool), layout, head_dim: heads[1] }
    }
}

/// Stores one row of keys.
///
/// # Safety
/// No other thread reads or stores the key at `slot` meanwhile.
#[expect(unsafe_code, reason = "threads write disjoint parts of one pool")]
unsafe fn append_key<E: KvElement>(pool: &SharedPool<'_, E>, row: &[f32], slot: i32) {
    // SAFETY: guaranteed by the caller; a head has a place for each of its dimensions and tokens.
    unsafe { append_to_block(pool, row, slot, |_, dim, token| E::key_place(dim, token)) };
}

/// Stores one row of values.
///
/// # Safety
/// No other thread reads or stores the value at `slot` meanwhile.
#[expect(unsafe_code, reason = "threads write disjoint parts of one pool")]
unsafe fn append_value<E: KvElement>(pool: &SharedPool<'_, E>, row: &[f32], slot: i32) {
    if E::SCALE_LEN > 0 {
        // SAFETY: as for keys.
        return unsafe { append_to_block(pool, row, slot, PoolLayout::value_place) };
    }
    for (kv_head, values) in row.chunks_exact(pool.head_dim).enumerate() {
        // SAFETY: guaranteed by the caller.
        E::store(values, 1.0, unsafe { pool.elements.part(pool.layout.value(slot as usize, kv_head)) });
    }
}

/// Stores one row in blocks of a page and head, each dimension of a token at its `place`.
///
/// # Safety
/// No other thread reads or stores the row at `slot` meanwhile, and places differ and are within the block.
#[expect(unsafe_code, reason = "threads write disjoint parts of one pool")]
#[inline(always)]
unsafe fn append_to_block<E: KvElement>(
    SharedPool { elements: pool, layout, head_dim }: &SharedPool<'_, E>,
    row: &[f32],
    slot: i32,
    place: impl Fn(PoolLayout, usize, usize) -> usize,
) {
    let (page, token) = (slot as usize / LANES, slot as usize % LANES);
    for (kv_head, values) in row.chunks_exact(*head_dim).enumerate() {
        let scale = E::scale_of(values);
        let block = pool.places(layout.block(page, kv_head));
        for (first, values) in values.chunks(LANES).enumerate() {
            let mut stored = [E::default(); LANES];
            let stored = &mut stored[..values.len()];
            E::store(values, scale, stored);
            for (dim, value) in stored.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    block.add(place(*layout, first * LANES + dim, token)).write(*value);
                }
            }
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            write_scale(pool, layout.scales(page, kv_head), token, scale);
        }
    }
}

/// Stores a token's scale among `scales`, the scales of its page and head.
///
/// # Safety
/// No other thread reads or writes that token's scale meanwhile.
#[expect(unsafe_code, reason = "threads write disjoint parts of one pool")]
unsafe fn write_scale<E: KvElement>(pool: &SharedMut<'_, E>, scales: Range<usize>, token: usize, scale: f32) {
    let first = scales.start + token * E::SCALE_LEN;
    // SAFETY: a token has its scale to itself.
    let places = unsafe { pool.part(first..first + E::SCALE_LEN) };
    places.iter_mut().zip(E::scale_elements(scale)).for_each(|(place, element)| *place = element);
}

/// Everything between the projection to `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` and attention: norms of
/// queries and keys, and of values, factors of queries and rotation (each optional), and storing keys and values in the
/// pools. Without `has_keys`, there are only queries, `[n_rows, n_heads * head_dim]`, and nothing is stored.
pub(super) fn norm_rope_append<E: KvElement>(
    qkv: &mut [f32],
    (qk_norms, v_norm): (Option<&QkNormParts<NormValues<'_>>>, Option<&NormValues<'_>>),
    has_keys: bool,
    paged: &mut PagedValues<'_, E>,
) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *paged.options;
    let n_kv_heads = if has_keys { n_kv_heads } else { 0 };
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let width = q_width + 2 * kv_width;
    let slots = paged.slots.host();
    let n_rows = slots.len();
    let after_rope = qk_norms.is_some_and(|norms| norms.after_rope);
    let is_shared = qkv.len() >= PARALLEL_WORK && paged.slots.are_distinct();
    let qkv = SharedMut::new(qkv);
    let [keys, values] = paged.pools.each_mut().map(|pool| SharedPool::new(pool, [n_kv_heads, head_dim]));
    let run = |rows: Range<usize>| {
        for row in rows {
            let slot = slots[row];
            #[expect(unsafe_code, reason = "threads write disjoint parts of one matrix")]
            // SAFETY: each row belongs to one piece of work, and so does its slot, since slots differ.
            unsafe {
                let qkv = qkv.part(row * width..(row + 1) * width);
                let rotate = |qkv: &mut [f32]| {
                    if let Some(angles) = paged.rotation {
                        // Queries and keys are rotated alike, and are adjacent.
                        let [cos, sin] = angles.map(|angles| {
                            let half = angles.len() / n_rows;
                            &angles[row * half..(row + 1) * half]
                        });
                        rope_row(&mut qkv[..q_width + kv_width], head_dim, cos, sin);
                    }
                };
                if after_rope {
                    rotate(qkv);
                }
                match qk_norms {
                    Some(QkNormParts { norms, span, .. }) if has_keys => qk_norm_row(qkv, norms, *span, paged.options),
                    Some(QkNormParts { norms: [queries, _], .. }) => norm_heads(qkv, queries),
                    None => {}
                }
                if let Some(norm) = v_norm {
                    norm_heads(&mut qkv[q_width + kv_width..], norm);
                }
                if let Some(factors) = paged.query_factors {
                    qkv[..q_width].iter_mut().for_each(|query| *query *= factors[row]);
                }
                if !after_rope {
                    rotate(qkv);
                }
                let (k, v) = qkv[q_width..].split_at(kv_width);
                append_key(&keys, k, slot);
                append_value(&values, v, slot);
            }
        }
    };
    if !is_shared {
        return run(0..n_rows);
    }
    let n_pieces = n_rows.div_ceil(PIECE_ROWS).min(thread_pool::n_threads() * PIECES_PER_THREAD);
    thread_pool::parallel_for(n_pieces, |n| {
        // Last rows first, as in attention: a thread then finds keys that it wrote in its own cache.
        let n = n_pieces - 1 - n;
        run(n_rows * n / n_pieces..n_rows * (n + 1) / n_pieces);
    });
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use half::f16;

    use super::{
        super::{isa::tests::noise, pool_layout::pool_len},
        *,
    };
    use crate::{
        config::{NormKind, QkNormSpan},
        ops::{NormOptions, Slots},
    };

    /// 3 query heads and 2 key heads of 20 dimensions, more rows than a piece has, slots of several pages in no order.
    fn appended<E: KvElement + PartialEq>(slots: &[i32], at_once: usize) -> (Vec<f32>, [Vec<E>; 2]) {
        let (n_heads, n_kv_heads, head_dim, half) = (3, 2, 20, 10);
        let options = AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 1.0,
            softcap: None,
            sliding_window: None,
            bidirectional: false,
            alibi_slopes: None,
            relative: None,
        };
        let weight = noise(head_dim, 1);
        let norm = || NormValues {
            weight: &weight,
            bias: None,
            options: NormOptions { kind: NormKind::RmsNorm, eps: 1e-6, weight_offset: 0.0 },
        };
        let qk_norms = QkNormParts { norms: [norm(), norm()], span: QkNormSpan::Head, after_rope: false };
        let width = (n_heads + 2 * n_kv_heads) * head_dim;
        let mut qkv = noise(slots.len() * width, 2);
        let [cos, sin] = [3, 4].map(|seed| noise(slots.len() * half, seed));
        let n_places = (1 + slots.iter().max().map_or(0, |slot| *slot as usize)).next_multiple_of(LANES);
        let mut pools = [0, 1].map(|_| vec![E::default(); pool_len::<E>(n_places / LANES, [n_kv_heads, head_dim])]);
        let rows = qkv.chunks_mut(at_once * width).zip(slots.chunks(at_once));
        for ((qkv, slots), (cos, sin)) in rows.zip(cos.chunks(at_once * half).zip(sin.chunks(at_once * half))) {
            let mut paged = PagedValues {
                pools: pools.each_mut().map(Vec::as_mut_slice),
                slots: &Slots::new(slots.to_vec(), &Device::flex()),
                sequences: &[],
                options: &options,
                rotation: Some([cos, sin]),
                query_factors: None,
            };
            norm_rope_append(qkv, (Some(&qk_norms), None), true, &mut paged);
        }
        (qkv, pools)
    }

    #[test]
    fn kv_append_in_parallel_equals_appending_row_by_row() {
        let slots: Vec<i32> = (0..100).map(|n| n * 37 % 112).collect();
        assert!(slots.len() * 140 > PARALLEL_WORK);
        let together = appended::<f32>(&slots, slots.len());
        assert!(together.1.iter().flatten().any(|value| *value != 0.0));
        assert_eq!(together, appended(&slots, 1));
        assert_eq!(appended::<f16>(&slots, slots.len()), appended(&slots, 1));
        assert_eq!(appended::<i8>(&slots, slots.len()), appended(&slots, 1));
        // Two rows with one slot: the last one is stored, as when they come one by one.
        let same = [&slots[..], &slots[..50]].concat();
        assert_eq!(appended::<f32>(&same, same.len()), appended(&same, 1));
    }

    #[test]
    fn duplicate_slots_are_not_distinct() {
        let are_distinct = |slots: &[i32]| Slots::new(slots.to_vec(), &Device::flex()).are_distinct();
        assert!(are_distinct(&[]) && are_distinct(&[3]) && are_distinct(&[5, 3, 4]));
        assert!(!are_distinct(&[5, 3, 5]));
    }
}
