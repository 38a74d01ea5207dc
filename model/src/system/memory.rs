//! Memory sizes of the machine and of this process, as far as the system reports them.

use std::{fs, path::Path};

/// Where a container finds its control groups.
const CGROUPS: &str = "/sys/fs/cgroup";
const MEMINFO: &str = "/proc/meminfo";

/// Total memory of the machine in bytes.
pub fn total_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// The maximum memory that this process can use, in bytes: the machine's, or the container's limit if lower, plus the
/// swap that the container may use.
pub fn limit_bytes() -> Option<u64> {
    limit_of(&fs::read_to_string(MEMINFO).ok()?, Path::new(CGROUPS))
}

fn limit_of(meminfo: &str, cgroups: &Path) -> Option<u64> {
    let [memory, swap, both] = Cgroup::find(cgroups).map_or([u64::MAX; 3], |group| group.limits());
    let memory = memory.min(kibibytes(meminfo, "MemTotal")?);
    let swap = swap.min(kibibytes(meminfo, "SwapTotal").unwrap_or(0));
    Some(memory.saturating_add(swap).min(both))
}

/// Memory in bytes that is available without swapping: of the machine, or of the container if less. The container's
/// inactive file cache counts as available.
pub fn available_bytes() -> Option<u64> {
    let in_container = Cgroup::find(Path::new(CGROUPS)).and_then(|group| group.available());
    in_container.into_iter().chain(meminfo("MemAvailable")).min()
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
    kibibytes(&fs::read_to_string(MEMINFO).ok()?, name)
}

/// The files of a control group that limit memory.
struct CgroupNames {
    /// Within [`CGROUPS`].
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: the file cache that the system may drop.
    droppable: &'static str,
    /// The limit of swap alone.
    swap: Option<&'static str>,
    /// The limit of memory and swap together.
    with_swap: Option<&'static str>,
}

/// Cgroup 2, and cgroup 1.
const VERSIONS: &[CgroupNames] = &[
    CgroupNames {
        folder: "",
        limit: "memory.max",
        used: "memory.current",
        droppable: "inactive_file",
        swap: Some("memory.swap.max"),
        with_swap: None,
    },
    CgroupNames {
        folder: "memory",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        droppable: "total_inactive_file",
        swap: None,
        with_swap: Some("memory.memsw.limit_in_bytes"),
    },
];

/// The control group of this container.
struct Cgroup<'a> {
    root: &'a Path,
    names: &'static CgroupNames,
}

impl<'a> Cgroup<'a> {
    /// The control group in `root`, if one can limit memory there.
    fn find(root: &'a Path) -> Option<Self> {
        VERSIONS.iter().map(|names| Self { root, names }).find(|group| group.text(group.names.limit).is_some())
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(self.names.folder).join(name)).ok()
    }

    /// `None` if there is no such limit, which cgroup 2 writes as `max`, and cgroup 1 as a number larger than any
    /// memory.
    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.trim().parse().ok()
    }

    /// The limits of memory, of swap, and of both together; the largest number if there is no limit.
    fn limits(&self) -> [u64; 3] {
        let names = [Some(self.names.limit), self.names.swap, self.names.with_swap];
        names.map(|name| name.and_then(|name| self.number(name)).unwrap_or(u64::MAX))
    }

    fn available(&self) -> Option<u64> {
        let droppable = self.text("memory.stat").and_then(|stat| number_of(&stat, self.names.droppable)).unwrap_or(0);
        let taken = self.number(self.names.used)?.saturating_sub(droppable);
        Some(self.number(self.names.limit)?.saturating_sub(taken))
    }
}

/// The number after `name` in lines of names and numbers.
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
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn meminfo_fields_in_kib_and_memory_stat_fields_are_parsed() {
        let text = "MemTotal:       24576 kB\nMemFree:         1 kB\nMemAvailable:    2048 kB\nHugePages_Total:  0\n";
        assert_eq!(kibibytes(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(kibibytes(text, "Mem"), None);
        assert_eq!(kibibytes(text, "HugePages_Total"), None);
        assert_eq!(number_of("file 3\ninactive_file 12\n", "inactive_file"), Some(12));
    }

    #[test]
    fn memory_limit_includes_only_the_swap_that_the_cgroup_allows() {
        const MIB: u64 = 1 << 20;
        let meminfo = "MemTotal: 8192 kB\nSwapTotal: 4096 kB\n";
        let limit_of = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("memory")).unwrap();
            files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
            limit_of(meminfo, dir.path())
        };
        let [two, one, none] = ["2097152\n", "1048576\n", "9223372036854771712\n"];
        assert_eq!(limit_of(&[]), Some(12 * MIB));
        assert_eq!(limit_of(&[("memory.max", "max\n")]), Some(12 * MIB));
        for (memory, swap, limit) in [(two, "max\n", 6), (two, "0\n", 2), (two, one, 3), ("max\n", "0\n", 8)] {
            let files = [("memory.max", memory), ("memory.swap.max", swap)];
            assert_eq!(limit_of(&files), Some(limit * MIB), "{files:?}");
        }
        for (memory, both, limit) in [(one, one, 1), (one, two, 2), (one, none, 5), (none, none, 12)] {
            let files = [("memory/memory.limit_in_bytes", memory), ("memory/memory.memsw.limit_in_bytes", both)];
            assert_eq!(limit_of(&files), Some(limit * MIB), "{files:?}");
        }
    }

    #[test]
    fn available_memory_in_a_cgroup_is_its_limit_minus_its_usage() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let available = || Cgroup::find(dir.path()).and_then(|group| group.available());
        assert_eq!(available(), None);
        fs::create_dir(dir.path().join("memory")).unwrap();
        write("memory/memory.limit_in_bytes", "1000\n");
        write("memory/memory.usage_in_bytes", "700\n");
        write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");
        assert_eq!(available(), Some(500));
        write("memory.max", "100\n");
        write("memory.current", "90\n");
        assert_eq!(available(), Some(10));
    }

    #[test]
    fn peak_resident_memory_is_not_below_the_current_one() {
        if let (Some(now), Some(peak)) = (resident_bytes(), peak_resident_bytes()) {
            // The kernel updates the page count of a thread in batches: allow for one batch.
            assert!(peak + (1 << 20) >= now, "{peak} {now}");
        }
    }
}
