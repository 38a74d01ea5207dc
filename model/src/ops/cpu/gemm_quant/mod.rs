//! Rows times one panel of weights in 8, 6, 5 or 4 bits.
//!
//! Weights are in blocks of 32 along the inner dimension, with an f16 scale (GGUF's `Q8_0` and `Q4_0`) and in some
//! formats an f16 minimum (`Q4_1`, `Q5_1`); K-quants have products as factors (`ops/types/k_quants.rs`). A row of the input
//! is quantized to 8 bits in the same blocks, by itself. Products are summed exactly, in i32, within a block; the
//! blocks' sums (and the minimum times the sum of the input) are added in order, in f32. So a row's outputs do not
//! depend on the other rows.
//!
//! In memory, the 32 rows of a panel lie side by side, and a register holds 4 inputs of 16 rows: the operands of
//! `vpdpbusd`. It multiplies unsigned by signed bytes, so weights around zero are stored with an offset, and each sum
//! starts at minus the offset times the sum of the input's block.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
use super::{Isa, quant_rows::RoundedBlock};
use super::{
    PORTABLE_IS_FUSED, isa, multiply_add,
    panel_layout::PANEL,
    quant_blocks::{Numbers, QuantBlock, RowFactors},
    quant_rows::{MAX_ROWS, QuantRows},
};

/// Multiplies all rows by one panel; `store` gets each row's number and sums.
pub(super) fn multiply_rows<B: QuantBlock>(rows: &QuantRows, panel: &[B], mut store: impl FnMut(usize, &[f32; PANEL])) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
    // SAFETY: `isa` and the macro found the instructions.
    unsafe {
        match isa() {
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => return avx512::multiply(rows, panel, store),
            Isa::AvxVnni => return avx2::vnni(rows, panel, store),
            Isa::Avx512 | Isa::Avx2 => return avx2::multiply(rows, panel, store),
            Isa::Portable => {}
        }
    }
    for first in (0..rows.n_rows()).step_by(MAX_ROWS) {
        let store = |row: usize, sums: &[f32; PANEL]| store(first + row, sums);
        #[cfg(target_arch = "aarch64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        unsafe {
            match isa() {
                Isa::I8mm => neon::matrix_products(rows, first, panel, store),
                Isa::DotProd => neon::dot_products(rows, first, panel, store),
                Isa::Portable => portable::<B, PORTABLE_IS_FUSED>(rows, first, panel, store),
            }
        }
        #[cfg(not(target_arch = "aarch64"))]
        portable::<B, PORTABLE_IS_FUSED>(rows, first, panel, store);
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
            panel_storage::QuantPanels,
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
            [([1, 1], 1), ([33, 31], 2), ([8, 64], 3), ([64, 96], 7), ([8, 40], 10), ([40, 100], 11), ([32, 160], 25)]
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
                    for (run, weights) in weights.as_chunks::<BLOCK>().0.iter().enumerate() {
                        let mut lines = [[f32::NAN; PANEL]; BLOCK];
                        stored.widen(run, &mut lines);
                        assert_eq!(lines.map(|line| line[row % PANEL]), *weights);
                    }
                }
            }
            check_blocks(blocks, dims, n_rows);
        }
    }

    #[test]
    fn quantized_products_match_f64_sums_for_every_block_format() {
        check::<Q8Block>();
        check::<Q4Block>();
        check::<Q4_1Block>();
        check::<Q5_1Block>();
        check_k::<Q4KBlock>(Dtype::Q4K, 0, 16);
        check_k::<Q5KBlock>(Dtype::Q5K, 0, 32);
        check_k::<Q6KBlock>(Dtype::Q6K, -32, 64);
    }

    /// The largest numbers of either sign times the largest inputs: sums in 16 bits must not saturate.
    fn check_extremes<B: QuantBlock>(rows: impl Fn(i8) -> B::Row, numbers: [i8; 2]) {
        let (d_in, n_rows) = (B::RUNS * BLOCK, 7);
        for number in numbers {
            let blocks = [B::pack(&[rows(number); PANEL])];
            for x in [1.0, -1.0] {
                let input = QuantRows::new(&vec![x; n_rows * d_in], d_in, B::CORRECTION);
                let expected = f64::from(number) * f64::from(x) * d_in as f64;
                for level in every_isa() {
                    let found = with_isa(level, || outputs(&input, &blocks));
                    let is_close = |sum: &f32| (f64::from(*sum) - expected).abs() <= 1e-6 * expected.abs();
                    assert!(found.iter().flatten().flatten().all(is_close), "{number} times {x} with {level:?}");
                }
            }
        }
    }

    #[test]
    fn quantized_products_of_extreme_values_do_not_saturate() {
        let small = |number| QuantizedBlock { scale: f16::ONE, minimum: f16::ZERO, values: [number; BLOCK] };
        check_extremes::<Q8Block>(small, [-128, 127]);
        check_extremes::<Q4Block>(small, [-8, 7]);
        check_extremes::<Q4_1Block>(small, [0, 15]);
        check_extremes::<Q5_1Block>(small, [0, 31]);
        let of_k = |scales| {
            move |number| KBlock {
                scale: f16::ONE,
                minimum: f16::ZERO,
                scales,
                minima: array::from_fn(|_| 0),
                values: [number; K_BLOCK],
            }
        };
        check_extremes::<Q4KBlock>(of_k(array::from_fn(|_| 1)), [0, 15]);
        check_extremes::<Q5KBlock>(of_k(array::from_fn(|_| 1)), [0, 31]);
        check_extremes::<Q6KBlock>(of_k(array::from_fn(|_| 1)), [-32, 31]);
    }

    #[test]
    fn quantization_error_is_within_the_bound_of_each_format() {
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
