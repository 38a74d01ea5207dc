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

/// A random word of `n_chars` digits and lowercase letters, at most twelve.
pub(crate) fn fresh_word(n_chars: usize) -> String {
    let mut bits = random_u64();
    let digits = std::iter::repeat_with(|| {
        let digit = (bits % 36) as u32;
        bits /= 36;
        char::from_digit(digit, 36).unwrap_or_default()
    });
    digits.take(n_chars).collect()
}
