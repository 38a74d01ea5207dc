//! Checks whether there is enough memory for the requested settings.

use burn::tensor::Device;
use hearth_model::ops::Dtype;
pub use hearth_model::system::memory::{available_bytes, limit_bytes, total_bytes};

/// Lower bound of the memory for this many weights of `bits` each, in bytes, without the scales of quantized formats.
pub fn least_weight_bytes(n_params: usize, bits: u32) -> u128 {
    n_params as u128 * u128::from(bits) / 8
}

/// Bits of a weight in `dtype`, without its scale.
pub fn bits_of(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 32,
        Dtype::F16 | Dtype::Bf16 => 16,
        Dtype::Q8 => 8,
        Dtype::Q2 => 2,
        _ => 4,
    }
}

/// Available memory in bytes for computations on `device`; `None` on a GPU, whose memory is not known.
pub fn available_on(device: &Device) -> Option<u64> {
    if *device == Device::flex() { available_bytes() } else { None }
}

/// Fails if `n_bytes` are not available. The error completes a sentence that begins with the setting.
pub fn require(n_bytes: u128, available_bytes: Option<u64>) -> Result<(), String> {
    // No allocation can exceed the address space.
    let most = available_bytes.unwrap_or(isize::MAX as u64);
    if n_bytes <= u128::from(most) {
        return Ok(());
    }
    Err(format!("needs {:.1} GiB of memory, but {:.1} GiB are available", gib(n_bytes), gib(most.into())))
}

/// Fails if `n_bytes` exceed the memory that can ever become available.
pub fn require_possible(n_bytes: u128, limit_bytes: Option<u64>) -> Result<(), String> {
    match limit_bytes {
        Some(most) if n_bytes > u128::from(most) => {
            Err(format!("needs at least {:.1} GiB of memory, but there are {:.1} GiB", gib(n_bytes), gib(most.into())))
        }
        _ => Ok(()),
    }
}

fn gib(n_bytes: u128) -> f64 {
    n_bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn memory_checks_fail_with_the_needed_and_available_sizes() {
        let gib = 1 << 30;
        assert_eq!(require(gib, Some(1 << 30)), Ok(()));
        let message = require(gib + 1, Some(1 << 30)).unwrap_err();
        assert_eq!(message, "needs 1.0 GiB of memory, but 1.0 GiB are available");
        assert!(require(u128::MAX, None).is_err());
        assert_eq!(require_possible(gib, Some(1 << 30)), Ok(()));
        assert_eq!(require_possible(u128::MAX, None), Ok(()), "unknown sizes are not checked");
        let message = require_possible(3 * gib, Some(1 << 30)).unwrap_err();
        assert_eq!(message, "needs at least 3.0 GiB of memory, but there are 1.0 GiB");
    }
}
