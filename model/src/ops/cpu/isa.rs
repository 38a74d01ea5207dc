//! The instruction set that kernels are selected by.

#[cfg(test)]
pub(super) mod tests;

use std::sync::OnceLock;

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// 512-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit registers and fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every machine of the target has (on 64-bit ARM, that is NEON).
    Baseline,
}

/// The best instruction set of this machine; tests can force a lesser one.
pub(super) fn isa() -> Isa {
    #[cfg(test)]
    if let Some(forced) = tests::forced() {
        return forced;
    }
    best_isa()
}

fn best_isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            // For measurements of what a lesser machine would do.
            let cap = std::env::var("HEARTH_CPU").unwrap_or_default();
            if cap == "baseline" {
                return Isa::Baseline;
            }
            let has_avx512 = cap != "avx2"
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if has_avx512 {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                return Isa::Avx2;
            }
        }
        Isa::Baseline
    })
}

/// `a * b + c`: fused, so rounded once, wherever the machine has the instruction.
#[inline(always)]
pub(super) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction, `mul_add` would call a slow library function.
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Whether the baseline of this target has fused multiply-add.
pub(super) const BASELINE_IS_FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

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
                $crate::ops::cpu::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                $crate::ops::cpu::isa::Isa::Baseline => $body::<{ $crate::ops::cpu::isa::BASELINE_IS_FUSED }>($($arg),*),
            }
        }
    };
}

pub(super) use for_each_isa;
