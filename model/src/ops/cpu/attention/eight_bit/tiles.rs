//! The loops over a chunk's keys and values, for any instruction set.

use std::{array, ops::Range};

use super::{
    Buffers, CHUNK, CHUNK_TILES, Dot, FOUR, KvElement, LANES, PORTABLE_IS_FUSED, Pools, Query, QueryFactor, Rounded,
    TOGETHER, Task, begin, dot, prefetch, prefetch_l2, round_weights, scale_in_queries,
};
use crate::ops::cpu::attention::{self, Kernels, Outputs, parts};

/// Bytes that are contiguous in a page and head: four dimensions of 16 keys, or 16 dimensions of four values.
const UNIT: usize = LANES * FOUR;
/// Groups of four tokens in a page.
const FOURS: usize = LANES / FOUR;

/// The loops of an instruction set, and how many sums it keeps in registers.
trait Loops: Kernels<Element = i8> {
    type Dot: Dot;

    /// Maximum number of queries that are computed together.
    const QUERIES: usize;

    /// Pages of keys that are multiplied together by `n_queries` queries.
    fn pages(n_queries: usize) -> usize;

    /// Registers of dimensions whose weighted values are summed together for `n_queries` queries.
    fn registers(n_queries: usize) -> usize;

    /// [`scores`] with these instructions, for `n_queries` queries and `n_pages` pages.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn scores(n_queries: usize, n_pages: usize, keys: &Keys<'_>, queries: &[i32], scores: &mut [f32]);

    /// [`values`] with these instructions.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn values(n_queries: usize, n_registers: usize, part: &Values<'_>, sums: &mut [f32]);
}

/// Keys of some pages.
struct Keys<'a> {
    /// The pool.
    pool: &'a [i8],
    /// For each page, where in the pool the head's block begins (its keys, then their scales), and the block to
    /// prefetch.
    blocks: [usize; MOST_PAGES],
    next: [usize; MOST_PAGES],
    /// The pool of values, if the values of the same blocks are to be prefetched into L2.
    values: Option<*const i8>,
    query_factors: &'a [QueryFactor],
}

/// Maximum number of pages of keys at a time.
const MOST_PAGES: usize = 4;
const _: () = assert!(MOST_PAGES >= TOGETHER - 1);

/// Values of a chunk.
struct Values<'a> {
    /// The blocks of a head.
    blocks: &'a [&'a [i8]],
    /// Where the keys begin that are to be prefetched into L2 while the values of each tile are added, if any.
    keys: Option<&'a [*const i8; CHUNK_TILES]>,
    /// `[n_queries, CHUNK / 4]` and `[n_queries, CHUNK_TILES]`.
    weights: &'a [i32],
    factors: &'a [f32],
    /// The first dimension.
    from: usize,
    stored_dim: usize,
}

/// See [`Kernels::attend_chunk`].
///
/// # Safety
/// The machine has the instructions of `L`.
#[inline(always)]
unsafe fn attend_chunk<L: Loops, const FUSED: bool>(
    queries: &[Query<'_>],
    tiles: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, i8>,
    buffers: &mut Buffers,
) {
    let n_queries = queries.len();
    let stored_dim = pools.options.head_dim.next_multiple_of(i8::DIM_UNIT);
    let (layout, n_words, first) = (pools.layout, stored_dim / FOUR, tiles.start * LANES);
    let Buffers { scores, chunk_sums, chunk_states, rounded, .. } = buffers;
    let Rounded { queries: words, factors, weights, weight_factors } = rounded;
    let n_pages = tiles.len();
    // Where in the pools the head's blocks begin; padded by repeating the last page.
    let mut blocks = [0; CHUNK_TILES + MOST_PAGES];
    let blocks = &mut blocks[..n_pages + MOST_PAGES];
    for (n, block) in blocks.iter_mut().enumerate() {
        let tile = (tiles.start + n).min(tiles.end - 1);
        *block = layout.block(task.page(tile), task.kv_head).start;
    }
    let waits = task.is_memory_bound(pools.options);
    let n_together = L::pages(n_queries.min(L::QUERIES));
    let mut tile = 0;
    while tile < n_pages {
        let together = if tile + n_together <= n_pages { n_together } else { 1 };
        let (mut now, mut next) = ([0; MOST_PAGES], [0; MOST_PAGES]);
        now[..together].copy_from_slice(&blocks[tile..tile + together]);
        next[..together].copy_from_slice(&blocks[tile + together..tile + 2 * together]);
        for (from, n) in parts(n_queries, L::QUERIES) {
            let query_factors = &factors[from..from + n];
            let values = waits.then_some(pools.values.as_ptr());
            let keys = Keys { pool: pools.keys, blocks: now, next, values, query_factors };
            let scores = &mut scores[from * CHUNK + tile * LANES..];
            // SAFETY: guaranteed by the caller.
            unsafe { L::scores(n, together, &keys, &words[from * n_words..][..n * n_words], scores) };
        }
        tile += together;
    }
    let mut value_blocks = [&pools.values[..0]; CHUNK_TILES];
    let mut scales = [std::ptr::null(); CHUNK_TILES];
    // Weights are rounded for a few pages at a time, even if there are fewer.
    let n_rounded = n_pages.next_multiple_of(TOGETHER);
    for (start, (block, scales)) in blocks.iter().zip(value_blocks.iter_mut().zip(&mut scales)).take(n_rounded) {
        let values = &pools.values[*start..][..LANES * (stored_dim + i8::SCALE_LEN)];
        let (values, scales_of_block) = values.split_at(stored_dim * LANES);
        (*block, *scales) = (values, scales_of_block.as_ptr().cast());
    }
    let mut keys = [std::ptr::null(); CHUNK_TILES];
    for (n, keys) in keys.iter_mut().enumerate().take(n_pages) {
        // Past the end, prefetch the last tile again: it is in a cache already.
        let tile = (tiles.start + n + CHUNK_TILES).min(task.last_tile());
        *keys = pools.keys[layout.block(task.page(tile), task.kv_head)].as_ptr();
    }
    let keys = (waits && tiles.end <= task.last_tile()).then_some(&keys);
    // Prefetched while the weights are computed from the scores.
    for block in &value_blocks[..n_pages.min(2)] {
        block.iter().step_by(UNIT).for_each(|value| prefetch(value));
    }
    let scale = if scale_in_queries(pools.options).is_some() { None } else { Some(pools.options.scale as f32) };
    for (at, query) in queries.iter().enumerate() {
        let scores = (&mut scores[at * CHUNK..(at + 1) * CHUNK], n_pages * LANES);
        let weights = &mut weights[at * CHUNK / FOUR..][..CHUNK / FOUR];
        let weight_factors = &mut weight_factors[at * CHUNK_TILES..][..CHUNK_TILES];
        // SAFETY: guaranteed by the caller.
        chunk_states[at] =
            unsafe { round_weights::<L::Dot, FUSED>(scores, first, (query, scale), &scales, weights, weight_factors) };
    }
    for (at, n) in parts(n_queries, L::QUERIES) {
        let sums = &mut chunk_sums[at * stored_dim..][..n * stored_dim];
        let (weights, factors) = (&weights[at * CHUNK / FOUR..], &weight_factors[at * CHUNK_TILES..]);
        let mut part = Values { blocks: &value_blocks[..n_pages], keys, weights, factors, from: 0, stored_dim };
        while part.from < stored_dim {
            let n_registers = L::registers(n);
            let is_whole = part.from + n_registers * L::Dot::LANES <= stored_dim;
            let n_registers = if is_whole { n_registers } else { 1 };
            // SAFETY: guaranteed by the caller.
            unsafe { L::values(n, n_registers, &part, sums) };
            part.from += n_registers * L::Dot::LANES;
        }
    }
}

/// Writes the products of `N` queries, `[N, stored_dim / 4]`, and the keys of `M` registers to `scores`, rows of [`CHUNK`].
///
/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn scores<D: Dot, const N: usize, const M: usize>(keys: &Keys<'_>, queries: &[i32], scores: &mut [f32]) {
    // Registers of a page's keys.
    let by_page = LANES / D::LANES;
    let n_words = queries.len() / N;
    let n_pages = M / by_page;
    let (keys_len, factors_len) = (n_words * UNIT, LANES * i8::SCALE_LEN);
    assert!(keys.blocks[..n_pages].iter().all(|block| block + keys_len + factors_len <= keys.pool.len()));
    assert!(scores.len() >= (N - 1) * CHUNK + M * D::LANES);
    let query_factors =
        keys.query_factors.first_chunk::<N>().unwrap_or_else(|| unreachable!("a factor for each query"));
    let pool = keys.pool.as_ptr();
    // SAFETY: the blocks have a unit for each four dimensions, and there are factors for all of a page's keys.
    unsafe {
        let mut sums: [[D; M]; N] = query_factors.map(|query| [D::splat(D::begin(query.sum)); M]);
        for word in 0..n_words {
            let keys_now: [D; M] = array::from_fn(|m| {
                let block = pool.add(keys.blocks[m / by_page]);
                D::load(block.add(word * UNIT + m % by_page * D::LANES * FOUR)).keys()
            });
            for next in &keys.next[..n_pages] {
                prefetch(pool.wrapping_add(next + word * UNIT));
            }
            if let Some(values) = keys.values {
                keys.blocks[..n_pages].iter().for_each(|block| prefetch_l2(values.wrapping_add(block + word * UNIT)));
            }
            for (n, sums) in sums.iter_mut().enumerate() {
                let query = *queries.get_unchecked(n * n_words + word);
                for (sum, keys) in sums.iter_mut().zip(keys_now) {
                    *sum = sum.add_keys(keys, query);
                }
            }
        }
        for (n, (sums, query)) in sums.iter().zip(query_factors).enumerate() {
            for (m, sum) in sums.iter().enumerate() {
                let factors = pool.add(keys.blocks[m / by_page] + keys_len).cast::<f32>().add(m % by_page * D::LANES);
                sum.store_scaled(factors, query.factor, scores.as_mut_ptr().add(n * CHUNK + m * D::LANES));
            }
        }
    }
}

/// Adds the weighted values of `C` registers of dimensions to `N` rows of `sums`.
///
/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn values<D: Dot, const N: usize, const C: usize>(part: &Values<'_>, sums: &mut [f32]) {
    let &Values { blocks, keys, weights, factors, from, stored_dim } = part;
    let n_pages = blocks.len();
    assert!(from + C * D::LANES <= stored_dim && sums.len() == N * stored_dim);
    assert!(
        weights.len() >= (N - 1) * CHUNK / FOUR + n_pages * FOURS && factors.len() >= (N - 1) * CHUNK_TILES + n_pages
    );
    // SAFETY: the ranges that are read and written have been checked.
    unsafe {
        let at = |n: usize, c: usize| n * stored_dim + from + c * D::LANES;
        let mut totals: [[D::Floats; C]; N] =
            array::from_fn(|n| array::from_fn(|c| D::load_floats(sums.as_ptr().add(at(n, c)))));
        for (page, block) in blocks.iter().enumerate() {
            assert!(block.len() == stored_dim * LANES);
            let next = blocks[(page + 2).min(n_pages - 1)].as_ptr();
            let values: [[D; C]; FOURS] = array::from_fn(|four| {
                array::from_fn(|c| {
                    let place = (four * stored_dim + from + c * D::LANES) * FOUR;
                    prefetch(next.wrapping_add(place));
                    if let Some(keys) = keys {
                        prefetch_l2(keys[page].wrapping_add(place));
                    }
                    D::load(block.as_ptr().add(place))
                })
            });
            for (n, totals) in totals.iter_mut().enumerate() {
                let weights = weights.as_ptr().add(n * CHUNK / FOUR + page * FOURS);
                let mut sums = [D::splat(0); C];
                for (four, values) in values.iter().enumerate() {
                    let weights = D::splat(*weights.add(four));
                    for (sum, values) in sums.iter_mut().zip(values) {
                        *sum = sum.add_values(weights, *values);
                    }
                }
                let factor = *factors.get_unchecked(n * CHUNK_TILES + page);
                for (total, sum) in totals.iter_mut().zip(sums) {
                    *total = sum.add_scaled(factor, *total);
                }
            }
        }
        for (n, totals) in totals.iter().enumerate() {
            for (c, total) in totals.iter().enumerate() {
                D::store_floats(*total, sums.as_mut_ptr().add(at(n, c)));
            }
        }
    }
}

/// A module for an instruction set, with its target features.
macro_rules! instruction_set {
    (
        $(#[$cfg:meta])? $name:ident: $dot:ty $(, $features:literal)?; fused $fused:expr, queries $queries:literal,
        pages $pages:expr, registers $registers:expr,
        scores { $($m:literal: $($n:literal)*;)* } values { $($c:literal: $($of:literal)*;)* }
    ) => {
        $(#[$cfg])?
        pub(super) mod $name {
            use super::*;

            struct Here;

            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn attend(
                queries: &[Query<'_>],
                task: &Task<'_>,
                pools: &Pools<'_, i8>,
                outputs: &Outputs<'_>,
            ) {
                // SAFETY: this function enables the target features.
                unsafe { attention::attend::<Here>(queries, task, pools, outputs) };
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn scores_of<const N: usize, const M: usize>(keys: &Keys<'_>, queries: &[i32], scores: &mut [f32]) {
                // SAFETY: this function enables the target features.
                unsafe { super::scores::<$dot, N, M>(keys, queries, scores) };
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn values_of<const N: usize, const C: usize>(part: &Values<'_>, sums: &mut [f32]) {
                // SAFETY: this function enables the target features.
                unsafe { super::values::<$dot, N, C>(part, sums) };
            }

            impl Kernels for Here {
                type Element = i8;

                $(#[target_feature(enable = $features)])?
                unsafe fn begin(queries: &[Query<'_>], pools: &Pools<'_, i8>, buffers: &mut Buffers) {
                    begin(queries, pools, buffers);
                }

                $(#[target_feature(enable = $features)])?
                unsafe fn attend_chunk(
                    queries: &[Query<'_>],
                    tiles: Range<usize>,
                    task: &Task<'_>,
                    pools: &Pools<'_, i8>,
                    buffers: &mut Buffers,
                ) {
                    // SAFETY: this function enables the target features.
                    unsafe { super::attend_chunk::<Here, { $fused }>(queries, tiles, task, pools, buffers) };
                }
            }

            impl Loops for Here {
                type Dot = $dot;

                const QUERIES: usize = $queries;

                #[inline(always)]
                fn pages(n_queries: usize) -> usize {
                    ($pages)(n_queries)
                }

                #[inline(always)]
                fn registers(n_queries: usize) -> usize {
                    ($registers)(n_queries)
                }

                #[inline(always)]
                unsafe fn scores(n: usize, n_pages: usize, keys: &Keys<'_>, queries: &[i32], scores: &mut [f32]) {
                    // SAFETY: guaranteed by the caller.
                    match (n, n_pages) {
                        $($(($n, $m) => unsafe {
                            scores_of::<$n, { $m * LANES / <$dot>::LANES }>(keys, queries, scores);
                        },)*)*
                        counts => unreachable!("no kernel for {counts:?} queries and pages"),
                    }
                }

                #[inline(always)]
                unsafe fn values(n: usize, n_registers: usize, part: &Values<'_>, sums: &mut [f32]) {
                    // SAFETY: guaranteed by the caller.
                    match (n, n_registers) {
                        $($(($of, $c) => unsafe { values_of::<$of, $c>(part, sums) },)*)*
                        counts => unreachable!("no kernel for {counts:?} queries and registers"),
                    }
                }
            }
        }
    };
}

instruction_set! {
    #[cfg(target_arch = "x86_64")]
    avx512: dot::Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma"; fused true, queries 8,
    pages |n| if n <= 2 { 4 } else { 2 }, registers |n| if n <= 2 { 4 } else { 2 },
    scores { 4: 1 2; 2: 3 4 5 6 7 8; 1: 1 2 3 4 5 6 7 8; }
    values { 4: 1 2; 2: 3 4 5 6 7 8; 1: 1 2 3 4 5 6 7 8; }
}

instruction_set! {
    #[cfg(target_arch = "x86_64")]
    avx_vnni: dot::Avx2<true>, "avx2,fma,f16c,avxvnni"; fused true, queries 4,
    pages |n| if n == 1 { 4 } else if n == 2 { 2 } else { 1 }, registers |n| if n == 1 { 2 } else { 1 },
    scores { 4: 1; 2: 2; 1: 1 2 3 4; }
    values { 2: 1; 1: 1 2 3 4; }
}

instruction_set! {
    #[cfg(target_arch = "x86_64")]
    avx2: dot::Avx2<false>, "avx2,fma,f16c"; fused true, queries 4,
    pages |n| if n == 1 { 4 } else if n == 2 { 2 } else { 1 }, registers |n| if n == 1 { 2 } else { 1 },
    scores { 4: 1; 2: 2; 1: 1 2 3 4; }
    values { 2: 1; 1: 1 2 3 4; }
}

instruction_set! {
    #[cfg(target_arch = "aarch64")]
    dot_prod: dot::DotProd, "dotprod"; fused true, queries 4,
    pages |n| if n == 1 { 2 } else { 1 }, registers |_| 2,
    scores { 2: 1; 1: 1 2 3 4; }
    values { 2: 1 2 3 4; }
}

instruction_set! {
    portable: dot::Portable; fused PORTABLE_IS_FUSED, queries 1,
    pages |_| 1, registers |_| 1,
    scores { 1: 1; }
    values { 1: 1; }
}
