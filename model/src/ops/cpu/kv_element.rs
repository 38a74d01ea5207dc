//! Elements of the KV cache: f32, f16, and 8-bit integers.

use burn::backend::flex::FlexTensor;
use half::{bf16, f16, slice::HalfFloatSliceExt};

#[cfg(target_arch = "x86_64")]
use super::{Isa, isa};
use crate::ops::PAGE_SIZE;

/// An element of a pool of keys or values.
pub(in crate::ops) trait KvElement: Copy + Default + Send + Sync + Sized {
    /// The elements of a contiguous tensor of this type.
    fn stored(tensor: &FlexTensor) -> &[Self];

    /// As [`stored`](Self::stored), mutable; copied first if another tensor shares the memory.
    fn stored_mut(tensor: &mut FlexTensor) -> &mut [Self];

    /// A head is stored with `head_dim` rounded up to a multiple of this; the padding is 0.
    const DIM_UNIT: usize = 1;

    /// Elements per token and head that hold its scale; 0 if the dtype has no scales.
    const SCALE_LEN: usize = 0;

    /// The scale of a head with these `values`: stored elements are multiplied by it when they are read.
    fn scale_of(values: &[f32]) -> f32 {
        let _ = values;
        1.0
    }

    /// The elements that hold a scale.
    fn scale_elements(scale: f32) -> impl Iterator<Item = Self> {
        let _ = scale;
        std::iter::empty()
    }

    /// Rounds `values` to the nearest elements of this scale, and out-of-range values to the largest; lengths must match.
    fn store(values: &[f32], scale: f32, places: &mut [Self]);

    /// The index of a dimension of a token's key within its page and head.
    fn key_place(dim: usize, token: usize) -> usize {
        dim * PAGE_SIZE + token
    }
}

/// A floating-point element, which is widened to f32 in registers as it is read.
pub(in crate::ops) trait FloatElement: KvElement {
    /// Elements as f32: themselves, or widened into `buffer`, which is at least as long.
    fn widen<'a>(numbers: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];

    /// Loads 16 elements as f32.
    ///
    /// # Safety
    /// `numbers` points to 16 elements.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    unsafe fn load(numbers: *const Self) -> std::arch::x86_64::__m512;

    /// Loads 8 elements as f32.
    ///
    /// # Safety
    /// `numbers` points to 8 elements.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    unsafe fn load_eight(numbers: *const Self) -> std::arch::x86_64::__m256;

    /// Loads up to 16 elements as f32: those in the mask, and 0 for the others.
    ///
    /// # Safety
    /// `numbers` points to the elements in the mask.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    unsafe fn load_masked(mask: u16, numbers: *const Self) -> std::arch::x86_64::__m512;
}

impl KvElement for f32 {
    fn stored(tensor: &FlexTensor) -> &[Self] {
        tensor.storage()
    }

    fn stored_mut(tensor: &mut FlexTensor) -> &mut [Self] {
        tensor.storage_mut()
    }

    fn store(values: &[f32], _: f32, places: &mut [Self]) {
        places.copy_from_slice(values);
    }
}

impl FloatElement for f32 {
    #[inline(always)]
    fn widen<'a>(numbers: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        numbers
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(numbers: *const Self) -> std::arch::x86_64::__m512 {
        // SAFETY: the caller guarantees 16 numbers.
        unsafe { std::arch::x86_64::_mm512_loadu_ps(numbers) }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_eight(numbers: *const Self) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller guarantees 8 numbers.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(numbers) }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load_masked(mask: u16, numbers: *const Self) -> std::arch::x86_64::__m512 {
        // SAFETY: the caller guarantees the elements in the mask.
        unsafe { std::arch::x86_64::_mm512_maskz_loadu_ps(mask, numbers) }
    }
}

/// Values that are rounded at a time.
const CHUNK: usize = 64;

impl KvElement for f16 {
    fn stored(tensor: &FlexTensor) -> &[Self] {
        tensor.storage()
    }

    fn stored_mut(tensor: &mut FlexTensor) -> &mut [Self] {
        tensor.storage_mut()
    }

    fn store(values: &[f32], _: f32, places: &mut [Self]) {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        unsafe {
            match isa() {
                Isa::Avx512 => return store_avx512(values, places),
                Isa::Avx2 | Isa::AvxVnni => return store_avx2(values, places),
                Isa::Portable => {}
            }
        }
        let most = f16::MAX.to_f32();
        for (values, places) in values.chunks(CHUNK).zip(places.chunks_mut(CHUNK)) {
            let mut within = [0.0; CHUNK];
            within.iter_mut().zip(values).for_each(|(within, value)| *within = value.clamp(-most, most));
            places.convert_from_f32_slice(&within[..values.len()]);
        }
    }
}

impl FloatElement for f16 {
    #[inline(always)]
    fn widen<'a>(numbers: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..numbers.len()];
        numbers.convert_to_f32_slice(buffer);
        buffer
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(numbers: *const Self) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
        // SAFETY: the caller guarantees 16 numbers of 2 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(numbers.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_eight(numbers: *const Self) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps};
        // SAFETY: the caller guarantees 8 numbers of 2 bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(numbers.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn load_masked(mask: u16, numbers: *const Self) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::{_mm256_maskz_loadu_epi16, _mm512_cvtph_ps};
        // SAFETY: the caller guarantees the elements in the mask.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, numbers.cast())) }
    }
}

/// The largest number of [`KvDtype::Q8`](crate::ops::KvDtype::Q8).
pub(super) const Q8_MAX: f32 = 127.0;
/// Products of bytes that one instruction adds to a 32-bit sum: their numbers are stored side by side.
pub(super) const FOUR: usize = 4;
/// Added to a small number, rounds it to a whole one, which is then in the lowest bits.
pub(super) const ROUNDING: f32 = 1.5 * (1 << 23) as f32;
/// If all values of a head, or all weights of a page, have smaller magnitudes, they are stored as 0: the inverse of
/// their scale could overflow.
pub(super) const Q8_LEAST: f32 = 1e-30;

/// [`KvElement::scale_of`] of numbers of 8 bits, where the largest magnitude is `largest`.
pub(super) fn scale_of_largest(largest: f32) -> f32 {
    if largest < Q8_LEAST { 0.0 } else { largest / Q8_MAX }
}

impl KvElement for i8 {
    // The number of dimensions that one instruction multiplies on the narrowest registers.
    const DIM_UNIT: usize = 16;
    // The bytes of an f32.
    const SCALE_LEN: usize = size_of::<f32>();

    fn stored(tensor: &FlexTensor) -> &[Self] {
        bytemuck::cast_slice(tensor.storage::<bf16>())
    }

    fn stored_mut(tensor: &mut FlexTensor) -> &mut [Self] {
        bytemuck::cast_slice_mut(tensor.storage_mut::<bf16>())
    }

    fn scale_of(values: &[f32]) -> f32 {
        // As integers, the bits of magnitudes keep their order, and NaN is above all others.
        scale_of_largest(values.iter().map(|value| value.abs().to_bits()).max().map_or(0.0, f32::from_bits))
    }

    fn scale_elements(scale: f32) -> impl Iterator<Item = Self> {
        scale.to_ne_bytes().into_iter().map(u8::cast_signed)
    }

    fn store(values: &[f32], scale: f32, places: &mut [Self]) {
        let factor = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        for (value, place) in values.iter().zip(places) {
            *place = (value * factor + ROUNDING).to_bits() as Self;
        }
    }

    fn key_place(dim: usize, token: usize) -> usize {
        (dim / FOUR * PAGE_SIZE + token) * FOUR + dim % FOUR
    }
}

/// [`KvElement::store`], 16 at a time: a step stores hundreds of thousands of numbers on one thread.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store_avx512(values: &[f32], places: &mut [f16]) {
    use std::arch::x86_64::{
        _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_mask_storeu_epi16, _mm512_cvtps_ph, _mm512_maskz_loadu_ps,
        _mm512_max_ps, _mm512_min_ps, _mm512_set1_ps,
    };
    const LANES: usize = 16;
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let most = f16::MAX.to_f32();
    for (values, places) in values.chunks(LANES).zip(places.chunks_mut(LANES)) {
        let mask = (u32::MAX >> (32 - values.len().min(places.len()))) as u16;
        // SAFETY: the mask has no more numbers than either slice. Of NaN and a bound, the second operand is taken: NaN.
        unsafe {
            let value = _mm512_maskz_loadu_ps(mask, values.as_ptr());
            let within = _mm512_max_ps(_mm512_set1_ps(-most), _mm512_min_ps(_mm512_set1_ps(most), value));
            _mm256_mask_storeu_epi16(places.as_mut_ptr().cast(), mask, _mm512_cvtps_ph::<NEAREST>(within));
        }
    }
}

/// Stores eight values at a time.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_avx2(values: &[f32], places: &mut [f16]) {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps,
        _mm256_set1_ps,
    };
    const LANES: usize = 8;
    let most = f16::MAX.to_f32();
    for (values, places) in values.chunks(LANES).zip(places.chunks_mut(LANES)) {
        let (mut padded, mut rounded) = ([0.0; LANES], [f16::ZERO; LANES]);
        padded[..values.len()].copy_from_slice(values);
        // SAFETY: both arrays have 8 values. Of NaN and a bound, the second operand is taken: NaN.
        unsafe {
            let value = _mm256_loadu_ps(padded.as_ptr());
            let within = _mm256_max_ps(_mm256_set1_ps(-most), _mm256_min_ps(_mm256_set1_ps(most), value));
            _mm_storeu_si128(rounded.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(within));
        }
        places.copy_from_slice(&rounded[..places.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, noise, with_isa};

    #[test]
    fn f16_kv_store_rounds_alike_with_every_instruction_set() {
        for (n, scale) in [(1, 1.0), (15, 1e-7), (16, 1e-5), (17, 1.0), (64, 9e4), (200, 1e3)] {
            let values: Vec<f32> = noise(n, 7).iter().map(|value| value * scale).collect();
            let expected: Vec<f16> = values.iter().map(|value| f16::from_f32(value.clamp(-65504.0, 65504.0))).collect();
            for level in every_isa() {
                let mut places = vec![f16::ONE; n];
                with_isa(level, || f16::store(&values, 1.0, &mut places));
                assert_eq!(places, expected, "{n} of {scale} with {level:?}");
            }
        }
    }

    #[test]
    fn q8_kv_store_scales_a_head_to_its_largest_value() {
        for (n, factor) in [(1, 1.0), (20, 1e-20), (64, 1.0), (128, 1e20)] {
            let values: Vec<f32> = noise(n, 7).iter().map(|value| value * factor).collect();
            let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let scale = i8::scale_of(&values);
            let mut places = vec![0; n];
            i8::store(&values, scale, &mut places);
            assert!(places.iter().any(|place| place.abs() == 127));
            for (value, place) in values.iter().zip(&places) {
                assert_eq!(f32::from(*place), (value / largest * 127.0).round(), "{value} of {largest}");
            }
            let elements: Vec<u8> = i8::scale_elements(scale).map(i8::cast_unsigned).collect();
            assert_eq!(elements, scale.to_ne_bytes());
        }
        // Ties go to the even number; values too small for a scale become 0; NaN and infinity give a scale that is not
        // finite.
        let mut places = [0; 4];
        i8::store(&[0.5, 1.5, -2.5, 127.0], 1.0, &mut places);
        assert_eq!(places, [0, 2, -2, 127]);
        let tiny = [f32::MIN_POSITIVE, -1e-38, 0.0];
        assert_eq!(i8::scale_of(&tiny), 0.0);
        i8::store(&tiny, 0.0, &mut places[..3]);
        assert_eq!(places[..3], [0, 0, 0]);
        assert!(i8::scale_of(&[1.0, f32::NAN, 2.0]).is_nan() && i8::scale_of(&[1.0, f32::INFINITY]).is_infinite());
    }

    #[test]
    fn f16_kv_store_clamps_large_values_to_the_largest_f16() {
        let values = [1e30, -1e30, 65504.0, 65519.9, f32::INFINITY, 1.0 + 1.0 / 4096.0, 1e-12];
        let mut places = [f16::ONE; 7];
        f16::store(&values, 1.0, &mut places);
        assert_eq!(places.map(f16::to_f32), [65504.0, -65504.0, 65504.0, 65504.0, 65504.0, 1.0, 0.0]);
        f16::store(&[f32::NAN], 1.0, &mut places[..1]);
        assert!(places[0].is_nan(), "NaN stays NaN");
    }
}
