//! Weights of few bits: how the 32 rows of a panel lie in memory, and (`rounding.rs`) how they are rounded.

use std::array;

use half::f16;
use rayon::prelude::*;

use super::{
    huge_pages::Stored,
    panels::{Line, PANEL},
};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock, QuantizedMatrix};

mod eight_bits;
mod few_bits;
mod rounding;

pub(super) use eight_bits::Q8Block;
pub(super) use few_bits::{Q4_1Block, Q4Block, Q5_1Block};
pub use rounding::nearest_q8;

/// 32 inputs of the 32 rows of a panel.
pub(super) trait QuantBlock: Copy + Send + Sync {
    /// What is added to a weight to make it unsigned.
    const OFFSET: i32;

    /// Kernels' rows that bring a panel from memory together, 1 to 3: more where the arithmetic waits for memory.
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize;

    /// Rounds one row's 32 weights.
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock;

    /// Lays out the 32 rows' blocks.
    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self;

    /// The rows' scales.
    fn scales(&self) -> &Line<f16, PANEL>;

    /// What is added to the rows' weights behind the scales, in formats that have such.
    #[inline(always)]
    fn minima(&self) -> Option<&Line<f16, PANEL>> {
        None
    }

    /// The stored number, offset included, of a row and an input.
    fn stored(&self, row: usize, input: usize) -> u8;

    /// The stored numbers of inputs `4 group ..`, four of them, of all rows.
    fn group(&self, group: usize) -> [[u8; 4]; PANEL];

    /// Inputs `8 half ..` and `8 half + 4 ..`, four each, of rows 0 to 15 and of rows 16 to 31.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load(&self, half: usize) -> [[std::arch::x86_64::__m512i; 2]; 2];

    /// Inputs `4 group ..`, four of them, of rows 0 to 7, 8 to 15, 16 to 23 and 24 to 31.
    ///
    /// # Safety
    /// The machine must have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load_group(&self, group: usize) -> [std::arch::x86_64::__m256i; 4];

    /// The weights of inputs `4 group ..`, four of them, of rows 0 to 3, 4 to 7 and so on: without the offset.
    ///
    /// # Safety
    /// The machine must have NEON, as all of the target have.
    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    unsafe fn load_signed(&self, group: usize) -> [std::arch::aarch64::int8x16_t; super::dot_product::REGISTERS];

    /// The weight that is stored.
    #[cfg(test)]
    fn weight(&self, row: usize, input: usize) -> f32 {
        let minimum = self.minima().map_or(0.0, |minima| minima.0[row].to_f32());
        (i32::from(self.stored(row, input)) - Self::OFFSET) as f32 * self.scales().0[row].to_f32() + minimum
    }
}

/// Half a line of bytes.
///
/// # Safety
/// The machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "raw loads in the innermost loop")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn half_line(line: &Line<u8, 64>, half: usize) -> std::arch::x86_64::__m256i {
    // SAFETY: a line is 64 bytes, aligned as such.
    unsafe { std::arch::x86_64::_mm256_load_si256(line.0.as_ptr().cast::<std::arch::x86_64::__m256i>().add(half)) }
}

/// A quarter of a line of bytes.
#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "raw loads in the innermost loop")]
#[target_feature(enable = "neon")]
#[inline]
fn quarter_line(line: &Line<u8, 64>, quarter: usize) -> std::arch::aarch64::uint8x16_t {
    // SAFETY: the sixteen bytes are there.
    unsafe { std::arch::aarch64::vld1q_u8(line.0[16 * quarter..][..16].as_ptr()) }
}

/// Rounds `values`, `[d_out, d_in]` in row order, into panels of blocks; filled up with zeros in both directions.
pub(super) fn lay_out<B: QuantBlock>(values: &[f32], d_out: usize, d_in: usize) -> Stored<B> {
    from_rows(d_out, d_in.div_ceil(BLOCK), |row, number| {
        let inputs = number * BLOCK..d_in.min((number + 1) * BLOCK);
        let mut weights = [0.0; BLOCK];
        weights[..inputs.len()].copy_from_slice(&values[row * d_in..][inputs]);
        B::quantize(&weights)
    })
}

/// Lays out a matrix that is rounded already.
pub(super) fn pack<B: QuantBlock>(matrix: &QuantizedMatrix) -> Stored<B> {
    let [d_out, d_in] = matrix.dims();
    from_rows(d_out, d_in.div_ceil(BLOCK), |row, number| matrix.row(row)[number])
}

/// Panels of blocks from a function of row and block.
fn from_rows<B: QuantBlock>(
    d_out: usize,
    n_blocks: usize,
    block: impl Fn(usize, usize) -> QuantizedBlock + Sync,
) -> Stored<B> {
    let zeros = QuantizedBlock { scale: f16::ZERO, minimum: f16::ZERO, values: [0; BLOCK] };
    let packed = |panel: usize, number: usize| {
        B::pack(&array::from_fn(|lane| {
            let row = panel * PANEL + lane;
            if row < d_out { block(row, number) } else { zeros }
        }))
    };
    Stored::new(d_out.div_ceil(PANEL) * n_blocks, B::pack(&[zeros; PANEL]), |blocks| {
        blocks.par_iter_mut().enumerate().for_each(|(n, block)| *block = packed(n / n_blocks, n % n_blocks));
    })
}

/// The blocks of row `row` of the matrix that `panels` holds, `n_blocks` to a row.
pub(super) fn unpack_row<B: QuantBlock>(panels: &[B], n_blocks: usize, row: usize) -> Vec<QuantizedBlock> {
    let panel = &panels[row / PANEL * n_blocks..][..n_blocks];
    let lane = row % PANEL;
    let unpack = |block: &B| QuantizedBlock {
        scale: block.scales().0[lane],
        minimum: block.minima().map_or(f16::ZERO, |minima| minima.0[lane]),
        values: array::from_fn(|input| (i32::from(block.stored(lane, input)) - B::OFFSET) as i8),
    };
    panel.iter().map(unpack).collect()
}
