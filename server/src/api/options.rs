//! What the API's owner may set, beside the engine: who may use it, from where, and what a request may be like.

use std::{collections::BTreeSet, fmt, time::Duration};

use axum::http::uri::Scheme;
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

use super::origin::{AllowedHosts, CorsOrigins};
use crate::{engine::prefix_cache::PrefixSalt, telemetry::exporter::SpanSender};

/// The API's settings. Their defaults are in [`config`](crate::config).
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// Who may use it.
    pub keys: ApiKeys,
    /// Which hosts its address may have in requests.
    pub hosts: AllowedHosts,
    /// Whose pages may use it.
    pub cors: CorsOrigins,
    /// What it speaks itself, `http` or `https`.
    pub scheme: Scheme,
    /// Largest body of a request that is read.
    pub max_body_bytes: usize,
    /// How long a request's body may take to arrive.
    pub body_timeout: Duration,
    /// Comments are sent this often while a stream has nothing to say, so that proxies do not take it for dead.
    pub keep_alive: Duration,
    /// Who shares computed prompts.
    pub prefix_sharing: PrefixSharing,
    /// Whether requests may bring chat templates.
    pub request_templates: RequestTemplates,
    /// Whether prompts are logged.
    pub prompt_log: PromptLog,
    /// Where requests are told as spans. `None`: nowhere.
    pub spans: Option<SpanSender>,
}

/// Who shares computed prompts, where there are several keys. With one key or none, all requests do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixSharing {
    /// Requests of the same key: how long a prompt takes tells nobody what others have asked.
    #[default]
    PerKey,
    /// All requests.
    BetweenKeys,
}

/// Whether requests may bring chat templates, which are programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestTemplates {
    /// They may not.
    #[default]
    Refused,
    /// They may.
    Trusted,
}

impl ApiOptions {
    /// What sets the pages of requests with this key apart from those of others, if anything does.
    pub(crate) fn salt_of_key(&self, key: &[u8]) -> Option<PrefixSalt> {
        let is_apart = self.keys.n_distinct() > 1 && self.prefix_sharing == PrefixSharing::PerKey;
        is_apart.then(|| PrefixSalt::of_key(key))
    }
}

/// Whether prompts are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptLog {
    /// They are nobody's business.
    #[default]
    Never,
    /// As they came.
    Whole,
}

/// The keys that open the API; none: it is open to all. Only their digests are kept, and nothing shows even those.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

/// A key that no client could send. Does not say which, as errors get logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key must be of visible ASCII characters, at least one and without spaces")]
pub struct BadKey;

impl ApiKeys {
    /// Takes in keys.
    ///
    /// # Errors
    /// One of them could never be sent.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, BadKey> {
        let is_sendable = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        keys.into_iter().map(|key| is_sendable(key).then(|| fingerprint(key.as_bytes())).ok_or(BadKey)).collect()
    }

    /// All of both.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Whether everybody may use the API.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// How many different keys there are.
    fn n_distinct(&self) -> usize {
        self.0.iter().collect::<BTreeSet<_>>().len()
    }

    /// Whether `key` is one of them. Takes as long for a wrong key as for a right one, whichever it is: digests are
    /// compared, so that not even lengths show.
    pub(crate) fn contain(&self, key: &[u8]) -> bool {
        let given = fingerprint(key);
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

fn fingerprint(key: &[u8]) -> [u8; 32] {
    let digest = digest(&SHA256, key);
    std::array::from_fn(|index| digest.as_ref().get(index).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn keys_open_for_themselves_alone_and_show_nothing() {
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
