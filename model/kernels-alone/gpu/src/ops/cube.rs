//! Hearth's kernels by path, and what measures them.

#[path = "../../../../src/ops/cube/attention.rs"]
mod attention;
#[path = "../../../../src/ops/cube/device.rs"]
mod device;
#[path = "../../../../src/ops/cube/epilogue.rs"]
mod epilogue;
#[path = "../../../../src/ops/cube/gemm_tensor_core.rs"]
mod gemm_tensor_core;
#[path = "../../../../src/ops/cube/gemm_tiled.rs"]
mod gemm_tiled;
#[path = "../../../../src/ops/cube/gemv.rs"]
mod gemv;
#[path = "../../../../src/ops/cube/graph.rs"]
mod graph;
#[path = "../../../../src/ops/cube/launch.rs"]
pub(super) mod launch;
#[path = "../../../../src/ops/cube/matrix.rs"]
mod matrix;
#[path = "../../../../src/ops/cube/measure.rs"]
mod measure;
#[path = "../../../../src/ops/cube/optimizer.rs"]
mod optimizer;
#[path = "../../../../src/ops/cube/product/mod.rs"]
mod product;
#[path = "../../../../src/ops/cube/qk_norm.rs"]
mod qk_norm;
#[path = "../../../../src/ops/cube/rope.rs"]
mod rope;
#[path = "../../../../src/ops/cube/rowwise.rs"]
mod rowwise;
#[path = "../../../../src/ops/cube/tensors.rs"]
pub(super) mod tensors;
#[path = "../../../../src/ops/cube/top_k.rs"]
mod top_k;
#[path = "../../../../src/ops/cube/training/mod.rs"]
pub(super) mod training;
#[path = "../../../../src/ops/cube/unpack.rs"]
mod unpack;

pub mod bench;

use device::cube_device;
