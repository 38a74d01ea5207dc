//! How many threads compute.

use std::{num::NonZeroUsize, sync::OnceLock, thread};

/// The number of threads set by [`use_threads`].
static ASKED: OnceLock<NonZeroUsize> = OnceLock::new();

/// Sets the number of threads that compute on the CPU, for the life of the process. Call it before anything is computed; of
/// several calls the first counts.
pub fn use_threads(n: NonZeroUsize) {
    if ASKED.set(n).is_err() {
        tracing::debug!("the number of threads is set already");
    }
}

/// The number of threads that compute on the CPU: the number set by [`use_threads`], else by the variable
/// `HEARTH_THREADS` or `RAYON_NUM_THREADS`, else one for each core that the process may use, and no more than its share
/// of processor time allows. Two threads on one core share its multipliers and its memory bandwidth, which products
/// need most.
pub fn n_threads() -> usize {
    let asked = ASKED.get().copied();
    let of_variable = |name| std::env::var(name).ok()?.parse().ok();
    asked
        .or_else(|| of_variable("HEARTH_THREADS"))
        .or_else(|| of_variable("RAYON_NUM_THREADS"))
        .map_or_else(|| available().min(cores().unwrap_or(usize::MAX)), NonZeroUsize::get)
}

/// Processors that the process may use, within the quota of its container.
fn available() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Number of physical cores among the processors that the process may use; `None` if it is not known.
#[cfg(target_os = "linux")]
fn cores() -> Option<usize> {
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: `cpu_set_t` is plain bits, and zero is the empty set; the call writes at most the given size.
    let allowed = unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let status = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed);
        (status == 0).then_some(allowed)?
    };
    #[expect(unsafe_code, reason = "reads a bit of a set")]
    // SAFETY: the number is below the size of the set.
    let is_allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &allowed) };
    let siblings = (0..libc::CPU_SETSIZE as usize).filter(is_allowed).map(|cpu| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
    });
    count_cores(siblings)
}

#[cfg(not(target_os = "linux"))]
fn cores() -> Option<usize> {
    None
}

/// Number of different sibling lists: all processors of a core have the same list. `None` if any list is missing or
/// there are none.
#[cfg(any(target_os = "linux", test))]
fn count_cores(siblings: impl Iterator<Item = Option<String>>) -> Option<usize> {
    let mut lists = siblings.collect::<Option<Vec<_>>>()?;
    lists.sort_unstable();
    lists.dedup();
    (!lists.is_empty()).then_some(lists.len())
}

/// Starts rayon's global pool with [`n_threads`] threads. Call it before anything is computed: later it has no effect.
///
/// All threads of the pool are its own. The calling thread must not be one of them (rayon's `use_current_thread`): work
/// that other threads give to the pool would wait for it while it sleeps, with one thread for ever.
pub fn start_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads()).thread_name(|number| format!("rayon-{number}"));
    if let Err(error) = pool.build_global() {
        tracing::debug!("rayon's threads have started already: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperthreads_of_a_core_are_counted_once() {
        let count = |lists: &[&str]| count_cores(lists.iter().map(|list| Some((*list).to_owned())));
        assert_eq!(count(&["0-1\n", "0-1\n", "2-3\n", "2-3\n"]), Some(2));
        assert_eq!(count(&["0,4\n", "1,5\n", "2\n"]), Some(3));
        assert_eq!(count(&[]), None);
        assert_eq!(count_cores([Some("0".to_owned()), None].into_iter()), None);
        assert!((1..=available()).contains(&n_threads()));
    }
}
