//! Bodies for GPUs, in CubeCL: one source for WGSL, SPIR-V, CUDA, ROCm and Metal.
//!
//! They run where a tensor lives on a GPU and no gradients are recorded. Each is a backend extension of Burn: lazy under
//! its fusion, which keeps the order of operations and tells which buffers may be written in place. Weights travel with
//! the operation and are no tensors of Burn's.
//!
//! Kernels want no subgroup operations and no f16, which WGSL does not have everywhere.

mod attention;
mod decode;
mod device;
mod extension;
mod linear;
mod matrix;
mod rope;
mod rowwise;
mod tiled;

pub(super) use attention::{AttentionPlan, AttentionStep, BLOCK_LEN, TILE};
pub(super) use device::is_cube;
pub(super) use extension::{activate, attention, embedding, gated, linear, norm, normed_linear, rope_append};
pub(super) use linear::{LinearOptions, joins};
pub(super) use matrix::Matrix;
pub(super) use rope::Heads;
