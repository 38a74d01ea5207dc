//! Numbers that nobody chose: ids of requests, and seeds for requests that bring none.

use std::hash::{BuildHasher, RandomState};

/// 64 random bits. The standard library seeds its hashers from the operating system's random source, and no two alike;
/// good enough for names and seeds, not for secrets.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A fresh id: `prefix`, then 128 random bits in hexadecimal.
pub(crate) fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random_u64(), random_u64())
}
