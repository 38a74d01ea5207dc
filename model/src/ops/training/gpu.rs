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

use super::{Bodies, Input, TrainingOp, plain, record};
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

/// Runs `op` on one to three `inputs`, recorded in Burn's graph if gradients are.
///
/// # Panics
/// Unless [`is_on_gpu`].
pub(in crate::ops) fn apply_on_gpu<const D: usize>(inputs: Vec<Input>, op: impl OnGpu + 'static) -> Tensor<D> {
    let op = Arc::new(op);
    let mut inputs = inputs.into_iter().map(|Input(input)| input);
    Tensor::from_dispatch(match (inputs.next(), inputs.next(), inputs.next(), inputs.next()) {
        (Some(one), None, None, None) => Dispatch::of_one_on_gpu(one, op),
        (Some(one), Some(two), None, None) => Dispatch::of_two_on_gpu(one, two, op),
        (Some(one), Some(two), Some(three), None) => Dispatch::of_three_on_gpu(one, two, three, op),
        _ => unreachable!("operations have one to three inputs"),
    })
}

#[backend_extension(Cube, Autodiff)]
trait GpuTraining: Backend {
    fn of_one_on_gpu(one: FloatTensor<Self>, op: Arc<dyn TrainingOp<CubeTensor>>) -> FloatTensor<Self>;

    fn of_two_on_gpu(
        one: FloatTensor<Self>,
        two: FloatTensor<Self>,
        op: Arc<dyn TrainingOp<CubeTensor>>,
    ) -> FloatTensor<Self>;

    fn of_three_on_gpu(
        one: FloatTensor<Self>,
        two: FloatTensor<Self>,
        three: FloatTensor<Self>,
        op: Arc<dyn TrainingOp<CubeTensor>>,
    ) -> FloatTensor<Self>;
}

impl GpuTraining for CubeBackend {
    fn of_one_on_gpu(one: CubeTensor, op: Arc<dyn TrainingOp<CubeTensor>>) -> CubeTensor {
        plain::<Self, 1>([one], &*op)
    }

    fn of_two_on_gpu(one: CubeTensor, two: CubeTensor, op: Arc<dyn TrainingOp<CubeTensor>>) -> CubeTensor {
        plain::<Self, 2>([one, two], &*op)
    }

    fn of_three_on_gpu(
        one: CubeTensor,
        two: CubeTensor,
        three: CubeTensor,
        op: Arc<dyn TrainingOp<CubeTensor>>,
    ) -> CubeTensor {
        plain::<Self, 3>([one, two, three], &*op)
    }
}

impl<C: CheckpointStrategy> GpuTraining for Autodiff<CubeBackend, C> {
    fn of_one_on_gpu(one: FloatTensor<Self>, op: Arc<dyn TrainingOp<CubeTensor>>) -> FloatTensor<Self> {
        record::<CubeBackend, 1, C>([one], op)
    }

    fn of_two_on_gpu(
        one: FloatTensor<Self>,
        two: FloatTensor<Self>,
        op: Arc<dyn TrainingOp<CubeTensor>>,
    ) -> FloatTensor<Self> {
        record::<CubeBackend, 2, C>([one, two], op)
    }

    fn of_three_on_gpu(
        one: FloatTensor<Self>,
        two: FloatTensor<Self>,
        three: FloatTensor<Self>,
        op: Arc<dyn TrainingOp<CubeTensor>>,
    ) -> FloatTensor<Self> {
        record::<CubeBackend, 3, C>([one, two, three], op)
    }
}

impl Bodies for CubeBackend {
    fn contiguous(tensor: &CubeTensor) -> CubeTensor {
        into_contiguous(tensor.clone())
    }
}
