#[path = "../../../../src/ops/cpu/allocator.rs"]
mod allocator;
#[path = "../../../../src/ops/cpu/attention/mod.rs"]
mod attention;
#[path = "../../../../src/ops/cpu/fp8_panels.rs"]
mod fp8_panels;
#[path = "../../../../src/ops/cpu/gemm_float/mod.rs"]
mod gemm_float;
#[path = "../../../../src/ops/cpu/gemm_quant/mod.rs"]
mod gemm_quant;
#[path = "../../../../src/ops/cpu/group_formats.rs"]
mod group_formats;
#[path = "../../../../src/ops/cpu/huge_pages.rs"]
mod huge_pages;
#[path = "../../../../src/ops/cpu/isa/mod.rs"]
mod isa;
#[path = "../../../../src/ops/cpu/kv_append.rs"]
mod kv_append;
#[path = "../../../../src/ops/cpu/kv_element.rs"]
mod kv_element;
#[path = "../../../../src/ops/cpu/math.rs"]
mod math;
#[path = "../../../../src/ops/cpu/matmul.rs"]
mod matmul;
#[path = "../../../../src/ops/cpu/measure.rs"]
mod measure;
#[path = "../../../../src/ops/cpu/narrow_f32.rs"]
mod narrow_f32;
#[path = "../../../../src/ops/cpu/packed_matrix.rs"]
mod packed_matrix;
#[path = "../../../../src/ops/cpu/panel_layout.rs"]
mod panel_layout;
#[path = "../../../../src/ops/cpu/panel_storage.rs"]
mod panel_storage;
#[path = "../../../../src/ops/cpu/pool_layout.rs"]
mod pool_layout;
#[path = "../../../../src/ops/cpu/prefetch.rs"]
mod prefetch;
#[path = "../../../../src/ops/cpu/quant_blocks/mod.rs"]
mod quant_blocks;
#[path = "../../../../src/ops/cpu/quant_formats.rs"]
mod quant_formats;
#[path = "../../../../src/ops/cpu/quant_rounding.rs"]
mod quant_rounding;
#[path = "../../../../src/ops/cpu/quant_rows.rs"]
mod quant_rows;
#[path = "../../../../src/ops/cpu/recurrent/mod.rs"]
mod recurrent;
#[path = "../../../../src/ops/cpu/rowwise.rs"]
mod rowwise;
#[path = "../../../../src/ops/cpu/strided_rows.rs"]
mod strided_rows;
#[path = "../../../../src/ops/cpu/thread_pool.rs"]
mod thread_pool;
#[path = "../../../../src/ops/cpu/threads.rs"]
mod threads;

pub(super) use attention::{PagedElement, attention_paged};
use isa::has_fast_bf16_products;
pub use isa::instruction_set;
use isa::{Isa, PORTABLE_IS_FUSED, for_each_isa, isa, multiply_add};
pub(super) use kv_append::{append_keys, append_values};
pub(super) use kv_element::KvElement;
use packed_matrix::Panels;
pub(super) use recurrent::{
    Conv, RecurrentOperands, States, delta_gates, gate_rows, gated_norm, product, recurrence, state_space_gates,
};
pub(super) use rowwise::{activate, clamped_swiglu_into, gated, norm, soft_cap};
pub(super) use strided_rows::StridedRows;

mod tensors {
    use burn::tensor::Tensor;

    #[derive(Debug)]
    pub(in crate::ops) struct Values;

    impl Values {
        pub(in crate::ops) fn as_slice(&self) -> &[f32] {
            unimplemented!("there are no tensors here")
        }
    }

    pub(in crate::ops) fn values<const D: usize>(_: Tensor<D>) -> Values {
        Values
    }
}

/// Prints what products and attention reach on this machine.
pub fn time() {
    timing::run();
}

mod timing;
mod training;
