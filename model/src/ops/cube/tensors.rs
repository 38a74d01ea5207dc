//! Burn's tensors on a GPU as CubeCL's, which kernels take, and back.

use burn::{
    backend::Cube,
    tensor::{
        BackendPrimitive, DType, Int, Tensor,
        kind::{Autodiff, Basic},
    },
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};

/// The tensor of CubeCL that `tensor` consists of. Nothing else refers to its memory through `tensor` any more, so a kernel
/// can write it in place.
///
/// # Panics
/// When it is not on a GPU, or gradients are recorded: operands of one operation share a device.
pub(in crate::ops) fn primitive<const D: usize, K>(tensor: Tensor<D, K>) -> CubeTensor
where
    K: Basic + BackendPrimitive<Cube, Primitive = CubeTensor>,
{
    match tensor.try_into_primitive::<Cube>() {
        Ok(primitive) => primitive,
        Err(error) => unreachable!("an operand of a GPU operation is not on a GPU without gradients: {error:?}"),
    }
}

/// [`primitive`] of `tensor` without its gradients, if they are recorded; contiguous.
pub(in crate::ops) fn plain<const D: usize, K>(tensor: Tensor<D, K>) -> CubeTensor
where
    K: Autodiff + BackendPrimitive<Cube, Primitive = CubeTensor>,
{
    into_contiguous(primitive(tensor.inner()))
}

/// A float tensor; the reverse of [`primitive`].
pub(in crate::ops) fn wrap<const D: usize>(primitive: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(primitive)
}

/// An integer tensor; the reverse of [`primitive`].
pub(in crate::ops) fn wrap_ints<const D: usize>(primitive: CubeTensor) -> Tensor<D, Int> {
    Tensor::from_primitive::<Cube>(primitive)
}

/// `ids` in i32, the type that kernels read.
pub(super) fn in_i32(ids: Tensor<1, Int>) -> Tensor<1, Int> {
    if ids.dtype() == DType::I32 { ids } else { ids.cast(DType::I32) }
}
