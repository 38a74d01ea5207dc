//! The same sums with wide registers, for several queries and pages at a time.

use std::ops::Range;

use super::{Buffers, KvElement, LANES, Pools, Query, Task, WeightedSum, store, tiles};
use crate::ops::cpu::{prefetch::prefetch, thread_pool::SharedMut};

/// The innermost loops for an instruction set.
pub(super) trait Kernels {
    /// Tiles whose values go by at a time where a head is alone: fewer where dimensions take several passes over them.
    const VALUE_TILES: usize;

    /// Tiles of keys at a time for so many queries: enough for all sums to stay in registers, and for 8 or more
    /// independent chains of multiply-adds; the chains of several heads overlap.
    fn tiles_together(n_queries: usize, is_alone: bool, n_left: usize) -> usize;

    /// Dimensions of values at a time for so many queries, in lanes: 1, 2 or 4.
    fn lanes_together(n_queries: usize) -> usize;

    /// [`softmax`](super::softmax) with these instructions.
    ///
    /// # Safety
    /// The machine has them.
    unsafe fn softmax(scores: &mut [f32], first: usize, query: &Query<'_>, scale: f32) -> f32;

    /// [`WeightedSum::add_values`] at positions that not all queries see.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add_some_values<E: KvElement>(
        sum: &mut WeightedSum<'_>,
        positions: Range<usize>,
        queries: &[Query<'_>],
        kv_head: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    );

    /// Writes the products of a head's queries and the keys of `n_tiles` tiles to `scores`, rows of `width`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn score_tiles<E: KvElement>(
        queries: &[Query<'_>],
        kv_head: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        tiles: Range<usize>,
        scores: (&mut [f32], usize),
    );

    /// Adds the part's weighted values to `attn_out`, `[n_queries, head_dim]`: `n_lanes` lanes of dimensions from the
    /// part's first, or what is left of them.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add_weighted_values<E: KvElement>(
        part: &Part,
        n_lanes: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        scores: (&[f32], usize),
        attn_out: &mut [f32],
    );
}

/// A part of a task's values.
pub(super) struct Part {
    pub(super) kv_head: usize,
    pub(super) tiles: Range<usize>,
    /// The positions among them that all queries see.
    pub(super) positions: Range<usize>,
    /// The first dimension.
    pub(super) from: usize,
    /// Pages between the values being added and those being prefetched.
    pub(super) ahead: usize,
}

/// Numbers in a cache line.
pub(super) const fn line<E>() -> usize {
    64 / size_of::<E>()
}

/// Calls `$kernel` for elements of the type `$E` with constants for a number of queries and of registers: those of the pairs that
/// such numbers are.
macro_rules! with_constants {
    ($kernel:ident::<$E:ty>, ($n:expr, $m:expr), $arguments:tt, $($m_is:literal: $($n_is:literal)*;)*) => {
        match ($n, $m) {
            // SAFETY: the caller's.
            $($(($n_is, $m_is) => unsafe { $kernel::<$E, $n_is, $m_is> $arguments },)*)*
            counts => unreachable!("no kernel for {counts:?} queries and registers"),
        }
    };
}
pub(super) use with_constants;

/// The queries of several heads go through the pages together, page by page, since they are adjacent in memory: that takes
/// a seventh less time by itself, and a twentieth to a ninth less in a step.
///
/// # Safety
/// The machine has the instructions of `K`.
#[inline(always)]
pub(super) unsafe fn attend<K: Kernels, E: KvElement>(
    queries: &[Query<'_>],
    kv_heads: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    output: &SharedMut<'_, f32>,
) {
    // Queries of a head.
    let n_queries = queries.len() / kv_heads.len();
    let heads = kv_heads.clone().zip(queries.chunks_exact(n_queries));
    let head_dim = pools.options.head_dim;
    let tiles = tiles(&task.sees(pools.options));
    let first = tiles.start * LANES;
    let width = tiles.len() * LANES;
    let is_alone = kv_heads.len() == 1;
    // Pages between the values being added and those being prefetched.
    let ahead = if is_alone { 2 } else { 1 };
    let mut buffers = Buffers::take(queries.len(), width, head_dim);
    let Buffers { scores, totals, attn_out, widened } = &mut buffers;
    let mut tile = tiles.start;
    while tile < tiles.end {
        let n_left = tiles.end - tile;
        let together = K::tiles_together(n_queries, is_alone, n_left);
        for ((kv_head, queries), scores) in heads.clone().zip(scores.chunks_exact_mut(n_queries * width)) {
            let tiles_now = tile..tile + together;
            let scores_now = (&mut scores[tile * LANES - first..], width);
            // SAFETY: the caller's.
            unsafe { K::score_tiles(queries, kv_head, task, pools, tiles_now, scores_now) };
            if E::SCALE_LEN > 0 {
                for tile in tile..tile + together {
                    let scores = &mut scores[tile * LANES - first..];
                    pools.scale_scores(task.page(tile), kv_head, scores, width);
                }
            }
            if together == n_left {
                // Prefetch the first values while the weights are computed from the scores.
                for tile in tiles.clone().take(ahead) {
                    for lane in 0..LANES {
                        let row = pools.value_row(task.page(tile) * LANES + lane, kv_head);
                        row.iter().step_by(line::<E>()).for_each(|value| prefetch(value));
                    }
                }
            }
        }
        tile += together;
    }
    let rows = queries.iter().zip(scores.chunks_exact_mut(width));
    let scale = pools.options.scale as f32;
    // SAFETY: the caller's.
    totals.extend(rows.map(|(query, scores)| unsafe { K::softmax(scores, first, query, scale) }));
    if E::SCALE_LEN > 0 {
        for (kv_head, weights) in kv_heads.clone().zip(scores.chunks_exact_mut(n_queries * width)) {
            for tile in tiles.clone() {
                pools.scale_weights(task.page(tile), kv_head, &mut weights[tile * LANES - first..], width);
            }
        }
    }
    let [before, all_see, behind] = task.seen(pools.options);
    // Positions that only some rows see are at both ends; they are added query by query.
    let mut add_edge = |positions: Range<usize>, attn_out: &mut [f32]| {
        if positions.is_empty() {
            return;
        }
        widened.resize(head_dim, 0.0);
        let heads = heads.clone().zip(scores.chunks_exact(n_queries * width));
        for (((kv_head, queries), weights), attn_out) in heads.zip(attn_out.chunks_exact_mut(n_queries * head_dim)) {
            let mut sum = WeightedSum { weights, width, first, attn_out, widened };
            // SAFETY: the caller's.
            unsafe { K::add_some_values(&mut sum, positions.clone(), queries, kv_head, task, pools) };
        }
    };
    add_edge(before, attn_out);
    let n_together = if is_alone { K::VALUE_TILES.min(tiles.len()) } else { 1 };
    for start in tiles.clone().step_by(n_together) {
        let part = start..tiles.end.min(start + n_together);
        let heads = kv_heads.clone().zip(scores.chunks_exact(n_queries * width));
        for ((kv_head, scores), attn_out) in heads.zip(attn_out.chunks_exact_mut(n_queries * head_dim)) {
            let mut from = 0;
            while from < head_dim {
                let n_lanes = match K::lanes_together(n_queries) {
                    n if from + n * LANES <= head_dim => n,
                    4 if from + 2 * LANES <= head_dim => 2,
                    _ => 1,
                };
                let part = Part { kv_head, tiles: part.clone(), positions: all_see.clone(), from, ahead };
                // SAFETY: the caller's.
                unsafe { K::add_weighted_values(&part, n_lanes, task, pools, (scores, width), attn_out) };
                from += n_lanes * LANES;
            }
        }
    }
    add_edge(behind, attn_out);
    store(queries, attn_out, totals, head_dim, output);
    buffers.give_back();
}
