//! Measures this machine's memory bandwidth and arithmetic rate: the limits that speed is compared with.

use std::{hint::black_box, time::Instant};

use rayon::prelude::*;

use super::{Isa, PORTABLE_IS_FUSED, isa, multiply_add, thread_pool};
use crate::ops::Dtype;

/// Values that a thread sums at a time.
const CHUNK: usize = 1 << 16;
/// Passes, of which the fastest counts: disturbances only make passes slower.
const PASSES: usize = 12;
/// Independent sums of a thread: enough to hide the latency of multiply-adds, and they fit into 16 registers.
const CHAINS: usize = 12;
/// Multiply-adds per sum in a piece of work: some hundred microseconds.
const TURNS: usize = 1 << 16;

/// Bytes per second at which all threads together read a buffer of `n_bytes` repeatedly. A small buffer may stay in a
/// cache, as small weights do.
pub(in crate::ops) fn read_bandwidth(n_bytes: usize) -> f64 {
    let values = vec![1u64; n_bytes / 8];
    let pass = || {
        let start = Instant::now();
        let sum: u64 = values.par_chunks(CHUNK).map(|chunk| chunk.iter().fold(0u64, |sum, value| sum ^ value)).sum();
        black_box(sum);
        start.elapsed().as_secs_f64()
    };
    let best = (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min);
    (values.len() * 8) as f64 / best
}

/// Multiply-adds per second of all threads, with operands in registers: of 8-bit integers if `dtype` is multiplied in 8
/// bits and the machine has instructions that add up four products, else of f32.
pub(in crate::ops) fn multiply_rate(dtype: Dtype) -> f64 {
    let is_narrow = dtype.is_quantized();
    #[cfg(target_arch = "x86_64")]
    if is_narrow && isa() == Isa::Avx512 && is_x86_feature_detected!("avx512vnni") {
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: both instruction sets were found.
        return rate(CHAINS * 64, || unsafe { vnni() });
    }
    let _ = is_narrow;
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 => rate(CHAINS * 16, || unsafe { avx512() }),
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx2 | Isa::AvxVnni => rate(CHAINS * 8, || unsafe { avx2() }),
        _ => rate(CHAINS * 4, chains::<PORTABLE_IS_FUSED, 4>),
    }
}

/// `n_products` times the number of turns per second of all threads; `piece` does [`TURNS`].
fn rate(n_products: usize, piece: impl Fn() + Sync) -> f64 {
    let n_pieces = 4 * thread_pool::n_threads();
    let pass = || {
        let start = Instant::now();
        thread_pool::parallel_for(n_pieces, |_| piece());
        start.elapsed().as_secs_f64()
    };
    let best = (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min);
    (n_pieces * TURNS * n_products) as f64 / best
}

#[inline(always)]
fn chains<const FUSED: bool, const LANES: usize>() {
    let (factor, term) = (black_box([0.5; LANES]), black_box([1.0; LANES]));
    let mut sums = [[0.0; LANES]; CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            for ((sum, factor), term) in sum.iter_mut().zip(factor).zip(term) {
                *sum = multiply_add::<FUSED>(*sum, factor, term);
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn avx512() {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps};
    let (factor, term) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
    let mut sums = [_mm512_set1_ps(0.0); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2() {
    chains::<true, 8>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni() {
    use std::arch::x86_64::{_mm512_dpbusd_epi32, _mm512_set1_epi32};
    let (weights, x) = (_mm512_set1_epi32(black_box(0x0101_0101)), _mm512_set1_epi32(black_box(1)));
    let mut sums = [_mm512_set1_epi32(0); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, weights, x);
        }
    }
    black_box(sums);
}
