//! Factors of a panel's 32 rows in f32: scales and minima.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{float32x4_t, uint16x4_t};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

use half::f16;

use super::super::panel_layout::{Line, PANEL};

#[cfg(target_arch = "aarch64")]
/// Registers of four rows in a panel.
pub(in crate::ops::cpu) const REGISTERS: usize = PANEL / 4;

/// A factor for each row of a panel.
pub(in crate::ops::cpu) trait RowFactors: Copy {
    /// The factor of row `row`.
    fn get(self, row: usize) -> f32;

    /// Rows 0 to 15 and 16 to 31.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load(self) -> [__m512; 2];

    /// Rows `8 n ..`, eight of them.
    ///
    /// # Safety
    /// The machine must have AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load_eight(self, n: usize) -> __m256;

    /// Rows 0 to 3, 4 to 7 and so on.
    ///
    /// # Safety
    /// The machine must have NEON, which all machines of the target have.
    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "compiled for instructions that are named")]
    unsafe fn load_fours(self) -> [float32x4_t; REGISTERS];
}

impl RowFactors for &Line<f16, PANEL> {
    #[inline(always)]
    fn get(self, row: usize) -> f32 {
        self.0[row].to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(self) -> [__m512; 2] {
        use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm512_cvtph_ps};
        let line = self.0.as_ptr().cast::<__m256i>();
        // SAFETY: a line of 32 f16 is 64 bytes, aligned as such.
        unsafe { [_mm512_cvtph_ps(_mm256_load_si256(line)), _mm512_cvtph_ps(_mm256_load_si256(line.add(1)))] }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load_eight(self, n: usize) -> __m256 {
        use std::arch::x86_64::{__m128i, _mm_load_si128, _mm256_cvtph_ps};
        // SAFETY: a line of 32 f16 is 64 bytes, aligned as such: four registers.
        unsafe { _mm256_cvtph_ps(_mm_load_si128(self.0.as_ptr().cast::<__m128i>().add(n))) }
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_fours(self) -> [float32x4_t; REGISTERS] {
        use std::arch::aarch64::vld1_u16;
        let halves = self.0.as_ptr().cast::<u16>();
        // SAFETY: eight registers of 4 values are the line of 32; an f16 is a u16 in memory.
        std::array::from_fn(|n| widen(unsafe { vld1_u16(halves.add(4 * n)) }))
    }
}

/// For each row a small integer times an f16.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops::cpu) struct Products<'a> {
    pub(in crate::ops::cpu) units: &'a Line<f16, PANEL>,
    pub(in crate::ops::cpu) factors: &'a [i8; PANEL],
}

impl RowFactors for Products<'_> {
    #[inline(always)]
    fn get(self, row: usize) -> f32 {
        self.units.get(row) * f32::from(self.factors[row])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(self) -> [__m512; 2] {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_mul_ps};
        let factors = self.factors.as_ptr().cast::<__m128i>();
        // SAFETY: this function's own target features; 16 bytes behind 16 bytes are the array of 32.
        unsafe {
            let [left, right] = self.units.load();
            let part = |n: usize| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(factors.add(n))));
            [_mm512_mul_ps(left, part(0)), _mm512_mul_ps(right, part(1))]
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load_eight(self, n: usize) -> __m256 {
        use std::arch::x86_64::{_mm_loadl_epi64, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_mul_ps};
        // SAFETY: this function's own target features; four times 8 bytes are the array of 32.
        unsafe {
            let factors = _mm_loadl_epi64(self.factors.as_ptr().add(8 * n).cast());
            _mm256_mul_ps(self.units.load_eight(n), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(factors)))
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_fours(self) -> [float32x4_t; REGISTERS] {
        use std::arch::aarch64::{vld1q_f32, vmulq_f32};
        // SAFETY: this function's own target features.
        let units = unsafe { self.units.load_fours() };
        std::array::from_fn(|n| {
            let factors: [f32; 4] = std::array::from_fn(|at| f32::from(self.factors[4 * n + at]));
            // SAFETY: the four values are there.
            vmulq_f32(units[n], unsafe { vld1q_f32(factors.as_ptr()) })
        })
    }
}

#[cfg(target_arch = "aarch64")]
/// Converts four f16 to f32.
#[inline]
#[expect(unsafe_code, reason = "an instruction without a stable name")]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: works on registers alone, and every machine of the target has it.
    unsafe {
        std::arch::asm!(
            "fcvtl {wide:v}.4s, {halves:v}.4h",
            wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}
