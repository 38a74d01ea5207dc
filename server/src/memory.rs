//! How much memory there is, where the system tells.

use std::fs;

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
    use super::*;

    #[test]
    fn the_systems_numbers_are_in_kibibytes() {
        let text = "MemTotal:       24576 kB\nMemFree:         1 kB\nMemAvailable:    2048 kB\nHugePages_Total:  0\n";
        assert_eq!(kibibytes(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(kibibytes(text, "Mem"), None);
        assert_eq!(kibibytes(text, "HugePages_Total"), None);
    }
}
