//! Settings of the API: who may use it, from where, and limits on requests.

use std::time::Duration;

use axum::http::uri::Scheme;
use hearth_engine::prefix_cache::PrefixSalt;

use super::{
    api_keys::ApiKeys,
    origin::{AllowedHosts, CorsOrigins},
};
use crate::telemetry::exporter::SpanSender;

/// The API's settings. Their defaults are in [`config`](crate::config).
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// API keys.
    pub keys: ApiKeys,
    /// Allowed hosts in requests.
    pub hosts: AllowedHosts,
    /// Allowed CORS origins.
    pub cors: CorsOrigins,
    /// The server's own scheme, `http` or `https`.
    pub scheme: Scheme,
    /// Maximum size of a request body in bytes.
    pub max_body_bytes: usize,
    /// Timeout for receiving a request body.
    pub body_timeout: Duration,
    /// Maximum pause between pieces of a request body.
    pub body_pause: Duration,
    /// Maximum time of a step of the model; a server with a longer step is unhealthy.
    pub step_timeout: Duration,
    /// Interval of keep-alive comments in a stream without events, so that proxies keep it open.
    pub keep_alive: Duration,
    /// Which requests share the prefix cache.
    pub prefix_sharing: PrefixSharing,
    /// Whether requests may contain chat templates.
    pub request_templates: RequestTemplates,
    /// Maximum number of tokens in a text to inspect; `None`: `/v1/inspect` is off.
    pub max_inspect_tokens: Option<usize>,
    /// Whether to log prompts.
    pub prompt_log: PromptLog,
    /// Whether the engine may have adapters, whose names are unknown until it is loaded.
    pub has_adapters: bool,
    /// Further names of the model.
    pub aliases: ModelAliases,
    /// Exports spans. `None`: tracing is off.
    pub spans: Option<SpanSender>,
}

/// Which requests share the prefix cache if there are several API keys. With one key or none, all requests share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixSharing {
    /// Requests with the same key: response times then reveal nothing about other clients' prompts.
    #[default]
    PerKey,
    /// All requests.
    BetweenKeys,
}

/// Whether requests may contain chat templates, which are programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestTemplates {
    /// Rejected.
    #[default]
    Refused,
    /// Accepted.
    Trusted,
}

impl ApiOptions {
    /// The prefix-cache salt of this key, if keys do not share pages.
    pub(crate) fn salt_of_key(&self, key: &[u8]) -> Option<PrefixSalt> {
        let is_apart = self.keys.n_distinct() > 1 && self.prefix_sharing == PrefixSharing::PerKey;
        is_apart.then(|| PrefixSalt::of_key(key))
    }
}

/// Further names of the served model, besides its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelAliases {
    names: Vec<String>,
    takes_any: bool,
}

impl ModelAliases {
    /// The alias that matches every name.
    pub const ANY: &str = "*";

    /// These names; [`ANY`](Self::ANY) among them matches every name.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut aliases = Self::default();
        for name in names {
            if name == Self::ANY {
                aliases.takes_any = true;
            } else if !aliases.names.contains(&name) {
                aliases.names.push(name);
            }
        }
        aliases
    }

    /// The names, except the one that matches every name.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether every name is accepted.
    pub(crate) fn take_any(&self) -> bool {
        self.takes_any
    }

    /// Whether the model has this further name.
    pub(crate) fn contain(&self, name: &str) -> bool {
        self.takes_any || self.names.iter().any(|alias| alias == name)
    }
}

/// Whether to log prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptLog {
    /// Not logged.
    #[default]
    Never,
    /// Logged in full.
    Whole,
}
