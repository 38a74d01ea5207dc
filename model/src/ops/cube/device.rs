//! Which devices our kernels run on, and on what.

use burn::{
    backend::{CubeDevice, DispatchDevice},
    tensor::{DType, Device},
};
use burn_cubecl::{
    cubecl::ir::{ElemType, FloatKind},
    tensor::CubeTensor,
};

/// The GPU behind `device`, unless it records gradients.
pub(in crate::ops) fn cube_device(device: &Device) -> Option<&CubeDevice> {
    match device.as_dispatch() {
        DispatchDevice::Cube(cube) if !device.is_autodiff() => Some(cube),
        _ => None,
    }
}

/// Whether our kernels run on `device`: a GPU, with no gradients recorded.
pub(crate) fn is_cube(device: &Device) -> bool {
    cube_device(device).is_some()
}

/// What a pool of keys or values holds.
pub(super) fn element(pool: &CubeTensor) -> ElemType {
    ElemType::Float(if pool.dtype == DType::F16 { FloatKind::F16 } else { FloatKind::F32 })
}
