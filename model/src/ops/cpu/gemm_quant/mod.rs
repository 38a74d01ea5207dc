//! Rows times one panel of weights in 8 to 2 bits.
//!
//! Weights are in blocks of 32 along the inner dimension, with an f16 scale (GGUF's `Q8_0` and `Q4_0`) and in some
//! formats an f16 minimum (`Q4_1`, `Q5_1`); blocks of 256 have products as factors (`ops/types/k_quants.rs`). A row of
//! the input is quantized to 8 bits in the same blocks, separately from other rows. Products are summed exactly, in
//! i32, within a block; the blocks' sums (and the minimum times the sum of the input) are added in order, in f32. So a
//! row's outputs do not depend on the other rows.
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
                if let Some(minima) = block.minima(run, half) {
                    let sum = input.sum(B::CORRECTION, half);
                    for (lane, total) in totals.iter_mut().enumerate() {
                        *total = multiply_add::<FUSED>(minima.get(lane), sum, *total);
                    }
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
        BLOCK_SIZE as BLOCK, MatrixRows, QuantizedBlock,
        cpu::{
            group_formats::{GroupBlock, GroupRow},
            isa::tests::{every_isa, is_fused, noise, with_isa},
            panel_storage::QuantPanels,
            quant_blocks::{Bytes, Nibbles, RowBlock},
            quant_formats::{
                Iq1Block, Iq2Block, Iq3SBlock, Iq3XxsBlock, Iq4NlBlock, Iq4XsBlock, Mxfp4Block, Q2Block, Q2KBlock,
                Q3KBlock, Q4_1Block, Q4Block, Q4KBlock, Q5_1Block, Q5KBlock, Q6KBlock, Q8Block,
            },
        },
        k_quants::{K_BLOCK, KBlock, MxBlock},
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

    /// Random blocks of the numbers `levels`: their products, and that unpacking returns what was packed.
    fn check_stored<B: QuantBlock>(levels: &[i8], block: impl Fn(&[i32], &dyn Fn(usize) -> i8) -> B::Row)
    where
        B::Row: PartialEq + std::fmt::Debug,
    {
        let width = B::RUNS * BLOCK;
        for ([d_out, n_blocks], n_rows) in [([1, 1], 1), ([33, 2], 7), ([70, 3], 14)] {
            let dims = [d_out, n_blocks * width];
            let row = |seed: usize| {
                let some = noise(width + 34, seed as u32).into_iter().map(|value| ((value + 8.0) * 1e4) as i32);
                let some: Vec<i32> = some.collect();
                block(&some, &|n| levels[some[34 + n].rem_euclid(levels.len() as i32) as usize])
            };
            let all: Vec<B::Row> = (0..d_out * n_blocks).map(row).collect();
            let panels = QuantPanels::<B>::pack(&MatrixRows::of(&all, dims));
            let blocks = &panels.blocks;
            for row in 0..d_out {
                let found: Vec<B::Row> = panels.row_blocks(row).collect();
                assert_eq!(found, all[row * n_blocks..][..n_blocks]);
                for (number, block) in found.into_iter().enumerate() {
                    let stored = &blocks[row / PANEL * n_blocks + number];
                    let weights: Vec<f32> = block.weights().into_iter().collect();
                    assert_eq!((0..width).map(|input| stored.weight(row % PANEL, input)).collect::<Vec<_>>(), weights);
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

    /// Blocks of 256, with scales (and minima) of any sign. `unit` is what scales are multiples of.
    fn check_super<B: QuantBlock<Row = KBlock>>(levels: &[i8], unit: f32) {
        let has_minima = levels[0] == 0;
        let n_own = if B::SCALES == 2 && has_minima { 16 } else { 64 };
        check_stored::<B>(levels, |some, value| {
            let own = |n: usize| (some[n].rem_euclid(n_own) - if has_minima { 0 } else { n_own / 2 }) as i8;
            let factor = |factor: f32| f16::from_f32(factor).to_f32() * unit;
            KBlock {
                scale: factor(2e-3 * some[0].rem_euclid(7) as f32 - 3e-3),
                minimum: factor(if has_minima { -1e-3 * some[1].rem_euclid(5) as f32 } else { 0.0 }),
                scales: array::from_fn(|n| own(n * B::SCALES / 2 * 2 / B::SCALES)),
                minima: array::from_fn(|n| if has_minima { own(17 + n * B::SCALES / 2 * 2 / B::SCALES) } else { 0 }),
                values: array::from_fn(value),
            }
        });
    }

    fn of_both_signs(sizes: &[i8]) -> Vec<i8> {
        sizes.iter().flat_map(|&size| [size, -size]).collect()
    }

    const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    const FP4: [i8; 15] = [0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12];

    #[test]
    fn quantized_products_match_f64_sums_for_every_block_format() {
        check::<Q8Block>();
        check::<Q4Block>();
        check::<Q4_1Block>();
        check::<Q5_1Block>();
        let small = |some: &[i32], value: &dyn Fn(usize) -> i8| QuantizedBlock {
            scale: f16::from_f32(1e-4 * some[0].rem_euclid(90) as f32 - 4e-3),
            minimum: f16::ZERO,
            values: array::from_fn(value),
        };
        check_stored::<Q2Block>(&[-1, 0, 1, 2], small);
        check_stored::<Iq4NlBlock>(&IQ4, small);
        // Scales below those of f16 too.
        check_stored::<Mxfp4Block>(&FP4, |some, value| MxBlock {
            scale: half::bf16::from_f32([0.0, 2.0_f32.powi(-30), 2.0_f32.powi(-128), 0.0625][some[0] as usize % 4]),
            values: array::from_fn(value),
        });
        fn group<const RUNS: usize>(some: &[i32], value: &dyn Fn(usize) -> i8) -> GroupRow<RUNS> {
            let values: [[i8; BLOCK]; RUNS] = array::from_fn(|run| array::from_fn(|at| value(run * BLOCK + at)));
            // A power of two, so that the zero point can be subtracted after scaling, too.
            let scale = 2.0_f32.powi(some[0].rem_euclid(6) - 15);
            GroupRow { scale, zero: some[1].rem_euclid(17) as i8, values }
        }
        let (four, eight): (Vec<i8>, Vec<i8>) = ((0..16).collect(), (-128..=127).collect());
        check_stored::<GroupBlock<Nibbles, 1>>(&four, group);
        check_stored::<GroupBlock<Nibbles, 4>>(&four, group);
        check_stored::<GroupBlock<Bytes, 4>>(&eight, group);
        check_super::<Q4KBlock>(&(0..16).collect::<Vec<_>>(), 1.0);
        check_super::<Q5KBlock>(&(0..32).collect::<Vec<_>>(), 1.0);
        check_super::<Q6KBlock>(&(-32..32).collect::<Vec<_>>(), 1.0);
        check_super::<Q3KBlock>(&(-4..4).collect::<Vec<_>>(), 1.0);
        check_super::<Q2KBlock>(&[0, 1, 2, 3], 1.0);
        check_super::<Iq4XsBlock>(&IQ4, 1.0);
        check_super::<Iq3SBlock>(&of_both_signs(&[1, 3, 5, 7, 9, 11, 13, 15]), 1.0);
        check_super::<Iq3XxsBlock>(&of_both_signs(&[4, 12, 20, 28, 36, 44, 52, 62]), 0.25);
        check_super::<Iq2Block>(&of_both_signs(&[8, 25, 43]), 0.125);
        check_super::<Iq1Block>(&of_both_signs(&[1, 7, 9]), 0.125);
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
        let of_k = |scales| move |number| KBlock { scale: 1.0, scales, values: [number; K_BLOCK], ..KBlock::default() };
        check_extremes::<Q4KBlock>(of_k(array::from_fn(|_| 1)), [0, 15]);
        check_extremes::<Q5KBlock>(of_k(array::from_fn(|_| 1)), [0, 31]);
        check_extremes::<Q6KBlock>(of_k(array::from_fn(|_| 1)), [-32, 31]);
        check_extremes::<Q3KBlock>(of_k(array::from_fn(|_| 1)), [-4, 3]);
        check_extremes::<Q2KBlock>(of_k(array::from_fn(|_| 1)), [0, 3]);
        check_extremes::<Iq4XsBlock>(of_k(array::from_fn(|_| 1)), [-127, 113]);
        check_extremes::<Iq3SBlock>(of_k(array::from_fn(|_| 1)), [-15, 15]);
        check_extremes::<Iq3XxsBlock>(of_k(array::from_fn(|_| 1)), [-62, 62]);
        check_extremes::<Iq2Block>(of_k(array::from_fn(|_| 1)), [-43, 43]);
        check_extremes::<Iq1Block>(of_k(array::from_fn(|_| 1)), [-9, 9]);
        check_extremes::<Q2Block>(small, [-1, 2]);
        check_extremes::<Iq4NlBlock>(small, [-127, 113]);
        let of_group = |number| GroupRow::<1> { scale: 1.0, zero: 0, values: [[number; BLOCK]] };
        check_extremes::<GroupBlock<Nibbles, 1>>(of_group, [0, 15]);
        check_extremes::<GroupBlock<Bytes, 1>>(of_group, [-128, 127]);
        let of_mx = |number| MxBlock { scale: half::bf16::ONE, values: [number; BLOCK] };
        check_extremes::<Mxfp4Block>(of_mx, [-12, 12]);
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
