//! `x W^T + b` over weights of 8, 5 or 4 bits.
//!
//! Weights are in blocks of 32 along the inner dimension, each with an f16 scale, as in GGUF's `Q8_0` and `Q4_0`; with an
//! f16 minimum besides, as in `Q4_1` and `Q5_1`. A row of the input is rounded to 8 bits in the same blocks, by itself;
//! products are summed exactly, in i32, within a block, and the blocks' sums (and what the minimum adds: itself times the
//! sum of the input) are added in order, in f32. So a row's outputs do not depend on its neighbours.
//!
//! In memory, the 32 rows of a panel lie side by side and every register holds 4 inputs of 16 rows: what `vpdpbusd`
//! multiplies and adds in one go. It takes unsigned by signed bytes, so weights are stored with an offset, and the
//! offset times the sum of the input's block is where the sum starts.

use std::array;
#[cfg(target_arch = "x86_64")]
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use half::f16;

#[cfg(target_arch = "aarch64")]
use super::dot_product;
#[cfg(target_arch = "x86_64")]
use super::fetch::{LINE, fetch};
use super::{
    BASELINE_IS_FUSED, Isa, isa, multiply_add,
    panels::{Line, PANEL},
    quant_blocks::QuantBlock,
    quant_rows::{MAX_ROWS, QuantRows},
};

/// How far ahead of the arithmetic weights are fetched, in bytes. At the end of a panel that is the next one.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1 << 13;
/// The largest [`QuantBlock::TOGETHER`].
#[cfg(target_arch = "x86_64")]
const MOST_TOGETHER: usize = 3;
/// Blocks that several kernels' rows go through in turn.
#[cfg(target_arch = "x86_64")]
const CHUNK: usize = 2;

/// All rows against one panel; `store` is given each row's sums.
pub(super) fn multiply_rows<B: QuantBlock>(rows: &QuantRows, panel: &[B], mut store: impl FnMut(usize, &[f32; PANEL])) {
    let isa = isa();
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 && is_x86_feature_detected!("avx512vnni") {
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: both instruction sets were found.
        return unsafe { vnni(rows, panel, store) };
    }
    for first in (0..rows.n_rows()).step_by(MAX_ROWS) {
        let store = |row: usize, sums: &[f32; PANEL]| store(first + row, sums);
        match isa {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
            // SAFETY: `isa` found the instructions.
            Isa::Avx512 | Isa::Avx2 => unsafe { avx2(rows, first, panel, store) },
            #[cfg(target_arch = "aarch64")]
            #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
            // SAFETY: the instructions were found.
            Isa::Baseline if std::arch::is_aarch64_feature_detected!("dotprod") => unsafe {
                dot_product::sdot(rows, first, panel, store);
            },
            Isa::Baseline => portable::<B, BASELINE_IS_FUSED>(rows, first, panel, store),
        }
    }
}

/// The first rows bring the panel from memory, the others find it in a cache. If the first ones are too many for one
/// kernel, they go [`CHUNK`] blocks at a time: memory is then asked for weights all the time, not only while the first
/// of them compute.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni<B: QuantBlock>(rows: &QuantRows, panel: &[B], mut store: impl FnMut(usize, &[f32; PANEL])) {
    assert!(panel.len() == rows.n_blocks);
    let n_first = rows.n_rows().min(B::TOGETHER * MAX_ROWS);
    let mut store_all = |first: usize, sums: &[[f32; PANEL]]| {
        sums.iter().enumerate().for_each(|(row, sums)| store(first + row, sums));
    };
    if n_first <= MAX_ROWS {
        let sums = &mut [[0.0; PANEL]; MAX_ROWS][..n_first];
        // SAFETY: this function's own target features.
        unsafe { vnni_block::<B, 1>(rows, 0, (panel, 0..panel.len()), sums) };
        store_all(0, sums);
    } else {
        let sums = &mut [[0.0; PANEL]; MOST_TOGETHER * MAX_ROWS][..n_first];
        for start in (0..panel.len()).step_by(CHUNK) {
            let blocks = start..panel.len().min(start + CHUNK);
            for (part, sums) in sums.chunks_mut(MAX_ROWS).enumerate() {
                let panel = (panel, blocks.clone());
                // SAFETY: as above.
                if n_first <= 2 * MAX_ROWS {
                    unsafe { vnni_block::<B, 2>(rows, part * MAX_ROWS, panel, sums) };
                } else {
                    unsafe { vnni_block::<B, 3>(rows, part * MAX_ROWS, panel, sums) };
                }
            }
        }
        store_all(0, sums);
    }
    for first in (n_first..rows.n_rows()).step_by(MAX_ROWS) {
        let sums = &mut [[0.0; PANEL]; MAX_ROWS][..MAX_ROWS.min(rows.n_rows() - first)];
        // SAFETY: as above.
        unsafe { vnni_block::<B, 0>(rows, first, (panel, 0..panel.len()), sums) };
        store_all(first, sums);
    }
}

/// Rows `first ..` (at most [`MAX_ROWS`]) against some blocks of a panel: their products are added to `sums`. Of what
/// lies ahead, one of `N_PARTS` parts is fetched on the way.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni_block<B: QuantBlock, const N_PARTS: usize>(
    rows: &QuantRows,
    first: usize,
    panel: (&[B], Range<usize>),
    sums: &mut [[f32; PANEL]],
) {
    macro_rules! rows {
        ($($n:literal)*) => {
            match sums.len() {
                // SAFETY: this function's own target features, and the lengths are checked within.
                $($n => unsafe { vnni_rows::<B, $n, N_PARTS>(rows, first, panel, sums) },)*
                _ => {}
            }
        };
    }
    rows!(1 2 3 4 5 6);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni_rows<B: QuantBlock, const N: usize, const N_PARTS: usize>(
    rows: &QuantRows,
    first: usize,
    (panel, blocks): (&[B], Range<usize>),
    stored: &mut [[f32; PANEL]],
) {
    use std::arch::x86_64::{
        _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_epi32,
        _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };
    assert!(stored.len() == N);
    let mut totals = [[_mm512_setzero_ps(); 2]; N];
    for (totals, stored) in totals.iter_mut().zip(&*stored) {
        // SAFETY: two registers of 16 values are the array of 32.
        *totals = unsafe { [_mm512_loadu_ps(stored.as_ptr()), _mm512_loadu_ps(stored.as_ptr().add(16))] };
    }
    // Each part of the rows fetches its part of the next blocks.
    let n_lines = if N_PARTS == 0 { 0 } else { (size_of::<B>() / LINE).div_ceil(N_PARTS) };
    let part = first / MAX_ROWS * blocks.len() * n_lines * LINE;
    let mut fetched = panel.as_ptr().wrapping_add(blocks.start).wrapping_byte_add(AHEAD + part);
    for number in blocks {
        let block = &panel[number];
        (0..n_lines).for_each(|line| fetch(fetched.wrapping_byte_add(line * LINE)));
        fetched = fetched.wrapping_byte_add(n_lines * LINE);
        let inputs = rows.blocks(first, number).as_array::<N>();
        let inputs = inputs.unwrap_or_else(|| unreachable!("the caller counted the rows"));
        let mut sums: [[_; 2]; N] = array::from_fn(|row| [_mm512_set1_epi32(inputs[row].start); 2]);
        for half in 0..4 {
            // SAFETY: this function's own target features.
            for (part, weights) in unsafe { block.load(half) }.into_iter().enumerate() {
                for (input, sums) in inputs.iter().zip(&mut sums) {
                    let x = _mm512_set1_epi32(input.values[2 * half + part]);
                    sums[0] = _mm512_dpbusd_epi32(sums[0], weights[0], x);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], weights[1], x);
                }
            }
        }
        // SAFETY: this function's own target features.
        let scales = unsafe { halves(block.scales()) };
        // SAFETY: as above.
        let minima = block.minima().map(|minima| unsafe { halves(minima) });
        for ((totals, sums), input) in totals.iter_mut().zip(sums).zip(inputs) {
            let x_scale = _mm512_set1_ps(input.scale);
            for part in 0..2 {
                let scale = _mm512_mul_ps(scales[part], x_scale);
                totals[part] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[part]), scale, totals[part]);
                if let Some(minima) = minima {
                    totals[part] = _mm512_fmadd_ps(minima[part], _mm512_set1_ps(input.sum), totals[part]);
                }
            }
        }
    }
    for (totals, stored) in totals.iter().zip(stored) {
        // SAFETY: as for loading.
        unsafe {
            _mm512_storeu_ps(stored.as_mut_ptr(), totals[0]);
            _mm512_storeu_ps(stored.as_mut_ptr().add(16), totals[1]);
        }
    }
}

/// A line of f16 as two registers of f32.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn halves(line: &Line<f16, PANEL>) -> [std::arch::x86_64::__m512; 2] {
    use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm512_cvtph_ps};
    let line = line.0.as_ptr().cast::<__m256i>();
    // SAFETY: a line of 32 f16 is 64 bytes, aligned as such.
    unsafe { [_mm512_cvtph_ps(_mm256_load_si256(line)), _mm512_cvtph_ps(_mm256_load_si256(line.add(1)))] }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<B: QuantBlock>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    use std::arch::x86_64::{
        __m128i, _mm_load_si128, _mm_set1_epi32, _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepi8_epi16,
        _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtph_ps, _mm256_extracti128_si256, _mm256_fmadd_ps,
        _mm256_hadd_epi32, _mm256_madd_epi16, _mm256_mul_ps, _mm256_permute4x64_epi64, _mm256_set1_epi32,
        _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_ps,
    };
    for row in 0..MAX_ROWS.min(rows.n_rows() - first) {
        let mut totals = [_mm256_setzero_ps(); 4];
        for (number, block) in panel.iter().enumerate() {
            let input = &rows.blocks(first, number)[row];
            // Two numbers to each of four rows, which are added up at the end.
            let mut sums = [_mm256_setzero_si256(); 8];
            for (group, x) in input.values.iter().enumerate() {
                let x = _mm256_cvtepi8_epi16(_mm_set1_epi32(*x));
                // SAFETY: this function's own target features.
                for (n, weights) in unsafe { block.load_group(group) }.into_iter().enumerate() {
                    let low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(weights));
                    let high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(weights));
                    sums[2 * n] = _mm256_add_epi32(sums[2 * n], _mm256_madd_epi16(low, x));
                    sums[2 * n + 1] = _mm256_add_epi32(sums[2 * n + 1], _mm256_madd_epi16(high, x));
                }
            }
            let offset = _mm256_set1_epi32(input.start);
            let x_scale = _mm256_set1_ps(input.scale);
            for (n, total) in totals.iter_mut().enumerate() {
                // Rows 0, 1, 4, 5, 2, 3, 6, 7, and then in order.
                let pairs = _mm256_hadd_epi32(sums[2 * n], sums[2 * n + 1]);
                let sum = _mm256_add_epi32(_mm256_permute4x64_epi64::<0b11_01_10_00>(pairs), offset);
                // SAFETY: a line of 32 f16 is 64 bytes, aligned as such.
                let eight = |line: &Line<f16, PANEL>| unsafe {
                    _mm256_cvtph_ps(_mm_load_si128(line.0.as_ptr().cast::<__m128i>().add(n)))
                };
                let scale = _mm256_mul_ps(eight(block.scales()), x_scale);
                *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, *total);
                if let Some(minima) = block.minima() {
                    *total = _mm256_fmadd_ps(eight(minima), _mm256_set1_ps(input.sum), *total);
                }
            }
        }
        let mut values = [0.0; PANEL];
        for (values, total) in values.as_chunks_mut::<8>().0.iter_mut().zip(totals) {
            // SAFETY: a register of 8 values fills the chunk.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), total) };
        }
        store(row, &values);
    }
}

pub(super) fn portable<B: QuantBlock, const FUSED: bool>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    for row in 0..MAX_ROWS.min(rows.n_rows() - first) {
        let mut totals = [0.0; PANEL];
        for (number, block) in panel.iter().enumerate() {
            let input = &rows.blocks(first, number)[row];
            let mut sums = [input.start; PANEL];
            for (group, x) in input.values.iter().enumerate() {
                let x = x.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
                for (sum, weights) in sums.iter_mut().zip(block.group(group)) {
                    let products = weights.iter().zip(x).map(|(weight, x)| i32::from(*weight) * x);
                    *sum += products.sum::<i32>();
                }
            }
            for ((total, sum), scale) in totals.iter_mut().zip(sums).zip(&block.scales().0) {
                *total = multiply_add::<FUSED>(sum as f32, scale.to_f32() * input.scale, *total);
            }
            for (total, minimum) in totals.iter_mut().zip(block.minima().iter().flat_map(|minima| &minima.0)) {
                *total = multiply_add::<FUSED>(minimum.to_f32(), input.sum, *total);
            }
        }
        store(row, &totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        BLOCK_SIZE as BLOCK,
        cpu::{
            huge_pages::Stored,
            levels::{is_fused, levels, noise, with_isa},
            quant_blocks::{Q4_1Block, Q4Block, Q5_1Block, Q8Block, lay_out},
        },
    };

    fn outputs<B: QuantBlock>(rows: &QuantRows, blocks: &[B]) -> Vec<Vec<[f32; PANEL]>> {
        let mut found = vec![Vec::new(); rows.n_rows()];
        for panel in blocks.chunks(rows.n_blocks) {
            multiply_rows(rows, panel, |row, sums| found[row].push(*sums));
        }
        found
    }

    /// What the stored weights and the rounded input say, in f64.
    fn check<B: QuantBlock>() {
        for [d_out, d_in, n_rows] in [[1, 1, 1], [33, 31, 2], [64, 96, 7], [40, 100, 13], [32, 160, 25]] {
            let blocks: Stored<B> = lay_out(&noise(d_out * d_in, 1), d_out, d_in);
            let rows = QuantRows::new(&noise(n_rows * d_in, 2), d_in, B::OFFSET);
            let found = outputs(&rows, &blocks);
            for (row, found) in found.iter().enumerate() {
                for (output, found) in found.iter().flatten().enumerate() {
                    let expected: f64 = (0..rows.n_blocks * BLOCK)
                        .map(|input| {
                            let block = &blocks[output / PANEL * rows.n_blocks + input / BLOCK];
                            let group = row / MAX_ROWS * MAX_ROWS;
                            let rounded = rows.blocks(group, input / BLOCK)[row - group];
                            let x = f64::from(rounded.value(input % BLOCK)) * f64::from(rounded.scale);
                            f64::from(block.weight(output % PANEL, input % BLOCK)) * x
                        })
                        .sum();
                    assert!((f64::from(*found) - expected).abs() < 1e-4, "{found}, expected {expected}");
                }
            }
            for level in levels().filter(|level| is_fused(*level) == is_fused(isa())) {
                assert_eq!(found, with_isa(level, || outputs(&rows, &blocks)), "{level:?}");
            }
            let alone: Vec<_> = noise(n_rows * d_in, 2)
                .chunks(d_in)
                .flat_map(|row| outputs(&QuantRows::new(row, d_in, B::OFFSET), &blocks))
                .collect();
            assert_eq!(found, alone, "rows do not depend on their neighbours");
        }
    }

    #[test]
    fn sums_are_those_of_the_definition() {
        check::<Q8Block>();
        check::<Q4Block>();
        check::<Q4_1Block>();
        check::<Q5_1Block>();
    }

    #[test]
    fn rounding_is_as_good_as_its_bits() {
        let weights = noise(32 * 32, 3);
        let rows: [[f32; BLOCK]; PANEL] = array::from_fn(|row| array::from_fn(|input| weights[row * 32 + input]));
        let error = |weight: &dyn Fn(usize, usize) -> f32| -> f32 {
            let squares = (0..32 * 32).map(|n| (weights[n] - weight(n / 32, n % 32)).powi(2));
            (squares.sum::<f32>() / weights.iter().map(|w| w * w).sum::<f32>()).sqrt()
        };
        fn packed<B: QuantBlock>(rows: &[[f32; BLOCK]; PANEL]) -> impl Fn(usize, usize) -> f32 {
            let block = B::pack(&rows.map(|row| B::quantize(&row)));
            move |row, input| block.weight(row, input)
        }
        let q8 = error(&packed::<Q8Block>(&rows));
        let (q4, q4_1, q5_1) =
            (error(&packed::<Q4Block>(&rows)), error(&packed::<Q4_1Block>(&rows)), error(&packed::<Q5_1Block>(&rows)));
        assert!(q8 < 0.005 && q5_1 < 0.03 && q4_1 < 0.06 && q4 < 0.07, "relative errors {q8}, {q5_1}, {q4_1}, {q4}");
    }
}
