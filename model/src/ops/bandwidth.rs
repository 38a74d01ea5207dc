//! What a device's memory gives: the limit that decoding is measured against.

use burn::tensor::Device;

use super::{cpu, cube};
use crate::error::Result;

/// Bytes per second at which `device` reads `n_bytes`, again and again, all its threads together; few may live in a
/// cache, as small weights do.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) when the device fails.
pub fn read_bandwidth(n_bytes: usize, device: &Device) -> Result<f64> {
    match cube::cube_device(device) {
        Some(cube) => cube::read_bandwidth(n_bytes, cube),
        None => Ok(cpu::read_bandwidth(n_bytes)),
    }
}
