//! What the system's allocator keeps: how many arenas it takes memory from, and when it gives memory back.
//!
//! glibc gives each thread an arena of its own, up to eight per core. What one thread takes and another gives back, as
//! requests do on their way from a connection to the inference thread and back again, leaves holes in all of them: what
//! is in use stays the same to the byte, and what the process holds creeps up by some percent over thousands of requests.

/// Arenas for all threads together: few enough that holes are filled again, and one more than a single lock.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const N_ARENAS: i32 = 2;

/// Bounds the arenas of the allocator, where there are such. To be called before threads are started: those that have an
/// arena keep it.
pub fn limit_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "a setting of the C library has no other way in")]
        // SAFETY: takes two numbers and touches nothing but the allocator's own settings, under its own lock.
        let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, N_ARENAS) };
        if is_set == 0 {
            tracing::debug!("the allocator does not limit its arenas");
        }
    }
}

/// Gives back to the system what the allocator keeps for later, where it does: much of what loading a model took.
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
