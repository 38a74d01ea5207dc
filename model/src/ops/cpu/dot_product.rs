//! Products with quantized weights on 64-bit ARM with dot product instructions (all since about 2018): `sdot` adds four
//! products of signed bytes in each of four lanes, and 32 outputs are eight registers.
//!
//! Sums within a block are exact, and blocks are added in the usual order, so the bits are those of the portable body.
//! In assembly where the standard library has no stable intrinsic.

use std::arch::{
    aarch64::{
        int8x16_t, int32x4_t, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8, vfmaq_f32, vmulq_n_f32,
        vreinterpretq_s8_s32, vreinterpretq_s8_u8, vst1q_f32, vsubq_u8,
    },
    asm,
};

use super::{
    panel_layout::PANEL,
    quant_blocks::{Numbers, QuantBlock, REGISTERS, RowFactors},
    quant_rows::{MAX_ROWS, QuantRows},
};

/// Rows `first ..` (at most [`MAX_ROWS`]) times one panel, two at a time: their sums and the weights fill 24 of the 32
/// registers.
#[target_feature(enable = "dotprod")]
pub(super) fn sdot<B: QuantBlock>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    let n_rows = MAX_ROWS.min(rows.n_rows() - first);
    for row in (0..n_rows).step_by(2) {
        if row + 1 < n_rows {
            let [left, right] = multiply::<B, 2>(rows, first, row, panel);
            store(row, &left);
            store(row + 1, &right);
        } else {
            let [only] = multiply::<B, 1>(rows, first, row, panel);
            store(row, &only);
        }
    }
}

/// `N` rows from `row` in the group that begins at row `first`.
#[expect(unsafe_code, reason = "raw loads and stores in the innermost loop")]
#[target_feature(enable = "dotprod")]
fn multiply<B: QuantBlock, const N: usize>(
    rows: &QuantRows,
    first: usize,
    row: usize,
    panel: &[B],
) -> [[f32; PANEL]; N] {
    let mut totals = [[vdupq_n_f32(0.0); REGISTERS]; N];
    for (number, run) in (0..rows.n_blocks).map(|number| (number, number % B::RUNS)) {
        let block = &panel[number / B::RUNS];
        let inputs = rows.blocks(first, number)[row..].first_chunk::<N>();
        let inputs = inputs.unwrap_or_else(|| unreachable!("the caller counted the rows"));
        for half in 0..B::SCALES {
            let mut sums = [[vdupq_n_s32(0); REGISTERS]; N];
            for group in 8 * half / B::SCALES..8 * (half + 1) / B::SCALES {
                // SAFETY: this function's own target features have it.
                let stored = unsafe { block.numbers(run).load_bytes(group) };
                let weights = stored.map(|stored| vreinterpretq_s8_u8(vsubq_u8(stored, vdupq_n_u8(B::OFFSET as u8))));
                for (sums, input) in sums.iter_mut().zip(inputs) {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(input.values[group]));
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum = dot(*sum, weights, x);
                    }
                }
            }
            // SAFETY: as above.
            let scales = unsafe { block.scales(run, half).load_fours() };
            for ((totals, sums), input) in totals.iter_mut().zip(sums).zip(inputs) {
                for ((total, sum), scale) in totals.iter_mut().zip(sums).zip(scales) {
                    *total = vfmaq_f32(*total, vcvtq_f32_s32(sum), vmulq_n_f32(scale, input.scale));
                }
            }
        }
        if let Some(minima) = block.minima(run) {
            // SAFETY: as above.
            let minima = unsafe { minima.load_fours() };
            for (totals, input) in totals.iter_mut().zip(inputs) {
                for (total, minimum) in totals.iter_mut().zip(minima) {
                    *total = vfmaq_f32(*total, minimum, vdupq_n_f32(input.sum()));
                }
            }
        }
    }
    totals.map(|totals| {
        let mut values = [0.0; PANEL];
        for (values, total) in values.as_chunks_mut::<4>().0.iter_mut().zip(totals) {
            // SAFETY: a register of 4 values fills the chunk.
            unsafe { vst1q_f32(values.as_mut_ptr(), total) };
        }
        values
    })
}

/// Adds four products of signed bytes to each lane of `sum`.
#[expect(unsafe_code, reason = "an instruction without a stable name")]
#[target_feature(enable = "dotprod")]
pub(super) fn dot(mut sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone, and this function's own target feature has it.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, weights = in(vreg) weights, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        MatrixRows,
        cpu::{
            gemm_quant::portable,
            isa::tests::noise,
            panel_values::QuantPanels,
            quant_formats::{Q4_1Block, Q4Block, Q5_1Block, Q8Block},
        },
    };

    fn check<B: QuantBlock<Row = crate::ops::QuantizedBlock>>() {
        for (n_rows, d_in) in [(1, 32), (2, 70), (5, 96), (13, 160)] {
            let panel = QuantPanels::<B>::quantize(&MatrixRows::of(&noise(PANEL * d_in, 1), [PANEL, d_in])).blocks;
            let rows = QuantRows::new(&noise(n_rows * d_in, 2), d_in, B::CORRECTION);
            for first in (0..n_rows).step_by(MAX_ROWS) {
                let (mut expected, mut found) = (Vec::new(), Vec::new());
                portable::<B, true>(&rows, first, &panel, |row, sums| expected.push((row, *sums)));
                #[expect(
                    unsafe_code,
                    reason = "calls code compiled for instructions that the machine was found to have"
                )]
                // SAFETY: they were found.
                unsafe {
                    sdot(&rows, first, &panel, |row, sums| found.push((row, *sums)));
                }
                assert_eq!(found, expected, "{n_rows} rows of {d_in}");
            }
        }
    }

    #[test]
    fn dot_products_give_the_bits_of_the_portable_body() {
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            check::<Q8Block>();
            check::<Q4Block>();
            check::<Q4_1Block>();
            check::<Q5_1Block>();
        }
    }
}
