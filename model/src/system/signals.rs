//! How signals are set for the process.

use std::{fs, sync::OnceLock};

/// Whether SIGHUP was ignored when this was first called, as under `nohup`: then it stays ignored. Always false on
/// systems other than Linux.
pub fn ignores_hangups() -> bool {
    static IS_IGNORED: OnceLock<bool> = OnceLock::new();
    *IS_IGNORED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        // A bit for each signal; SIGHUP is 1.
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
    })
}
