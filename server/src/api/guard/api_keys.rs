//! API keys, stored as SHA-256 digests, and who sent a request.

use std::{collections::BTreeSet, fmt};

use hearth_engine::{prefix_cache::PrefixSalt, tenant::TenantId};
use hearth_model::files::digest::Digest;
use subtle::ConstantTimeEq;

/// The accepted API keys; with none, the API is open. Only digests are stored, and `Debug` does not show even those.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

/// Who sent a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sender {
    /// The holder of the API key, or without keys the client's address.
    pub(crate) tenant: TenantId,
    /// The prefix-cache salt of the API key, if keys do not share pages.
    pub(crate) salt: Option<PrefixSalt>,
}

/// A key that no client could send. Does not include the key, because errors are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key must consist of visible ASCII characters without spaces, at least one")]
pub struct BadKey;

impl ApiKeys {
    /// Stores the digests of `keys`.
    ///
    /// # Errors
    /// A key is empty or has characters other than visible ASCII.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, BadKey> {
        let is_sendable = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        keys.into_iter().map(|key| is_sendable(key).then(|| Digest::of(key.as_bytes()).0).ok_or(BadKey)).collect()
    }

    /// The union of both sets.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Whether no key is set, so that everybody may use the API.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of different keys.
    pub(crate) fn n_distinct(&self) -> usize {
        self.0.iter().collect::<BTreeSet<_>>().len()
    }

    /// Whether `key` is an accepted key. Compares digests, so the time reveals nothing about the keys, not even their
    /// lengths.
    pub(crate) fn contain(&self, key: &[u8]) -> bool {
        let Digest(given) = Digest::of(key);
        self.0.iter().fold(subtle::Choice::from(0), |found, key| found | key.ct_eq(&given)).into()
    }
}

impl FromIterator<[u8; 32]> for ApiKeys {
    fn from_iter<Digests: IntoIterator<Item = [u8; 32]>>(digests: Digests) -> Self {
        Self(digests.into_iter().collect())
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn api_keys_match_exactly_and_are_hidden_in_debug_output() {
        let keys = ApiKeys::new(["sk-one", "sk-two"]).unwrap();
        assert!(keys.contain(b"sk-one") && keys.contain(b"sk-two"));
        for wrong in [&b"sk-on"[..], b"sk-one ", b"SK-ONE", b""] {
            assert!(!keys.contain(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{keys:?}"), "2 keys");
        assert!(ApiKeys::default().is_open() && !keys.is_open());
        for bad in ["", "two words", "caf\u{e9}", "line\n"] {
            assert_eq!(ApiKeys::new([bad]).unwrap_err(), BadKey, "{bad:?}");
        }
    }
}
