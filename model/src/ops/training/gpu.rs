//! Operations with a backward pass on a GPU.

use std::sync::Arc;

use burn::{
    backend::{
        Autodiff, Backend, Dispatch, DispatchDevice, autodiff::checkpoint::strategy::CheckpointStrategy,
        backend_extension, tensor::FloatTensor,
    },
    tensor::{Device, Tensor},
};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};

use super::{Bodies, Input, Op, TrainingOp, plain, record, training_extension};
use crate::ops::records_gradients;

/// An operation with a body for GPUs, in builds that have them.
pub(in crate::ops) trait OnGpu: TrainingOp<CubeTensor> {}

impl<T: TrainingOp<CubeTensor>> OnGpu for T {}

/// Whether gradients are recorded on `device`, a GPU.
pub(in crate::ops) fn trains_on_gpu(device: &Device) -> bool {
    records_gradients(device) && is_on_gpu(device)
}

/// Whether `device` is a GPU, with gradients recorded or not.
pub(in crate::ops) fn is_on_gpu(device: &Device) -> bool {
    let device = if records_gradients(device) { device.clone().inner() } else { device.clone() };
    matches!(device.as_dispatch(), DispatchDevice::Cube(_))
}

training_extension! {
    GpuTraining of CubeBackend (Cube),
    /// Runs `op` on one to three `inputs`, recorded in Burn's graph if gradients are.
    ///
    /// # Panics
    /// Unless [`is_on_gpu`].
    apply_on_gpu
}

impl Bodies for CubeBackend {
    fn contiguous(tensor: &CubeTensor) -> CubeTensor {
        into_contiguous(tensor.clone())
    }
}
