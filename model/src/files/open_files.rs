//! The limit of open files of this process.

/// Raises the soft limit of open files to the hard limit, and returns the limit that then applies. `None` if the system
/// has no such limit or does not report it.
#[cfg(target_os = "linux")]
pub fn raise_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[expect(unsafe_code, reason = "a setting of the process has no other way in")]
    // SAFETY: the call only writes the given struct.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if !is_known {
        return None;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    #[expect(unsafe_code, reason = "a setting of the process has no other way in")]
    // SAFETY: the call only reads the given struct.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0;
    Some(if is_raised { raised.rlim_cur } else { limit.rlim_cur })
}

/// Does nothing on systems where Hearth does not change the limit.
#[cfg(not(target_os = "linux"))]
pub fn raise_limit() -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn raise_limit_sets_the_soft_open_file_limit_to_the_hard_limit() {
        let limit = raise_limit().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers, [limit, limit]);
    }
}
