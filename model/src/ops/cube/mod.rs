//! Bodies for GPUs, in CubeCL: one source for WGSL, SPIR-V and CUDA.
//!
//! They run for tensors on a GPU if no gradients are recorded; the bodies in `training` run if gradients are recorded.
//! An operation takes CubeCL's tensors out of Burn's, launches kernels on them and wraps the result (`operations`,
//! `tensors`). A weight is not a Burn tensor: it is a parameter of the operation.
//!
//! Burn's fusion and autotune are not built in: nothing is left to fuse here, and both cost more time than they saved in
//! training (`docs/lab/gpu-launches.md`). With fusion, Burn's tensors would not be CubeCL's.
//!
//! Kernels use no subgroup operations, which not all WGSL devices have, and f16 only if the device has it.

mod attention;
mod device;
mod epilogue;
mod gemm_tensor_core;
mod gemm_tiled;
mod gemv;
mod graph;
pub(super) mod launch;
mod matrix;
mod measure;
mod operations;
mod optimizer;
mod product;
mod qk_norm;
mod rope;
mod rowwise;
pub(super) mod tensors;
#[cfg(test)]
mod tests;
mod top_k;
pub(super) mod training;
mod unpack;

use device::cube_device;
pub(super) use gemv::can_fuse;
pub(crate) use graph::{Address, CapturedGraph};
pub(super) use matrix::Matrix;
pub(super) use measure::{count_launches, device_memory, gpu_features, multiply_rate, read_bandwidth};
pub(super) use operations::{
    activate, adamw, append_and_attend, attention, copy_first_column, embedding, gated, linear, norm, normed_linear,
    overwrite, part_of_ints, qk_norm, rope_append, rows_in_ints, square_sums, take_rows,
};
pub(crate) use operations::{flush, read_ints_while, top_k_logits};
#[cfg(test)]
pub(super) use product::allow_f16;
pub(super) use product::has_bf16_products;
