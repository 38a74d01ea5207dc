//! Rows times one panel of f32, f16 or bf16.
//!
//! Every output is one chain of multiply-adds (fused where the machine has that) along the inner dimension, in order,
//! starting from zero. Products in bf16 add two at a time.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
mod avx512;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::Isa;
#[cfg(target_arch = "x86_64")]
use super::thread_pool;
use super::{
    PORTABLE_IS_FUSED, has_fast_bf16_products, isa, multiply_add,
    panel_layout::{Line, PANEL},
};

/// Rows `r` and `r + 16` of a panel in bf16, the second in the upper half: a shift and a mask widen a line to two registers.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Bf16Pair(u32);

/// The values of a panel's 32 rows at one input, in one or two cache lines.
pub(super) trait PanelLine: Copy + Send + Sync + 'static {
    /// Lines per input.
    const LINES: usize;
    /// A line of zeros.
    const ZERO: Self;
    /// Bytes per input.
    #[cfg(target_arch = "x86_64")]
    const BYTES: usize = Self::LINES * size_of::<Self>();

    /// Whether lines hold bf16, which [`multiply_rounded`] requires.
    const IS_BF16: bool = false;

    /// Stores the value of row `row` at one input, rounded to the nearest, in lines that hold [`ZERO`](Self::ZERO) at
    /// that row.
    fn store(lines: &mut [Self], row: usize, value: f32);

    /// The 32 values at one input, as f32.
    fn widen(lines: &[Self]) -> [f32; PANEL];

    /// As [`widen`](Self::widen), in two registers.
    ///
    /// # Safety
    /// `lines` points to [`Self::LINES`] lines.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2];

    /// The eight values from `8 * n` on at one input, as f32.
    ///
    /// # Safety
    /// `lines` points to [`Self::LINES`] lines, and `n` is below 4.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    unsafe fn load_eight(lines: *const Self, n: usize) -> std::arch::x86_64::__m256;
}

impl PanelLine for Line<f32, 16> {
    const LINES: usize = 2;
    const ZERO: Self = Line([0.0; 16]);

    #[inline(always)]
    fn store(lines: &mut [Self], row: usize, value: f32) {
        lines[row / 16].0[row % 16] = value;
    }

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|row| lines[row / 16].0[row % 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::_mm512_load_ps;
        // SAFETY: the caller guarantees two lines, and lines are aligned to 64 bytes.
        unsafe { [_mm512_load_ps(lines.cast()), _mm512_load_ps(lines.add(1).cast())] }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_eight(lines: *const Self, n: usize) -> std::arch::x86_64::__m256 {
        // SAFETY: two lines are four registers, aligned as such.
        unsafe { std::arch::x86_64::_mm256_load_ps(lines.cast::<f32>().add(8 * n)) }
    }
}

impl PanelLine for Line<f16, 32> {
    const LINES: usize = 1;
    const ZERO: Self = Line([f16::ZERO; 32]);

    #[inline(always)]
    fn store(lines: &mut [Self], row: usize, value: f32) {
        lines[0].0[row] = f16::from_f32(value);
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "the compiler does not vectorize conversions of f16")]
    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        // SAFETY: all machines of the target have NEON; eight registers of four values are the array of 32.
        unsafe { std::mem::transmute(super::quant_blocks::RowFactors::load_fours(&lines[0])) }
    }

    #[cfg(not(target_arch = "aarch64"))]
    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|row| lines[0].0[row].to_f32())
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm512_cvtph_ps};
        let halves = lines.cast::<__m256i>();
        // SAFETY: the caller guarantees one line of 64 bytes, aligned as such.
        unsafe { [_mm512_cvtph_ps(_mm256_load_si256(halves)), _mm512_cvtph_ps(_mm256_load_si256(halves.add(1)))] }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_eight(lines: *const Self, n: usize) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::{__m128i, _mm_load_si128, _mm256_cvtph_ps};
        // SAFETY: a line is four times 16 bytes, aligned as such.
        unsafe { _mm256_cvtph_ps(_mm_load_si128(lines.cast::<__m128i>().add(n))) }
    }
}

impl PanelLine for Line<Bf16Pair, 16> {
    const LINES: usize = 1;
    const ZERO: Self = Line([Bf16Pair(0); 16]);
    const IS_BF16: bool = true;

    #[inline(always)]
    fn store(lines: &mut [Self], row: usize, value: f32) {
        lines[0].0[row % 16].0 |= u32::from(bf16::from_f32(value).to_bits()) << (row / 16 * 16);
    }

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|row| {
            let pair = lines[0].0[row % 16].0;
            f32::from_bits(if row < 16 { pair << 16 } else { pair & 0xffff_0000 })
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{
            _mm512_and_si512, _mm512_castsi512_ps, _mm512_load_si512, _mm512_set1_epi32, _mm512_slli_epi32,
        };
        // SAFETY: the caller guarantees one line of 64 bytes, aligned as such.
        let pairs = unsafe { _mm512_load_si512(lines.cast()) };
        let high = _mm512_and_si512(pairs, _mm512_set1_epi32(-1 << 16));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high)]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_eight(lines: *const Self, n: usize) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::{
            __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_load_si256, _mm256_set1_epi32, _mm256_slli_epi32,
        };
        // SAFETY: a line is two registers, aligned as such.
        let pairs = unsafe { _mm256_load_si256(lines.cast::<__m256i>().add(n % 2)) };
        _mm256_castsi256_ps(if n < 2 {
            _mm256_slli_epi32::<16>(pairs)
        } else {
            _mm256_and_si256(pairs, _mm256_set1_epi32(-1 << 16))
        })
    }
}

/// Multiplies the rows of `x [n_rows, d_in]` by one panel; `store` gets each row's number and sums.
pub(super) fn multiply_rows<L: PanelLine>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
    store: impl FnMut(usize, &[f32; PANEL]),
) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 => unsafe { avx512::singles::multiply::<avx512::Singles<L>>(x, lines, d_in, store) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx2 | Isa::AvxVnni => unsafe { avx2::multiply(x, lines, d_in, store) },
        _ => portable::<L, PORTABLE_IS_FUSED>(x, lines, d_in, store),
    }
}

/// Multiplies rows that are rounded to bf16, two values per word, by one panel in bf16; `store` gets each row's number
/// and sums.
///
/// # Panics
/// If the machine has no instructions for that, or the panel is not in bf16.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
pub(super) fn multiply_rounded<L: PanelLine>(
    words: &[f32],
    lines: &[L],
    d_in: usize,
    store: impl FnMut(usize, &[f32; PANEL]),
) {
    assert!(L::IS_BF16 && d_in.is_multiple_of(2) && has_fast_bf16_products());
    // SAFETY: only bf16 lines have this dtype, so `L` is that type; the instructions were found.
    unsafe {
        let lines = std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len());
        avx512::pairs::multiply::<avx512::Pairs>(words, lines, d_in / 2, store);
    }
}

/// Rounds `x` to bf16, to words of two values.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
pub(super) fn rounded(x: &[f32]) -> Vec<f32> {
    /// Words that a thread rounds at a time.
    const TOGETHER: usize = 1 << 13;
    assert!(has_fast_bf16_products());
    let mut words = vec![0.0; x.len() / 2];
    let round = |part: usize, words: &mut [f32]| {
        let x = &x[2 * part * TOGETHER..][..2 * words.len()];
        // SAFETY: the instructions were found.
        unsafe { avx512::round(x, words) };
    };
    match words.len() {
        n if n <= TOGETHER => round(0, &mut words),
        _ => thread_pool::parallel_chunks(&mut words, TOGETHER, round),
    }
    words
}

/// Only x86-64 has bodies for bf16 products.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn multiply_rounded<L: PanelLine>(_: &[f32], _: &[L], _: usize, _: impl FnMut(usize, &[f32; PANEL])) {
    unreachable!("{}", has_fast_bf16_products());
}

/// Only x86-64 has bodies for bf16 products.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn rounded(_: &[f32]) -> Vec<f32> {
    unreachable!("{}", has_fast_bf16_products());
}

/// Plain Rust, which the compiler vectorizes: two rows at a time.
#[inline(always)]
fn portable<L: PanelLine, const FUSED: bool>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    for (number, rows) in x.chunks(2 * d_in).enumerate() {
        if rows.len() == 2 * d_in {
            let [first, second] = portable_rows::<L, FUSED, 2>(rows, lines, d_in);
            store(2 * number, &first);
            store(2 * number + 1, &second);
        } else {
            let [only] = portable_rows::<L, FUSED, 1>(rows, lines, d_in);
            store(2 * number, &only);
        }
    }
}

/// The sums of `N` rows. Their number is known at compile time, and nothing in the inner loop can panic: otherwise the
/// compiler uses scalar instructions.
#[inline(always)]
fn portable_rows<L: PanelLine, const FUSED: bool, const N: usize>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
) -> [[f32; PANEL]; N] {
    let rows: [&[f32]; N] = std::array::from_fn(|n| &x[n * d_in..][..d_in]);
    let mut sums = [[0.0; PANEL]; N];
    for (input, lines) in lines.chunks_exact(L::LINES).take(d_in).enumerate() {
        let weights = L::widen(lines);
        for (row, sums) in rows.iter().zip(&mut sums) {
            let x = row[input];
            for (sum, weight) in sums.iter_mut().zip(&weights) {
                *sum = multiply_add::<FUSED>(x, *weight, *sum);
            }
        }
    }
    sums
}
