//! Random ids for requests, and seeds for requests without one.

use std::hash::{BuildHasher, RandomState};

/// 64 random bits. The standard library seeds its hashers from the operating system's random source, each differently;
/// good enough for ids and seeds, not for secrets.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A random id: `prefix` and 128 random bits in hexadecimal.
pub(crate) fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random_u64(), random_u64())
}
