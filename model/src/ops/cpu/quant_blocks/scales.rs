//! Factors of a panel's 32 rows in f32: scales and minima.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{float32x4_t, uint16x4_t};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

use half::{bf16, f16};

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

impl RowFactors for &Line<bf16, PANEL> {
    #[inline(always)]
    fn get(self, row: usize) -> f32 {
        self.0[row].to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(self) -> [__m512; 2] {
        use std::arch::x86_64::{
            __m256i, _mm256_load_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_slli_epi32,
        };
        let line = self.0.as_ptr().cast::<__m256i>();
        let widen = |halves| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)));
        // SAFETY: a line of 32 bf16 is 64 bytes, aligned as such.
        unsafe { [widen(_mm256_load_si256(line)), widen(_mm256_load_si256(line.add(1)))] }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load_eight(self, n: usize) -> __m256 {
        use std::arch::x86_64::{
            __m128i, _mm_load_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32,
        };
        // SAFETY: a line of 32 bf16 is 64 bytes, aligned as such: four registers.
        let halves = unsafe { _mm_load_si128(self.0.as_ptr().cast::<__m128i>().add(n)) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_fours(self) -> [float32x4_t; REGISTERS] {
        use std::arch::aarch64::{vld1_u16, vreinterpretq_f32_u32, vshll_n_u16};
        let halves = self.0.as_ptr().cast::<u16>();
        // SAFETY: eight registers of 4 values are the line of 32; a bf16 is a u16 in memory.
        std::array::from_fn(|n| vreinterpretq_f32_u32(vshll_n_u16::<16>(unsafe { vld1_u16(halves.add(4 * n)) })))
    }
}

/// For each row an f32, or minus an f32 times a small integer.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops::cpu) struct GroupFactors<'a> {
    pub(in crate::ops::cpu) scales: &'a [f32; PANEL],
    /// The integers.
    pub(in crate::ops::cpu) zeros: Option<&'a [i8; PANEL]>,
}

impl RowFactors for GroupFactors<'_> {
    #[inline(always)]
    fn get(self, row: usize) -> f32 {
        match self.zeros {
            None => self.scales[row],
            Some(zeros) => self.scales[row] * -f32::from(zeros[row]),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(self) -> [__m512; 2] {
        use std::arch::x86_64::{
            __m128i, _mm_loadu_si128, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_loadu_ps, _mm512_mul_ps,
            _mm512_setzero_si512, _mm512_sub_epi32,
        };
        // SAFETY: two registers of 16 values are each of the arrays of 32.
        std::array::from_fn(|n| unsafe {
            let scales = _mm512_loadu_ps(self.scales.as_ptr().add(16 * n));
            let Some(zeros) = self.zeros else { return scales };
            let zeros = _mm512_cvtepi8_epi32(_mm_loadu_si128(zeros.as_ptr().cast::<__m128i>().add(n)));
            _mm512_mul_ps(scales, _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_setzero_si512(), zeros)))
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load_eight(self, n: usize) -> __m256 {
        use std::arch::x86_64::{
            _mm_loadl_epi64, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_loadu_ps, _mm256_mul_ps,
            _mm256_setzero_si256, _mm256_sub_epi32,
        };
        // SAFETY: four registers of 8 values are each of the arrays of 32.
        unsafe {
            let scales = _mm256_loadu_ps(self.scales.as_ptr().add(8 * n));
            let Some(zeros) = self.zeros else { return scales };
            let zeros = _mm256_cvtepi8_epi32(_mm_loadl_epi64(zeros.as_ptr().add(8 * n).cast()));
            _mm256_mul_ps(scales, _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_setzero_si256(), zeros)))
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_fours(self) -> [float32x4_t; REGISTERS] {
        use std::arch::aarch64::vld1q_f32;
        std::array::from_fn(|n| {
            let factors: [f32; 4] = std::array::from_fn(|at| self.get(4 * n + at));
            // SAFETY: the slice has four values.
            unsafe { vld1q_f32(factors.as_ptr()) }
        })
    }
}

/// For each row a small integer times an f16 times a constant.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops::cpu) struct Products<'a> {
    pub(in crate::ops::cpu) units: &'a Line<f16, PANEL>,
    pub(in crate::ops::cpu) factors: &'a [i8; PANEL],
    /// The bits of a factor that hold its integer.
    pub(in crate::ops::cpu) part: Part,
    /// The constant, a power of two.
    pub(in crate::ops::cpu) constant: f32,
}

/// A signed byte, or half of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops::cpu) enum Part {
    Whole,
    Low,
    High,
}

impl Products<'_> {
    /// The integer of row `row`.
    #[inline(always)]
    pub(in crate::ops::cpu) fn factor(&self, row: usize) -> i8 {
        let factor = self.factors[row];
        match self.part {
            Part::Whole => factor,
            Part::Low => factor & 15,
            Part::High => factor >> 4 & 15,
        }
    }
}

impl RowFactors for Products<'_> {
    #[inline(always)]
    fn get(self, row: usize) -> f32 {
        self.units.get(row) * self.constant * f32::from(self.factor(row))
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(self) -> [__m512; 2] {
        use std::arch::x86_64::{
            __m128i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_srli_epi16, _mm512_cvtepi8_epi32,
            _mm512_cvtepi32_ps, _mm512_mul_ps, _mm512_set1_ps,
        };
        let factors = self.factors.as_ptr().cast::<__m128i>();
        // SAFETY: this function enables the target features; two times 16 bytes are the array of 32.
        unsafe {
            let [left, right] = self.units.load().map(|units| _mm512_mul_ps(units, _mm512_set1_ps(self.constant)));
            let half = |bytes| _mm_and_si128(bytes, _mm_set1_epi8(15));
            let part = |n: usize| {
                let bytes = _mm_loadu_si128(factors.add(n));
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(match self.part {
                    Part::Whole => bytes,
                    Part::Low => half(bytes),
                    Part::High => half(_mm_srli_epi16::<4>(bytes)),
                }))
            };
            [_mm512_mul_ps(left, part(0)), _mm512_mul_ps(right, part(1))]
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load_eight(self, n: usize) -> __m256 {
        use std::arch::x86_64::{
            _mm_and_si128, _mm_loadl_epi64, _mm_set1_epi8, _mm_srli_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
            _mm256_mul_ps, _mm256_set1_ps,
        };
        // SAFETY: this function enables the target features; four times 8 bytes are the array of 32.
        unsafe {
            let bytes = _mm_loadl_epi64(self.factors.as_ptr().add(8 * n).cast());
            let half = |bytes| _mm_and_si128(bytes, _mm_set1_epi8(15));
            let factors = match self.part {
                Part::Whole => bytes,
                Part::Low => half(bytes),
                Part::High => half(_mm_srli_epi16::<4>(bytes)),
            };
            let units = _mm256_mul_ps(self.units.load_eight(n), _mm256_set1_ps(self.constant));
            _mm256_mul_ps(units, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(factors)))
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[expect(unsafe_code, reason = "raw loads")]
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load_fours(self) -> [float32x4_t; REGISTERS] {
        use std::arch::aarch64::{vld1q_f32, vmulq_f32, vmulq_n_f32};
        // SAFETY: this function enables the target features.
        let units = unsafe { self.units.load_fours() };
        std::array::from_fn(|n| {
            let factors: [f32; 4] = std::array::from_fn(|at| f32::from(self.factor(4 * n + at)));
            // SAFETY: the slice has four values.
            vmulq_f32(vmulq_n_f32(units[n], self.constant), unsafe { vld1q_f32(factors.as_ptr()) })
        })
    }
}

#[cfg(target_arch = "aarch64")]
/// Converts four f16 to f32.
#[inline]
#[expect(unsafe_code, reason = "an instruction without a stable name")]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: works on registers alone, and every machine of the target has the instruction.
    unsafe {
        std::arch::asm!(
            "fcvtl {wide:v}.4s, {halves:v}.4h",
            wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}
