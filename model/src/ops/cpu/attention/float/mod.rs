//! Attention over keys and values in f32 or f16.
//!
//! Keys of a page's 16 tokens are stored side by side (see [`PoolLayout`](crate::ops::cpu::pool_layout::PoolLayout)), so that 16
//! scores are one chain of multiply-adds over the head's dimensions, without sums across lanes. Values are stored row by row,
//! and a row of a chunk's output is one chain over the keys in the order of their positions. A row reads its own key and value
//! back as rounded, as later rows will.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::{marker::PhantomData, ops::Range};

#[cfg(target_arch = "x86_64")]
use super::CHUNK_TILES;
use super::{Buffers, CHUNK, Kernels, LANES, Outputs, Pools, Query, Task, softmax::softmax};
#[cfg(target_arch = "x86_64")]
use crate::ops::cpu::{Isa, isa};
use crate::ops::cpu::{PORTABLE_IS_FUSED, kv_element::FloatElement, multiply_add};

/// Attends with the instructions of this machine.
pub(in crate::ops::cpu) fn attend<E: FloatElement>(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    outputs: &Outputs<'_>,
) {
    // SAFETY: `isa` found the instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match isa() {
            Isa::Avx512 => return avx512::attend(queries, task, pools, outputs),
            Isa::Avx2 | Isa::AvxVnni => return avx2::attend(queries, task, pools, outputs),
            Isa::Portable => {}
        }
        super::attend::<Portable<E>>(queries, task, pools, outputs);
    }
}

impl<'a, E: FloatElement> Pools<'a, E> {
    /// The values of a page and head: `[16, head_dim]`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn value_block(&self, page: usize, kv_head: usize) -> &'a [E] {
        &self.values[self.layout.block(page, kv_head)]
    }

    /// Keys of the next chunk, to prefetch while the values of `tile` are added. Past the end, the last tile's keys,
    /// which are in a cache already.
    #[cfg(target_arch = "x86_64")]
    fn keys_of_next_chunk(&self, task: &Task<'_>, tile: usize) -> &'a [E] {
        self.key_block(task.page((tile + CHUNK_TILES).min(task.last_tile())), task.kv_head)
    }

    /// The value of a slot and head: `[head_dim]`.
    #[inline(always)]
    fn value_row(&self, slot: usize, kv_head: usize) -> &'a [E] {
        &self.values[self.layout.value(slot, kv_head)]
    }
}

/// Plain Rust, which the compiler vectorizes: a page is widened once for all queries.
struct Portable<E>(PhantomData<E>);

impl<E: FloatElement> Kernels for Portable<E> {
    type Element = E;

    unsafe fn attend_chunk(
        queries: &[Query<'_>],
        tiles: Range<usize>,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        buffers: &mut Buffers,
    ) {
        const FUSED: bool = PORTABLE_IS_FUSED;
        let Buffers { scores, chunk_sums, chunk_states, widened, .. } = buffers;
        let head_dim = pools.options.head_dim;
        let first = tiles.start * LANES;
        widened.resize(head_dim * LANES, 0.0);
        for tile in tiles.clone() {
            let lines = E::widen(pools.key_block(task.page(tile), task.kv_head), widened);
            for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(CHUNK)) {
                let mut sums = [0.0; LANES];
                for (line, &q) in lines.as_chunks::<LANES>().0.iter().zip(query.values) {
                    for (sum, key) in sums.iter_mut().zip(line) {
                        *sum = multiply_add::<FUSED>(q, *key, *sum);
                    }
                }
                scores[tile * LANES - first..][..LANES].copy_from_slice(&sums);
            }
        }
        for ((query, scores), state) in queries.iter().zip(scores.chunks_exact_mut(CHUNK)).zip(chunk_states) {
            *state =
                softmax::<FUSED>(&mut scores[..tiles.len() * LANES], first, query, Some(pools.options.scale as f32));
        }
        let [before, all_see, behind] = task.seen_of(&tiles, pools.options);
        let mut sum = WeightedSum { weights: scores, first, sums: chunk_sums, widened };
        sum.add_values::<E, FUSED, false>(before, queries, task, pools);
        sum.add_values::<E, FUSED, true>(all_see, queries, task, pools);
        sum.add_values::<E, FUSED, false>(behind, queries, task, pools);
    }
}

/// Weighted sums of values for some queries, in the order of positions.
struct WeightedSum<'a> {
    /// [`CHUNK`] weights per query, from position `first`.
    weights: &'a [f32],
    first: usize,
    /// The sums so far, `[n_queries, head_dim]`.
    sums: &'a mut [f32],
    /// Buffer for a row of values.
    widened: &'a mut [f32],
}

impl WeightedSum<'_> {
    /// Adds the weighted values at `positions`. Unless `ALL_SEE`, a query skips those that it must not see: their
    /// weight is 0, but 0 times an infinite value is NaN.
    #[inline(always)]
    fn add_values<E: FloatElement, const FUSED: bool, const ALL_SEE: bool>(
        &mut self,
        positions: Range<usize>,
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    ) {
        let head_dim = pools.options.head_dim;
        for position in positions {
            let values = E::widen(pools.value_row(task.slot(position), task.kv_head), self.widened);
            let sums = self.sums.chunks_exact_mut(head_dim);
            for ((query, weights), sums) in queries.iter().zip(self.weights.chunks_exact(CHUNK)).zip(sums) {
                if ALL_SEE || query.sees.contains(&position) {
                    let weight = weights[position - self.first];
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = multiply_add::<FUSED>(weight, *value, *sum);
                    }
                }
            }
        }
    }
}
