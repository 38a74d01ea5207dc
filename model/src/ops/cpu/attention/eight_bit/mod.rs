//! Attention over keys and values in 8-bit integers, which are multiplied directly: a fifth of the instructions of
//! widening them to f32 first.
//!
//! A query is rounded like a key, to integers from -127 to 127 times one factor, so its scores are integers times two
//! factors. The weights of a page, each times the factor of its value, are rounded to integers from 0 to 127 times one
//! factor. Four numbers that are multiplied at a time are side by side (see
//! [`PoolLayout`](crate::ops::cpu::pool_layout::PoolLayout)). Integers are added without error, in any order, so all
//! instruction sets with fused multiply-add give the same bits.

mod dot;
mod tiles;

use std::f32::consts::LOG2_E;

use dot::Dot;

use super::{
    Buffers, CHUNK, CHUNK_TILES, LANES, Outputs, Pools, Query, Task,
    softmax::{SoftmaxState, softmax},
};
use crate::ops::{
    AttentionOptions,
    cpu::{
        Isa, KvElement, PORTABLE_IS_FUSED, isa,
        kv_element::{FOUR, Q8_LEAST, ROUNDING, scale_of_largest},
        prefetch::{prefetch, prefetch_l2},
    },
};

/// Attends with the instructions of this machine.
pub(in crate::ops::cpu) fn attend(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, i8>,
    outputs: &Outputs<'_>,
) {
    // SAFETY: `isa` found the instructions, or they are looked for here.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => {
                tiles::avx512::attend(queries, task, pools, outputs)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => tiles::avx_vnni::attend(queries, task, pools, outputs),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => tiles::avx2::attend(queries, task, pools, outputs),
            #[cfg(target_arch = "aarch64")]
            Isa::DotProd | Isa::I8mm => tiles::dot_prod::attend(queries, task, pools, outputs),
            Isa::Portable => tiles::portable::attend(queries, task, pools, outputs),
        }
    }
}

/// Queries and weights in 8 bits.
#[derive(Default)]
pub(super) struct Rounded {
    /// Four numbers of a query in each: `[n_queries, stored_dim / 4]`.
    queries: Vec<i32>,
    factors: Vec<QueryFactor>,
    /// Four weights of a chunk in each: `[n_queries, CHUNK / 4]`.
    weights: Vec<i32>,
    /// The factor of each page's weights: `[n_queries, CHUNK_TILES]`.
    weight_factors: Vec<f32>,
}

/// Scale and sum of a quantized query.
#[derive(Clone, Copy, Default)]
struct QueryFactor {
    /// The query's scale; times the factor of [`scale_in_queries`], if that is included.
    factor: f32,
    /// Sum of the query's quantized values.
    sum: i32,
}

impl Rounded {
    pub(super) const fn new() -> Self {
        Self { queries: Vec::new(), factors: Vec::new(), weights: Vec::new(), weight_factors: Vec::new() }
    }
}

/// Rounds the queries.
#[inline(always)]
fn begin(queries: &[Query<'_>], pools: &Pools<'_, i8>, buffers: &mut Buffers) {
    let n_words = pools.options.head_dim.next_multiple_of(i8::DIM_UNIT) / FOUR;
    let Rounded { queries: words, factors, weights, weight_factors } = &mut buffers.rounded;
    words.resize(queries.len() * n_words, 0);
    factors.clear();
    weights.resize(queries.len() * CHUNK / FOUR, 0);
    weight_factors.resize(queries.len() * CHUNK_TILES, 0.0);
    for (query, words) in queries.iter().zip(words.chunks_exact_mut(n_words)) {
        let QueryFactor { factor, sum } = round_query(query.values, bytemuck::cast_slice_mut(words));
        factors
            .push(QueryFactor { factor: scale_in_queries(pools.options).map_or(factor, |scale| factor * scale), sum });
    }
}

/// The factor of scores that is included in the queries' factors: the attention scale times `log2 e`. `None` with a
/// soft cap, which needs scores without it.
fn scale_in_queries(options: &AttentionOptions) -> Option<f32> {
    options.softcap.is_none().then_some(options.scale as f32 * LOG2_E)
}

/// Rounds a query as keys are rounded, followed by zeros. In loops over 16 numbers, which the compiler vectorizes.
#[inline(always)]
fn round_query(values: &[f32], numbers: &mut [i8]) -> QueryFactor {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    // As in `scale_of`.
    let mut bits = [0; LANES];
    for values in whole.iter().chain([&last]) {
        for (bits, value) in bits.iter_mut().zip(values) {
            let other = value.abs().to_bits();
            *bits = if other > *bits { other } else { *bits };
        }
    }
    let largest = bits.into_iter().fold(0, u32::max);
    let scale = scale_of_largest(f32::from_bits(largest));
    let factor = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut sums = [0; LANES];
    let places = numbers.as_chunks_mut::<LANES>().0.iter_mut();
    for (values, places) in whole.iter().chain([&last]).zip(places) {
        for ((value, place), sum) in values.iter().zip(places).zip(&mut sums) {
            *place = (value * factor + ROUNDING).to_bits() as i8;
            *sum += i32::from(*place);
        }
    }
    QueryFactor { factor: scale, sum: sums.into_iter().sum() }
}

/// The weights of a query's scores from position `first`, rounded. `scales` has the factors of the values of
/// [`CHUNK_TILES`] tiles; those beyond the scores are ignored.
///
/// # Safety
/// The machine has the instructions of `D`.
#[inline(always)]
unsafe fn round_weights<D: Dot, const FUSED: bool>(
    (scores, n_scores): (&mut [f32], usize),
    first: usize,
    (query, scale): (&Query<'_>, Option<f32>),
    scales: &[*const f32; CHUNK_TILES],
    weights: &mut [i32],
    weight_factors: &mut [f32],
) -> SoftmaxState {
    let state = softmax::<FUSED>(&mut scores[..n_scores], first, query, scale);
    let weights: &mut [u8] = bytemuck::cast_slice_mut(weights);
    assert!(scores.len() == CHUNK && weights.len() == CHUNK && weight_factors.len() == CHUNK_TILES);
    for tile in (0..n_scores / LANES).step_by(TOGETHER) {
        let at = tile * LANES;
        // SAFETY: guaranteed by the caller; a tile has 16 weights, and as many factors.
        let factors = unsafe {
            let scales = scales[tile..].first_chunk().unwrap_or_else(|| unreachable!("a multiple of `TOGETHER`"));
            D::round_weights(scores.as_ptr().add(at), scales, weights.as_mut_ptr().add(at))
        };
        weight_factors[tile..tile + TOGETHER].copy_from_slice(&factors);
    }
    state
}

/// Tiles whose weights are rounded together.
const TOGETHER: usize = 4;
const _: () = assert!(CHUNK_TILES.is_multiple_of(TOGETHER));
