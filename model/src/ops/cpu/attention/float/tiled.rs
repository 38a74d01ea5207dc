//! Attention over floats with wide registers, for several queries and pages at a time.

use std::ops::Range;

use super::{Buffers, CHUNK, FloatElement, LANES, Pools, Query, Task, WeightedSum};
use crate::ops::cpu::attention::softmax::SoftmaxState;

/// The innermost loops for an instruction set.
pub(super) trait Tiles<E: FloatElement> {
    /// Tiles whose values are added up at a time. The values of 8 tiles, 128 positions, stay in L1 while several passes over
    /// them compute all dimensions and queries.
    fn value_tiles(n_queries: usize) -> usize;

    /// Tiles of keys at a time for `n_queries` queries, of the `n_left` left: all sums stay in registers, in 8 or more
    /// independent chains of multiply-adds.
    fn tiles_together(n_queries: usize, n_left: usize) -> usize;

    /// Registers of dimensions that are summed together for `n_queries` queries: 1, 2 or 4.
    fn lanes_together(n_queries: usize) -> usize;

    /// [`softmax`](super::softmax) with these instructions.
    ///
    /// # Safety
    /// The machine has them.
    unsafe fn softmax(scores: &mut [f32], first: usize, query: &Query<'_>, scale: f32) -> SoftmaxState;

    /// [`WeightedSum::add_values`] at positions that not all queries see.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add_some_values(
        sum: &mut WeightedSum<'_>,
        positions: Range<usize>,
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    );

    /// Writes the products of a head's queries and the keys of some of the chunk's `tiles` to `scores`, rows of [`CHUNK`].
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn score_tiles(
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        tiles: Range<usize>,
        scores: &mut [f32],
    );

    /// Adds the part's weighted values to `sums`, `[n_queries, head_dim]`: `n_lanes` lanes of dimensions from the
    /// part's first, fewer at the end of the head.
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

/// A part of a task's values.
pub(super) struct Part {
    /// The chunk's first tile.
    pub(super) first: usize,
    pub(super) tiles: Range<usize>,
    /// The positions among them that all queries see.
    pub(super) positions: Range<usize>,
    /// The first dimension.
    pub(super) from: usize,
}

/// Pages between the values being added and those being prefetched.
pub(super) const AHEAD: usize = 2;

/// Numbers in a cache line.
pub(super) const fn line<E>() -> usize {
    64 / size_of::<E>()
}

/// Calls `$kernel` for elements of the type `$E` with its number of queries `$n` and of registers `$m` as constants, and with
/// whether it `$waits` for memory. The last argument lists the possible pairs, as `m: n n n;`.
macro_rules! with_constants {
    ($kernel:ident::<$E:ty>, ($n:expr, $m:expr, $waits:expr), $arguments:tt, $($m_is:literal: $($n_is:literal)*;)*) => {
        match ($n, $m) {
            // SAFETY: guaranteed by the caller.
            $($(
                ($n_is, $m_is) if $waits => unsafe { $kernel::<$E, $n_is, $m_is, true> $arguments },
                ($n_is, $m_is) => unsafe { $kernel::<$E, $n_is, $m_is, false> $arguments },
            )*)*
            counts => unreachable!("no kernel for {counts:?} queries and registers"),
        }
    };
}
pub(super) use with_constants;

/// See [`Kernels::attend_chunk`](super::super::Kernels::attend_chunk).
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
    let n_queries = queries.len();
    let head_dim = pools.options.head_dim;
    let first = tiles.start * LANES;
    let Buffers { scores, chunk_sums, chunk_states, widened, .. } = buffers;
    let mut tile = tiles.start;
    while tile < tiles.end {
        let together = T::tiles_together(n_queries, tiles.end - tile);
        let scores = &mut scores[tile * LANES - first..];
        // SAFETY: guaranteed by the caller.
        unsafe { T::score_tiles(queries, task, pools, tile..tile + together, scores) };
        tile += together;
    }
    let rows = queries.iter().zip(scores.chunks_exact_mut(CHUNK));
    for ((query, scores), state) in rows.zip(chunk_states) {
        // SAFETY: guaranteed by the caller.
        *state = unsafe { T::softmax(&mut scores[..tiles.len() * LANES], first, query, pools.options.scale as f32) };
    }
    let [before, all_see, behind] = task.seen_of(&tiles, pools.options);
    // Positions that only some rows see are at both ends; they are added query by query.
    let mut add_edge = |positions: Range<usize>, sums: &mut [f32]| {
        if positions.is_empty() {
            return;
        }
        widened.resize(head_dim, 0.0);
        let mut sum = WeightedSum { weights: scores, first, sums, widened };
        // SAFETY: guaranteed by the caller.
        unsafe { T::add_some_values(&mut sum, positions, queries, task, pools) };
    };
    add_edge(before, chunk_sums);
    let n_together = T::value_tiles(n_queries).min(tiles.len());
    for start in tiles.clone().step_by(n_together) {
        let part = start..tiles.end.min(start + n_together);
        let mut from = 0;
        while from < head_dim {
            let n_lanes = match T::lanes_together(n_queries) {
                n if from + n * LANES <= head_dim => n,
                4 if from + 2 * LANES <= head_dim => 2,
                _ => 1,
            };
            let part = Part { first: tiles.start, tiles: part.clone(), positions: all_see.clone(), from };
            // SAFETY: guaranteed by the caller.
            unsafe { T::add_weighted_values(&part, n_lanes, task, pools, scores, chunk_sums) };
            from += n_lanes * LANES;
        }
    }
    add_edge(behind, chunk_sums);
}
