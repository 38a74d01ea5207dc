//! Devices and element types of the kernels.

use burn::{
    backend::{CubeDevice, DispatchDevice},
    tensor::{DType, Device},
};
use burn_cubecl::{
    cubecl::ir::{ElemType, FloatKind},
    tensor::CubeTensor,
};

/// The GPU behind `device`, with or without autodiff.
///
/// # Panics
/// If `device` is not a GPU; check with [`Placement`](crate::ops::types::Placement).
pub(super) fn cube_device(device: &Device) -> &CubeDevice {
    match device.as_dispatch() {
        DispatchDevice::Cube(cube) => cube,
        DispatchDevice::Autodiff(recording) if let DispatchDevice::Cube(cube) = &**recording => cube,
        other => unreachable!("a body for GPUs got {other:?}"),
    }
}

/// The element type of a pool of keys or values.
pub(super) fn element(pool: &CubeTensor) -> ElemType {
    ElemType::Float(if pool.dtype == DType::F16 { FloatKind::F16 } else { FloatKind::F32 })
}
