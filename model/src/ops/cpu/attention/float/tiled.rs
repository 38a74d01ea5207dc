//! The same sums with wide registers, for several queries and pages at a time.

use std::ops::Range;

use super::{Buffers, CHUNK, FloatElement, LANES, Pools, Query, Task, WeightedSum};
use crate::ops::cpu::{attention::softmax::State, prefetch::prefetch_l2};

/// The innermost loops for an instruction set.
pub(super) trait Tiles<E: FloatElement> {
    /// Tiles whose values are added up at a time, if the task has a single key head. The values of 8 tiles, 128
    /// positions, stay in L1 while several passes over them compute all dimensions and queries.
    fn value_tiles(n_queries: usize) -> usize;

    /// Tiles of keys at a time for `n_queries` queries, of the `n_left` left: all sums stay in registers, in 8 or more
    /// independent chains of multiply-adds. Unless the task has a single key head (`is_alone`), the chains of several
    /// heads overlap.
    fn tiles_together(n_queries: usize, is_alone: bool, n_left: usize) -> usize;

    /// Dimensions of values at a time for so many queries, in lanes: 1, 2 or 4.
    fn lanes_together(n_queries: usize) -> usize;

    /// [`softmax`](super::softmax) with these instructions.
    ///
    /// # Safety
    /// The machine has them.
    unsafe fn softmax(scores: &mut [f32], first: usize, query: &Query<'_>, scale: f32) -> State;

    /// [`WeightedSum::add_values`] at positions that not all queries see.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add_some_values(
        sum: &mut WeightedSum<'_>,
        positions: Range<usize>,
        queries: &[Query<'_>],
        kv_head: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    );

    /// Writes the products of a head's queries and the keys of some of the chunk's `tiles` to `scores`, rows of [`CHUNK`].
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn score_tiles(
        queries: &[Query<'_>],
        kv_head: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        tiles: Range<usize>,
        scores: &mut [f32],
    );

    /// Adds the part's weighted values to `sums`, `[n_queries, head_dim]`: `n_lanes` lanes of dimensions from the
    /// part's first, or what is left of them.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add_weighted_values(
        part: &Part,
        n_lanes: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        scores: &[f32],
        sums: &mut [f32],
    );
}

/// Most queries of a head for which values are prefetched into L2. More queries are those of a prompt, whose values are
/// in L2 already since other tasks have read them.
const MOST_WAITING: usize = 8;

/// A part of a task's values.
pub(super) struct Part {
    pub(super) kv_head: usize,
    /// The chunk's first tile.
    pub(super) first: usize,
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

/// Calls `$kernel` for elements of the type `$E` with its number of queries `$n` and of registers `$m` as constants.
/// The last argument lists the possible pairs, as `m: n n n;`.
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
/// The machine has the instructions of `T`.
#[inline(always)]
pub(super) unsafe fn attend_chunk<T: Tiles<E>, E: FloatElement>(
    queries: &[Query<'_>],
    tiles: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    buffers: &mut Buffers,
) {
    // Queries of a head.
    let n_queries = queries.len() / task.kv_heads.len();
    let heads = task.kv_heads.clone().zip(queries.chunks_exact(n_queries));
    let head_dim = pools.options.head_dim;
    let first = tiles.start * LANES;
    let is_alone = task.kv_heads.len() == 1;
    // Pages between the values being added and those being prefetched.
    let ahead = if is_alone { 2 } else { 1 };
    let Buffers { scores, chunk_sums, chunk_states, widened, .. } = buffers;
    let mut tile = tiles.start;
    while tile < tiles.end {
        let n_left = tiles.end - tile;
        let together = T::tiles_together(n_queries, is_alone, n_left);
        for ((kv_head, queries), scores) in heads.clone().zip(scores.chunks_exact_mut(n_queries * CHUNK)) {
            let scores_now = &mut scores[tile * LANES - first..];
            // SAFETY: the caller's.
            unsafe { T::score_tiles(queries, kv_head, task, pools, tile..tile + together, scores_now) };
            if n_queries <= MOST_WAITING {
                // Prefetches the values while keys are multiplied, so that memory is read all the time. Into L2, since
                // L1 has no room for a chunk's values.
                for tile in tile..tile + together {
                    let block = pools.value_block(task.page(tile), kv_head);
                    block.iter().step_by(line::<E>()).for_each(|value| prefetch_l2(value));
                }
            }
        }
        tile += together;
    }
    let rows = queries.iter().zip(scores.chunks_exact_mut(CHUNK));
    for ((query, scores), state) in rows.zip(chunk_states) {
        // SAFETY: the caller's.
        *state = unsafe { T::softmax(&mut scores[..tiles.len() * LANES], first, query, pools.options.scale as f32) };
    }
    let [before, all_see, behind] = task.seen(&tiles, pools.options);
    // Positions that only some rows see are at both ends; they are added query by query.
    let mut add_edge = |positions: Range<usize>, sums: &mut [f32]| {
        if positions.is_empty() {
            return;
        }
        widened.resize(head_dim, 0.0);
        let heads = heads.clone().zip(scores.chunks_exact(n_queries * CHUNK));
        for (((kv_head, queries), weights), sums) in heads.zip(sums.chunks_exact_mut(n_queries * head_dim)) {
            let mut sum = WeightedSum { weights, first, sums, widened };
            // SAFETY: the caller's.
            unsafe { T::add_some_values(&mut sum, positions.clone(), queries, kv_head, task, pools) };
        }
    };
    add_edge(before, chunk_sums);
    let n_together = if is_alone { T::value_tiles(n_queries).min(tiles.len()) } else { 1 };
    for start in tiles.clone().step_by(n_together) {
        let part = start..tiles.end.min(start + n_together);
        let heads = task.kv_heads.clone().zip(scores.chunks_exact(n_queries * CHUNK));
        for ((kv_head, scores), sums) in heads.zip(chunk_sums.chunks_exact_mut(n_queries * head_dim)) {
            let mut from = 0;
            while from < head_dim {
                let n_lanes = match T::lanes_together(n_queries) {
                    n if from + n * LANES <= head_dim => n,
                    4 if from + 2 * LANES <= head_dim => 2,
                    _ => 1,
                };
                let (first, tiles, positions) = (tiles.start, part.clone(), all_see.clone());
                let part = Part { kv_head, first, tiles, positions, from, ahead };
                // SAFETY: the caller's.
                unsafe { T::add_weighted_values(&part, n_lanes, task, pools, scores, sums) };
                from += n_lanes * LANES;
            }
        }
    }
    add_edge(behind, chunk_sums);
}
