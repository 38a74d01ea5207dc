//! Weights of 4 and 5 bits.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{int8x16_t, uint8x16_t};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, __m512i};
use std::array;

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::half_line;
#[cfg(target_arch = "aarch64")]
use super::{super::dot_product::REGISTERS, quarter_line};
use super::{
    super::panels::{Line, PANEL},
    QuantBlock,
    rounding::{nearest_above_minimum, nearest_q4},
};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock};

/// 4 bits a weight: `-8..=7` times the scale; 4.5 bits with it.
pub(in crate::ops::cpu) type Q4Block = FewBits<Nothing>;
/// 4 bits a weight: `0..=15` times the scale, plus the minimum; 5 bits with both.
pub(in crate::ops::cpu) type Q4_1Block = FewBits<Minima>;
/// 5 bits a weight: `0..=31` times the scale, plus the minimum; 6 bits with both.
pub(in crate::ops::cpu) type Q5_1Block = FewBits<MinimaAndFifthBits>;

/// Four bits and a scale, and what a format has beside them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct FewBits<E> {
    scales: Line<f16, PANEL>,
    extra: E,
    low: Nibbles,
}

/// What a format has beside four bits and a scale.
pub(in crate::ops::cpu) trait Extra: Copy + Send + Sync {
    /// As [`QuantBlock::OFFSET`].
    const OFFSET: i32;

    /// As [`QuantBlock::quantize`].
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock;

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self;

    /// As [`QuantBlock::minima`].
    #[inline(always)]
    fn minima(&self) -> Option<&Line<f16, PANEL>> {
        None
    }

    /// The bits above the fourth of a row and an input, where they stand in the number.
    #[inline(always)]
    fn high(&self, _row: usize, _input: usize) -> u8 {
        0
    }

    /// The same added to what [`QuantBlock::load`] has of the lower ones.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    #[inline(always)]
    unsafe fn add_high(&self, _half: usize, low: [[__m512i; 2]; 2]) -> [[__m512i; 2]; 2] {
        low
    }

    /// The same added to what [`QuantBlock::load_group`] has of the lower ones.
    ///
    /// # Safety
    /// The machine must have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    #[inline(always)]
    unsafe fn add_high_to_group(&self, _group: usize, low: [__m256i; 4]) -> [__m256i; 4] {
        low
    }

    /// The same added to what [`Nibbles::load_bytes`] has of the lower ones.
    ///
    /// # Safety
    /// The machine must have NEON, as all of the target have.
    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    #[inline(always)]
    unsafe fn add_high_to_bytes(&self, _group: usize, low: [uint8x16_t; REGISTERS]) -> [uint8x16_t; REGISTERS] {
        low
    }
}

impl<E: Extra> QuantBlock for FewBits<E> {
    const OFFSET: i32 = E::OFFSET;
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = 1;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        E::quantize(weights)
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let scales = Line(array::from_fn(|row| rows[row].scale));
        Self { scales, extra: E::pack(rows), low: Nibbles::pack(rows, E::OFFSET) }
    }

    fn scales(&self) -> &Line<f16, PANEL> {
        &self.scales
    }

    #[inline(always)]
    fn minima(&self) -> Option<&Line<f16, PANEL>> {
        self.extra.minima()
    }

    fn stored(&self, row: usize, input: usize) -> u8 {
        self.low.get(row, input) | self.extra.high(row, input)
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        let low = self.low.group(group);
        array::from_fn(|row| array::from_fn(|n| low[row][n] | self.extra.high(row, 4 * group + n)))
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        // SAFETY: this function's own target features.
        unsafe { self.extra.add_high(half, self.low.load(half)) }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_group(&self, group: usize) -> [__m256i; 4] {
        // SAFETY: this function's own target features.
        unsafe { self.extra.add_high_to_group(group, self.low.load_group(group)) }
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_signed(&self, group: usize) -> [int8x16_t; REGISTERS] {
        use std::arch::aarch64::{vdupq_n_s8, vreinterpretq_s8_u8, vsubq_s8};
        // SAFETY: this function's own target features.
        let stored = unsafe { self.extra.add_high_to_bytes(group, self.low.load_bytes(group)) };
        stored.map(|stored| vsubq_s8(vreinterpretq_s8_u8(stored), vdupq_n_s8(Self::OFFSET as i8)))
    }
}

/// Nothing: weights lie on both sides of zero.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops::cpu) struct Nothing;

impl Extra for Nothing {
    const OFFSET: i32 = 8;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_q4(weights)
    }

    fn pack(_rows: &[QuantizedBlock; PANEL]) -> Self {
        Self
    }
}

/// Each row's minimum.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(in crate::ops::cpu) struct Minima(Line<f16, PANEL>);

impl Extra for Minima {
    const OFFSET: i32 = 0;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_above_minimum(weights, 15)
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        Self(Line(array::from_fn(|row| rows[row].minimum)))
    }

    #[inline(always)]
    fn minima(&self) -> Option<&Line<f16, PANEL>> {
        Some(&self.0)
    }
}

/// Each row's minimum, and a fifth bit.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct MinimaAndFifthBits {
    minima: Minima,
    bits: FifthBits,
}

impl Extra for MinimaAndFifthBits {
    const OFFSET: i32 = 0;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_above_minimum(weights, 31)
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        Self { minima: Minima::pack(rows), bits: FifthBits::pack(rows) }
    }

    #[inline(always)]
    fn minima(&self) -> Option<&Line<f16, PANEL>> {
        self.minima.minima()
    }

    #[inline(always)]
    fn high(&self, row: usize, input: usize) -> u8 {
        self.bits.get(row, input)
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn add_high(&self, half: usize, low: [[__m512i; 2]; 2]) -> [[__m512i; 2]; 2] {
        use std::arch::x86_64::{_mm512_mask_add_epi8, _mm512_set1_epi8};
        let bits = &self.bits.0[4 * half..][..4];
        let fifth = _mm512_set1_epi8(FIFTH as i8);
        let add = |low, n: usize| _mm512_mask_add_epi8(low, bits[n], low, fifth);
        [[add(low[0][0], 0), add(low[0][1], 1)], [add(low[1][0], 2), add(low[1][1], 3)]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn add_high_to_group(&self, group: usize, low: [__m256i; 4]) -> [__m256i; 4] {
        use std::arch::x86_64::{
            _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi8,
            _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_shuffle_epi8,
        };
        // Of 32 bits in all lanes, each byte goes to eight lanes, and each of these looks at one bit.
        let spread = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
        let each = _mm256_set1_epi64x(EACH_BIT.cast_signed());
        array::from_fn(|n| {
            let bits = (self.bits.0[2 * group + n / 2] >> (n % 2 * 32)) as u32;
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast_signed()), spread);
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
            _mm256_or_si256(low[n], _mm256_and_si256(is_set, _mm256_set1_epi8(FIFTH as i8)))
        })
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn add_high_to_bytes(&self, group: usize, low: [uint8x16_t; REGISTERS]) -> [uint8x16_t; REGISTERS] {
        use std::arch::aarch64::{vandq_u8, vcombine_u8, vcreate_u8, vdup_n_u8, vdupq_n_u8, vorrq_u8, vtstq_u8};
        let each = vcombine_u8(vcreate_u8(EACH_BIT), vcreate_u8(EACH_BIT));
        array::from_fn(|n| {
            let [left, right, ..] = (self.bits.0[2 * group + n / 4] >> (n % 4 * 16)).to_le_bytes();
            let is_set = vtstq_u8(vcombine_u8(vdup_n_u8(left), vdup_n_u8(right)), each);
            vorrq_u8(low[n], vandq_u8(is_set, vdupq_n_u8(FIFTH)))
        })
    }
}

/// The low four bits of 32 inputs of 32 rows. For every 8 inputs: rows 0 to 15, then rows 16 to 31; the first 4 inputs in
/// the low halves of the bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Nibbles([Line<u8, 64>; 8]);

impl Nibbles {
    fn pack(rows: &[QuantizedBlock; PANEL], offset: i32) -> Self {
        let mut nibbles = Self([Line([0; 64]); 8]);
        for (row, QuantizedBlock { values, .. }) in rows.iter().enumerate() {
            for (input, value) in values.iter().enumerate() {
                let stored = (value + offset as i8).cast_unsigned() & 0x0f;
                let byte = &mut nibbles.0[input / 8 * 2 + row / 16].0[row % 16 * 4 + input % 4];
                *byte |= if input % 8 < 4 { stored } else { stored << 4 };
            }
        }
        nibbles
    }

    fn get(&self, row: usize, input: usize) -> u8 {
        let byte = self.0[input / 8 * 2 + row / 16].0[row % 16 * 4 + input % 4];
        if input % 8 < 4 { byte & 0x0f } else { byte >> 4 }
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| {
            let bytes = self.0[group / 2 * 2 + row / 16].0.as_chunks::<4>().0[row % 16];
            if group.is_multiple_of(2) { bytes.map(|byte| byte & 0x0f) } else { bytes.map(|byte| byte >> 4) }
        })
    }

    /// As [`QuantBlock::load`].
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        use std::arch::x86_64::{_mm512_and_si512, _mm512_load_si512, _mm512_set1_epi8, _mm512_srli_epi16};
        // SAFETY: a line is 64 bytes, aligned as such.
        let load = |line: usize| unsafe { _mm512_load_si512(self.0[line].0.as_ptr().cast()) };
        let low = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(0x0f));
        let [left, right] = [load(2 * half), load(2 * half + 1)];
        [[low(left), low(right)], [low(_mm512_srli_epi16::<4>(left)), low(_mm512_srli_epi16::<4>(right))]]
    }

    /// As [`QuantBlock::load_group`].
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_group(&self, group: usize) -> [__m256i; 4] {
        use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi8, _mm256_srli_epi16};
        array::from_fn(|n| {
            // SAFETY: as above.
            let bytes = unsafe { half_line(&self.0[group / 2 * 2 + n / 2], n % 2) };
            let bytes = if group.is_multiple_of(2) { bytes } else { _mm256_srli_epi16::<4>(bytes) };
            _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f))
        })
    }

    /// Inputs `4 group ..`, four of them, of rows 0 to 3, 4 to 7 and so on.
    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS] {
        use std::arch::aarch64::{vandq_u8, vdupq_n_u8, vshrq_n_u8};
        array::from_fn(|n| {
            let bytes = quarter_line(&self.0[group / 2 * 2 + n / 4], n % 4);
            if group.is_multiple_of(2) { vandq_u8(bytes, vdupq_n_u8(0x0f)) } else { vshrq_n_u8::<4>(bytes) }
        })
    }
}

/// What the fifth bit stands for.
const FIFTH: u8 = 0x10;
/// One bit of each of eight bytes, the first byte's lowest.
const EACH_BIT: u64 = 0x8040_2010_0804_0201;

/// The fifth bits of 32 inputs of 32 rows. For every 4 inputs: rows 0 to 15, then rows 16 to 31; for each row its four
/// inputs, the first lowest. So a number's bits belong to the bytes of a register, in order.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct FifthBits([u64; 16]);

impl FifthBits {
    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let mut bits = Self([0; 16]);
        for (row, QuantizedBlock { values, .. }) in rows.iter().enumerate() {
            for (input, value) in values.iter().enumerate() {
                bits.0[input / 4 * 2 + row / 16] |=
                    u64::from(value.cast_unsigned() / FIFTH & 1) << (row % 16 * 4 + input % 4);
            }
        }
        bits
    }

    /// The bit where it stands in the number.
    #[inline(always)]
    fn get(&self, row: usize, input: usize) -> u8 {
        (self.0[input / 4 * 2 + row / 16] >> (row % 16 * 4 + input % 4) & 1) as u8 * FIFTH
    }
}
