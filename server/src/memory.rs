//! How much memory there is, where the system tells.

use std::fs;

use burn::tensor::Device;

/// Bytes of memory in the machine.
pub(crate) fn total_bytes() -> Option<u64> {
    meminfo("MemTotal")
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
    let gib = |n_bytes: u128| n_bytes as f64 / f64::from(1 << 30);
    Err(format!("takes {:.1} GiB of memory, and {:.1} GiB are left", gib(n_bytes), gib(most.into())))
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
    }

    #[test]
    fn the_systems_numbers_are_in_kibibytes() {
        let text = "MemTotal:       24576 kB\nMemFree:         1 kB\nMemAvailable:    2048 kB\nHugePages_Total:  0\n";
        assert_eq!(kibibytes(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(kibibytes(text, "Mem"), None);
        assert_eq!(kibibytes(text, "HugePages_Total"), None);
    }
}
