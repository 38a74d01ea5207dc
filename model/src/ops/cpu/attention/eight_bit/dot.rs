//! Sums of four products of bytes, with each instruction set.
//!
//! Functions are inlined into those that have the target features. Their unsafe blocks rely on the contract of [`Dot`] alone.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{
    float32x4_t, int32x4_t, vcvtq_f32_s32, vdupq_n_s32, vfmaq_n_f32, vld1q_f32, vld1q_s8, vmulq_f32, vmulq_n_f32,
    vreinterpretq_s8_s32, vreinterpretq_s32_s8, vst1q_f32,
};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, __m512i, _CMP_NEQ_UQ, _mm_and_ps, _mm_castsi128_ps, _mm_cmpnlt_ps, _mm_div_ps,
    _mm_max_epu32, _mm_mul_ps, _mm_packs_epi16, _mm_set1_ps, _mm_setzero_si128, _mm_storeu_ps, _mm_storeu_si128,
    _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64, _mm256_abs_epi8, _mm256_add_epi32,
    _mm256_and_ps, _mm256_castps_si256, _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepi32_ps, _mm256_cvtps_epi32,
    _mm256_dpbusd_avx_epi32, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_max_epu32, _mm256_mul_ps, _mm256_packs_epi32,
    _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_sign_epi8, _mm256_storeu_ps, _mm256_xor_si256, _mm512_castps_si512,
    _mm512_castsi512_si256, _mm512_cmpneq_ps_mask, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_cvtps_epi32,
    _mm512_dpbusd_epi32, _mm512_extracti64x4_epi64, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_maskz_mul_ps, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps, _mm512_xor_si512,
};

use super::{LANES, Q8_LEAST, TOGETHER};
#[cfg(target_arch = "aarch64")]
use crate::ops::cpu::gemm_quant::neon;
use crate::ops::cpu::{
    PORTABLE_IS_FUSED,
    kv_element::{Q8_MAX, ROUNDING},
    multiply_add,
};

/// A register of 32-bit lanes: sums, or four bytes in each.
///
/// # Safety
/// The machine has the instructions, and addresses point to a register's number of values.
pub(super) trait Dot: Copy {
    /// 32-bit lanes.
    const LANES: usize;

    /// A register with as many f32 lanes.
    type Floats: Copy;

    /// The same number in all lanes.
    unsafe fn splat(number: i32) -> Self;

    /// Bytes, four for each lane.
    unsafe fn load(bytes: *const i8) -> Self;

    /// The initial value of sums of products with a query whose bytes add up to `sum`: it cancels the offset that
    /// [`keys`](Self::keys) may add.
    fn begin(sum: i32) -> i32;

    /// Converts loaded bytes of keys to the form that [`add_keys`](Self::add_keys) takes: some instructions need an
    /// offset.
    unsafe fn keys(self) -> Self;

    /// Adds the products of `keys` with four bytes of a query.
    unsafe fn add_keys(self, keys: Self, query: i32) -> Self;

    /// Adds the products of weights, which are not negative, and values.
    unsafe fn add_values(self, weights: Self, values: Self) -> Self;

    /// Stores `lane * factors[lane] * factor` for each lane.
    unsafe fn store_scaled(self, factors: *const f32, factor: f32, to: *mut f32);

    unsafe fn load_floats(from: *const f32) -> Self::Floats;

    unsafe fn store_floats(floats: Self::Floats, to: *mut f32);

    /// Multiplies the weights of [`TOGETHER`] tiles by `scales` and rounds each tile to integers up to 127 times one
    /// factor. Returns the tiles' factors. A weight of 0 stays 0, even if its scale is not finite.
    unsafe fn round_weights(weights: *const f32, scales: &[*const f32; TOGETHER], to: *mut u8) -> [f32; TOGETHER];

    /// Adds the lanes, multiplied by `factor`.
    unsafe fn add_scaled(self, factor: f32, floats: Self::Floats) -> Self::Floats;
}

/// The larger of each lane of the lower half and the same lane of the upper half.
///
/// # Safety
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn largest_of_eight(numbers: __m256i) -> __m128i {
    unsafe { _mm_max_epu32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers)) }
}

/// For each tile the factor that its weights are multiplied by before rounding, and the one that undoes this
/// afterwards. Each register has the bits of a tile's largest weights, in four lanes. No weight is negative, so bits
/// compare as the numbers do, and NaN compares as the largest.
///
/// # Safety
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn factors_of([a, b, c, d]: [__m128i; TOGETHER]) -> [[f32; TOGETHER]; 2] {
    unsafe {
        // Interleaves and reduces two tiles at a time, then all four.
        let ab = _mm_max_epu32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        let cd = _mm_max_epu32(_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
        let largest = _mm_castsi128_ps(_mm_max_epu32(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd)));
        let is_some = _mm_cmpnlt_ps(largest, _mm_set1_ps(Q8_LEAST));
        let mut factors = [[0.0; TOGETHER]; 2];
        _mm_storeu_ps(factors[0].as_mut_ptr(), _mm_and_ps(is_some, _mm_div_ps(_mm_set1_ps(Q8_MAX), largest)));
        _mm_storeu_ps(factors[1].as_mut_ptr(), _mm_mul_ps(largest, _mm_set1_ps(1.0 / Q8_MAX)));
        factors
    }
}

/// [`Dot::round_weights`] in plain Rust.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn round_weights(weights: *const f32, scales: &[*const f32; TOGETHER], to: *mut u8) -> [f32; TOGETHER] {
    let mut back = [0.0; TOGETHER];
    for (tile, (back, scales)) in back.iter_mut().zip(scales).enumerate() {
        // SAFETY: guaranteed by the caller.
        let [weights, scales] =
            unsafe { [weights.add(tile * LANES), *scales].map(|from| from.cast::<[f32; LANES]>().read_unaligned()) };
        let mut weighted = [0.0; LANES];
        let mut largest = 0;
        for (weighted, (weight, scale)) in weighted.iter_mut().zip(weights.into_iter().zip(scales)) {
            *weighted = if weight == 0.0 { 0.0 } else { weight * scale };
            // As in `factors_of`.
            largest = weighted.to_bits().max(largest);
        }
        let largest = f32::from_bits(largest);
        let factor = if largest < Q8_LEAST { 0.0 } else { Q8_MAX / largest };
        *back = largest * (1.0 / Q8_MAX);
        for (n, weight) in weighted.into_iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { to.add(tile * LANES + n).write((weight * factor + ROUNDING).to_bits() as u8) };
        }
    }
    back
}

/// Added to keys, makes them not negative.
#[cfg(target_arch = "x86_64")]
const OFFSET: i32 = 128;

/// AVX-512 with VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512i);

#[cfg(target_arch = "x86_64")]
impl Dot for Avx512 {
    const LANES: usize = 16;

    type Floats = __m512;

    #[inline(always)]
    unsafe fn splat(number: i32) -> Self {
        unsafe { Self(_mm512_set1_epi32(number)) }
    }

    #[inline(always)]
    unsafe fn load(bytes: *const i8) -> Self {
        unsafe { Self(_mm512_loadu_si512(bytes.cast())) }
    }

    #[inline(always)]
    fn begin(sum: i32) -> i32 {
        -OFFSET * sum
    }

    #[inline(always)]
    unsafe fn keys(self) -> Self {
        unsafe { Self(_mm512_xor_si512(self.0, _mm512_set1_epi8(i8::MIN))) }
    }

    #[inline(always)]
    unsafe fn add_keys(self, keys: Self, query: i32) -> Self {
        unsafe { Self(_mm512_dpbusd_epi32(self.0, keys.0, _mm512_set1_epi32(query))) }
    }

    #[inline(always)]
    unsafe fn add_values(self, weights: Self, values: Self) -> Self {
        unsafe { Self(_mm512_dpbusd_epi32(self.0, weights.0, values.0)) }
    }

    #[inline(always)]
    unsafe fn store_scaled(self, factors: *const f32, factor: f32, to: *mut f32) {
        unsafe {
            let factors = _mm512_mul_ps(_mm512_loadu_ps(factors), _mm512_set1_ps(factor));
            _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(self.0), factors));
        }
    }

    #[inline(always)]
    unsafe fn load_floats(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_floats(floats: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, floats) };
    }

    #[inline(always)]
    unsafe fn round_weights(weights: *const f32, scales: &[*const f32; TOGETHER], to: *mut u8) -> [f32; TOGETHER] {
        unsafe {
            let mut weighted = [_mm512_setzero_ps(); TOGETHER];
            let mut largest = [_mm_setzero_si128(); TOGETHER];
            for (n, (weighted, largest)) in weighted.iter_mut().zip(&mut largest).enumerate() {
                let weights = _mm512_loadu_ps(weights.add(n * LANES));
                let is_some = _mm512_cmpneq_ps_mask(weights, _mm512_setzero_ps());
                *weighted = _mm512_maskz_mul_ps(is_some, weights, _mm512_loadu_ps(scales[n]));
                let bits = _mm512_castps_si512(*weighted);
                *largest = largest_of_eight(_mm256_max_epu32(
                    _mm512_castsi512_si256(bits),
                    _mm512_extracti64x4_epi64::<1>(bits),
                ));
            }
            let [factors, back] = factors_of(largest);
            for (n, (weighted, factor)) in weighted.into_iter().zip(factors).enumerate() {
                let rounded = _mm512_cvtps_epi32(_mm512_mul_ps(weighted, _mm512_set1_ps(factor)));
                _mm_storeu_si128(to.add(n * LANES).cast(), _mm512_cvtepi32_epi8(rounded));
            }
            back
        }
    }

    #[inline(always)]
    unsafe fn add_scaled(self, factor: f32, floats: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(self.0), _mm512_set1_ps(factor), floats) }
    }
}

/// AVX2, with VNNI or without. Without, sums of two products have 16 bits, which is enough for numbers up to 127.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(__m256i);

#[cfg(target_arch = "x86_64")]
impl<const VNNI: bool> Avx2<VNNI> {
    #[inline(always)]
    unsafe fn add(self, unsigned: __m256i, signed: __m256i) -> Self {
        unsafe {
            if VNNI {
                return Self(_mm256_dpbusd_avx_epi32(self.0, unsigned, signed));
            }
            let pairs = _mm256_maddubs_epi16(unsigned, signed);
            Self(_mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<const VNNI: bool> Dot for Avx2<VNNI> {
    const LANES: usize = 8;

    type Floats = __m256;

    #[inline(always)]
    unsafe fn splat(number: i32) -> Self {
        unsafe { Self(_mm256_set1_epi32(number)) }
    }

    #[inline(always)]
    unsafe fn load(bytes: *const i8) -> Self {
        unsafe { Self(_mm256_loadu_si256(bytes.cast())) }
    }

    #[inline(always)]
    fn begin(sum: i32) -> i32 {
        if VNNI { -OFFSET * sum } else { 0 }
    }

    #[inline(always)]
    unsafe fn keys(self) -> Self {
        unsafe { if VNNI { Self(_mm256_xor_si256(self.0, _mm256_set1_epi8(i8::MIN))) } else { self } }
    }

    #[inline(always)]
    unsafe fn add_keys(self, keys: Self, query: i32) -> Self {
        unsafe {
            let query = _mm256_set1_epi32(query);
            if VNNI {
                self.add(keys.0, query)
            } else {
                // The instruction multiplies unsigned by signed bytes: the query's signs are moved to the keys.
                self.add(_mm256_abs_epi8(query), _mm256_sign_epi8(keys.0, query))
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values(self, weights: Self, values: Self) -> Self {
        unsafe { self.add(weights.0, values.0) }
    }

    #[inline(always)]
    unsafe fn store_scaled(self, factors: *const f32, factor: f32, to: *mut f32) {
        unsafe {
            let factors = _mm256_mul_ps(_mm256_loadu_ps(factors), _mm256_set1_ps(factor));
            _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(self.0), factors));
        }
    }

    #[inline(always)]
    unsafe fn load_floats(from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_floats(floats: __m256, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, floats) };
    }

    #[inline(always)]
    unsafe fn round_weights(weights: *const f32, scales: &[*const f32; TOGETHER], to: *mut u8) -> [f32; TOGETHER] {
        unsafe {
            let mut weighted = [[_mm256_setzero_ps(); 2]; TOGETHER];
            let mut largest = [_mm_setzero_si128(); TOGETHER];
            for (n, (weighted, largest)) in weighted.iter_mut().zip(&mut largest).enumerate() {
                for (half, weighted) in weighted.iter_mut().enumerate() {
                    let weights = _mm256_loadu_ps(weights.add(n * LANES + half * Self::LANES));
                    let is_some = _mm256_cmp_ps::<_CMP_NEQ_UQ>(weights, _mm256_setzero_ps());
                    let scaled = _mm256_mul_ps(weights, _mm256_loadu_ps(scales[n].add(half * Self::LANES)));
                    *weighted = _mm256_and_ps(is_some, scaled);
                }
                let [low, high] = [_mm256_castps_si256(weighted[0]), _mm256_castps_si256(weighted[1])];
                *largest = largest_of_eight(_mm256_max_epu32(low, high));
            }
            let [factors, back] = factors_of(largest);
            for (n, (weighted, factor)) in weighted.into_iter().zip(factors).enumerate() {
                let factor = _mm256_set1_ps(factor);
                let low = _mm256_cvtps_epi32(_mm256_mul_ps(weighted[0], factor));
                let high = _mm256_cvtps_epi32(_mm256_mul_ps(weighted[1], factor));
                let words = _mm256_permute4x64_epi64::<0b_11_01_10_00>(_mm256_packs_epi32(low, high));
                let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
                _mm_storeu_si128(to.add(n * LANES).cast(), bytes);
            }
            back
        }
    }

    #[inline(always)]
    unsafe fn add_scaled(self, factor: f32, floats: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(self.0), _mm256_set1_ps(factor), floats) }
    }
}

/// NEON with dot products of signed bytes.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub(super) struct DotProd(int32x4_t);

#[cfg(target_arch = "aarch64")]
impl Dot for DotProd {
    const LANES: usize = 4;

    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn splat(number: i32) -> Self {
        unsafe { Self(vdupq_n_s32(number)) }
    }

    #[inline(always)]
    unsafe fn load(bytes: *const i8) -> Self {
        unsafe { Self(vreinterpretq_s32_s8(vld1q_s8(bytes))) }
    }

    #[inline(always)]
    fn begin(_: i32) -> i32 {
        0
    }

    #[inline(always)]
    unsafe fn keys(self) -> Self {
        self
    }

    #[inline(always)]
    unsafe fn add_keys(self, keys: Self, query: i32) -> Self {
        unsafe { self.add_values(Self(vdupq_n_s32(query)), keys) }
    }

    #[inline(always)]
    unsafe fn add_values(self, weights: Self, values: Self) -> Self {
        unsafe { Self(neon::dot(self.0, vreinterpretq_s8_s32(weights.0), vreinterpretq_s8_s32(values.0))) }
    }

    #[inline(always)]
    unsafe fn store_scaled(self, factors: *const f32, factor: f32, to: *mut f32) {
        unsafe {
            let factors = vmulq_n_f32(vld1q_f32(factors), factor);
            vst1q_f32(to, vmulq_f32(vcvtq_f32_s32(self.0), factors));
        }
    }

    #[inline(always)]
    unsafe fn load_floats(from: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store_floats(floats: float32x4_t, to: *mut f32) {
        unsafe { vst1q_f32(to, floats) };
    }

    #[inline(always)]
    unsafe fn round_weights(weights: *const f32, scales: &[*const f32; TOGETHER], to: *mut u8) -> [f32; TOGETHER] {
        // SAFETY: guaranteed by the caller.
        unsafe { round_weights(weights, scales, to) }
    }

    #[inline(always)]
    unsafe fn add_scaled(self, factor: f32, floats: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_n_f32(floats, vcvtq_f32_s32(self.0), factor) }
    }
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable([i32; Self::LANES]);

impl Portable {
    #[inline(always)]
    fn add(self, one: [i32; Self::LANES], other: [i32; Self::LANES]) -> Self {
        let mut sums = self.0;
        for (sum, (one, other)) in sums.iter_mut().zip(one.into_iter().zip(other)) {
            for (a, b) in one.to_ne_bytes().into_iter().zip(other.to_ne_bytes()) {
                *sum += i32::from(a.cast_signed()) * i32::from(b.cast_signed());
            }
        }
        Self(sums)
    }
}

impl Dot for Portable {
    const LANES: usize = 16;

    type Floats = [f32; 16];

    #[inline(always)]
    unsafe fn splat(number: i32) -> Self {
        Self([number; Self::LANES])
    }

    #[inline(always)]
    unsafe fn load(bytes: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self(bytes.cast::<[i32; Self::LANES]>().read_unaligned()) }
    }

    #[inline(always)]
    fn begin(_: i32) -> i32 {
        0
    }

    #[inline(always)]
    unsafe fn keys(self) -> Self {
        self
    }

    #[inline(always)]
    unsafe fn add_keys(self, keys: Self, query: i32) -> Self {
        self.add(keys.0, [query; Self::LANES])
    }

    #[inline(always)]
    unsafe fn add_values(self, weights: Self, values: Self) -> Self {
        self.add(weights.0, values.0)
    }

    #[inline(always)]
    unsafe fn store_scaled(self, factors: *const f32, factor: f32, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let factors = factors.cast::<Self::Floats>().read_unaligned();
            let scaled: Self::Floats = std::array::from_fn(|n| self.0[n] as f32 * (factors[n] * factor));
            to.cast::<Self::Floats>().write_unaligned(scaled);
        }
    }

    #[inline(always)]
    unsafe fn load_floats(from: *const f32) -> Self::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<Self::Floats>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_floats(floats: Self::Floats, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<Self::Floats>().write_unaligned(floats) };
    }

    #[inline(always)]
    unsafe fn round_weights(weights: *const f32, scales: &[*const f32; TOGETHER], to: *mut u8) -> [f32; TOGETHER] {
        // SAFETY: guaranteed by the caller.
        unsafe { round_weights(weights, scales, to) }
    }

    #[inline(always)]
    unsafe fn add_scaled(self, factor: f32, floats: Self::Floats) -> Self::Floats {
        std::array::from_fn(|n| multiply_add::<PORTABLE_IS_FUSED>(self.0[n] as f32, factor, floats[n]))
    }
}
