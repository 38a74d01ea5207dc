//! Bodies for GPUs, in CubeCL: one source for WGSL, SPIR-V, CUDA, ROCm and Metal.
//!
//! They run where a tensor lives on a GPU and no gradients are recorded. Each is a backend extension of Burn: lazy under
//! its fusion, which keeps the order of operations and tells which buffers may be written in place. Weights travel with
//! the operation and are no tensors of Burn's.
//!
//! Kernels want no subgroup operations, which WGSL does not have everywhere, and f16 only where the device has it.

mod attention;
mod best;
mod decode;
mod device;
mod extension;
mod halves;
mod heads;
mod joined;
mod launch;
mod linear;
mod matrix;
mod measure;
mod recording;
mod rope;
mod rowwise;
mod split;
#[cfg(test)]
mod tests;
mod tiled;

pub(super) use attention::{AttentionPlan, AttentionStep, BLOCK_LEN, TILE};
pub(super) use device::cube_device;
pub(crate) use device::is_cube;
pub(super) use extension::{
    activate, append_and_attend, attention, best_logits, embedding, gated, linear, norm, norm_heads, normed_linear,
    overwrite, part_of_ints, rope_append, rows_in_ints, take_rows,
};
pub(super) use heads::HeadNorms;
pub(super) use joined::LinearOptions;
pub(super) use linear::joins;
pub(super) use matrix::Matrix;
pub(super) use measure::{count_launches, multiply_rate, read_bandwidth};
pub(crate) use recording::{Address, Recording};
pub(super) use rope::Heads;
