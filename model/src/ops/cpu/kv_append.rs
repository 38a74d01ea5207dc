//! Keys and values into the pages of a cache, and what is done with queries, keys and values on their way there.

use std::ops::Range;

use super::{
    KvElement, NormValues, PagedValues,
    crew::{self, SharedMut},
    rowwise::{norm_heads_row, rope_row},
};
use crate::{config::QkNormSpan, kv_cache::PAGE_SIZE, ops::AttentionOptions};

/// Keys of a page, whose numbers lie side by side.
const LANES: usize = PAGE_SIZE;
/// Values below which other threads cost more than they bring: what takes long is getting a hold of the places that keys
/// go to, one line of a page for each dimension.
const PARALLEL_WORK: usize = 1 << 13;
/// Rows to a piece of work at least.
const PIECE_ROWS: usize = 4;
/// Pieces of work per thread at most, so that one that is held up does not keep the others waiting.
const PIECES_PER_THREAD: usize = 4;

/// Stores keys `rows [n, width]` at `slots` of `pool [n_slots, width]`: within a page, dimension after dimension, the 16
/// tokens' values side by side.
pub(in crate::ops) fn append_keys<E: KvElement>(pool: &mut [E], rows: &[f32], slots: &[i32]) {
    let (pool, width) = (SharedMut::new(pool), (rows.len() / slots.len().max(1)).max(1));
    for (row, &slot) in rows.chunks_exact(width).zip(slots) {
        #[expect(unsafe_code, reason = "the same code stores rows of several threads")]
        // SAFETY: no other thread has the pool.
        unsafe {
            append_key(&pool, row, slot);
        }
    }
}

/// Stores values `rows [n, width]` at `slots` of `pool [n_slots, width]`.
pub(in crate::ops) fn append_values<E: KvElement>(pool: &mut [E], rows: &[f32], slots: &[i32]) {
    let width = (rows.len() / slots.len().max(1)).max(1);
    for (row, &slot) in rows.chunks_exact(width).zip(slots) {
        E::store(row, &mut pool[slot as usize * width..][..width]);
    }
}

/// Stores one row of keys.
///
/// # Safety
/// No other thread stores a key at `slot` meanwhile, or reads one.
#[expect(unsafe_code, reason = "threads write disjoint parts of one pool")]
unsafe fn append_key<E: KvElement>(pool: &SharedMut<'_, E>, row: &[f32], slot: i32) {
    let (page, lane) = (slot as usize / LANES, slot as usize % LANES);
    let page = pool.places(page * LANES * row.len()..(page + 1) * LANES * row.len());
    for (first, values) in row.chunks(LANES).enumerate() {
        let mut stored = [E::default(); LANES];
        let stored = &mut stored[..values.len()];
        E::store(values, stored);
        for (dim, value) in stored.iter().enumerate() {
            // SAFETY: within the page, whose lines are as many as the row has values; a slot has its lane to itself.
            unsafe {
                page.add((first * LANES + dim) * LANES + lane).write(*value);
            }
        }
    }
}

/// Everything between the product that makes `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` and attention: norms of
/// queries and keys by `head_norms` where there are any, their rotation, and keys and values into the pools.
pub(super) fn enter<E: KvElement>(
    qkv: &mut [f32],
    head_norms: Option<&([NormValues<'_>; 2], QkNormSpan)>,
    paged: &mut PagedValues<'_, E>,
) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *paged.options;
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let width = q_width + 2 * kv_width;
    let slots = paged.slots.host();
    let n_rows = slots.len();
    let is_shared = qkv.len() >= PARALLEL_WORK && paged.slots.differ();
    let qkv = SharedMut::new(qkv);
    let [keys, values] = paged.pools.each_mut().map(|pool| SharedMut::new(pool));
    let run = |rows: Range<usize>| {
        for row in rows {
            let slot = slots[row];
            #[expect(unsafe_code, reason = "threads write disjoint parts of one matrix")]
            // SAFETY: each row belongs to one piece of work, and so does its slot, since slots differ.
            unsafe {
                let qkv = qkv.part(row * width..(row + 1) * width);
                if let Some((norms, span)) = head_norms {
                    norm_heads_row(qkv, norms, *span, paged.options);
                }
                if let Some(angles) = paged.rotation {
                    // Queries and keys turn alike, and lie side by side.
                    let [cos, sin] = angles.map(|angles| {
                        let half = angles.len() / n_rows;
                        &angles[row * half..(row + 1) * half]
                    });
                    rope_row(&mut qkv[..q_width + kv_width], head_dim, cos, sin);
                }
                let (k, v) = qkv[q_width..].split_at(kv_width);
                append_key(&keys, k, slot);
                let first = slot as usize * kv_width;
                E::store(v, values.part(first..first + kv_width));
            }
        }
    };
    if !is_shared {
        return run(0..n_rows);
    }
    let n_pieces = n_rows.div_ceil(PIECE_ROWS).min(crew::n_threads() * PIECES_PER_THREAD);
    crew::share(n_pieces, |n| {
        // The last rows first, as attention takes them: a thread then has keys in its cache that it wrote itself.
        let n = n_pieces - 1 - n;
        run(n_rows * n / n_pieces..n_rows * (n + 1) / n_pieces);
    });
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use half::f16;

    use super::{super::levels::noise, *};
    use crate::{
        config::NormKind,
        ops::{NormOptions, Slots},
    };

    /// 3 query heads and 2 key heads of 20 dimensions, more rows than a piece has, slots of several pages in no order.
    fn entered<E: KvElement + PartialEq>(slots: &[i32], at_once: usize) -> (Vec<f32>, [Vec<E>; 2]) {
        let (n_heads, n_kv_heads, head_dim, half) = (3, 2, 20, 10);
        let options = AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 1.0,
            softcap: None,
            sliding_window: None,
            alibi_slopes: None,
        };
        let weight = noise(head_dim, 1);
        let norm = || NormValues {
            weight: &weight,
            bias: None,
            options: NormOptions { kind: NormKind::RmsNorm, eps: 1e-6, weight_offset: 0.0 },
        };
        let head_norms = ([norm(), norm()], QkNormSpan::Head);
        let width = (n_heads + 2 * n_kv_heads) * head_dim;
        let mut qkv = noise(slots.len() * width, 2);
        let [cos, sin] = [3, 4].map(|seed| noise(slots.len() * half, seed));
        let n_places = (1 + slots.iter().max().map_or(0, |slot| *slot as usize)).next_multiple_of(LANES);
        let mut pools = [0, 1].map(|_| vec![E::default(); n_places * n_kv_heads * head_dim]);
        let rows = qkv.chunks_mut(at_once * width).zip(slots.chunks(at_once));
        for ((qkv, slots), (cos, sin)) in rows.zip(cos.chunks(at_once * half).zip(sin.chunks(at_once * half))) {
            let mut paged = PagedValues {
                pools: pools.each_mut().map(Vec::as_mut_slice),
                slots: &Slots::new(slots.to_vec(), &Device::flex()),
                sequences: &[],
                options: &options,
                rotation: Some([cos, sin]),
            };
            enter(qkv, Some(&head_norms), &mut paged);
        }
        (qkv, pools)
    }

    #[test]
    fn threads_do_together_what_one_does_row_by_row() {
        let slots: Vec<i32> = (0..100).map(|n| n * 37 % 112).collect();
        assert!(slots.len() * 140 > PARALLEL_WORK);
        let together = entered::<f32>(&slots, slots.len());
        assert!(together.1.iter().flatten().any(|value| *value != 0.0));
        assert_eq!(together, entered(&slots, 1));
        assert_eq!(entered::<f16>(&slots, slots.len()), entered(&slots, 1));
        // Two rows for one slot: the last one has it, as when they come one by one.
        let same = [&slots[..], &slots[..50]].concat();
        assert_eq!(entered::<f32>(&same, same.len()), entered(&same, 1));
    }

    #[test]
    fn slots_differ_or_not() {
        let differ = |slots: &[i32]| Slots::new(slots.to_vec(), &Device::flex()).differ();
        assert!(differ(&[]) && differ(&[3]) && differ(&[5, 3, 4]));
        assert!(!differ(&[5, 3, 5]));
    }
}
