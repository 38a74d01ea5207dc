//! The instruction set that kernels are selected by.

#[cfg(test)]
pub(super) mod tests;

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// The instruction sets that kernels are compiled for, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Isa {
    /// Baseline instructions of the target (on 64-bit ARM that includes NEON).
    Portable,
    /// 256-bit registers, fused multiply-add and conversion of f16.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with sums of four products of bytes (`vpdpbusd`).
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// 512-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON with sums of four products of bytes.
    #[cfg(target_arch = "aarch64")]
    DotProd,
    /// NEON with products of small matrices of bytes.
    #[cfg(target_arch = "aarch64")]
    I8mm,
}

/// The variable that chooses an instruction set.
const VARIABLE: &str = "HEARTH_CPU";

impl Isa {
    /// All instruction sets with their names, from the smallest.
    const ALL: &'static [(&'static str, Self)] = &[
        ("portable", Self::Portable),
        #[cfg(target_arch = "x86_64")]
        ("avx2", Self::Avx2),
        #[cfg(target_arch = "x86_64")]
        ("avx-vnni", Self::AvxVnni),
        #[cfg(target_arch = "x86_64")]
        ("avx512", Self::Avx512),
        #[cfg(target_arch = "aarch64")]
        ("dotprod", Self::DotProd),
        #[cfg(target_arch = "aarch64")]
        ("i8mm", Self::I8mm),
    ];

    /// Whether this machine has it.
    fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_here() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "aarch64")]
            Self::DotProd => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm => Self::DotProd.is_here() && std::arch::is_aarch64_feature_detected!("i8mm"),
        }
    }
}

/// The instruction set of this process: the one that `HEARTH_CPU` names, else the best of this machine. Tests can force a
/// lesser one.
pub(super) fn isa() -> Isa {
    #[cfg(test)]
    if let Some(forced) = tests::forced() {
        return forced;
    }
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| chosen().unwrap_or_else(|_| best_isa()))
}

/// The name of the instruction set that this process uses: `portable`, `avx2`, `avx-vnni`, `avx512`, or on 64-bit ARM
/// `dotprod` or `i8mm`. The variable `HEARTH_CPU` chooses one.
///
/// # Errors
/// [`Error::Param`] if the variable names none, or one that this machine does not have.
pub fn instruction_set() -> Result<&'static str> {
    let chosen = chosen()?;
    Ok(Isa::ALL.iter().find(|(_, isa)| *isa == chosen).map_or("portable", |(name, _)| name))
}

/// Whether products in bf16 are faster than those in f32. On Intel's cores `vdpbf16ps` gives less than half as many products
/// in a second as multiply-adds in f32 (docs/lab/training.md), so only unit tests use it there.
pub(in crate::ops) fn has_fast_bf16_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return isa() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16") && (cfg!(test) || !is_intel());
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether the CPU is made by Intel.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    static IS_INTEL: LazyLock<bool> =
        LazyLock::new(|| std::arch::x86_64::__cpuid(0).ebx == u32::from_le_bytes(*b"Genu"));
    *IS_INTEL
}

fn here() -> impl DoubleEndedIterator<Item = &'static (&'static str, Isa)> {
    Isa::ALL.iter().filter(|(_, isa)| isa.is_here())
}

fn best_isa() -> Isa {
    here().next_back().map_or(Isa::Portable, |(_, isa)| *isa)
}

/// The instruction set that `HEARTH_CPU` names; the best one if it is unset or empty.
fn chosen() -> Result<Isa> {
    let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return Ok(best_isa()) };
    let named = here().find(|(known, _)| name == *known);
    named.map(|(_, isa)| *isa).ok_or_else(|| {
        let names: Vec<_> = here().map(|(name, _)| format!("`{name}`")).collect();
        let (name, names) = (name.to_string_lossy(), names.join(", "));
        Error::Param { name: VARIABLE, what: format!("is `{name}`, and this machine can use {names}") }
    })
}

/// `a * b + c`: fused, so rounded once, wherever the machine has the instruction.
#[inline(always)]
pub(super) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction, `mul_add` would call a slow library function.
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Whether every machine of this target has fused multiply-add.
pub(super) const PORTABLE_IS_FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Compiles `$body` for each instruction set, and calls the one for this machine.
macro_rules! for_each_isa {
    ($name:ident($($arg:ident: $type:ty),*) = $body:ident) => {
        pub(super) fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
            unsafe fn avx512($($arg: $type),*) {
                $body::<true>($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $type),*) {
                $body::<true>($($arg),*);
            }
            match $crate::ops::cpu::isa::isa() {
                #[cfg(target_arch = "x86_64")]
                #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
                // SAFETY: `isa` found the instructions.
                $crate::ops::cpu::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
                // SAFETY: `isa` found the instructions.
                $crate::ops::cpu::isa::Isa::Avx2 | $crate::ops::cpu::isa::Isa::AvxVnni => unsafe { avx2($($arg),*) },
                _ => $body::<{ $crate::ops::cpu::isa::PORTABLE_IS_FUSED }>($($arg),*),
            }
        }
    };
}

pub(super) use for_each_isa;
