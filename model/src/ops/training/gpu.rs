//! Operations with a backward pass on a GPU.

use std::sync::Arc;

use burn::{
    backend::{
        Autodiff, Backend, Dispatch, autodiff::checkpoint::strategy::CheckpointStrategy, backend_extension,
        tensor::FloatTensor,
    },
    tensor::Tensor,
};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};

use super::{Input, Op, TrainingBackend, TrainingOp, plain, record};

/// An operation with a body for GPUs.
pub(in crate::ops) trait OnGpu: TrainingOp<CubeTensor> {}

impl<T: TrainingOp<CubeTensor>> OnGpu for T {}

training_extension! {
    GpuTraining of CubeBackend (Cube),
    /// Runs `op` on one to three `inputs`, recorded in Burn's graph if gradients are.
    ///
    /// # Panics
    /// Unless they are on a GPU.
    apply_on_gpu
}

impl TrainingBackend for CubeBackend {
    fn contiguous(tensor: &CubeTensor) -> CubeTensor {
        into_contiguous(tensor.clone())
    }
}
