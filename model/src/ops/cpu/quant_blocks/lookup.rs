//! Numbers that are looked up in a table by codes of 4 or 3 bits.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::uint8x16_t;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, __m512i};
use std::marker::PhantomData;

use super::super::panel_layout::PANEL;
use super::Numbers;
#[cfg(target_arch = "aarch64")]
use super::scales::REGISTERS;

/// The numbers of a format, by their codes.
pub(in crate::ops::cpu) trait Table: Copy + Send + Sync + 'static {
    /// At most 16 values, in the order of their codes.
    const VALUES: &'static [i8];
    /// Added to a number to make it unsigned: more than the largest magnitude, or 128.
    const MIDDLE: u8;
    /// See [`Numbers::UNIT`].
    const UNIT: f32 = 1.0;

    /// The numbers as [`Numbers`] has them.
    const UNSIGNED: [u8; 16] = {
        let (mut unsigned, mut code) = ([0; 16], 0);
        while code < Self::VALUES.len() {
            unsigned[code] = Self::VALUES[code].cast_unsigned().wrapping_add(Self::MIDDLE);
            code += 1;
        }
        unsigned
    };
    /// The codes of unsigned numbers.
    const CODES: [u8; 256] = {
        let (mut codes, mut code) = ([0; 256], Self::VALUES.len());
        while code > 0 {
            code -= 1;
            codes[Self::UNSIGNED[code] as usize] = code as u8;
        }
        codes
    };
}

/// Numbers of the table `T`, whose codes are stored as `N`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::ops::cpu) struct Lookup<N, T>(N, PhantomData<T>);

impl<N: Numbers, T: Table> Numbers for Lookup<N, T> {
    const MIDDLE: u8 = T::MIDDLE;
    const LARGEST: u8 = if T::MIDDLE == 128 { 255 } else { 2 * T::MIDDLE - 1 };
    const UNIT: f32 = T::UNIT;

    fn pack(numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let codes = |row, group| numbers(row, group).map(|number| T::CODES[usize::from(number)]);
        Self(N::pack(codes), PhantomData)
    }

    #[inline(always)]
    fn get(&self, row: usize, input: usize) -> u8 {
        T::UNSIGNED[usize::from(self.0.get(row, input) & 15)]
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        self.0.group(group).map(|codes| codes.map(|code| T::UNSIGNED[usize::from(code & 15)]))
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[__m512i; 2]; 2] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm512_broadcast_i32x4, _mm512_shuffle_epi8};
        // SAFETY: this function enables the target features; the table has 16 bytes.
        let (codes, table) = unsafe { (self.0.load(half), _mm_loadu_si128(T::UNSIGNED.as_ptr().cast())) };
        let table = _mm512_broadcast_i32x4(table);
        codes.map(|codes| codes.map(|codes| _mm512_shuffle_epi8(table, codes)))
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_eight(&self, group: usize, n: usize) -> __m256i {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_broadcastsi128_si256, _mm256_shuffle_epi8};
        // SAFETY: this function enables the target features; the table has 16 bytes.
        let (codes, table) = unsafe { (self.0.load_eight(group, n), _mm_loadu_si128(T::UNSIGNED.as_ptr().cast())) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_bytes(&self, group: usize) -> [uint8x16_t; REGISTERS] {
        use std::arch::aarch64::{vld1q_u8, vqtbl1q_u8};
        // SAFETY: this function enables the target features; the table has 16 bytes.
        let (codes, table) = unsafe { (self.0.load_bytes(group), vld1q_u8(T::UNSIGNED.as_ptr())) };
        codes.map(|codes| vqtbl1q_u8(table, codes))
    }
}

/// A table: a type without values.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident: $middle:literal, $unit:expr, $values:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(in crate::ops::cpu) enum $name {}

        impl Table for $name {
            const VALUES: &'static [i8] = &$values;
            const MIDDLE: u8 = $middle;
            const UNIT: f32 = $unit;
        }
    };
}

table!(
    /// The levels of `IQ4_NL` and `IQ4_XS`.
    Iq4: 128, 1.0, [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
);
table!(
    /// Floats of four bits, two of them for the exponent and one for the fraction, doubled.
    Fp4: 13, 1.0, [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
);
table!(
    /// The levels of `IQ3_S`.
    Iq3S: 16, 1.0, [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15]
);
table!(
    /// The levels of `IQ3_XXS`.
    Iq3Xxs: 63, 0.25, [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62]
);
table!(
    /// The levels of `IQ2_XXS`, `IQ2_XS` and `IQ2_S`.
    Iq2: 44, 0.125, [8, 25, 43, -8, -25, -43]
);
table!(
    /// The levels of `IQ1_S` and `IQ1_M`: eight times -1, 0 or 1, and 1 more or less.
    Iq1: 10, 0.125, [-9, -7, -1, 1, 7, 9]
);
