//! Devices and element types of the kernels.

use burn::{
    backend::{CubeDevice, DispatchDevice},
    tensor::{DType, Device},
};
use burn_cubecl::{
    cubecl::ir::{ElemType, FloatKind},
    tensor::CubeTensor,
};

use crate::ops::records_gradients;

/// The GPU behind `device`, unless it records gradients.
pub(in crate::ops) fn cube_device(device: &Device) -> Option<&CubeDevice> {
    match device.as_dispatch() {
        DispatchDevice::Cube(cube) if !records_gradients(device) => Some(cube),
        _ => None,
    }
}

/// Whether the kernels run on `device`: a GPU, if no gradients are recorded.
pub(crate) fn is_cube(device: &Device) -> bool {
    cube_device(device).is_some()
}

/// The element type of a pool of keys or values.
pub(super) fn element(pool: &CubeTensor) -> ElemType {
    ElemType::Float(if pool.dtype == DType::F16 { FloatKind::F16 } else { FloatKind::F32 })
}
