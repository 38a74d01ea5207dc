//! Flex tensors as slices, and back.

use burn::{
    backend::{Flex, flex::FlexTensor},
    tensor::{DType, Element, Int, Tensor, TensorData},
};

use super::{KvElement, StridedRows, huge_pages::zeros};

/// The values of a CPU tensor; contiguous, in row order.
pub(in crate::ops) struct Values(FlexTensor);

impl Values {
    pub(in crate::ops) fn as_slice(&self) -> &[f32] {
        self.0.as_slice().unwrap_or_else(|| unreachable!("`values` made the tensor contiguous f32"))
    }
}

/// Columns of a CPU matrix, where they are.
pub(in crate::ops) struct Columns(FlexTensor);

impl Columns {
    pub(in crate::ops) fn rows(&self) -> StridedRows<'_> {
        let layout = self.0.layout();
        let [_, width] = layout.shape().dims();
        let stride = layout.strides()[0].unsigned_abs();
        StridedRows::within(&self.0.storage()[layout.start_offset()..], stride, width)
    }
}

/// A pool of the KV cache, which owns its whole memory.
pub(in crate::ops) struct Pool(FlexTensor);

impl Pool {
    pub(in crate::ops) fn as_slice<E: KvElement>(&self) -> &[E] {
        E::stored(&self.0)
    }
}

/// A pool of zeros with committed memory, in huge pages if the system has them.
pub(in crate::ops) fn pool_of_zeros<E: Element + Default + Sync>(dims: [usize; 2]) -> Tensor<2> {
    let values = zeros::<E>(dims.iter().product());
    Tensor::from_primitive::<Flex>(FlexTensor::from_data(TensorData::new(values, dims)))
}

/// The memory of a pool on the plain CPU device.
///
/// # Panics
/// When the tensor is elsewhere: operands of one operation share a device.
pub(in crate::ops) fn pool(tensor: &Tensor<2>) -> Pool {
    match tensor.clone().try_into_primitive::<Flex>() {
        Ok(flex) => Pool(flex),
        Err(error) => unreachable!("an operand of a CPU operation is not on the CPU: {error:?}"),
    }
}

/// The memory of an f32 tensor on the plain CPU device; copies only a tensor that is not contiguous.
///
/// # Panics
/// When the tensor is elsewhere or of another type: operands of one operation share a device.
pub(in crate::ops) fn values<const D: usize>(tensor: Tensor<D>) -> Values {
    match tensor.try_into_primitive::<Flex>() {
        Ok(flex) => Values(flex.to_contiguous()),
        Err(error) => unreachable!("an operand of a CPU operation is not on the CPU: {error:?}"),
    }
}

/// The memory of an f32 matrix on the plain CPU device, which may be columns of a wider one; copies only if the rows
/// are not in order, each contiguous.
///
/// # Panics
/// When the tensor is elsewhere or of another type: operands of one operation share a device.
pub(in crate::ops) fn columns(tensor: Tensor<2>) -> Columns {
    match tensor.try_into_primitive::<Flex>() {
        Ok(flex)
            if flex.dtype() == DType::F32 && flex.layout().strides()[1] == 1 && flex.layout().strides()[0] >= 0 =>
        {
            Columns(flex)
        }
        Ok(flex) => Columns(flex.to_contiguous()),
        Err(error) => unreachable!("an operand of a CPU operation is not on the CPU: {error:?}"),
    }
}

/// The values of a CPU tensor of ids.
pub(in crate::ops) fn ints(tensor: Tensor<1, Int>) -> Vec<i32> {
    match tensor.try_into_data().map(|data| data.try_into_vec_as::<i32>()) {
        Ok(Ok(values)) => values,
        failed => unreachable!("memory of the CPU is always readable: {failed:?}"),
    }
}

/// A CPU tensor of `values`.
pub(in crate::ops) fn tensor<const D: usize>(values: Vec<f32>, dims: [usize; D]) -> Tensor<D> {
    Tensor::from_primitive::<Flex>(FlexTensor::from_data(TensorData::new(values, dims)))
}

/// Changes the values of an f32 CPU tensor, in row order, in place if no other tensor shares them.
pub(in crate::ops) fn changed<const D: usize>(tensor: Tensor<D>, change: impl FnOnce(&mut [f32])) -> Tensor<D> {
    let mut flex = owned(tensor);
    change(flex.storage_mut());
    Tensor::from_primitive::<Flex>(flex)
}

/// [`changed`], of several tensors together.
pub(in crate::ops) fn all_changed<const D: usize>(
    tensors: Vec<Tensor<D>>,
    change: impl FnOnce(Vec<&mut [f32]>),
) -> Vec<Tensor<D>> {
    let mut all: Vec<FlexTensor> = tensors.into_iter().map(owned).collect();
    change(all.iter_mut().map(FlexTensor::storage_mut).collect());
    all.into_iter().map(Tensor::from_primitive::<Flex>).collect()
}

fn owned<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    match tensor.try_into_primitive::<Flex>() {
        Ok(flex) => owning(flex),
        Err(error) => unreachable!("an operand of a CPU operation is not on the CPU: {error:?}"),
    }
}

/// An f32 tensor whose memory has its values in row order and nothing else. A view of a larger tensor, or a tensor with
/// other strides, is copied.
pub(in crate::ops) fn owning(tensor: FlexTensor) -> FlexTensor {
    let tensor = if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() };
    if tensor.storage::<f32>().len() == tensor.layout().num_elements() {
        return tensor;
    }
    let values = tensor.as_slice::<f32>().unwrap_or_default().to_vec();
    FlexTensor::from_data(TensorData::new(values, tensor.layout().shape().clone()))
}

/// Changes the values of a pool on the CPU in place; copies them first only if another tensor shares them.
pub(in crate::ops) fn update<E: KvElement>(pool: &mut Tensor<2>, change: impl FnOnce(&mut [E])) {
    pool.inplace(|pool| match pool.try_into_primitive::<Flex>() {
        Ok(mut flex) => {
            change(E::stored_mut(&mut flex));
            Tensor::from_primitive::<Flex>(flex)
        }
        Err(error) => unreachable!("an operand of a CPU operation is not on the CPU: {error:?}"),
    });
}
