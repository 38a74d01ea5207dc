//! Registers of f32, for kernels that keep sums in them.
//!
//! Functions are inlined into those that have the target features.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128, __m256, __m512, _mm_unpacklo_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_permute_ps, _mm256_permute2f128_ps, _mm256_set1_ps,
    _mm256_storeu_ps, _mm256_sub_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps, _mm512_add_ps, _mm512_castps512_ps256,
    _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps,
    _mm512_sub_ps,
};

use crate::ops::cpu::multiply_add;

/// A register of f32, of 8 or 16 lanes. All implementations with fused products give the same bits.
///
/// # Safety
/// The machine has the instructions, and addresses point to a register's number of values.
pub(in crate::ops::cpu) trait Lanes: Copy {
    /// Lanes of a register.
    const WIDTH: usize;

    /// The same number in all lanes.
    unsafe fn splat(number: f32) -> Self;

    unsafe fn load(from: *const f32) -> Self;

    unsafe fn store(self, to: *mut f32);

    unsafe fn plus(self, other: Self) -> Self;

    unsafe fn minus(self, other: Self) -> Self;

    unsafe fn times(self, other: Self) -> Self;

    /// `self * factor + term`, rounded once where the machine can.
    unsafe fn times_plus(self, factor: Self, term: Self) -> Self;

    /// The sums of the lanes of four registers: of each, one half is added to the other until one lane is left.
    unsafe fn sums(four: [Self; 4]) -> [f32; 4];
}

/// Eight lanes of plain Rust.
#[derive(Clone, Copy)]
pub(in crate::ops::cpu) struct Plain<const FUSED: bool>([f32; 8]);

impl<const FUSED: bool> Lanes for Plain<FUSED> {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        Self([number; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { Self(from.cast::<[f32; 8]>().read()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { to.cast::<[f32; 8]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    unsafe fn minus(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] - other.0[lane]))
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }

    #[inline(always)]
    unsafe fn times_plus(self, factor: Self, term: Self) -> Self {
        Self(std::array::from_fn(|lane| multiply_add::<FUSED>(self.0[lane], factor.0[lane], term.0[lane])))
    }

    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        four.map(|Self([a, b, c, d, e, f, g, h])| ((a + e) + (c + g)) + ((b + f) + (d + h)))
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m256 {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        // SAFETY: the caller upholds the trait's contract, as in all of these functions.
        unsafe { _mm256_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm256_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn minus(self, other: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm256_sub_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm256_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn times_plus(self, factor: Self, term: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm256_fmadd_ps(self, factor, term) }
    }

    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller upholds the trait's contract.
        unsafe {
            // Four lanes of `a` and of `b`; then two lanes of `a` and `c`, and of `b` and `d`.
            let [ab, cd] = [[a, b], [c, d]].map(|[one, other]| {
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(one, other), _mm256_permute2f128_ps::<0x31>(one, other))
            });
            let two = _mm256_add_ps(_mm256_unpacklo_ps(ab, cd), _mm256_unpackhi_ps(ab, cd));
            let one = _mm256_add_ps(two, _mm256_permute_ps::<0b01_00_11_10>(two));
            let sums = _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m512 {
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        // SAFETY: the caller upholds the trait's contract, as in all of these functions.
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn minus(self, other: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm512_sub_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn times_plus(self, factor: Self, term: Self) -> Self {
        // SAFETY: the caller upholds the trait's contract.
        unsafe { _mm512_fmadd_ps(self, factor, term) }
    }

    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller upholds the trait's contract.
        unsafe {
            Lanes::sums(
                four.map(|register| {
                    _mm256_add_ps(_mm512_castps512_ps256(register), _mm512_extractf32x8_ps::<1>(register))
                }),
            )
        }
    }
}

/// A function that calls `$body::<register, FUSED, sub-blocks>` for this machine: the last number is how many registers of
/// columns are processed together.
macro_rules! for_each_register {
    ($name:ident($($arg:ident: $type:ty),*) = $body:ident) => {
        fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
            unsafe fn avx512($($arg: $type),*) {
                // SAFETY: the caller found the instructions.
                unsafe { $body::<std::arch::x86_64::__m512, true, 2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $type),*) {
                // SAFETY: the caller found the instructions.
                unsafe { $body::<std::arch::x86_64::__m256, true, 1>($($arg),*) }
            }
            #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
            // SAFETY: `isa` found the instructions.
            unsafe {
                use $crate::ops::cpu::{PORTABLE_IS_FUSED, isa::{Isa, isa}, recurrent::Plain};
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 | Isa::AvxVnni => avx2($($arg),*),
                    _ => $body::<Plain<PORTABLE_IS_FUSED>, { PORTABLE_IS_FUSED }, 1>($($arg),*),
                }
            }
        }
    };
}

pub(in crate::ops::cpu) use for_each_register;
