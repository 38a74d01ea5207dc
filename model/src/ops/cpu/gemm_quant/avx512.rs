//! Bodies for AVX-512 with VNNI.

use std::{array, ops::Range};

use super::{MAX_ROWS, Numbers, PANEL, QuantBlock, QuantRows, RowFactors};
use crate::ops::{
    BLOCK_SIZE,
    cpu::prefetch::{LINE, prefetch, prefetch_l2},
};

/// Prefetch distance in bytes. At the end of a panel it reaches into the next one.
const AHEAD: usize = 1 << 13;
/// Prefetch distance for one or two rows with 8-bit weights, which are prefetched into L2: L1 can wait for only a few
/// lines at a time. This reads a tenth more bytes per second for these, but a fifth less for 4-bit weights.
const AHEAD_L2: usize = 1 << 11;
/// The largest [`QuantBlock::TOGETHER`].
const MOST_TOGETHER: usize = 3;
/// Blocks per pass if several groups of rows take turns.
const CHUNK: usize = 2;

/// The first rows load the panel from memory, the others find it in a cache. If the first ones are too many for one
/// kernel call, they take turns, [`CHUNK`] blocks at a time: memory is then read continuously, not only while the first
/// of them compute.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn multiply<B: QuantBlock>(
    rows: &QuantRows,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    assert!(panel.len() * B::RUNS == rows.n_blocks);
    let n_first = rows.n_rows().min(B::TOGETHER * MAX_ROWS);
    let mut store_all = |first: usize, sums: &[[f32; PANEL]]| {
        sums.iter().enumerate().for_each(|(row, sums)| store(first + row, sums));
    };
    if n_first <= MAX_ROWS {
        let (mut one, mut few);
        let sums: &mut [[f32; PANEL]] = if n_first == 1 {
            one = [[0.0; PANEL]];
            &mut one
        } else {
            few = [[0.0; PANEL]; MAX_ROWS];
            &mut few[..n_first]
        };
        // SAFETY: this function enables the target features.
        unsafe { block::<B, 1>(rows, 0, (panel, 0..panel.len()), sums) };
        store_all(0, sums);
    } else if const { B::TOGETHER > 1 } {
        let sums = &mut [[0.0; PANEL]; MOST_TOGETHER * MAX_ROWS][..n_first];
        for start in (0..panel.len()).step_by(CHUNK) {
            let blocks = start..panel.len().min(start + CHUNK);
            for (part, sums) in sums.chunks_mut(MAX_ROWS).enumerate() {
                let panel = (panel, blocks.clone());
                // SAFETY: as above.
                if n_first <= 2 * MAX_ROWS {
                    unsafe { block::<B, 2>(rows, part * MAX_ROWS, panel, sums) };
                } else {
                    unsafe { block::<B, 3>(rows, part * MAX_ROWS, panel, sums) };
                }
            }
        }
        store_all(0, sums);
    }
    for first in (n_first..rows.n_rows()).step_by(MAX_ROWS) {
        let sums = &mut [[0.0; PANEL]; MAX_ROWS][..MAX_ROWS.min(rows.n_rows() - first)];
        // SAFETY: as above.
        unsafe { block::<B, 0>(rows, first, (panel, 0..panel.len()), sums) };
        store_all(first, sums);
    }
}

/// Adds the products of rows `first ..` (at most [`MAX_ROWS`]) with some blocks of a panel to `sums`, and prefetches
/// one of `N_PARTS` parts of the weights ahead (nothing if `N_PARTS` is 0).
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn block<B: QuantBlock, const N_PARTS: usize>(
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
                // SAFETY: this function enables the target features; the lengths are checked within.
                $($n => unsafe { block_of::<B, $n, N_PARTS>(rows, first, panel, sums) },)*
                n => unreachable!("{n} rows at a time, where {MAX_ROWS} is the maximum"),
            }
        }};
    }
    rows!(1 2 3 4 5 6);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn block_of<B: QuantBlock, const N: usize, const N_PARTS: usize>(
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
    let to_l2 = const { N_PARTS == 1 && N <= 2 && size_of::<B>() / B::RUNS >= PANEL * BLOCK_SIZE };
    let ahead = if to_l2 { AHEAD_L2 } else { AHEAD };
    let mut fetched = panel.as_ptr().wrapping_add(blocks.start).wrapping_byte_add(ahead + part);
    for number in blocks {
        let block = &panel[number];
        for run in 0..B::RUNS {
            // A single group of rows is memory-bound: its prefetches are spread between the multiplications, since a
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
                        for line in some {
                            let line = lines.wrapping_byte_add(line * LINE);
                            if to_l2 { prefetch_l2(line) } else { prefetch(line) }
                        }
                    }
                    // SAFETY: this function enables the target features.
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
                if let Some(minima) = block.minima(run, half) {
                    // SAFETY: as above.
                    let minima = unsafe { minima.load() };
                    for (totals, input) in totals.iter_mut().zip(inputs) {
                        let sum = _mm512_set1_ps(input.sum(B::CORRECTION, half));
                        totals[0] = _mm512_fmadd_ps(minima[0], sum, totals[0]);
                        totals[1] = _mm512_fmadd_ps(minima[1], sum, totals[1]);
                    }
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
