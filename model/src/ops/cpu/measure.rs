//! What this machine's memory gives: the limit that decoding is measured against.

use std::{hint::black_box, time::Instant};

use rayon::prelude::*;

/// Values that one thread sums at a time.
const CHUNK: usize = 1 << 16;
/// The best of so many passes: what disturbs a pass only makes it slower.
const PASSES: usize = 12;

/// Bytes per second at which all threads together read a buffer of `n_bytes`, again and again; a small one may live in
/// a cache, as small weights do.
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
