//! Measures this machine's memory bandwidth and arithmetic rate: the limits that speed is compared with.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps,
};
use std::{hint::black_box, time::Instant};

#[cfg(target_arch = "x86_64")]
use super::{Isa, isa};
use super::{
    PORTABLE_IS_FUSED, huge_pages, multiply_add,
    prefetch::{LINE, prefetch},
    thread_pool,
};
use crate::ops::Dtype;

/// Values that a thread reads at a time.
const CHUNK: usize = 1 << 16;
/// Bytes that are prefetched ahead, as products do.
const AHEAD: usize = 3 << 11;
/// Number of passes. The fastest counts, because disturbances only make passes slower.
const PASSES: usize = 12;
/// Independent sums of a thread: enough to hide the latency of multiply-adds, and they fit into 16 registers.
const CHAINS: usize = 12;
/// Multiply-adds per sum in a piece of work: some hundred microseconds.
const TURNS: usize = 1 << 16;

/// Bytes per second at which all threads together read a buffer of `n_bytes` repeatedly. A small buffer may stay in a
/// cache, as small weights do. Like them, it lies in huge pages, is prefetched, and is read by the threads of the operations:
/// otherwise, weights would be read at more than this on some machines.
pub(in crate::ops) fn read_bandwidth(n_bytes: usize) -> f64 {
    let values = huge_pages::zeros::<u64>(n_bytes / 8);
    let read = |chunk: &[u64]| {
        let mut sums = [0; LINE / 8];
        for line in chunk.as_chunks::<{ LINE / 8 }>().0 {
            prefetch(line.as_ptr().wrapping_byte_add(AHEAD));
            sums.iter_mut().zip(line).for_each(|(sum, value)| *sum ^= value);
        }
        sums.iter().fold(0, |sum, value| sum ^ value)
    };
    let chunks: Vec<&[u64]> = values.chunks(CHUNK).collect();
    let best = fastest_pass(|| {
        thread_pool::parallel_for(chunks.len(), |number| {
            black_box(read(chunks[number]));
        });
    });
    (values.len() * 8) as f64 / best
}

/// Seconds of the fastest of several passes.
fn fastest_pass(run: impl Fn()) -> f64 {
    let pass = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..PASSES).map(pass).fold(f64::INFINITY, f64::min)
}

/// Multiply-adds per second of all threads, with operands in registers, as products of this dtype are computed: in 8 bits
/// with sums in 32 bits if it is quantized, else in f32.
pub(in crate::ops) fn multiply_rate(dtype: Dtype) -> f64 {
    let is_narrow = dtype.is_quantized();
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
    // SAFETY: `isa` and the macro found the instructions.
    unsafe {
        match isa() {
            Isa::Avx512 if is_narrow && is_x86_feature_detected!("avx512vnni") => {
                return rate(CHAINS * 64, || vnni());
            }
            Isa::Avx512 if !is_narrow => return rate(CHAINS * 16, || avx512()),
            Isa::AvxVnni if is_narrow => return rate(CHAINS * 32, || avx_vnni()),
            Isa::Avx512 | Isa::AvxVnni | Isa::Avx2 if is_narrow => return rate(CHAINS * 32, || avx2_pairs()),
            Isa::Avx512 | Isa::AvxVnni | Isa::Avx2 => return rate(CHAINS * 8, || avx2()),
            Isa::Portable => {}
        }
    }
    let _ = is_narrow;
    rate(CHAINS * 4, chains::<PORTABLE_IS_FUSED, 4>)
}

/// Products per second of all threads: `piece` does [`TURNS`] times `n_products` of them.
fn rate(n_products: usize, piece: impl Fn() + Sync) -> f64 {
    let n_pieces = 4 * thread_pool::n_threads();
    let best = fastest_pass(|| thread_pool::parallel_for(n_pieces, |_| piece()));
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
#[target_feature(enable = "avx2,fma")]
fn avx2() {
    chains::<true, 8>();
}

/// Functions like [`chains`], of intrinsics. Each turn replaces every sum by the expression at the end. The compiler does not
/// know the values of the two operands.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsic_chains {
    ($(
        $(#[$attribute:meta])*
        $name:ident, $features:literal:
        ($one:ident, $two:ident) = ($first:expr, $second:expr), from $zero:expr, |$sum:ident| $next:expr;
    )*) => {$(
        $(#[$attribute])*
        #[target_feature(enable = $features)]
        fn $name() {
            let ($one, $two) = ($first, $second);
            let mut sums = [$zero; CHAINS];
            for _ in 0..TURNS {
                for place in &mut sums {
                    let $sum = *place;
                    *place = $next;
                }
            }
            black_box(sums);
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
intrinsic_chains! {
    avx512, "avx512f,avx512bw,avx512dq,avx512vl,fma":
        (factor, term) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0))),
        from _mm512_set1_ps(0.0),
        |sum| _mm512_fmadd_ps(sum, factor, term);

    /// Multiplies 8-bit numbers as the AVX2 kernel does: sums of two products, widened and added. One factor is the sum
    /// itself, so that the compiler cannot compute the products once for all turns.
    avx2_pairs, "avx2":
        (weights, ones) = (_mm256_set1_epi32(black_box(0x0101_0101)), _mm256_set1_epi16(black_box(1))),
        from _mm256_set1_epi32(0),
        |sum| _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, sum), ones));

    avx_vnni, "avx2,avxvnni":
        (weights, x) = (_mm256_set1_epi32(black_box(0x0101_0101)), _mm256_set1_epi32(black_box(1))),
        from _mm256_set1_epi32(0),
        |sum| _mm256_dpbusd_avx_epi32(sum, weights, x);

    vnni, "avx512f,avx512vnni":
        (weights, x) = (_mm512_set1_epi32(black_box(0x0101_0101)), _mm512_set1_epi32(black_box(1))),
        from _mm512_set1_epi32(0),
        |sum| _mm512_dpbusd_epi32(sum, weights, x);
}
