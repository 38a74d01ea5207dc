//! Memory sizes of the machine and of this process, as far as the system reports them.

use std::fs;

/// Total memory of the machine in bytes.
pub fn total_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// The most memory that this process can ever use, in bytes: that of the machine, or the container's limit (cgroup 2)
/// if lower, plus swap.
pub fn limit_bytes() -> Option<u64> {
    let memory = cgroup("memory.max").into_iter().chain(total_bytes()).min()?;
    Some(memory.saturating_add(meminfo("SwapTotal").unwrap_or(0)))
}

/// Memory in bytes that is available without swapping: of the machine, or of the container (cgroup 2) if less. The
/// container's inactive file cache counts as available.
pub fn available_bytes() -> Option<u64> {
    let in_container = || {
        let droppable = cgroup_file("memory.stat").and_then(|stat| number_of(&stat, "inactive_file")).unwrap_or(0);
        let taken = cgroup("memory.current")?.saturating_sub(droppable);
        Some(cgroup("memory.max")?.saturating_sub(taken))
    };
    let in_machine = meminfo("MemAvailable");
    in_container().into_iter().chain(in_machine).min()
}

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
}

/// Peak resident memory of this process in bytes, since its start or [`reset_peak`].
pub fn peak_resident_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// Resets [`peak_resident_bytes`]. Returns false if the system does not support it.
pub fn reset_peak() -> bool {
    // "5" resets the peak (proc(5), /proc/pid/clear_refs).
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn meminfo(name: &str) -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// `None` if there is no limit.
fn cgroup(name: &str) -> Option<u64> {
    cgroup_file(name)?.trim().parse().ok()
}

fn cgroup_file(name: &str) -> Option<String> {
    fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()
}

/// The number behind `name` in lines of names and numbers.
fn number_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
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
        assert_eq!(number_of("file 3\ninactive_file 12\n", "inactive_file"), Some(12));
    }

    #[test]
    fn a_peak_is_not_below_what_is_there() {
        if let (Some(now), Some(peak)) = (resident_bytes(), peak_resident_bytes()) {
            // The kernel counts the pages of a thread in lots: allow for one.
            assert!(peak + (1 << 20) >= now, "{peak} {now}");
        }
    }
}
