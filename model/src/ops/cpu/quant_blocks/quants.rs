//! The numbers of 32 inputs of a panel's 32 rows, unsigned, in 8, 6, 5, 4, 3 or 2 bits, and how they are loaded into
//! registers.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::uint8x16_t;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, __m512i};
use std::array;

use super::super::panel_layout::{Line, PANEL};
#[cfg(target_arch = "aarch64")]
use super::scales::REGISTERS;
use crate::ops::BLOCK_SIZE as BLOCK;

/// Numbers of 32 inputs of 32 rows.
pub(in crate::ops::cpu) trait Numbers: Copy + Send + Sync + 'static {
    /// The number that represents zero in formats with weights around zero.
    const MIDDLE: u8;
    /// The largest number.
    const LARGEST: u8 = 2 * Self::MIDDLE - 1;
    /// Smallest unit of the scales of formats that share these numbers, relative to the scale in the file: a power of
    /// two.
    const UNIT: f32 = 1.0;

    /// Packs the numbers that `numbers` returns for a row and a group: inputs `4 group ..`, four of them.
    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self;

    /// The number of a row and an input.
    fn get(&self, row: usize, input: usize) -> u8;

    /// The numbers of inputs `4 group ..`, four of them, of all rows.
    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| array::from_fn(|n| self.get(row, 4 * group + n)))
    }

    /// The four inputs from `8 * half` on, and the four after them, each of rows 0 to 15 and of rows 16 to 31; `half`
    /// is below 4.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2];

    /// The four inputs from `4 * group` on, of the eight rows from `8 * n` on.
    ///
    /// # Safety
    /// The machine must have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i;

    /// Inputs `4 group ..`, four of them, of rows 0 to 3, 4 to 7 and so on.
    ///
    /// # Safety
    /// The machine must have NEON, which all machines of the target have.
    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS];
}

/// The line and the index in it of the byte of a row and an input: two lines per 4 inputs, of rows 0 to 15 and 16 to
/// 31.
#[inline(always)]
fn place(row: usize, input: usize) -> (usize, usize) {
    (input / 4 * 2 + row / 16, row % 16 * 4 + input % 4)
}

/// 8 bits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct Bytes([Line<u8, 64>; 16]);

impl Numbers for Bytes {
    const MIDDLE: u8 = 128;
    const LARGEST: u8 = 255;

    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let mut bytes = Self([Line([0; 64]); 16]);
        each_group(|row, group| *four(&mut bytes.0[2 * group + row / 16], row % 16) = numbers(row, group));
        bytes
    }

    #[inline(always)]
    fn get(&self, row: usize, input: usize) -> u8 {
        let (line, at) = place(row, input);
        self.0[line].0[at]
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| self.0[2 * group + row / 16].0.as_chunks::<4>().0[row % 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        use std::arch::x86_64::_mm512_load_si512;
        // SAFETY: a line is 64 bytes, aligned as such.
        let load = |line: usize| unsafe { _mm512_load_si512(self.0[line].0.as_ptr().cast()) };
        [[load(4 * half), load(4 * half + 1)], [load(4 * half + 2), load(4 * half + 3)]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i {
        // SAFETY: a line is 64 bytes, aligned as such: two registers.
        unsafe { half_line(&self.0[2 * group + n / 2], n % 2) }
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS] {
        array::from_fn(|n| quarter_line(&self.0[2 * group + n / 4], n % 4))
    }
}

/// 4 bits. Two lines per 8 inputs, of rows 0 to 15 and 16 to 31; the first 4 inputs in the lower halves of the bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct Nibbles([Line<u8, 64>; 8]);

impl Numbers for Nibbles {
    const MIDDLE: u8 = 8;

    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let mut nibbles = Self([Line([0; 64]); 8]);
        each_group(|row, group| {
            let low = u32::from_le_bytes(numbers(row, group)) & (IN_EACH_BYTE * 0x0f);
            or(&mut nibbles.0[group / 2 * 2 + row / 16], row % 16, low << (group % 2 * 4));
        });
        nibbles
    }

    #[inline(always)]
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

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i {
        use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi8, _mm256_srli_epi16};
        // SAFETY: as above.
        let bytes = unsafe { half_line(&self.0[group / 2 * 2 + n / 2], n % 2) };
        let bytes = if group.is_multiple_of(2) { bytes } else { _mm256_srli_epi16::<4>(bytes) };
        _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f))
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
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

/// 2 bits. One line per 8 inputs, with two bits per byte for each of: the first 4 inputs of rows 0 to 15, of rows 16 to
/// 31, the other 4 inputs of either; the first lowest.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct TwoBits([Line<u8, 64>; 4]);

impl Numbers for TwoBits {
    /// Ternary formats store -1 as 0.
    const MIDDLE: u8 = 1;
    const LARGEST: u8 = 3;

    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let mut two = Self([Line([0; 64]); 4]);
        each_group(|row, group| {
            let bits = u32::from_le_bytes(numbers(row, group)) & (IN_EACH_BYTE * 3);
            or(&mut two.0[group / 2], row % 16, bits << (group % 2 * 4 + row / 16 * 2));
        });
        two
    }

    #[inline(always)]
    fn get(&self, row: usize, input: usize) -> u8 {
        let (place, at) = place(row, input);
        self.0[place / 4].0[at] >> (2 * (place % 4)) & 3
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        use std::arch::x86_64::{_mm512_and_si512, _mm512_load_si512, _mm512_set1_epi8, _mm512_srli_epi16};
        // SAFETY: a line is 64 bytes, aligned as such.
        let bytes = unsafe { _mm512_load_si512(self.0[half].0.as_ptr().cast()) };
        let two = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(3));
        [
            [two(bytes), two(_mm512_srli_epi16::<2>(bytes))],
            [two(_mm512_srli_epi16::<4>(bytes)), two(_mm512_srli_epi16::<6>(bytes))],
        ]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i {
        use std::arch::x86_64::{_mm_cvtsi32_si128, _mm256_and_si256, _mm256_set1_epi8, _mm256_srl_epi16};
        // SAFETY: as above.
        let bytes = unsafe { half_line(&self.0[group / 2], n % 2) };
        let place = _mm_cvtsi32_si128((group % 2 * 4 + n / 2 * 2) as i32);
        _mm256_and_si256(_mm256_srl_epi16(bytes, place), _mm256_set1_epi8(3))
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS] {
        use std::arch::aarch64::{vandq_u8, vdupq_n_u8, vshrq_n_u8};
        array::from_fn(|n| {
            let bytes = quarter_line(&self.0[group / 2], n % 4);
            let moved = match group % 2 * 2 + n / 4 {
                0 => bytes,
                1 => vshrq_n_u8::<2>(bytes),
                2 => vshrq_n_u8::<4>(bytes),
                _ => vshrq_n_u8::<6>(bytes),
            };
            vandq_u8(moved, vdupq_n_u8(3))
        })
    }
}

/// 5 bits.
pub(in crate::ops::cpu) type FiveBits = OneMoreBit<Nibbles>;
/// 3 bits.
pub(in crate::ops::cpu) type ThreeBits = OneMoreBit<TwoBits>;

/// Numbers of few bits, and one above these. Two integers of the bits above per 4 inputs, of rows 0 to 15 and 16 to 31,
/// with four bits per row, the first input's lowest: one bit per byte of a register, in order.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in crate::ops::cpu) struct OneMoreBit<N> {
    high: [u64; 16],
    low: N,
}

/// In byte `n` of eight, bit `n`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const EACH_BIT: u64 = 0x8040_2010_0804_0201;

impl<N: Numbers> Numbers for OneMoreBit<N> {
    /// The value of the bit above the others.
    const MIDDLE: u8 = N::LARGEST + 1;

    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let mut high = [0; 16];
        each_group(|row, group| {
            let bits = (u32::from_le_bytes(numbers(row, group)) >> Self::MIDDLE.ilog2()) & IN_EACH_BYTE;
            // The product's top byte contains the four bits, the first byte's lowest; no two of its terms overlap.
            let side_by_side = bits.wrapping_mul(1 << 24 | 1 << 17 | 1 << 10 | 1 << 3) >> 24;
            high[2 * group + row / 16] |= u64::from(side_by_side) << (row % 16 * 4);
        });
        Self { high, low: N::pack(numbers) }
    }

    #[inline(always)]
    fn get(&self, row: usize, input: usize) -> u8 {
        let (place, at) = place(row, input);
        self.low.get(row, input) | ((self.high[place] >> at & 1) as u8 * Self::MIDDLE)
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        // SAFETY: this function enables the target features.
        let low = unsafe { self.low.load(half) };
        use std::arch::x86_64::{_mm512_mask_add_epi8, _mm512_set1_epi8};
        let bits = &self.high[4 * half..][..4];
        let high = _mm512_set1_epi8(Self::MIDDLE as i8);
        let add = |low, n: usize| _mm512_mask_add_epi8(low, bits[n], low, high);
        [[add(low[0][0], 0), add(low[0][1], 1)], [add(low[1][0], 2), add(low[1][1], 3)]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i {
        // SAFETY: this function enables the target features.
        let low = unsafe { self.low.load_eight(group, n) };
        use std::arch::x86_64::{
            _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi8,
            _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_shuffle_epi8,
        };
        // Each byte of the 32 bits is copied to eight lanes, each of which tests one bit.
        let spread = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
        let each = _mm256_set1_epi64x(EACH_BIT.cast_signed());
        let bits = (self.high[2 * group + n / 2] >> (n % 2 * 32)) as u32;
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast_signed()), spread);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
        _mm256_or_si256(low, _mm256_and_si256(is_set, _mm256_set1_epi8(Self::MIDDLE as i8)))
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS] {
        // SAFETY: this function enables the target features.
        let low = unsafe { self.low.load_bytes(group) };
        use std::arch::aarch64::{vandq_u8, vcombine_u8, vcreate_u8, vdup_n_u8, vdupq_n_u8, vorrq_u8, vtstq_u8};
        let each = vcombine_u8(vcreate_u8(EACH_BIT), vcreate_u8(EACH_BIT));
        array::from_fn(|n| {
            let [left, right, ..] = (self.high[2 * group + n / 4] >> (n % 4 * 16)).to_le_bytes();
            let is_set = vtstq_u8(vcombine_u8(vdup_n_u8(left), vdup_n_u8(right)), each);
            vorrq_u8(low[n], vandq_u8(is_set, vdupq_n_u8(Self::MIDDLE)))
        })
    }
}

/// 6 bits: four in [`Nibbles`], and two above. One line of upper bits per 8 inputs, with two bits per byte for each of:
/// the first 4 inputs of rows 0 to 15, of rows 16 to 31, the other 4 inputs of either; the first lowest.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct SixBits {
    high: [Line<u8, 64>; 4],
    low: Nibbles,
}

/// The bits above the fourth.
const HIGH: u8 = 0x30;

impl Numbers for SixBits {
    const MIDDLE: u8 = 32;

    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let mut high = [Line([0; 64]); 4];
        each_group(|row, group| {
            let bits = (u32::from_le_bytes(numbers(row, group)) & (IN_EACH_BYTE * u32::from(HIGH))) >> 4;
            or(&mut high[group / 2], row % 16, bits << (group % 2 * 4 + row / 16 * 2));
        });
        Self { high, low: Nibbles::pack(numbers) }
    }

    #[inline(always)]
    fn get(&self, row: usize, input: usize) -> u8 {
        let (place, at) = place(row, input);
        self.low.get(row, input) | (self.high[place / 4].0[at] >> (2 * (place % 4)) & 3) << 4
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        use std::arch::x86_64::{
            _mm512_and_si512, _mm512_load_si512, _mm512_or_si512, _mm512_set1_epi8, _mm512_slli_epi16,
            _mm512_srli_epi16,
        };
        // SAFETY: this function enables the target features; a line is 64 bytes, aligned as such.
        let (low, high) = unsafe { (self.low.load(half), _mm512_load_si512(self.high[half].0.as_ptr().cast())) };
        let add = |low, moved| _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(HIGH as i8)));
        [
            [add(low[0][0], _mm512_slli_epi16::<4>(high)), add(low[0][1], _mm512_slli_epi16::<2>(high))],
            [add(low[1][0], high), add(low[1][1], _mm512_srli_epi16::<2>(high))],
        ]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i {
        use std::arch::x86_64::{
            _mm_cvtsi32_si128, _mm256_and_si256, _mm256_or_si256, _mm256_set1_epi8, _mm256_slli_epi16, _mm256_srl_epi16,
        };
        // SAFETY: this function enables the target features.
        let low = unsafe { self.low.load_eight(group, n) };
        // SAFETY: as above.
        let high = unsafe { half_line(&self.high[group / 2], n % 2) };
        let place = _mm_cvtsi32_si128((group % 2 * 4 + n / 2 * 2) as i32);
        let two = _mm256_and_si256(_mm256_srl_epi16(high, place), _mm256_set1_epi8(HIGH as i8 >> 4));
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(two))
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS] {
        use std::arch::aarch64::{vandq_u8, vdupq_n_u8, vorrq_u8, vshlq_n_u8, vshrq_n_u8};
        // SAFETY: this function enables the target features.
        let low = unsafe { self.low.load_bytes(group) };
        array::from_fn(|n| {
            let high = quarter_line(&self.high[group / 2], n % 4);
            let moved = match group % 2 * 2 + n / 4 {
                0 => vshlq_n_u8::<4>(high),
                1 => vshlq_n_u8::<2>(high),
                2 => high,
                _ => vshrq_n_u8::<2>(high),
            };
            vorrq_u8(low[n], vandq_u8(moved, vdupq_n_u8(HIGH)))
        })
    }
}

/// Multiplied by a byte, gives four copies of it.
const IN_EACH_BYTE: u32 = 0x0101_0101;

/// Calls `visit` with all rows and groups of four inputs.
#[inline(always)]
fn each_group(mut visit: impl FnMut(usize, usize)) {
    (0..BLOCK / 4).for_each(|group| (0..PANEL).for_each(|row| visit(row, group)));
}

/// The `n`-th four bytes of a line.
#[inline(always)]
fn four(line: &mut Line<u8, 64>, n: usize) -> &mut [u8; 4] {
    &mut line.0.as_chunks_mut::<4>().0[n]
}

/// Sets bits in the `n`-th four bytes of a line.
#[inline(always)]
fn or(line: &mut Line<u8, 64>, n: usize, bits: u32) {
    let four = four(line, n);
    *four = (u32::from_le_bytes(*four) | bits).to_le_bytes();
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
    // SAFETY: the slice has sixteen bytes.
    unsafe { std::arch::aarch64::vld1q_u8(line.0[16 * quarter..][..16].as_ptr()) }
}
