//! Bodies for the CPU, over Flex's own memory.
//!
//! They run where a tensor lives on the plain CPU device (no gradients recorded): serving, evaluation, samples. Two
//! rules hold in all of them. **Rows never depend on their neighbours**: a row of the output is the same bits whatever
//! other rows are computed with it, because every sum has one order, that of the inner dimension or of the key
//! positions, for any number of rows. And **one source for every machine** where that is fast enough: the same code is
//! compiled for AVX-512, for AVX2 with FMA and for the baseline, and the best one is chosen when the program runs.
//! Products, attention and the rounding of inputs have bodies in a machine's own instructions besides, to the same bits.

mod arenas;
mod attention;
mod block;
mod crew;
#[cfg(target_arch = "aarch64")]
mod dot_product;
mod exact;
mod fetch;
mod foresight;
mod huge_pages;
mod kv_append;
mod kv_element;
#[cfg(test)]
mod levels;
mod lossless;
mod math;
mod matmul;
mod measure;
mod panels;
mod quant_blocks;
mod quant_rows;
mod quantized;
mod rowwise;
mod scan;
mod tensors;

pub use arenas::{give_back_memory, limit_arenas};
pub(super) use attention::attention_paged;
pub(super) use block::{BlockValues, LinearValues, NormValues, PagedValues, Scratch, block};
pub use crew::share_items;
pub(super) use kv_append::{append_keys, append_values};
pub(super) use kv_element::KvElement;
pub(super) use matmul::linear;
pub(super) use measure::{multiply_rate, read_bandwidth};
pub(super) use panels::Panels;
pub(crate) use quant_blocks::nearest_q8;
pub(super) use rowwise::{activate, gated, norm, norm_heads, rope, soft_cap};
pub(crate) use scan::{SCAN_BLOCK, all_below_infinity, block_maxima, relative_weights, sum_of};
pub(super) use tensors::{Values, changed, ints, is_cpu, pool, pool_of_zeros, tensor, update, values};

use std::sync::OnceLock;

/// The instructions that kernels are compiled for.
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

/// What kernels are chosen by: the best of what this machine has.
pub(super) fn isa() -> Isa {
    #[cfg(test)]
    if let Some(forced) = levels::forced() {
        return forced;
    }
    best_isa()
}

fn best_isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx512 = is_x86_feature_detected!("avx512f")
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

/// Makes the calling thread one of those that share the CPU's work, for the life of the process: what it asks for, it
/// then helps to compute, instead of going to sleep and being woken for every operation. Without effect on one core, or
/// once any work was shared.
pub fn lead_threads() {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    if n_threads > 1
        && let Err(error) = rayon::ThreadPoolBuilder::new().use_current_thread().build_global()
    {
        tracing::debug!("threads are led by another: {error}");
    }
}

/// `a * b + c`: fused, so rounded once, wherever the machine has the instruction.
#[inline(always)]
pub(super) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction, `mul_add` would call a slow library function.
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Whether the baseline of this target has fused multiply-add.
pub(super) const BASELINE_IS_FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
