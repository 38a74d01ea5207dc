//! The same sums with AVX-512, for several queries and pages at a time.

use std::{
    arch::x86_64::{
        __mmask16, _mm512_fmadd_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    },
    array,
    ops::Range,
};

use super::{
    Buffers, KvElement, LANES, MAX_QUERIES, Pools, Query, Task, WeightedSum, key_lines, softmax, store, tiles,
    value_row,
};
use crate::ops::{
    AttentionOptions,
    cpu::{prefetch::prefetch, thread_pool::SharedMut},
};

/// Numbers in a cache line.
const fn line<E>() -> usize {
    64 / size_of::<E>()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
pub(super) unsafe fn attend<E: KvElement>(
    queries: &[Query<'_>],
    kv_heads: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    output: &SharedMut<'_, f32>,
) {
    macro_rules! queries {
        ($($n:literal)*) => {{
            const _: () = assert!([$($n),*].len() == MAX_QUERIES, "one kernel per number of queries");
            match queries.len() / kv_heads.len() {
                // SAFETY: this function's own target features.
                $($n => unsafe { attend_n::<E, $n>(queries.as_chunks().0, kv_heads, task, pools, output) },)*
                n => unreachable!("{n} queries to a key head, where there are 1 to {MAX_QUERIES}"),
            }
        }};
    }
    queries!(1 2 3 4 5 6 7 8);
}

/// `N` queries per head. Several heads go through the pages together, page by page, since they are adjacent in memory:
/// that takes a seventh less time by itself, and a twentieth to a ninth less in a step.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
unsafe fn attend_n<E: KvElement, const N: usize>(
    queries: &[[Query<'_>; N]],
    kv_heads: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    output: &SharedMut<'_, f32>,
) {
    let head_dim = pools.options.head_dim;
    let tiles = tiles(&task.sees(pools.options));
    let first = tiles.start * LANES;
    let width = tiles.len() * LANES;
    let is_alone = kv_heads.len() == 1;
    // Pages between the values being added and those being prefetched.
    let ahead = if is_alone { 2 } else { 1 };
    let mut buffers = Buffers::take(kv_heads.len() * N, width, head_dim);
    let Buffers { scores, totals, attn_out, widened } = &mut buffers;
    let mut tile = tiles.start;
    while tile < tiles.end {
        let n_left = tiles.end - tile;
        // Enough pages at a time for 8 or more independent chains of multiply-adds; the chains of several heads
        // overlap.
        let together = match N {
            1 | 2 if is_alone && n_left >= 4 => 4,
            _ if (is_alone || N <= 2) && n_left >= 2 => 2,
            _ => 1,
        };
        let heads = kv_heads.clone().zip(queries).zip(scores.chunks_exact_mut(N * width));
        for ((kv_head, queries), scores) in heads {
            let scores = &mut scores[tile * LANES - first..];
            // SAFETY: this function's own target features.
            unsafe {
                match together {
                    4 => score_tiles::<E, N, 4>(queries, kv_head, task, pools, tile, scores, width),
                    2 => score_tiles::<E, N, 2>(queries, kv_head, task, pools, tile, scores, width),
                    _ => score_tiles::<E, N, 1>(queries, kv_head, task, pools, tile, scores, width),
                }
            }
            if together == n_left {
                // Prefetch the first values while the weights are computed from the scores.
                for tile in tiles.clone().take(ahead) {
                    for lane in 0..LANES {
                        let row = value_row(pools, task.page(tile) * LANES + lane, kv_head);
                        row.iter().step_by(line::<E>()).for_each(|value| prefetch(value));
                    }
                }
            }
        }
        tile += together;
    }
    let rows = queries.as_flattened().iter().zip(scores.chunks_exact_mut(width));
    let scale = pools.options.scale as f32;
    totals.extend(rows.map(|(query, scores)| softmax::<true>(scores, first, query, scale)));
    let [before, all_see, behind] = task.seen(pools.options);
    // Positions that only some rows see are at both ends; they are added query by query.
    let mut add_edge = |positions: Range<usize>, attn_out: &mut [f32]| {
        if positions.is_empty() {
            return;
        }
        widened.resize(head_dim, 0.0);
        let heads = kv_heads.clone().zip(queries).zip(scores.chunks_exact(N * width));
        for (((kv_head, queries), weights), attn_out) in heads.zip(attn_out.chunks_exact_mut(N * head_dim)) {
            let mut sum = WeightedSum { weights, width, first, attn_out, widened };
            sum.add_values::<E, true, false>(positions.clone(), queries, kv_head, task, pools);
        }
    };
    add_edge(before, attn_out);
    let n_together = if is_alone { tiles.len() } else { 1 };
    for start in tiles.clone().step_by(n_together) {
        let part = start..start + n_together;
        let heads = kv_heads.clone().zip(scores.chunks_exact(N * width)).zip(attn_out.chunks_exact_mut(N * head_dim));
        for ((kv_head, scores), attn_out) in heads {
            let mut from = 0;
            while from < head_dim {
                let part = Part { kv_head, tiles: part.clone(), positions: all_see.clone(), from, ahead };
                // SAFETY: as above.
                from += unsafe {
                    if N <= 6 && from + 4 * LANES <= head_dim {
                        add_weighted_values::<E, N, 4>(part, task, pools, (scores, width), attn_out)
                    } else if from + 2 * LANES <= head_dim {
                        add_weighted_values::<E, N, 2>(part, task, pools, (scores, width), attn_out)
                    } else {
                        add_weighted_values::<E, N, 1>(part, task, pools, (scores, width), attn_out)
                    }
                };
            }
        }
    }
    add_edge(behind, attn_out);
    store(queries.as_flattened(), attn_out, totals, head_dim, output);
    buffers.give_back();
}

/// Writes the products of a head's queries and the keys of `T` tiles to `scores`, rows of `width`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn score_tiles<E: KvElement, const N: usize, const T: usize>(
    queries: &[Query<'_>; N],
    kv_head: usize,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    tile: usize,
    scores: &mut [f32],
    width: usize,
) {
    let head_dim = pools.options.head_dim;
    // Checks the slices' lengths once.
    let lines: [&[E]; T] = array::from_fn(|t| key_lines(pools, task.page(tile + t), kv_head));
    let values: [&[f32]; N] = array::from_fn(|n| &queries[n].values[..head_dim]);
    // Prefetched meanwhile; at the end, the last tile again.
    let last = tiles(&task.sees(pools.options)).end - 1;
    let next: [&[E]; T] = array::from_fn(|t| key_lines(pools, task.page((tile + T + t).min(last)), kv_head));
    let mut sums = [[_mm512_setzero_ps(); T]; N];
    for dim in 0..head_dim {
        // SAFETY: `lines` have `head_dim` lines of 16, and `values` have `head_dim` values.
        let keys: [_; T] = array::from_fn(|t| unsafe { E::load(lines[t].as_ptr().add(dim * LANES)) });
        if (dim * LANES).is_multiple_of(line::<E>()) {
            next.iter().for_each(|next| prefetch(next.as_ptr().wrapping_add(dim * LANES)));
        }
        for (sums, values) in sums.iter_mut().zip(&values) {
            // SAFETY: as above.
            let q = _mm512_set1_ps(unsafe { *values.get_unchecked(dim) });
            for (sum, keys) in sums.iter_mut().zip(keys) {
                *sum = _mm512_fmadd_ps(q, keys, *sum);
            }
        }
    }
    for (n, sums) in sums.iter().enumerate() {
        let scores = &mut scores[n * width..][..T * LANES];
        for (scores, sum) in scores.chunks_exact_mut(LANES).zip(sums) {
            // SAFETY: the chunk has 16 values.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr(), *sum) };
        }
    }
}

/// A part of a task's values.
struct Part {
    kv_head: usize,
    tiles: Range<usize>,
    /// The positions among them that all queries see.
    positions: Range<usize>,
    /// The first dimension.
    from: usize,
    /// Pages between the values being added and those being prefetched.
    ahead: usize,
}

/// Adds the part's weighted values to `attn_out`, `[N, head_dim]`: `C` registers of dimensions from the part's first.
/// Returns the number of dimensions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn add_weighted_values<E: KvElement, const N: usize, const C: usize>(
    Part { kv_head, tiles: part, positions, from, ahead }: Part,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    (scores, width): (&[f32], usize),
    attn_out: &mut [f32],
) -> usize {
    let AttentionOptions { n_kv_heads, head_dim, .. } = *pools.options;
    let n_dims = (head_dim - from).min(C * LANES);
    let mask = |c: usize| -> __mmask16 {
        let n = n_dims - (c * LANES).min(n_dims);
        if n >= LANES { !0 } else { (1 << n) - 1 }
    };
    let tiles = tiles(&task.sees(pools.options));
    let (first, last) = (tiles.start * LANES, tiles.end - 1);
    let page_len = LANES * n_kv_heads * head_dim;
    let page_values = |page: usize| &pools.values[page * page_len..][..page_len];
    // Checks the slices' lengths here and once per page.
    assert!(part.start >= tiles.start && part.end <= tiles.end && attn_out.len() == N * head_dim);
    let weights: [&[f32]; N] = array::from_fn(|n| &scores[n * width..][..tiles.len() * LANES]);
    let attn_out = attn_out.as_mut_ptr();
    let mut sums = [[_mm512_setzero_ps(); C]; N];
    for (n, sums) in sums.iter_mut().enumerate() {
        for (c, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `attn_out` has `N` rows of `head_dim`; the mask leaves out what is beyond the row.
            *sum = unsafe { _mm512_maskz_loadu_ps(mask(c), attn_out.wrapping_add(n * head_dim + from + c * LANES)) };
        }
    }
    for tile in part {
        let page = page_values(task.page(tile));
        let next = page_values(task.page((tile + ahead).min(last)));
        for position in positions.start.max(tile * LANES)..positions.end.min((tile + 1) * LANES) {
            let row = ((position % LANES) * n_kv_heads + kv_head) * head_dim + from;
            (0..C * LANES).step_by(line::<E>()).for_each(|at| prefetch(next.as_ptr().wrapping_add(row + at)));
            // SAFETY: `row` and the `n_dims` values behind it are within the page; the mask leaves out what is
            // beyond them. `position - first` is below the number of tiles times their length.
            unsafe {
                let row = page.as_ptr().add(row);
                let values: [_; C] = array::from_fn(|c| E::load_masked(mask(c), row.wrapping_add(c * LANES)));
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    let weight = _mm512_set1_ps(*weights.get_unchecked(position - first));
                    for (sum, values) in sums.iter_mut().zip(values) {
                        *sum = _mm512_fmadd_ps(weight, values, *sum);
                    }
                }
            }
        }
    }
    for (n, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            // SAFETY: as for loading.
            unsafe {
                _mm512_mask_storeu_ps(attn_out.wrapping_add(n * head_dim + from + c * LANES), mask(c), *sum);
            }
        }
    }
    n_dims
}
