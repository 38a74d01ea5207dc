//! Bodies on registers of 256 bits, with AVX2 alone or with AVX-VNNI.
//!
//! AVX-VNNI adds four products of bytes to a sum of 32 bits in one instruction. Without it, `vpmaddubsw` adds two products
//! in 16 bits, which saturate. Sums stay in 16 bits while they cannot overflow (a whole block of 4-bit numbers, one to four
//! products of 5 to 7 bits), and are then widened. With 8-bit numbers, even the sum of two unsigned products can overflow. So
//! several rows move the sign from the weight to the input, and widen each sum: 4 instructions for 32 products, and 2 for all
//! rows together. A single row is split into two digits instead, whose products with unsigned weights fit: 4.4 instructions.
//! The sum of a block is exact either way.

use std::{array, ops::Range};

use super::{MAX_ROWS, Numbers, PANEL, QuantBlock, QuantRows, RoundedBlock, RowFactors};
use crate::ops::{
    BLOCK_SIZE as BLOCK,
    cpu::prefetch::{LINE, prefetch},
};

/// Rows whose sums are kept between two ranges of blocks: 6 KB.
const ROWS: usize = 8 * MAX_ROWS;
/// Size of a chunk of blocks, which all rows use before the next chunk. Two chunks, one being prefetched, fit in L1.
const CHUNK_BYTES: usize = 1 << 13;
/// Size of a chunk for more than [`FEW_ROWS`] rows, which prefetch slowly: fewer groups of rows then begin and end a
/// chunk.
const LONG_CHUNK_BYTES: usize = 20 << 10;
const FEW_ROWS: usize = 2 * MAX_ROWS;
/// Registers of a panel.
const REGISTERS: usize = PANEL / 8;
/// Groups of four inputs in a block.
const GROUPS: usize = BLOCK / 4;

/// The product with AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<B: QuantBlock>(rows: &QuantRows, panel: &[B], store: impl FnMut(usize, &[f32; PANEL])) {
    // SAFETY: this function enables the target features.
    chunks(rows, panel, store, |tile, totals| unsafe { of_rows::<B>(tile, totals) });
}

/// The product with AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn vnni<B: QuantBlock>(rows: &QuantRows, panel: &[B], store: impl FnMut(usize, &[f32; PANEL])) {
    // SAFETY: this function enables the target features.
    chunks(rows, panel, store, |tile, totals| unsafe { of_rows_vnni::<B>(tile, totals) });
}

/// Some blocks of a panel and a group of rows.
struct Tile<'a, B> {
    rows: &'a QuantRows,
    /// The first of the group.
    first: usize,
    panel: &'a [B],
    blocks: Range<usize>,
    /// Memory that this tile prefetches, spread evenly over its computation.
    fetched: Range<*const u8>,
}

/// Has all groups of rows go through a chunk of blocks, then the next. While a panel comes from memory, each group
/// prefetches its share of the next chunk, so that memory is read all the time, not only by the first one.
#[inline(always)]
fn chunks<B: QuantBlock>(
    rows: &QuantRows,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
    multiply: impl Fn(Tile<'_, B>, &mut [[f32; PANEL]]),
) {
    assert!(panel.len() * B::RUNS == rows.n_blocks);
    for start in (0..rows.n_rows()).step_by(ROWS) {
        let n_rows = ROWS.min(rows.n_rows() - start);
        let chunk_bytes = if n_rows > FEW_ROWS { LONG_CHUNK_BYTES } else { CHUNK_BYTES };
        let n_together = (chunk_bytes / size_of::<B>()).max(1);
        // Few rows clear no more than they need: for one row, that is 3 % of the time.
        let (mut one, mut few, mut many);
        let totals: &mut [[f32; PANEL]] = if n_rows == 1 {
            one = [[0.0; PANEL]];
            &mut one
        } else if n_rows <= MAX_ROWS {
            few = [[0.0; PANEL]; MAX_ROWS];
            &mut few[..n_rows]
        } else {
            many = [[0.0; PANEL]; ROWS];
            &mut many[..n_rows]
        };
        let n_groups = totals.len().div_ceil(MAX_ROWS);
        for block in (0..panel.len()).step_by(n_together) {
            let blocks = block..panel.len().min(block + n_together);
            let next = panel.as_ptr().wrapping_add(block + n_together).cast::<u8>();
            let len = if start == 0 { blocks.len() * size_of::<B>() } else { 0 };
            for (group, totals) in totals.chunks_mut(MAX_ROWS).enumerate() {
                let [begin, end] = [group, group + 1].map(|group| next.wrapping_add(group * len / n_groups));
                let first = start + group * MAX_ROWS;
                multiply(Tile { rows, first, panel, blocks: blocks.clone(), fetched: begin..end }, totals);
            }
        }
        totals.iter().enumerate().for_each(|(row, totals)| store(start + row, totals));
    }
}

/// One kernel per number of rows `$n`, with `$registers` registers of the panel at a time, so that all sums stay in
/// registers.
macro_rules! kernels {
    ($kernel:ident, $tile:ident, $totals:ident, $($n:literal: $registers:literal)*) => {
        match $totals.len() {
            $($n => {
                for from in (0..REGISTERS).step_by($registers) {
                    // SAFETY: the caller guarantees the target features.
                    unsafe { $kernel::<B, $n, $registers>(&$tile, from, $totals) };
                }
            })*
            n => unreachable!("{n} rows at a time, where {MAX_ROWS} is the maximum"),
        }
    };
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn of_rows<B: QuantBlock>(tile: Tile<'_, B>, totals: &mut [[f32; PANEL]]) {
    if in_16_bits::<B>() == 0 {
        match totals.len() {
            1 => kernels!(in_digits, tile, totals, 1:4),
            _ => kernels!(with_signs, tile, totals, 2:4 3:2 4:2 5:1 6:1),
        }
    } else {
        kernels!(in_pairs, tile, totals, 1:4 2:4 3:4 4:2 5:2 6:2);
    }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn of_rows_vnni<B: QuantBlock>(tile: Tile<'_, B>, totals: &mut [[f32; PANEL]]) {
    kernels!(in_fours, tile, totals, 1:4 2:4 3:4 4:2 5:2 6:2);
}

/// How many sums of two products can be added up in 16 bits without overflow, whatever the numbers are; 0 for 8-bit
/// numbers.
const fn in_16_bits<B: QuantBlock>() -> usize {
    let largest = B::Numbers::LARGEST as usize;
    let fit = i16::MAX as usize / (2 * largest * 128);
    if fit > GROUPS { GROUPS } else { fit }
}

/// A kernel: `$sum` returns the exact sums of a block, or of half of it, for `N` rows and `R` registers of outputs, from
/// register `from` on.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $features:literal, $sum:ident) => {
        $(#[$doc])*
        #[target_feature(enable = $features)]
        unsafe fn $name<B: QuantBlock, const N: usize, const R: usize>(
            tile: &Tile<'_, B>,
            from: usize,
            stored: &mut [[f32; PANEL]],
        ) {
            use std::arch::x86_64::{
                _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps,
                _mm256_setzero_ps, _mm256_storeu_ps,
            };
            assert!(stored.len() == N && from + R <= REGISTERS);
            let mut totals = [[_mm256_setzero_ps(); R]; N];
            for (totals, stored) in totals.iter_mut().zip(&*stored) {
                for (n, total) in totals.iter_mut().enumerate() {
                    // SAFETY: four registers of 8 values are the array of 32.
                    *total = unsafe { _mm256_loadu_ps(stored.as_ptr().add(8 * (from + n))) };
                }
            }
            // The passes over the panel's registers divide the tile's prefetches.
            let len = tile.fetched.end.addr() - tile.fetched.start.addr();
            let mut fetched = tile.fetched.start.wrapping_add(len * from / REGISTERS);
            // A division takes as long as some groups of inputs.
            let step = if len == 0 { 0 } else { (len * R).div_ceil(REGISTERS * tile.blocks.len() * B::RUNS) };
            for number in tile.blocks.clone() {
                let block = &tile.panel[number];
                for run in 0..B::RUNS {
                    let ahead = Prefetch { start: fetched, n_lines: step.div_ceil(LINE) };
                    fetched = fetched.wrapping_add(step);
                    let inputs = tile.rows.blocks(tile.first, number * B::RUNS + run).as_array::<N>();
                    let inputs = inputs.unwrap_or_else(|| unreachable!("the caller counted the rows"));
                    for half in 0..B::SCALES {
                        // SAFETY: this function enables the target features.
                        let sums = unsafe { $sum::<B, N, R>(block, inputs, (run, half), from, ahead) };
                        let minima = block.minima(run, half);
                        for n in 0..R {
                            // SAFETY: as above.
                            let scale = unsafe { block.scales(run, half).load_eight(from + n) };
                            let minimum = minima.map(|minima| unsafe { minima.load_eight(from + n) });
                            for ((totals, sums), input) in totals.iter_mut().zip(&sums).zip(inputs) {
                                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(input.scale));
                                let mut total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[n]), scale, totals[n]);
                                if let Some(minimum) = minimum {
                                    total = _mm256_fmadd_ps(minimum, _mm256_set1_ps(input.sum(B::CORRECTION, half)), total);
                                }
                                totals[n] = total;
                            }
                        }
                    }
                }
            }
            for (totals, stored) in totals.iter().zip(stored) {
                for (n, total) in totals.iter().enumerate() {
                    // SAFETY: as for loading.
                    unsafe { _mm256_storeu_ps(stored.as_mut_ptr().add(8 * (from + n)), *total) };
                }
            }
        }
    };
}

kernel!(
    /// Any format with AVX-VNNI.
    in_fours, "avx2,fma,f16c,avxvnni", sums_of_fours
);
kernel!(
    /// Formats of fewer than 8 bits with AVX2.
    in_pairs, "avx2,fma,f16c", sums_of_pairs
);
kernel!(
    /// 8 bits with AVX2, several rows.
    with_signs, "avx2,fma,f16c", sums_with_signs
);

kernel!(
    /// 8 bits with AVX2, one row.
    in_digits, "avx2,fma,f16c", sums_of_digits
);

/// Lines to prefetch during a run.
#[derive(Clone, Copy)]
struct Prefetch {
    start: *const u8,
    n_lines: usize,
}

impl Prefetch {
    /// Prefetches all lines, at the beginning of a run.
    #[inline(always)]
    fn prefetch_all(self, half: usize) {
        let n_lines = if half == 0 { self.n_lines } else { 0 };
        (0..n_lines).for_each(|line| prefetch(self.start.wrapping_add(line * LINE)));
    }

    /// Prefetches one group's part of the lines: 8-bit numbers are slow enough for prefetches between the
    /// multiplications, and all lines at once would delay the ones needed first.
    #[inline(always)]
    fn prefetch(self, group: usize) {
        let lines = group * self.n_lines / GROUPS..(group + 1) * self.n_lines / GROUPS;
        lines.for_each(|line| prefetch(self.start.wrapping_add(line * LINE)));
    }
}

/// Returns `inputs`, but the compiler must assume that they are other blocks. Otherwise it may load the inputs of four
/// groups at once and separate them by shuffles, which leaves no registers for the sums (0.8 of the speed). Costs no
/// instruction.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read there")]
fn unmerged<const N: usize>(inputs: &[RoundedBlock; N]) -> &[RoundedBlock; N] {
    let mut blocks: *const _ = inputs;
    // SAFETY: emits no instruction; the pointer keeps its value.
    unsafe { std::arch::asm!("/* {} */", inout(reg) blocks, options(pure, nomem, nostack, preserves_flags)) };
    // SAFETY: as borrowed by the caller.
    unsafe { &*blocks }
}

type Sums<const N: usize, const R: usize> = [[std::arch::x86_64::__m256i; R]; N];

/// The groups of half `half` of a run, or of all of it.
const fn groups<B: QuantBlock>(half: usize) -> Range<usize> {
    GROUPS * half / B::SCALES..GROUPS * (half + 1) / B::SCALES
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
unsafe fn sums_of_fours<B: QuantBlock, const N: usize, const R: usize>(
    block: &B,
    mut inputs: &[RoundedBlock; N],
    (run, half): (usize, usize),
    from: usize,
    ahead: Prefetch,
) -> Sums<N, R> {
    use std::arch::x86_64::{_mm256_dpbusd_avx_epi32, _mm256_set1_epi32};
    ahead.prefetch_all(half);
    let mut sums: Sums<N, R> = array::from_fn(|row| [_mm256_set1_epi32(inputs[row].start(B::CORRECTION, half)); R]);
    for group in groups::<B>(half) {
        inputs = unmerged(inputs);
        // SAFETY: this function enables the target features.
        let weights: [_; R] = array::from_fn(|n| unsafe { block.numbers(run).load_eight(group, from + n) });
        for (sums, input) in sums.iter_mut().zip(inputs) {
            let x = _mm256_set1_epi32(input.values[group]);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = _mm256_dpbusd_avx_epi32(*sum, weights, x);
            }
        }
    }
    sums
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn sums_of_pairs<B: QuantBlock, const N: usize, const R: usize>(
    block: &B,
    inputs: &[RoundedBlock; N],
    (run, half): (usize, usize),
    from: usize,
    ahead: Prefetch,
) -> Sums<N, R> {
    use std::arch::x86_64::{
        _mm256_add_epi16, _mm256_add_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16,
        _mm256_set1_epi32, _mm256_setzero_si256,
    };
    ahead.prefetch_all(half);
    let mut sums: Sums<N, R> = array::from_fn(|row| [_mm256_set1_epi32(inputs[row].start(B::CORRECTION, half)); R]);
    let groups = groups::<B>(half);
    for start in groups.clone().step_by(in_16_bits::<B>()) {
        let mut narrow: Sums<N, R> = [[_mm256_setzero_si256(); R]; N];
        for group in start..groups.end.min(start + in_16_bits::<B>()) {
            // SAFETY: this function enables the target features.
            let weights: [_; R] = array::from_fn(|n| unsafe { block.numbers(run).load_eight(group, from + n) });
            for (narrow, input) in narrow.iter_mut().zip(inputs) {
                let x = _mm256_set1_epi32(input.values[group]);
                for (narrow, weights) in narrow.iter_mut().zip(weights) {
                    *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(weights, x));
                }
            }
        }
        for (sums, narrow) in sums.iter_mut().zip(narrow) {
            for (sum, narrow) in sums.iter_mut().zip(narrow) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
            }
        }
    }
    sums
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn sums_with_signs<B: QuantBlock, const N: usize, const R: usize>(
    block: &B,
    mut inputs: &[RoundedBlock; N],
    (run, half): (usize, usize),
    from: usize,
    ahead: Prefetch,
) -> Sums<N, R> {
    use std::arch::x86_64::{
        _mm256_abs_epi8, _mm256_add_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi8,
        _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_sign_epi8, _mm256_xor_si256,
    };
    assert!(B::OFFSET == 128, "numbers of 8 bits around zero");
    let mut sums: Sums<N, R> = [[_mm256_setzero_si256(); R]; N];
    if N > 2 {
        ahead.prefetch_all(half);
    }
    for group in groups::<B>(half) {
        if N <= 2 {
            ahead.prefetch(group);
        }
        for register in 0..R {
            // SAFETY: this function enables the target features.
            let weights = unsafe { block.numbers(run).load_eight(group, from + register) };
            // Subtracting the offset, which is the highest bit.
            let weights = _mm256_xor_si256(weights, _mm256_set1_epi8(i8::MIN));
            let sizes = _mm256_abs_epi8(weights);
            inputs = unmerged(inputs);
            for (sums, input) in sums.iter_mut().zip(inputs) {
                let x = _mm256_sign_epi8(_mm256_set1_epi32(input.values[group]), weights);
                let pairs = _mm256_maddubs_epi16(sizes, x);
                sums[register] = _mm256_add_epi32(sums[register], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
    }
    sums
}

/// Groups of the high digits whose products with any weights fit into 16 bits: 2 times 255 times -16 for each.
const HIGHS_IN_16_BITS: usize = 4;

/// An input is `8 high + low`, with `high` from -16 to 15 and `low` from 0 to 7. Sums of products of `low` and unsigned weights
/// fit into 16 bits for all groups of a block: 2 times 255 times 7 for each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn sums_of_digits<B: QuantBlock, const N: usize, const R: usize>(
    block: &B,
    inputs: &[RoundedBlock; N],
    (run, half): (usize, usize),
    from: usize,
    ahead: Prefetch,
) -> Sums<N, R> {
    use std::arch::x86_64::{
        _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
        _mm256_srli_epi16, _mm256_storeu_si256, _mm256_sub_epi8, _mm256_xor_si256,
    };
    let mut digits = [[[0_i32; GROUPS]; 2]; N];
    for (digits, input) in digits.iter_mut().zip(inputs) {
        // SAFETY: a block of inputs has 32 bytes.
        unsafe {
            let x = _mm256_loadu_si256(input.values.as_ptr().cast());
            let above = _mm256_xor_si256(x, _mm256_set1_epi8(i8::MIN));
            let high = _mm256_and_si256(_mm256_srli_epi16::<3>(above), _mm256_set1_epi8(31));
            _mm256_storeu_si256(digits[0].as_mut_ptr().cast(), _mm256_sub_epi8(high, _mm256_set1_epi8(16)));
            _mm256_storeu_si256(digits[1].as_mut_ptr().cast(), _mm256_and_si256(x, _mm256_set1_epi8(7)));
        }
    }
    let mut sums: Sums<N, R> = array::from_fn(|row| [_mm256_set1_epi32(inputs[row].start(B::CORRECTION, half)); R]);
    let mut lows: Sums<N, R> = [[_mm256_setzero_si256(); R]; N];
    let groups = groups::<B>(half);
    for start in groups.clone().step_by(HIGHS_IN_16_BITS) {
        let mut highs: Sums<N, R> = [[_mm256_setzero_si256(); R]; N];
        for group in start..groups.end.min(start + HIGHS_IN_16_BITS) {
            ahead.prefetch(group);
            for n in 0..R {
                // SAFETY: this function enables the target features.
                let weights = unsafe { block.numbers(run).load_eight(group, from + n) };
                for ((highs, lows), digits) in highs.iter_mut().zip(&mut lows).zip(&digits) {
                    let [high, low] = digits.map(|digits| _mm256_set1_epi32(digits[group]));
                    highs[n] = _mm256_add_epi16(highs[n], _mm256_maddubs_epi16(weights, high));
                    lows[n] = _mm256_add_epi16(lows[n], _mm256_maddubs_epi16(weights, low));
                }
            }
        }
        for (sums, highs) in sums.iter_mut().zip(highs) {
            for (sum, high) in sums.iter_mut().zip(highs) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(high, _mm256_set1_epi16(8)));
            }
        }
    }
    for (sums, lows) in sums.iter_mut().zip(lows) {
        for (sum, low) in sums.iter_mut().zip(lows) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
        }
    }
    sums
}
