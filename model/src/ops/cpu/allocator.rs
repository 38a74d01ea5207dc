//! Settings of the system's allocator: the number of arenas, and when memory is returned.
//!
//! glibc gives each thread its own arena, up to eight per core. Requests allocate on one thread and free on another
//! (connection and inference thread), which fragments all arenas: the memory of the process grew by some percent over
//! thousands of requests, though no more of it was in use.

/// Arenas that all threads share: few enough that gaps are reused, and two, so that not every allocation waits for the
/// same lock.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const N_ARENAS: i32 = 2;

/// Bytes of the largest tensor whose memory the allocator can keep when it is freed.
pub const MAX_KEPT_BYTES: usize = 32 << 20;

/// Limits the number of the allocator's arenas, if it has arenas. Call it before starting threads: a thread that has an
/// arena keeps it.
pub fn limit_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a setting of the C library has no other way in")]
        // SAFETY: takes two numbers and touches nothing but the allocator's own settings, under its own lock.
        let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, N_ARENAS) };
        if is_set == 0 {
            tracing::debug!("cannot limit the allocator's arenas");
        }
    }
}

/// Has the allocator keep the memory of freed tensors for the next ones, up to 32 MiB each: a step of training takes and
/// frees the same sizes again and again, and fresh pages from the system cost more than most operations on them. For
/// programs that train; to be called at the start.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a setting of the C library has no other way in")]
        // SAFETY: takes two numbers and touches nothing but the allocator's own settings, under its own lock.
        let are_set = unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_KEPT_BYTES as i32) != 0
                && libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX) != 0
        };
        if !are_set {
            tracing::debug!("cannot make the allocator keep freed memory");
        }
    }
}

/// Returns the allocator's free memory to the system, if it can: after loading a model, that is much.
pub fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a service of the C library")]
        // SAFETY: takes a number, and gives back only pages that hold nothing in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
