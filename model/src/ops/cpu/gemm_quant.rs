//! Rows times one panel of weights in 8, 6, 5 or 4 bits.
//!
//! Weights are in blocks of 32 along the inner dimension, with an f16 scale (GGUF's `Q8_0` and `Q4_0`) and in some
//! formats an f16 minimum (`Q4_1`, `Q5_1`); K-quants have products as factors (`ops/k_quants.rs`). A row of the input
//! is quantized to 8 bits in the same blocks, by itself. Products are summed exactly, in i32, within a block; the
//! blocks' sums (and the minimum times the sum of the input) are added in order, in f32. So a row's outputs do not
//! depend on the other rows.
//!
//! In memory, the 32 rows of a panel lie side by side, and a register holds 4 inputs of 16 rows: the operands of
//! `vpdpbusd`. It multiplies unsigned by signed bytes, so weights around zero are stored with an offset, and each sum
//! starts at minus the offset times the sum of the input's block.

#[cfg(target_arch = "x86_64")]
use std::{array, ops::Range};

#[cfg(target_arch = "aarch64")]
use super::dot_product;
#[cfg(target_arch = "x86_64")]
use super::prefetch::{LINE, prefetch};
use super::{
    BASELINE_IS_FUSED, Isa, isa, multiply_add,
    panel_layout::PANEL,
    quant_blocks::{Numbers, QuantBlock, RowFactors},
    quant_rows::{MAX_ROWS, QuantRows},
};

/// Prefetch distance in bytes. At the end of a panel it reaches into the next one.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1 << 13;
/// The largest [`QuantBlock::TOGETHER`].
#[cfg(target_arch = "x86_64")]
const MOST_TOGETHER: usize = 3;
/// Blocks per pass where several groups of rows take turns.
#[cfg(target_arch = "x86_64")]
const CHUNK: usize = 2;

/// Multiplies all rows by one panel; `store` gets each row's number and sums.
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

/// The first rows load the panel from memory, the others find it in a cache. If the first ones are too many for one
/// kernel call, they take turns, [`CHUNK`] blocks at a time: memory is then read continuously, not only while the first
/// of them compute.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni<B: QuantBlock>(rows: &QuantRows, panel: &[B], mut store: impl FnMut(usize, &[f32; PANEL])) {
    assert!(panel.len() * B::RUNS == rows.n_blocks);
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

/// Adds the products of rows `first ..` (at most [`MAX_ROWS`]) with some blocks of a panel to `sums`, and prefetches
/// one of `N_PARTS` parts of the weights ahead (nothing if `N_PARTS` is 0).
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
        ($($n:literal)*) => {{
            const _: () = assert!([$($n),*].len() == MAX_ROWS, "one kernel per number of rows");
            match sums.len() {
                0 => {}
                // SAFETY: this function's own target features, and the lengths are checked within.
                $($n => unsafe { vnni_rows::<B, $n, N_PARTS>(rows, first, panel, sums) },)*
                n => unreachable!("{n} rows at a time, where {MAX_ROWS} is the maximum"),
            }
        }};
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
    // Each part of the rows prefetches its part of the weights ahead, spread evenly over the runs of a block.
    let n_lines = if N_PARTS == 0 { 0 } else { (size_of::<B>() / LINE).div_ceil(N_PARTS * B::RUNS) };
    let part = first / MAX_ROWS * blocks.len() * n_lines * LINE;
    let mut fetched = panel.as_ptr().wrapping_add(blocks.start).wrapping_byte_add(AHEAD + part);
    for number in blocks {
        let block = &panel[number];
        for run in 0..B::RUNS {
            // A single group of rows waits for memory: its prefetches are spread between the multiplications, since a
            // block's lines all at once would delay the ones needed first (one row read a seventh less). Groups that
            // take turns prefetch all at once: their multiplications are faster without prefetches in between
            // (docs/lab/cpu-products.md).
            let lines = fetched;
            if N_PARTS != 1 {
                (0..n_lines).for_each(|line| prefetch(lines.wrapping_byte_add(line * LINE)));
            }
            fetched = fetched.wrapping_byte_add(n_lines * LINE);
            let inputs = rows.blocks(first, number * B::RUNS + run).as_array::<N>();
            let inputs = inputs.unwrap_or_else(|| unreachable!("the caller counted the rows"));
            for half in 0..B::SCALES {
                let mut sums: [[_; 2]; N] =
                    array::from_fn(|row| [_mm512_set1_epi32(inputs[row].start(B::CORRECTION, half)); 2]);
                for quarter in 4 * half / B::SCALES..4 * (half + 1) / B::SCALES {
                    if N_PARTS == 1 {
                        let some = quarter * n_lines / 4..(quarter + 1) * n_lines / 4;
                        some.for_each(|line| prefetch(lines.wrapping_byte_add(line * LINE)));
                    }
                    // SAFETY: this function's own target features.
                    for (part, weights) in unsafe { block.numbers(run).load(quarter) }.into_iter().enumerate() {
                        for (input, sums) in inputs.iter().zip(&mut sums) {
                            let x = _mm512_set1_epi32(input.values[2 * quarter + part]);
                            sums[0] = _mm512_dpbusd_epi32(sums[0], weights[0], x);
                            sums[1] = _mm512_dpbusd_epi32(sums[1], weights[1], x);
                        }
                    }
                }
                // SAFETY: as above.
                let scales = unsafe { block.scales(run, half).load() };
                for ((totals, sums), input) in totals.iter_mut().zip(sums).zip(inputs) {
                    let x_scale = _mm512_set1_ps(input.scale);
                    for part in 0..2 {
                        let scale = _mm512_mul_ps(scales[part], x_scale);
                        totals[part] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[part]), scale, totals[part]);
                    }
                }
            }
            if let Some(minima) = block.minima(run) {
                // SAFETY: as above.
                let minima = unsafe { minima.load() };
                for (totals, input) in totals.iter_mut().zip(inputs) {
                    let sum = _mm512_set1_ps(input.sum());
                    totals[0] = _mm512_fmadd_ps(minima[0], sum, totals[0]);
                    totals[1] = _mm512_fmadd_ps(minima[1], sum, totals[1]);
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
        _mm_set1_epi32, _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps,
        _mm256_cvtepu8_epi16, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_hadd_epi32, _mm256_madd_epi16,
        _mm256_mul_ps, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_setzero_si256, _mm256_storeu_ps,
    };
    for row in 0..MAX_ROWS.min(rows.n_rows() - first) {
        let mut totals = [_mm256_setzero_ps(); 4];
        for (number, run) in (0..rows.n_blocks).map(|number| (number, number % B::RUNS)) {
            let block = &panel[number / B::RUNS];
            let input = &rows.blocks(first, number)[row];
            let x_scale = _mm256_set1_ps(input.scale);
            for half in 0..B::SCALES {
                // Two partial sums for each of four rows, added at the end.
                let mut sums = [_mm256_setzero_si256(); 8];
                for group in 8 * half / B::SCALES..8 * (half + 1) / B::SCALES {
                    let x = _mm256_cvtepi8_epi16(_mm_set1_epi32(input.values[group]));
                    // SAFETY: this function's own target features.
                    for (n, weights) in unsafe { block.numbers(run).load_group(group) }.into_iter().enumerate() {
                        let low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(weights));
                        let high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(weights));
                        sums[2 * n] = _mm256_add_epi32(sums[2 * n], _mm256_madd_epi16(low, x));
                        sums[2 * n + 1] = _mm256_add_epi32(sums[2 * n + 1], _mm256_madd_epi16(high, x));
                    }
                }
                let offset = _mm256_set1_epi32(input.start(B::CORRECTION, half));
                for (n, total) in totals.iter_mut().enumerate() {
                    // `hadd` gives rows 0, 1, 4, 5, 2, 3, 6, 7; the permutation orders them.
                    let pairs = _mm256_hadd_epi32(sums[2 * n], sums[2 * n + 1]);
                    let sum = _mm256_add_epi32(_mm256_permute4x64_epi64::<0b11_01_10_00>(pairs), offset);
                    // SAFETY: this function's own target features.
                    let scale = _mm256_mul_ps(unsafe { block.scales(run, half).load_eight(n) }, x_scale);
                    *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, *total);
                }
            }
            if let Some(minima) = block.minima(run) {
                let sum = _mm256_set1_ps(input.sum());
                for (n, total) in totals.iter_mut().enumerate() {
                    // SAFETY: this function's own target features.
                    *total = _mm256_fmadd_ps(unsafe { minima.load_eight(n) }, sum, *total);
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
        for (number, run) in (0..rows.n_blocks).map(|number| (number, number % B::RUNS)) {
            let block = &panel[number / B::RUNS];
            let input = &rows.blocks(first, number)[row];
            for half in 0..B::SCALES {
                let mut sums = [input.start(B::CORRECTION, half); PANEL];
                for group in 8 * half / B::SCALES..8 * (half + 1) / B::SCALES {
                    let x = input.values[group].to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
                    for (sum, weights) in sums.iter_mut().zip(block.numbers(run).group(group)) {
                        let products = weights.iter().zip(x).map(|(weight, x)| i32::from(*weight) * x);
                        *sum += products.sum::<i32>();
                    }
                }
                let scales = block.scales(run, half);
                for (lane, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
                    *total = multiply_add::<FUSED>(sum as f32, scales.get(lane) * input.scale, *total);
                }
            }
            if let Some(minima) = block.minima(run) {
                for (lane, total) in totals.iter_mut().enumerate() {
                    *total = multiply_add::<FUSED>(minima.get(lane), input.sum(), *total);
                }
            }
        }
        store(row, &totals);
    }
}

#[cfg(test)]
mod tests {
    use std::array;

    use half::f16;

    use super::*;
    use crate::ops::{
        BLOCK_SIZE as BLOCK, Dtype, MatrixRows, QuantizedBlock,
        cpu::{
            isa::tests::{every_isa, is_fused, noise, with_isa},
            panel_values::QuantPanels,
            quant_formats::{Q4_1Block, Q4Block, Q4KBlock, Q5_1Block, Q5KBlock, Q6KBlock, Q8Block},
        },
        k_quants::{K_BLOCK, KBlock},
    };

    fn outputs<B: QuantBlock>(rows: &QuantRows, blocks: &[B]) -> Vec<Vec<[f32; PANEL]>> {
        let mut found = vec![Vec::new(); rows.n_rows()];
        for panel in blocks.chunks(rows.n_blocks / B::RUNS) {
            multiply_rows(rows, panel, |row, sums| found[row].push(*sums));
        }
        found
    }

    /// Compares with sums in f64 over the stored weights and the quantized input.
    fn check_blocks<B: QuantBlock>(blocks: &[B], [d_out, d_in]: [usize; 2], n_rows: usize) {
        let rows = QuantRows::new(&noise(n_rows * d_in, 2), d_in, B::CORRECTION);
        let width = B::RUNS * BLOCK;
        let found = outputs(&rows, blocks);
        assert_eq!(found[0].len(), d_out.div_ceil(PANEL));
        for (row, found) in found.iter().enumerate() {
            for (output, found) in found.iter().flatten().enumerate() {
                let expected: f64 = (0..rows.n_blocks * BLOCK)
                    .map(|input| {
                        let block = &blocks[output / PANEL * d_in.div_ceil(width) + input / width];
                        let group = row / MAX_ROWS * MAX_ROWS;
                        let rounded = rows.blocks(group, input / BLOCK)[row - group];
                        let x = f64::from(rounded.value(input % BLOCK)) * f64::from(rounded.scale);
                        f64::from(block.weight(output % PANEL, input % width)) * x
                    })
                    .sum();
                assert!((f64::from(*found) - expected).abs() < 1e-4, "{found}, expected {expected}");
            }
        }
        for level in every_isa().filter(|level| is_fused(*level) == is_fused(isa())) {
            assert_eq!(found, with_isa(level, || outputs(&rows, blocks)), "{level:?}");
        }
        let alone: Vec<_> = noise(n_rows * d_in, 2)
            .chunks(d_in)
            .flat_map(|row| outputs(&QuantRows::new(row, d_in, B::CORRECTION), blocks))
            .collect();
        assert_eq!(found, alone, "rows do not depend on their neighbours");
    }

    fn check<B: QuantBlock<Row = QuantizedBlock>>() {
        for (dims @ [d_out, d_in], n_rows) in
            [([1, 1], 1), ([33, 31], 2), ([64, 96], 7), ([40, 100], 13), ([32, 160], 25)]
        {
            let blocks = QuantPanels::<B>::quantize(&MatrixRows::of(&noise(d_out * d_in, 1), [d_out, d_in])).blocks;
            check_blocks(&blocks, dims, n_rows);
        }
    }

    /// Numbers of all sizes and scales of any sign; unpacking returns what was packed.
    fn check_k<B: QuantBlock<Row = KBlock>>(dtype: Dtype, lowest: i32, span: i32) {
        for (dims @ [d_out, d_in], n_rows) in [([1, 256], 1), ([33, 512], 7), ([70, 768], 14)] {
            let block = |seed: u32| {
                let some = noise(K_BLOCK + 24, seed).into_iter().map(|value| ((value + 8.0) * 1e4) as i32);
                let some: Vec<i32> = some.collect();
                let is_q6 = dtype == Dtype::Q6K;
                let own = |n: usize| (some[n].rem_euclid(64) - if is_q6 { 32 } else { 0 }) as i8;
                KBlock {
                    scale: f16::from_f32(2e-3 * some[0].rem_euclid(7) as f32 - 3e-3),
                    minimum: f16::from_f32(if is_q6 { 0.0 } else { -1e-3 * some[1].rem_euclid(5) as f32 }),
                    scales: array::from_fn(|n| own(if is_q6 { n } else { n / 2 })),
                    minima: array::from_fn(|n| if is_q6 { 0 } else { own(16 + n) }),
                    values: array::from_fn(|n| (some[24 + n].rem_euclid(span) + lowest) as i8),
                }
            };
            let n_blocks = d_in / K_BLOCK;
            let all: Vec<KBlock> = (0..d_out * n_blocks).map(|n| block(n as u32)).collect();
            let panels = QuantPanels::<B>::pack(&MatrixRows::of(&all, dims));
            let blocks = &panels.blocks;
            for row in 0..d_out {
                let found: Vec<KBlock> = panels.row_blocks(row).collect();
                assert_eq!(found, all[row * n_blocks..][..n_blocks]);
                for (number, block) in found.iter().enumerate() {
                    let stored = &blocks[row / PANEL * n_blocks + number];
                    let weights: [f32; K_BLOCK] = array::from_fn(|input| stored.weight(row % PANEL, input));
                    assert_eq!(weights, block.weights());
                }
            }
            check_blocks(blocks, dims, n_rows);
        }
    }

    #[test]
    fn sums_are_those_of_the_definition() {
        check::<Q8Block>();
        check::<Q4Block>();
        check::<Q4_1Block>();
        check::<Q5_1Block>();
        check_k::<Q4KBlock>(Dtype::Q4K, 0, 16);
        check_k::<Q5KBlock>(Dtype::Q5K, 0, 32);
        check_k::<Q6KBlock>(Dtype::Q6K, -32, 64);
    }

    #[test]
    fn rounding_is_as_good_as_its_bits() {
        let weights = noise(32 * 32, 3);
        let rows: [[f32; BLOCK]; PANEL] = array::from_fn(|row| array::from_fn(|input| weights[row * 32 + input]));
        let error = |weight: &dyn Fn(usize, usize) -> f32| -> f32 {
            let squares = (0..32 * 32).map(|n| (weights[n] - weight(n / 32, n % 32)).powi(2));
            (squares.sum::<f32>() / weights.iter().map(|w| w * w).sum::<f32>()).sqrt()
        };
        fn packed<B: QuantBlock<Row = QuantizedBlock>>(rows: &[[f32; BLOCK]; PANEL]) -> impl Fn(usize, usize) -> f32 {
            let block = B::pack(&rows.map(|row| B::quantize(&row)));
            move |row, input| block.weight(row, input)
        }
        let q8 = error(&packed::<Q8Block>(&rows));
        let (q4, q4_1, q5_1) =
            (error(&packed::<Q4Block>(&rows)), error(&packed::<Q4_1Block>(&rows)), error(&packed::<Q5_1Block>(&rows)));
        assert!(q8 < 0.005 && q5_1 < 0.03 && q4_1 < 0.06 && q4 < 0.07, "relative errors {q8}, {q5_1}, {q4_1}, {q4}");
    }
}
