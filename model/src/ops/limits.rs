//! Measures a device's memory bandwidth and arithmetic rate, the limits that speed is compared with, and counts kernel
//! launches.

use burn::tensor::Device;

#[cfg(feature = "gpu")]
use super::cube;
use super::{DeviceMemory, Dtype, cpu, records_gradients};
use crate::error::Result;

/// Bytes per second at which all of `device` reads `n_bytes` repeatedly. A small buffer may stay in a cache, as small
/// weights do.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) when the device fails.
pub fn read_bandwidth(n_bytes: usize, device: &Device) -> Result<f64> {
    #[cfg(feature = "gpu")]
    if let Some(cube) = cube::cube_device(device) {
        return cube::read_bandwidth(n_bytes, cube);
    }
    debug_assert!(cpu::is_cpu(device), "a device of no kind");
    Ok(cpu::read_bandwidth(n_bytes))
}

/// Multiply-adds per second of all of `device` with operands in registers, in the arithmetic of products with weights
/// of `dtype`: f32, or on a CPU 8 bits with 32-bit sums if the weights are quantized.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) when the device fails.
pub fn multiply_rate(dtype: Dtype, device: &Device) -> Result<f64> {
    #[cfg(feature = "gpu")]
    if let Some(cube) = cube::cube_device(device) {
        return cube::multiply_rate(cube);
    }
    debug_assert!(cpu::is_cpu(device), "a device of no kind");
    Ok(cpu::multiply_rate(dtype))
}

/// What `device` holds; `None` for the CPU, whose memory is the process's.
pub fn device_memory(device: &Device) -> Option<DeviceMemory> {
    #[cfg(feature = "gpu")]
    if let Some(cube) = cube::cube_device(device) {
        return Some(cube::device_memory(cube));
    }
    debug_assert!(cpu::is_cpu(device), "a device of no kind");
    None
}

/// Whether [`Precision::Bf16`](super::Precision) is faster than f32 on `device`: on a CPU of AMD's with AVX512_BF16, and on a
/// GPU with matrix instructions for bf16. Other GPUs compute in f32 instead.
pub fn has_fast_bf16_products(device: &Device) -> bool {
    let device = if records_gradients(device) { device.clone().inner() } else { device.clone() };
    #[cfg(feature = "gpu")]
    if let Some(cube) = cube::cube_device(&device) {
        return cube::has_bf16_products(cube);
    }
    debug_assert!(cpu::is_cpu(&device), "a device of no kind");
    cpu::has_fast_bf16_products()
}

/// Calls `run`; returns its result and the number of kernels launched meanwhile, on all GPUs and from all threads.
pub fn count_launches<T>(run: impl FnOnce() -> T) -> (T, usize) {
    #[cfg(feature = "gpu")]
    return cube::count_launches(run);
    #[cfg(not(feature = "gpu"))]
    (run(), 0)
}
