//! Bodies for the CPU, on the memory of Flex tensors.
//!
//! They run for tensors on the plain CPU device (no gradients recorded): serving, evaluation, samples. The bodies in
//! `training` also run when gradients are recorded. Two rules hold for all bodies without gradients.
//!
//! - **A row's result does not depend on the other rows.** Every sum has one order, along the inner dimension or the
//!   key positions, for any number of rows.
//! - **One source for all instruction sets** where it is fast enough: the same code is compiled for AVX-512, for AVX2
//!   with FMA and for what every machine has, and selected at run time. Products, attention and the quantization of
//!   inputs have separate bodies for AVX-512, AVX2 and AVX-VNNI, and products of 8-bit numbers have some for ARM; all
//!   give the same bits.

mod allocator;
mod attention;
mod block;
mod experts;
mod fp8_panels;
mod gemm_float;
mod gemm_quant;
mod group_formats;
mod huge_pages;
mod isa;
mod kv_append;
mod kv_element;
mod logit_scan;
mod math;
mod matmul;
mod measure;
mod mlp;
mod narrow_f32;
mod packed_matrix;
mod panel_layout;
mod panel_storage;
mod pool_layout;
mod prefetch;
mod quant_blocks;
mod quant_formats;
mod quant_rounding;
mod quant_rows;
mod recurrent;
mod row_updates;
mod rowwise;
mod strided_rows;
mod tensors;
mod thread_pool;
mod threads;
mod training;

pub use allocator::{MAX_KEPT_BYTES, give_back_memory, keep_freed_memory, limit_arenas};
pub(super) use attention::{PagedElement, attention_paged};
pub(super) use block::{Block, Scratch, block};
pub(crate) use experts::choose;
pub(super) use experts::{ExpertScratch, Experts, LEAST_SUM, RouterMemory, experts};
pub(super) use isa::has_fast_bf16_products;
pub use isa::instruction_set;
#[cfg(test)]
pub(super) use isa::tests::noise;
use isa::{Isa, PORTABLE_IS_FUSED, for_each_isa, isa, multiply_add};
pub(super) use kv_append::{PagedValues, append_keys, append_values, copy_pages};
pub(super) use kv_element::KvElement;
pub(crate) use logit_scan::{SCAN_BLOCK, all_below_infinity, block_maxima, relative_weights, sum_of};
pub(super) use matmul::linear;
pub(super) use measure::{multiply_rate, read_bandwidth};
pub(super) use mlp::LinearMemory;
pub(super) use packed_matrix::Panels;
pub(super) use pool_layout::q8_row_len;
pub(crate) use quant_rounding::nearest_q8;
pub(super) use recurrent::{
    Conv, RecurrentOperands, States, delta_gates, gate_rows, gated_norm, multiply_rows, product, recurrence,
    state_space_gates,
};
pub(super) use row_updates::{LoraPanels, RowUpdate, add_row_updates};
pub(super) use rowwise::{
    NormMemory, NormValues, XieluNumbers, activate, clamped_swiglu_into, gated, norm, qk_norm, rope, soft_cap, xielu,
};
pub(super) use strided_rows::StridedRows;
pub(super) use tensors::{changed, columns, ints, pool, pool_of_zeros, tensor, update, values};
pub use thread_pool::parallel_for_each;
pub use threads::{n_threads, start_threads, use_threads};
pub use training::{ATTENTION_QUERIES, ROWS_AT_ONCE, loss_rows_at_once};
pub(super) use training::{
    Convolve, Embed, Fork, FrozenLinear, Linear, LinearCrossEntropy, LinearDivergence, NormalizeGated, Pass, Recur,
    RopeAttend, adamw, add_gradients, add_lora, clip_norm, clip_part, dropout_factors, muon, square_sum,
};
