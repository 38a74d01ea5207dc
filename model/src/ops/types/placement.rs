//! Selects the body of an operation for a tensor.

use burn::{backend::DispatchDevice, tensor::Device};

/// Where a tensor is, and whether operations on it are recorded for a backward pass. Selects the body of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Memory of the CPU (Burn's Flex).
    Cpu,
    /// A CPU, with gradients recorded.
    CpuTraining,
    /// A GPU (CubeCL). There is none in builds without the feature `gpu`.
    Gpu,
    /// A GPU, with gradients recorded.
    GpuTraining,
}

impl Placement {
    /// The placement of tensors on `device`.
    pub(crate) fn of(device: &Device) -> Self {
        Self::of_backend(device.as_dispatch())
    }

    /// The placement for Burn's own device type.
    pub(in crate::ops) fn of_backend(device: &DispatchDevice) -> Self {
        match device {
            DispatchDevice::Autodiff(recording) => match is_gpu(recording) {
                true => Self::GpuTraining,
                false => Self::CpuTraining,
            },
            plain => match is_gpu(plain) {
                true => Self::Gpu,
                false => Self::Cpu,
            },
        }
    }

    /// Whether it is memory of the CPU.
    pub(crate) fn is_cpu(self) -> bool {
        matches!(self, Self::Cpu | Self::CpuTraining)
    }

    /// Whether operations are recorded.
    pub(crate) fn records_gradients(self) -> bool {
        matches!(self, Self::CpuTraining | Self::GpuTraining)
    }
}

/// Whether the backend of `device` is the GPU's.
fn is_gpu(device: &DispatchDevice) -> bool {
    #[cfg(feature = "gpu")]
    if let DispatchDevice::Cube(_) = device {
        return true;
    }
    debug_assert!(matches!(device, DispatchDevice::Flex(_)), "a device of another backend: {device:?}");
    false
}
