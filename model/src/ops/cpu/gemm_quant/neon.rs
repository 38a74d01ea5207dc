//! Bodies on 64-bit ARM, with dot products of bytes (nearly all since 2018) or with products of small matrices of bytes (i8mm:
//! Apple since the M2, Neoverse V1 and N2).
//!
//! `sdot` adds four products of signed bytes in each of four lanes. `usmmla` multiplies two rows of eight unsigned bytes by two
//! rows of eight signed ones: twice the products, and the weights' offset need not be subtracted.
//!
//! Sums within a block are exact, and blocks are added in the usual order, so the bits are those of the portable body.
//! In assembly where the standard library has no stable intrinsic.

use std::{
    arch::{
        aarch64::{
            float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vcombine_s8, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32,
            vdupq_n_u8, vfmaq_f32, vld1_s8, vld1q_s32, vmulq_n_f32, vreinterpretq_s8_s32, vreinterpretq_s8_u8,
            vreinterpretq_u8_u32, vreinterpretq_u32_u8, vst1q_f32, vsubq_u8, vuzp1q_s32, vuzp2q_s32, vzip1q_u32,
            vzip2q_u32,
        },
        asm,
    },
    array,
};

use super::{MAX_ROWS, Numbers, PANEL, QuantBlock, QuantRows, RoundedBlock, RowFactors};
use crate::ops::{BLOCK_SIZE as BLOCK, cpu::quant_blocks::REGISTERS};

/// Groups of four inputs in a block.
const GROUPS: usize = BLOCK / 4;

/// Rows `first ..` (at most [`MAX_ROWS`]) times one panel, two at a time: their sums and the weights fill 24 of the 32
/// registers.
#[target_feature(enable = "dotprod")]
pub(super) fn dot_products<B: QuantBlock>(
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
            for group in GROUPS * half / B::SCALES..GROUPS * (half + 1) / B::SCALES {
                // SAFETY: this function enables the instruction's target feature.
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
            if let Some(minima) = block.minima(run, half) {
                // SAFETY: as above.
                let minima = unsafe { minima.load_fours() };
                for (totals, input) in totals.iter_mut().zip(inputs) {
                    for (total, minimum) in totals.iter_mut().zip(minima) {
                        *total = vfmaq_f32(*total, minimum, vdupq_n_f32(input.sum(B::CORRECTION, half)));
                    }
                }
            }
        }
    }
    totals.map(|totals| {
        let mut values = [0.0; PANEL];
        store_fours(&mut values, &totals);
        values
    })
}

/// Stores registers of four values each.
#[expect(unsafe_code, reason = "raw stores")]
fn store_fours(values: &mut [f32], registers: &[float32x4_t]) {
    for (values, register) in values.as_chunks_mut::<4>().0.iter_mut().zip(registers) {
        // SAFETY: a register of 4 values fills the chunk.
        unsafe { vst1q_f32(values.as_mut_ptr(), *register) };
    }
}

/// Adds four products of signed bytes to each lane of `sum`.
#[expect(unsafe_code, reason = "an instruction without a stable name")]
#[target_feature(enable = "dotprod")]
pub(in crate::ops::cpu) fn dot(mut sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone, and this function enables the instruction's target feature.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, weights = in(vreg) weights, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Registers of outputs at a time: with six rows, the sums fill 24 of the 32 registers.
const TOGETHER: usize = 4;

/// Rows `first ..` (at most [`MAX_ROWS`]) times one panel, two rows to an instruction.
#[target_feature(enable = "dotprod,i8mm")]
pub(super) fn matrix_products<B: QuantBlock>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    let mut totals = [[0.0; PANEL]; MAX_ROWS];
    let n_rows = MAX_ROWS.min(rows.n_rows() - first);
    match n_rows {
        1 => return dot_products(rows, first, panel, store),
        2 => multiply_pairs::<B, 1>(rows, first, panel, &mut totals),
        3 | 4 => multiply_pairs::<B, 2>(rows, first, panel, &mut totals),
        _ => multiply_pairs::<B, 3>(rows, first, panel, &mut totals),
    }
    totals[..n_rows].iter().enumerate().for_each(|(row, totals)| store(row, totals));
}

/// `N` pairs of rows times the whole panel: first one half of the outputs, then the other.
#[target_feature(enable = "dotprod,i8mm")]
fn multiply_pairs<B: QuantBlock, const N: usize>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    totals: &mut [[f32; PANEL]; MAX_ROWS],
) {
    multiply_half::<B, N, 0>(rows, first, panel, totals);
    multiply_half::<B, N, TOGETHER>(rows, first, panel, totals);
}

/// The outputs from register `FROM` on. If the number of rows is odd, the last row is paired with itself.
#[target_feature(enable = "dotprod,i8mm")]
fn multiply_half<B: QuantBlock, const N: usize, const FROM: usize>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    stored: &mut [[f32; PANEL]; MAX_ROWS],
) {
    let mut totals = [[[vdupq_n_f32(0.0); TOGETHER]; 2]; N];
    for (number, run) in (0..rows.n_blocks).map(|number| (number, number % B::RUNS)) {
        let block = &panel[number / B::RUNS];
        let inputs = rows.blocks(first, number);
        let inputs: [[&RoundedBlock; 2]; N] =
            array::from_fn(|pair| [&inputs[2 * pair], &inputs[(2 * pair + 1).min(inputs.len() - 1)]]);
        for half in 0..B::SCALES {
            let sums = sums_of_pairs::<B, N, FROM>(block, &inputs, run, half);
            // SAFETY: this function enables the instruction's target feature.
            #[expect(unsafe_code, reason = "loads of the target's instructions")]
            let scales = unsafe { block.scales(run, half).load_fours() };
            for ((totals, sums), inputs) in totals.iter_mut().zip(&sums).zip(inputs) {
                for (n, [left, right]) in sums.as_chunks::<2>().0.iter().enumerate() {
                    let of_rows = [vuzp1q_s32(*left, *right), vuzp2q_s32(*left, *right)];
                    for ((totals, sum), input) in totals.iter_mut().zip(of_rows).zip(inputs) {
                        let scale = vmulq_n_f32(scales[FROM + n], input.scale);
                        totals[n] = vfmaq_f32(totals[n], vcvtq_f32_s32(sum), scale);
                    }
                }
            }
            if let Some(minima) = block.minima(run, half) {
                // SAFETY: as above.
                #[expect(unsafe_code, reason = "loads of the target's instructions")]
                let minima = unsafe { minima.load_fours() };
                for (totals, input) in totals.as_flattened_mut().iter_mut().zip(inputs.as_flattened()) {
                    for (total, minimum) in totals.iter_mut().zip(&minima[FROM..]) {
                        *total = vfmaq_f32(*total, *minimum, vdupq_n_f32(input.sum(B::CORRECTION, half)));
                    }
                }
            }
        }
    }
    for (stored, totals) in stored.iter_mut().zip(totals.as_flattened()) {
        store_fours(&mut stored[4 * FROM..], totals);
    }
}

/// The sums of half `half` of a run, or of all of it. For each pair of rows and pair of outputs, in order: first output
/// and first row, first output and second row, second output and first row, second output and second row.
#[inline]
#[expect(unsafe_code, reason = "raw loads in the innermost loop")]
#[target_feature(enable = "dotprod,i8mm")]
fn sums_of_pairs<B: QuantBlock, const N: usize, const FROM: usize>(
    block: &B,
    inputs: &[[&RoundedBlock; 2]; N],
    run: usize,
    half: usize,
) -> [[int32x4_t; 2 * TOGETHER]; N] {
    let mut sums = inputs.map(|pair| {
        let [left, right] = pair.map(|input| input.start(B::CORRECTION, half));
        // SAFETY: four values are loaded from an array of four.
        [unsafe { vld1q_s32([left, right, left, right].as_ptr()) }; 2 * TOGETHER]
    });
    for group in (GROUPS * half / B::SCALES..GROUPS * (half + 1) / B::SCALES).step_by(2) {
        // SAFETY: this function enables the instruction's target feature.
        let four: [_; 2] = array::from_fn(|n| unsafe { block.numbers(run).load_bytes(group + n) });
        // SAFETY: each array of eight integers has eight bytes from an even one on.
        let load = |input: &RoundedBlock| unsafe { vld1_s8(input.values[group..][..2].as_ptr().cast()) };
        let inputs = inputs.map(|[left, right]| vcombine_s8(load(left), load(right)));
        for n in 0..TOGETHER {
            // Four bytes of four outputs, and the four that follow: eight bytes of two outputs, and of two more.
            let [left, right] = four.map(|bytes| vreinterpretq_u32_u8(bytes[FROM + n]));
            let eights = [vzip1q_u32(left, right), vzip2q_u32(left, right)];
            for (sums, input) in sums.iter_mut().zip(inputs) {
                for (sum, weights) in sums[2 * n..].iter_mut().zip(eights) {
                    *sum = multiply_matrices(*sum, vreinterpretq_u8_u32(weights), input);
                }
            }
        }
    }
    sums
}

/// Adds to `sum`, a matrix of two rows of two, two rows of eight unsigned bytes times two rows of eight signed ones, transposed.
#[inline]
#[expect(unsafe_code, reason = "an instruction without a stable name")]
#[target_feature(enable = "i8mm")]
fn multiply_matrices(mut sum: int32x4_t, weights: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on registers alone, and this function enables the instruction's target feature.
    unsafe {
        asm!(
            "usmmla {sum:v}.4s, {weights:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, weights = in(vreg) weights, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}
