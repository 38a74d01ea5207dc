//! Measures a device's memory bandwidth and arithmetic rate, the limits that speed is compared with, and counts kernel
//! launches.

use burn::tensor::Device;

use super::{DeviceMemory, Dtype, GpuFeatures, Placement, cpu, cube};
use crate::error::Result;

/// Bytes per second at which the whole device reads `n_bytes` repeatedly. A small buffer may stay in a cache, as small
/// weights do.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) when the device fails.
pub fn read_bandwidth(n_bytes: usize, device: &Device) -> Result<f64> {
    match Placement::of(device).is_cpu() {
        true => Ok(cpu::read_bandwidth(n_bytes)),
        false => cube::read_bandwidth(n_bytes, device),
    }
}

/// Multiply-adds per second of the whole device with operands in registers, in the arithmetic that products with
/// weights of `dtype` use: f32, or on a CPU 8 bits with 32-bit sums if the weights are quantized.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) when the device fails.
pub fn multiply_rate(dtype: Dtype, device: &Device) -> Result<f64> {
    match Placement::of(device).is_cpu() {
        true => Ok(cpu::multiply_rate(dtype)),
        false => cube::multiply_rate(device),
    }
}

/// Memory use of `device`; `None` for the CPU, which uses the process's memory.
pub fn device_memory(device: &Device) -> Option<DeviceMemory> {
    (!Placement::of(device).is_cpu()).then(|| cube::device_memory(device))
}

/// What `device` offers, and what the kernels use of it; `None` for the CPU.
pub fn gpu_features(device: &Device) -> Option<GpuFeatures> {
    (!Placement::of(device).is_cpu()).then(|| cube::gpu_features(device))
}

/// Whether [`Precision::Bf16`](super::Precision) is faster than f32 on `device`: on a CPU of AMD's with AVX512_BF16, and on a
/// GPU with matrix instructions for bf16. Other GPUs compute in f32 instead.
pub fn has_fast_bf16_products(device: &Device) -> bool {
    match Placement::of(device).is_cpu() {
        true => cpu::has_fast_bf16_products(),
        false => cube::has_bf16_products(device),
    }
}

/// Calls `run`; returns its result and the number of kernels launched meanwhile, on all GPUs and from all threads.
pub fn count_launches<T>(run: impl FnOnce() -> T) -> (T, usize) {
    cube::count_launches(run)
}
