//! How much memory there is, where the system tells.

use std::fs;

use burn::tensor::Device;
use hearth_model::ops::Dtype;

/// Bytes of memory in the machine.
pub(crate) fn total_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// Bytes that nothing here can ever have more of: what the machine has, or the container (cgroup 2) may take where that
/// is less, and all that can be swapped out.
pub(crate) fn limit_bytes() -> Option<u64> {
    let memory = cgroup("memory.max").into_iter().chain(total_bytes()).min()?;
    Some(memory.saturating_add(meminfo("SwapTotal").unwrap_or(0)))
}

/// Bytes that so many weights take at least, each in so many bits; the scales of rounded ones left out.
pub(crate) fn least_weight_bytes(n_params: usize, bits: u32) -> u128 {
    n_params as u128 * u128::from(bits) / 8
}

/// Bits of a weight in `dtype`, its scale left out.
pub(crate) fn bits_of(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 32,
        Dtype::F16 | Dtype::Bf16 => 16,
        Dtype::Q8 => 8,
        _ => 4,
    }
}

/// Bytes that could be taken without pushing others out: what the machine has left, or the container (cgroup 2) where
/// that is less.
pub(crate) fn available_bytes() -> Option<u64> {
    let in_container = || Some(cgroup("memory.max")?.saturating_sub(cgroup("memory.current")?));
    let in_machine = meminfo("MemAvailable");
    in_container().into_iter().chain(in_machine).min()
}

/// The same for what is computed on `device`; a GPU does not tell.
pub(crate) fn available_on(device: &Device) -> Option<u64> {
    if *device == Device::flex() { available_bytes() } else { None }
}

/// Refuses memory that cannot be had. The error is what is wrong with the setting that asks for it.
pub(crate) fn require(n_bytes: u128, available_bytes: Option<u64>) -> Result<(), String> {
    // No memory is larger than an address can tell.
    let most = available_bytes.unwrap_or(isize::MAX as u64);
    if n_bytes <= u128::from(most) {
        return Ok(());
    }
    Err(format!("takes {:.1} GiB of memory, and {:.1} GiB are left", gib(n_bytes), gib(most.into())))
}

/// Refuses memory that no patience could get: more than there is at all.
pub(crate) fn require_possible(n_bytes: u128, limit_bytes: Option<u64>) -> Result<(), String> {
    match limit_bytes {
        Some(most) if n_bytes > u128::from(most) => {
            Err(format!("takes {:.1} GiB of memory at least, and there are {:.1} GiB", gib(n_bytes), gib(most.into())))
        }
        _ => Ok(()),
    }
}

fn gib(n_bytes: u128) -> f64 {
    n_bytes as f64 / f64::from(1 << 30)
}

fn meminfo(name: &str) -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// No number where there is no limit.
fn cgroup(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let count: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(count * 1024)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn memory_that_is_not_there_is_refused_with_the_numbers() {
        let gib = 1 << 30;
        assert_eq!(require(gib, Some(1 << 30)), Ok(()));
        let message = require(gib + 1, Some(1 << 30)).unwrap_err();
        assert_eq!(message, "takes 1.0 GiB of memory, and 1.0 GiB are left");
        assert!(require(u128::MAX, None).is_err());
        assert_eq!(require_possible(gib, Some(1 << 30)), Ok(()));
        assert_eq!(require_possible(u128::MAX, None), Ok(()), "where the system does not tell, it is tried");
        let message = require_possible(3 * gib, Some(1 << 30)).unwrap_err();
        assert_eq!(message, "takes 3.0 GiB of memory at least, and there are 1.0 GiB");
    }

    #[test]
    fn the_systems_numbers_are_in_kibibytes() {
        let text = "MemTotal:       24576 kB\nMemFree:         1 kB\nMemAvailable:    2048 kB\nHugePages_Total:  0\n";
        assert_eq!(kibibytes(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(kibibytes(text, "Mem"), None);
        assert_eq!(kibibytes(text, "HugePages_Total"), None);
    }
}
