//! The innermost loops with AVX2: 16 registers of 8 values, so up to 12 sums.

use std::{
    arch::asm,
    arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps},
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

/// Registers for 16 keys, or for 16 dimensions.
const HALVES: usize = 2;
/// Values of a register.
const EIGHT: usize = LANES / HALVES;

/// Queries whose sums for a line fit into the registers.
const QUERIES: usize = 6;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn attend<E: FloatElement>(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    outputs: &Outputs<'_>,
) {
    // SAFETY: this function enables the target features.
    unsafe { attention::attend::<Avx2<E>>(queries, task, pools, outputs) };
}

struct Avx2<E>(PhantomData<E>);

impl<E: FloatElement> Kernels for Avx2<E> {
    type Element = E;

    #[target_feature(enable = "avx2,fma,f16c")]
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

impl<E: FloatElement> Tiles<E> for Avx2<E> {
    #[inline(always)]
    fn value_tiles(_n_queries: usize) -> usize {
        8
    }

    #[inline(always)]
    fn tiles_together(n_queries: usize, n_left: usize) -> usize {
        match n_queries {
            1 if n_left >= 4 => 4,
            1..=3 if n_left >= 2 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    fn lanes_together(n_queries: usize) -> usize {
        match n_queries {
            1 => 4,
            2 | 3 => 2,
            _ => 1,
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn softmax(scores: &mut [f32], first: usize, query: &Query<'_>, scale: f32) -> SoftmaxState {
        softmax::<true>(scores, first, query, Some(scale))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_some_values(
        sum: &mut WeightedSum<'_>,
        positions: Range<usize>,
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    ) {
        sum.add_values::<E, true, false>(positions, queries, task, pools);
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn score_tiles(
        queries: &[Query<'_>],
        task: &Task<'_>,
        pools: &Pools<'_, E>,
        tiles: Range<usize>,
        scores: &mut [f32],
    ) {
        let waits = task.is_memory_bound(pools.options);
        for (from, n) in parts(queries.len(), QUERIES) {
            let (queries, scores) = (&queries[from..], &mut scores[from * CHUNK..]);
            with_constants!(
                score_part::<E>, (n, tiles.len(), waits), (queries, task, pools, tiles.start, scores),
                4: 1; 2: 1 2 3; 1: 1 2 3 4 5 6;
            );
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
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
            let (scores, attn_out) = (&scores[from * CHUNK..], &mut attn_out[from * head_dim..]);
            with_constants!(
                add_part::<E>, (n, n_lanes, waits), (part, task, pools, scores, attn_out),
                4: 1; 2: 1 2 3; 1: 1 2 3 4 5 6;
            );
        }
    }
}

/// [`Tiles::score_tiles`] for the first `P` of `queries`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn score_part<E: FloatElement, const P: usize, const T: usize, const WAITS: bool>(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    tile: usize,
    scores: &mut [f32],
) {
    let head_dim = pools.options.head_dim;
    // Checks the slices' lengths once.
    let lines: [&[E]; T] = array::from_fn(|t| pools.key_block(task.page(tile + t), task.kv_head));
    // Prefetched meanwhile; past the end, the last tile again.
    let last = task.last_tile();
    let next: [&[E]; T] = array::from_fn(|t| pools.key_block(task.page((tile + T + t).min(last)), task.kv_head));
    let values: [&[f32]; P] = array::from_fn(|query| &queries[query].values[..head_dim]);
    let value_blocks: [&[E]; T] =
        array::from_fn(|t| if WAITS { pools.value_block(task.page(tile + t), task.kv_head) } else { &[] });
    let mut sums = [[[_mm256_setzero_ps(); HALVES]; T]; P];
    for dim in 0..head_dim {
        if (dim * LANES).is_multiple_of(line::<E>()) {
            next.iter().for_each(|next| prefetch(next.as_ptr().wrapping_add(dim * LANES)));
            if WAITS {
                value_blocks.iter().for_each(|block| prefetch_l2(block.as_ptr().wrapping_add(dim * LANES)));
            }
        }
        // SAFETY: `values` have `head_dim` values, and `lines` as many lines of 16.
        let q = |query: usize| _mm256_set1_ps(unsafe { *values[query].get_unchecked(dim) });
        let place = |n: usize| lines[n / HALVES].as_ptr().wrapping_add(dim * LANES + n % HALVES * EIGHT);
        // SAFETY: as above, and this function enables the target features.
        unsafe { add_products(q, place, |place, _| E::load_eight(place), &mut sums) };
    }
    for (query, sums) in sums.iter().enumerate() {
        let scores = &mut scores[query * CHUNK..][..T * LANES];
        for (scores, sum) in scores.chunks_exact_mut(EIGHT).zip(sums.as_flattened()) {
            // SAFETY: the chunk has 8 values.
            unsafe { _mm256_storeu_ps(scores.as_mut_ptr(), *sum) };
        }
    }
}

/// Adds the products of `P` factors and `T` lines of keys or values to `sums`. `load` loads half line `n` from its
/// `place`. 12 sums leave four registers: if there are at most three factors, these stay in registers, and half lines
/// are loaded one by one.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_products<E, const P: usize, const T: usize>(
    factor: impl Fn(usize) -> __m256,
    place: impl Fn(usize) -> *const E,
    load: impl Fn(*const E, usize) -> __m256,
    sums: &mut [[[__m256; HALVES]; T]; P],
) {
    if P <= T * HALVES {
        let factors: [__m256; P] = array::from_fn(&factor);
        for n in 0..T * HALVES {
            let mut place = place(n);
            if let Some(last) = n.checked_sub(1) {
                place = sums.iter().fold(place, |place, sums| after(place, sums.as_flattened()[last]));
            }
            let values = load(place, n);
            for (sums, factor) in sums.iter_mut().zip(factors) {
                let sum = &mut sums[n / HALVES][n % HALVES];
                *sum = _mm256_fmadd_ps(factor, values, *sum);
            }
        }
    } else {
        let lines: [[__m256; HALVES]; T] =
            array::from_fn(|t| array::from_fn(|half| load(place(t * HALVES + half), t * HALVES + half)));
        for (query, sums) in sums.iter_mut().enumerate() {
            let factor = factor(query);
            for (sum, values) in sums.as_flattened_mut().iter_mut().zip(lines.as_flattened()) {
                *sum = _mm256_fmadd_ps(factor, *values, *sum);
            }
        }
    }
}

/// Returns `place`, but the compiler must assume that it depends on `sum`, so it computes that sum before it loads from
/// there. In its own order, one more value than there are registers would be in use, and one of the 12 sums would be in
/// memory (1.3 times as slow). Costs no instruction.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read there")]
fn after<E>(mut place: *const E, sum: __m256) -> *const E {
    // SAFETY: emits no instruction; both operands keep their values.
    unsafe { asm!("/* {} {} */", inout(reg) place, in(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    place
}

/// [`Tiles::add_weighted_values`] for the first `P` queries of `attn_out`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_part<E: FloatElement, const P: usize, const C: usize, const WAITS: bool>(
    &Part { first, tiles: ref part, ref positions, from }: &Part,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    scores: &[f32],
    attn_out: &mut [f32],
) {
    let head_dim = pools.options.head_dim;
    let n_dims = (head_dim - from).min(C * LANES);
    let (first, last) = (first * LANES, task.last_tile());
    // Checks the slices' lengths here and once per page.
    assert!(part.start * LANES >= first && part.end * LANES <= first + CHUNK);
    let is_whole = n_dims == C * LANES;
    let weights: [&[f32]; P] = array::from_fn(|query| &scores[query * CHUNK..][..CHUNK]);
    let mut sums = [[[_mm256_setzero_ps(); HALVES]; C]; P];
    for (query, sums) in sums.iter_mut().enumerate() {
        let attn_out = &attn_out[query * head_dim + from..][..n_dims];
        for (c, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: this function enables the target features.
            *sum = unsafe { load_some(attn_out, c * EIGHT) };
        }
    }
    for tile in part.clone() {
        let block = pools.value_block(task.page(tile), task.kv_head);
        let next = pools.value_block(task.page((tile + AHEAD).min(last)), task.kv_head);
        let here = positions.start.max(tile * LANES)..positions.end.min((tile + 1) * LANES);
        if here.is_empty() {
            continue;
        }
        let row = |position: usize| position % LANES * head_dim + from;
        // Checks all rows of the block, and their weights.
        let rows = &block[row(here.start)..row(here.end - 1) + n_dims];
        let prefetched = next.as_ptr().wrapping_add(row(here.start));
        let keys: &[E] = if WAITS { pools.keys_of_next_chunk(task, tile) } else { &[] };
        let keys = keys.as_ptr().wrapping_add(row(here.start));
        let at = here.start - first;
        assert!(at + here.len() <= CHUNK);
        let rows = Rows { row: rows.as_ptr(), prefetched, keys };
        // SAFETY: this function enables the target features; a row has `n_dims` values, a whole one those that are
        // loaded, and there is a weight for each position.
        unsafe {
            if is_whole {
                add_rows::<E, P, C, WAITS>(rows, head_dim, at..at + here.len(), &weights, &mut sums, |row, at| {
                    E::load_eight(row.add(at))
                });
            } else {
                let load = |row: *const E, at: usize| load_some(std::slice::from_raw_parts(row, n_dims), at);
                add_rows::<E, P, C, WAITS>(rows, head_dim, at..at + here.len(), &weights, &mut sums, load);
            }
        }
    }
    for (query, sums) in sums.iter().enumerate() {
        let attn_out = &mut attn_out[query * head_dim + from..][..n_dims];
        for (attn_out, sum) in attn_out.chunks_mut(EIGHT).zip(sums.as_flattened()) {
            let mut values = [0.0; EIGHT];
            // SAFETY: the array has 8 values.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), *sum) };
            attn_out.copy_from_slice(&values[..attn_out.len()]);
        }
    }
}

/// Rows of values to add, and what to prefetch meanwhile.
struct Rows<E> {
    /// The first row.
    row: *const E,
    /// Rows to prefetch into L1.
    prefetched: *const E,
    /// Keys to prefetch into L2, if the task is memory-bound.
    keys: *const E,
}

/// Adds weighted rows of values, `stride` values apart. `at` is the rows' range among the weights; `load` loads eight values
/// of a row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_rows<E: FloatElement, const P: usize, const C: usize, const WAITS: bool>(
    Rows { mut row, mut prefetched, mut keys }: Rows<E>,
    stride: usize,
    at: Range<usize>,
    weights: &[&[f32]; P],
    sums: &mut [[[__m256; HALVES]; C]; P],
    load: impl Fn(*const E, usize) -> __m256,
) {
    for position in at {
        (0..C * LANES).step_by(line::<E>()).for_each(|at| prefetch(prefetched.wrapping_add(at)));
        if WAITS {
            (0..C * LANES).step_by(line::<E>()).for_each(|at| prefetch_l2(keys.wrapping_add(at)));
            keys = keys.wrapping_add(stride);
        }
        // SAFETY: there is a weight for each position.
        let weight = |query: usize| _mm256_set1_ps(unsafe { *weights[query].get_unchecked(position) });
        // SAFETY: this function enables the target features.
        unsafe { add_products(weight, |_| row, |row, n| load(row, n * EIGHT), sums) };
        row = row.wrapping_add(stride);
        prefetched = prefetched.wrapping_add(stride);
    }
}

/// Eight values from `at` on; 0 beyond the end.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn load_some<E: FloatElement>(values: &[E], at: usize) -> __m256 {
    let mut some = [E::default(); EIGHT];
    let values = &values[at.min(values.len())..];
    let n = values.len().min(EIGHT);
    some[..n].copy_from_slice(&values[..n]);
    // SAFETY: this function enables the target features; the array has 8 values.
    unsafe { E::load_eight(some.as_ptr()) }
}
