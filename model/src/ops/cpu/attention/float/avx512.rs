//! The innermost loops with AVX-512.

use std::{
    arch::x86_64::{
        __mmask16, _mm512_fmadd_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    },
    array,
    marker::PhantomData,
    ops::Range,
};

use super::{
    Buffers, CHUNK, FloatElement, LANES, Outputs, Pools, Query, Task, WeightedSum, softmax,
    tiled::{self, AHEAD, Part, Tiles, line, with_constants},
};
use crate::ops::cpu::{
    attention::{self, Kernels, parts, softmax::SoftmaxState},
    prefetch::{prefetch, prefetch_l2},
};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
pub(super) unsafe fn attend<E: FloatElement>(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    outputs: &Outputs<'_>,
) {
    // SAFETY: this function enables the target features.
    unsafe { attention::attend::<Avx512<E>>(queries, task, pools, outputs) };
}

struct Avx512<E>(PhantomData<E>);

/// Queries whose sums for a few lines fit into the registers.
const QUERIES: usize = 6;

impl<E: FloatElement> Kernels for Avx512<E> {
    type Element = E;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    unsafe fn attend_chunk(
        queries: &[Query<'_>],
        tiles: Range<usize>,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        buffers: &mut Buffers,
    ) {
        // SAFETY: this function enables the target features.
        unsafe { tiled::attend_chunk::<Self, E>(queries, tiles, task, pools, buffers) };
    }
}

impl<E: FloatElement> Tiles<E> for Avx512<E> {
    #[inline(always)]
    fn value_tiles(n_queries: usize) -> usize {
        if n_queries <= QUERIES { usize::MAX } else { 8 }
    }

    #[inline(always)]
    fn tiles_together(_n_queries: usize, n_left: usize) -> usize {
        match n_left {
            4.. => 4,
            2 | 3 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    fn lanes_together(_n_queries: usize) -> usize {
        4
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    unsafe fn softmax(scores: &mut [f32], first: usize, query: &Query<'_>, scale: f32) -> SoftmaxState {
        softmax::<true>(scores, first, query, Some(scale))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    unsafe fn add_some_values(
        sum: &mut WeightedSum<'_>,
        positions: Range<usize>,
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    ) {
        sum.add_values::<E, true, false>(positions, queries, task, pools);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn score_tiles(
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        tiles: Range<usize>,
        scores: &mut [f32],
    ) {
        let waits = task.is_memory_bound(pools.options);
        for (from, n) in parts(queries.len(), QUERIES) {
            let (queries, scores) = (&queries[from..from + n], &mut scores[from * CHUNK..]);
            with_constants!(
                score_part::<E>, (n, tiles.len(), waits), (queries, task, pools, tiles.start, scores),
                4: 1 2 3 4 5 6; 2: 1 2 3 4 5 6; 1: 1 2 3 4 5 6;
            );
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn add_weighted_values(
        part: &Part,
        n_lanes: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        scores: &[f32],
        attn_out: &mut [f32],
    ) {
        let head_dim = pools.options.head_dim;
        let n_queries = attn_out.len() / head_dim;
        let waits = task.is_memory_bound(pools.options);
        for (from, n) in parts(n_queries, QUERIES) {
            let (scores, attn_out) = (&scores[from * CHUNK..], &mut attn_out[from * head_dim..][..n * head_dim]);
            with_constants!(
                add_part::<E>, (n, n_lanes, waits), (part, task, pools, scores, attn_out),
                4: 1 2 3 4 5 6; 2: 1 2 3 4 5 6; 1: 1 2 3 4 5 6;
            );
        }
    }
}

/// [`Tiles::score_tiles`] for `N` queries and `T` tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn score_part<E: FloatElement, const N: usize, const T: usize, const WAITS: bool>(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    tile: usize,
    scores: &mut [f32],
) {
    let head_dim = pools.options.head_dim;
    // Checks the slices' lengths once.
    let lines: [&[E]; T] = array::from_fn(|t| pools.key_block(task.page(tile + t), task.kv_head));
    let values: [&[f32]; N] = array::from_fn(|n| &queries[n].values[..head_dim]);
    // Prefetched meanwhile; past the end, the last tile again.
    let last = task.last_tile();
    let next: [&[E]; T] = array::from_fn(|t| pools.key_block(task.page((tile + T + t).min(last)), task.kv_head));
    let value_blocks: [&[E]; T] =
        array::from_fn(|t| if WAITS { pools.value_block(task.page(tile + t), task.kv_head) } else { &[] });
    let mut sums = [[_mm512_setzero_ps(); T]; N];
    for dim in 0..head_dim {
        // SAFETY: `lines` have `head_dim` lines of 16, and `values` have `head_dim` values.
        let keys: [_; T] = array::from_fn(|t| unsafe { E::load(lines[t].as_ptr().add(dim * LANES)) });
        if (dim * LANES).is_multiple_of(line::<E>()) {
            next.iter().for_each(|next| prefetch(next.as_ptr().wrapping_add(dim * LANES)));
            if WAITS {
                value_blocks.iter().for_each(|block| prefetch_l2(block.as_ptr().wrapping_add(dim * LANES)));
            }
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
        let scores = &mut scores[n * CHUNK..][..T * LANES];
        for (scores, sum) in scores.chunks_exact_mut(LANES).zip(sums) {
            // SAFETY: the chunk has 16 values.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr(), *sum) };
        }
    }
}

/// [`Tiles::add_weighted_values`] for `N` queries and `C` lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn add_part<E: FloatElement, const N: usize, const C: usize, const WAITS: bool>(
    &Part { first, tiles: ref part, ref positions, from }: &Part,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    scores: &[f32],
    attn_out: &mut [f32],
) {
    let head_dim = pools.options.head_dim;
    let n_dims = (head_dim - from).min(C * LANES);
    let mask = |c: usize| -> __mmask16 {
        let n = n_dims - (c * LANES).min(n_dims);
        if n >= LANES { !0 } else { (1 << n) - 1 }
    };
    let (first, last) = (first * LANES, task.last_tile());
    // Checks the slices' lengths here and once per page.
    assert!(part.start * LANES >= first && part.end * LANES <= first + CHUNK && attn_out.len() == N * head_dim);
    let weights: [&[f32]; N] = array::from_fn(|n| &scores[n * CHUNK..][..CHUNK]);
    let attn_out = attn_out.as_mut_ptr();
    let mut sums = [[_mm512_setzero_ps(); C]; N];
    for (n, sums) in sums.iter_mut().enumerate() {
        for (c, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `attn_out` has `N` rows of `head_dim`; the mask excludes values beyond the row.
            *sum = unsafe { _mm512_maskz_loadu_ps(mask(c), attn_out.wrapping_add(n * head_dim + from + c * LANES)) };
        }
    }
    for tile in part.clone() {
        let block = pools.value_block(task.page(tile), task.kv_head);
        let next = pools.value_block(task.page((tile + AHEAD).min(last)), task.kv_head);
        let keys: &[E] = if WAITS { pools.keys_of_next_chunk(task, tile) } else { &[] };
        for position in positions.start.max(tile * LANES)..positions.end.min((tile + 1) * LANES) {
            let row = position % LANES * head_dim + from;
            (0..C * LANES).step_by(line::<E>()).for_each(|at| prefetch(next.as_ptr().wrapping_add(row + at)));
            if WAITS {
                (0..C * LANES).step_by(line::<E>()).for_each(|at| prefetch_l2(keys.as_ptr().wrapping_add(row + at)));
            }
            // SAFETY: `row` and the `n_dims` values after it are within the block; the mask excludes values beyond
            // them. `position - first` is below the number of tiles times their length.
            unsafe {
                let row = block.as_ptr().add(row);
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
}
