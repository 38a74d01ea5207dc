//! Stands in for [`gpu`](super::gpu) in builds without the feature `gpu`.

use burn::tensor::Tensor;

use super::Input;
use crate::ops::cube::no_gpu;

/// An operation with a body for GPUs: here, any.
pub(in crate::ops) trait OnGpu {}

impl<T> OnGpu for T {}

/// Never called: no input is on a GPU.
pub(in crate::ops) fn apply_on_gpu<const D: usize>(_: Vec<Input>, _: impl OnGpu) -> Tensor<D> {
    no_gpu()
}
