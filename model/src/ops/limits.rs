//! What a device's memory and its arithmetic give: the limits that speed is measured against. And how often a GPU is called.

use burn::tensor::Device;

#[cfg(feature = "gpu")]
use super::cube;
use super::{Dtype, cpu};
use crate::error::Result;

/// Bytes per second at which `device` reads `n_bytes`, again and again, all its threads together; few may live in a
/// cache, as small weights do.
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

/// Products per second, each added to a sum, that `device` computes of numbers in registers, all its threads together:
/// in the arithmetic that products with weights of `dtype` take. That is f32, or 8 bits with sums of 32 where a CPU has
/// instructions for them and weights are of 8 or 4 bits.
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

/// What `run` gives, and how many kernels were launched meanwhile, on all GPUs and from all threads.
pub fn count_launches<T>(run: impl FnOnce() -> T) -> (T, usize) {
    #[cfg(feature = "gpu")]
    return cube::count_launches(run);
    #[cfg(not(feature = "gpu"))]
    (run(), 0)
}
