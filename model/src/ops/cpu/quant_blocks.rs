//! Weights of 8 or 4 bits: how they are rounded, and how the 32 rows of a panel lie in memory.

use std::array;

use half::f16;
use rayon::prelude::*;

use super::{
    BASELINE_IS_FUSED, Isa,
    huge_pages::Stored,
    isa,
    panels::{Line, PANEL},
    quant_rows::ROUND,
    rowwise::for_each_isa,
};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock, QuantizedMatrix};

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
        (i32::from(self.stored(row, input)) - Self::OFFSET) as f32 * self.scales().0[row].to_f32()
    }
}

/// 8 bits a weight: `-127..=127` times the scale; 8.5 bits with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q8Block {
    scales: Line<f16, PANEL>,
    /// For every 4 inputs: rows 0 to 15, then rows 16 to 31.
    values: [Line<u8, 64>; 16],
}

impl QuantBlock for Q8Block {
    const OFFSET: i32 = 128;
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = 3;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        let scale = f16::from_f32(largest(weights) / 127.0);
        let inverse = inverse(scale);
        QuantizedBlock { scale, values: weights.map(|weight| whole((weight * inverse).clamp(-127.0, 127.0)) as i8) }
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let mut block = Self { scales: Line(array::from_fn(|row| rows[row].scale)), values: [Line([0; 64]); 16] };
        for (row, QuantizedBlock { values, .. }) in rows.iter().enumerate() {
            for (input, value) in values.iter().enumerate() {
                // Plus the offset, as an unsigned byte.
                block.values[input / 4 * 2 + row / 16].0[row % 16 * 4 + input % 4] = value.cast_unsigned() ^ 0x80;
            }
        }
        block
    }

    fn scales(&self) -> &Line<f16, PANEL> {
        &self.scales
    }

    fn stored(&self, row: usize, input: usize) -> u8 {
        self.values[input / 4 * 2 + row / 16].0[row % 16 * 4 + input % 4]
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| self.values[2 * group + row / 16].0.as_chunks::<4>().0[row % 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[std::arch::x86_64::__m512i; 2]; 2] {
        use std::arch::x86_64::_mm512_load_si512;
        // SAFETY: a line is 64 bytes, aligned as such.
        let load = |line: usize| unsafe { _mm512_load_si512(self.values[line].0.as_ptr().cast()) };
        [[load(4 * half), load(4 * half + 1)], [load(4 * half + 2), load(4 * half + 3)]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_group(&self, group: usize) -> [std::arch::x86_64::__m256i; 4] {
        // SAFETY: a line is 64 bytes, aligned as such: two registers.
        array::from_fn(|n| unsafe { half_line(&self.values[2 * group + n / 2], n % 2) })
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_signed(&self, group: usize) -> [std::arch::aarch64::int8x16_t; super::dot_product::REGISTERS] {
        use std::arch::aarch64::{vdupq_n_u8, veorq_u8, vreinterpretq_s8_u8};
        array::from_fn(|n| {
            let stored = quarter_line(&self.values[2 * group + n / 4], n % 4);
            vreinterpretq_s8_u8(veorq_u8(stored, vdupq_n_u8(0x80)))
        })
    }
}

/// 4 bits a weight: `-8..=7` times the scale; 4.5 bits with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q4Block {
    scales: Line<f16, PANEL>,
    /// For every 8 inputs: rows 0 to 15, then rows 16 to 31; the first 4 inputs in the low halves of the bytes.
    values: [Line<u8, 64>; 8],
}

impl QuantBlock for Q4Block {
    const OFFSET: i32 = 8;
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = 1;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        let mut scale = 0.0;
        search_q4_scale(weights, &mut scale);
        let scale = f16::from_f32(scale);
        let inverse = inverse(scale);
        QuantizedBlock { scale, values: weights.map(|weight| q4_level(weight * inverse) as i8) }
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let mut block = Self { scales: Line(array::from_fn(|row| rows[row].scale)), values: [Line([0; 64]); 8] };
        for (row, QuantizedBlock { values, .. }) in rows.iter().enumerate() {
            for (input, value) in values.iter().enumerate() {
                let stored = (value + Self::OFFSET as i8).cast_unsigned();
                let byte = &mut block.values[input / 8 * 2 + row / 16].0[row % 16 * 4 + input % 4];
                *byte |= if input % 8 < 4 { stored } else { stored << 4 };
            }
        }
        block
    }

    fn scales(&self) -> &Line<f16, PANEL> {
        &self.scales
    }

    fn stored(&self, row: usize, input: usize) -> u8 {
        let byte = self.values[input / 8 * 2 + row / 16].0[row % 16 * 4 + input % 4];
        if input % 8 < 4 { byte & 0x0f } else { byte >> 4 }
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| {
            let bytes = self.values[group / 2 * 2 + row / 16].0.as_chunks::<4>().0[row % 16];
            if group.is_multiple_of(2) { bytes.map(|byte| byte & 0x0f) } else { bytes.map(|byte| byte >> 4) }
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[std::arch::x86_64::__m512i; 2]; 2] {
        use std::arch::x86_64::{_mm512_and_si512, _mm512_load_si512, _mm512_set1_epi8, _mm512_srli_epi16};
        // SAFETY: a line is 64 bytes, aligned as such.
        let load = |line: usize| unsafe { _mm512_load_si512(self.values[line].0.as_ptr().cast()) };
        let low = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(0x0f));
        let [left, right] = [load(2 * half), load(2 * half + 1)];
        [[low(left), low(right)], [low(_mm512_srli_epi16::<4>(left)), low(_mm512_srli_epi16::<4>(right))]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_group(&self, group: usize) -> [std::arch::x86_64::__m256i; 4] {
        use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi8, _mm256_srli_epi16};
        array::from_fn(|n| {
            // SAFETY: as above.
            let bytes = unsafe { half_line(&self.values[group / 2 * 2 + n / 2], n % 2) };
            let bytes = if group.is_multiple_of(2) { bytes } else { _mm256_srli_epi16::<4>(bytes) };
            _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f))
        })
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_signed(&self, group: usize) -> [std::arch::aarch64::int8x16_t; super::dot_product::REGISTERS] {
        use std::arch::aarch64::{vandq_u8, vdupq_n_s8, vdupq_n_u8, vreinterpretq_s8_u8, vshrq_n_u8, vsubq_s8};
        array::from_fn(|n| {
            let bytes = quarter_line(&self.values[group / 2 * 2 + n / 4], n % 4);
            let low = || vandq_u8(bytes, vdupq_n_u8(0x0f));
            let stored = if group.is_multiple_of(2) { low() } else { vshrq_n_u8::<4>(bytes) };
            vsubq_s8(vreinterpretq_s8_u8(stored), vdupq_n_s8(Self::OFFSET as i8))
        })
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

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, value| most.max(value.abs()))
}

fn inverse(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

/// The nearest whole number of a small value. Adding 1.5 * 2^23 rounds without a call, so the compiler vectorises it.
#[inline(always)]
fn whole(value: f32) -> f32 {
    (value + ROUND) - ROUND
}

/// The numbers of 8 bits that are nearest to `weights`.
pub fn nearest_q8(weights: &[f32; BLOCK]) -> QuantizedBlock {
    Q8Block::quantize(weights)
}

/// The nearest of the 16 levels.
#[inline(always)]
fn q4_level(value: f32) -> f32 {
    whole(value.clamp(-8.0, 7.0))
}

for_each_isa!(search_q4_scale(weights: &[f32; BLOCK], scale: &mut f32) = search_q4_scale_body);

/// The scale with the smallest sum of squared errors that a search finds. It puts the value farthest from zero at a level
/// from -5 to -9 (beyond -8 it is cut off), so that the side with the larger values has the extra level, rounds with
/// that, and takes the scale that fits those levels best.
#[inline(always)]
fn search_q4_scale_body<const FUSED: bool>(weights: &[f32; BLOCK], scale: &mut f32) {
    const STEPS: usize = 32;
    const LANES: usize = 16;
    let extreme = weights.iter().fold(0.0, |most: f32, value| if value.abs() > most.abs() { *value } else { most });
    let mut best = 0.0;
    *scale = 0.0;
    for step in 0..=STEPS {
        let inverse = -(5.0 + 4.0 * step as f32 / STEPS as f32) / extreme;
        let (mut dots, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for weights in weights.as_chunks::<LANES>().0 {
            for ((weight, dot), square) in weights.iter().zip(&mut dots).zip(&mut squares) {
                let level = q4_level(weight * inverse);
                *dot += weight * level;
                *square += level * level;
            }
        }
        let (dot, square): (f32, f32) = (dots.iter().sum(), squares.iter().sum());
        // For these levels the best scale is `dot / square`, and leaves `|weights|^2 - dot^2 / square`.
        if dot * dot > best * square {
            best = dot * dot / square;
            *scale = dot / square;
        }
    }
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
    let zeros = QuantizedBlock { scale: f16::ZERO, values: [0; BLOCK] };
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
        values: array::from_fn(|input| (i32::from(block.stored(lane, input)) - B::OFFSET) as i8),
    };
    panel.iter().map(unpack).collect()
}
