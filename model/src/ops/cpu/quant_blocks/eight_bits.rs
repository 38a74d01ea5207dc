//! Weights of 8 bits.

use std::array;

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::half_line;
#[cfg(target_arch = "aarch64")]
use super::{super::dot_product, quarter_line};
use super::{
    super::panels::{Line, PANEL},
    QuantBlock,
    rounding::nearest_q8,
};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock};

/// 8 bits a weight: `-127..=127` times the scale; 8.5 bits with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct Q8Block {
    scales: Line<f16, PANEL>,
    /// For every 4 inputs: rows 0 to 15, then rows 16 to 31.
    values: [Line<u8, 64>; 16],
}

impl QuantBlock for Q8Block {
    const OFFSET: i32 = 128;
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = 3;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_q8(weights)
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
    unsafe fn load_signed(&self, group: usize) -> [std::arch::aarch64::int8x16_t; dot_product::REGISTERS] {
        use std::arch::aarch64::{vdupq_n_u8, veorq_u8, vreinterpretq_s8_u8};
        array::from_fn(|n| {
            let stored = quarter_line(&self.values[2 * group + n / 4], n % 4);
            vreinterpretq_s8_u8(veorq_u8(stored, vdupq_n_u8(0x80)))
        })
    }
}
