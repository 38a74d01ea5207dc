//! Settings of HTTP: keys, origins, hosts, limits and TLS.

use std::{
    convert::Infallible,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, builder::BoolishValueParser, value_parser};

use super::{BODY_TIMEOUT, MAX_BODY_BYTES, MAX_INSPECT_TOKENS, SSE_KEEP_ALIVE, at_least_1};
use crate::api::guard::{
    api_keys::ApiKeys,
    origin::{AllowedHosts, CorsOrigins, Host, Origin},
};

/// HTTP settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct HttpConfig {
    /// API key that clients must send as `authorization: Bearer KEY` or `x-api-key: KEY`; repeatable [default: none: anyone can use the API]
    #[arg(long, env = "HEARTH_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Vec<Secret>,
    /// File with API keys, one per line. Safer than `--api-key`: other users of the machine can read command lines
    #[arg(long, env = "HEARTH_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Share the prefix cache between API keys: faster if keys send the same prompts, but `cached_tokens` and response times
    /// then reveal to one key what another has sent [default: each key has its own cache entries]
    #[arg(long, env = "HEARTH_SHARE_PREFIX_CACHE", value_parser = BoolishValueParser::new())]
    pub share_prefix_cache: bool,
    /// Accept chat templates in requests (`chat_template`). Templates are programs; they run one at a time, with limits on
    /// memory and time (5 seconds)
    #[arg(long, env = "HEARTH_TRUST_REQUEST_CHAT_TEMPLATE", value_parser = BoolishValueParser::new())]
    pub trust_request_chat_template: bool,
    /// Turn `POST /v1/inspect` off
    #[arg(long, env = "HEARTH_NO_INSPECT", value_parser = BoolishValueParser::new())]
    pub no_inspect: bool,
    /// Maximum number of tokens in a text for `POST /v1/inspect`
    #[arg(long, env = "HEARTH_MAX_INSPECT_TOKENS", value_name = "TOKENS", default_value_t = MAX_INSPECT_TOKENS, value_parser = at_least_1)]
    pub max_inspect_tokens: usize,
    /// Allowed CORS origins, besides the server's own: origins such as `https://example.org` (repeatable or
    /// comma-separated), `null`, `*` for all, or `none`
    #[arg(long, env = "HEARTH_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',', default_value = "none")]
    pub cors_origin: Vec<String>,
    /// Allowed values of the header `Host`, besides `localhost` and loopback addresses: names or addresses without a port
    /// (repeatable or comma-separated), or `*` for all [default: none when listening on loopback; beyond it, all with API
    /// keys, and without them all addresses and the machine's own names]
    #[arg(long, env = "HEARTH_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    pub allowed_host: Vec<String>,
    /// Maximum size of a request body in bytes; larger ones are rejected with 413
    #[arg(long, env = "HEARTH_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = MAX_BODY_BYTES)]
    pub max_body_bytes: usize,
    /// Maximum number of open connections; further ones wait, health checks too. Should be more than `--max-queue` plus
    /// `--max-batch-size`
    #[arg(long, env = "HEARTH_MAX_CONNECTIONS", value_name = "CONNECTIONS", default_value_t = 4096, value_parser = at_least_1)]
    pub max_connections: usize,
    /// Timeout for receiving the head of a request, and for the TLS handshake, in seconds
    #[arg(long, env = "HEARTH_HEADER_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    pub header_timeout: u64,
    /// Timeout for receiving the body of a request, in seconds. Clients that send nothing of it for 10 seconds, or less than 1
    /// KiB per second, are rejected earlier
    #[arg(long, env = "HEARTH_BODY_TIMEOUT", value_name = "SECONDS", default_value_t = BODY_TIMEOUT, value_parser = value_parser!(u64).range(1..))]
    pub body_timeout: u64,
    /// Timeout for idle keep-alive connections and stalled writes, in seconds
    #[arg(long, env = "HEARTH_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 75, value_parser = value_parser!(u64).range(1..))]
    pub idle_timeout: u64,
    /// Interval of keep-alive comments in a stream without events, in seconds
    #[arg(long, env = "HEARTH_SSE_KEEP_ALIVE", value_name = "SECONDS", default_value_t = SSE_KEEP_ALIVE, value_parser = value_parser!(u64).range(1..))]
    pub sse_keep_alive: u64,
    /// PEM file with the certificate chain; enables HTTPS
    #[arg(long, env = "HEARTH_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, env = "HEARTH_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

impl HttpConfig {
    pub(super) fn keys(&self) -> anyhow::Result<ApiKeys> {
        let given = ApiKeys::new(self.api_key.iter().map(|key| key.0.as_str())).context("`--api-key`")?;
        let Some(path) = &self.api_key_file else { return Ok(given) };
        Ok(given.and(keys_in(path).with_context(|| format!("`--api-key-file`: `{}`", path.display()))?))
    }

    pub(super) fn cors(&self) -> anyhow::Result<CorsOrigins> {
        match self.cors_origin.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["*"] => Ok(CorsOrigins::Any),
            ["none"] => Ok(CorsOrigins::These(Vec::new())),
            ref origins => {
                Ok(CorsOrigins::These(origins.iter().map(|origin| self::origin(origin)).collect::<Result<_, _>>()?))
            }
        }
    }

    pub(super) fn allowed_hosts(&self, bound: IpAddr, keys: &ApiKeys) -> anyhow::Result<AllowedHosts> {
        if let ["*"] = self.allowed_host.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            return Ok(AllowedHosts::Any);
        }
        let host = |text: &String| {
            text.parse::<Host>().map_err(|_| {
                anyhow!("`--allowed-host` must be `*`, or names or IP addresses such as `example.org`, got `{text}`\nhint: give the host without scheme, port and path")
            })
        };
        let listed = self.allowed_host.iter().map(host).collect::<anyhow::Result<_>>()?;
        Ok(AllowedHosts::choose(listed, bound, keys))
    }
}

fn keys_in(path: &Path) -> anyhow::Result<ApiKeys> {
    let text = std::fs::read_to_string(path).context("cannot read the file")?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let mut keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
    if keys.peek().is_none() {
        // Without this check, an empty key file would open the API to everybody.
        bail!("the file has no key\nhint: it must have one key per line");
    }
    keys.try_fold(ApiKeys::default(), |keys, (number, key)| {
        Ok(keys.and(ApiKeys::new([key]).with_context(|| format!("line {number}"))?))
    })
}

/// Parses an origin as browsers write it.
fn origin(text: &str) -> anyhow::Result<Origin> {
    text.parse().map_err(|_| {
        anyhow!("`--cors-origin` must be `*`, `none` or origins such as `https://example.org`, got `{text}`\nhint: give the origin without path and trailing slash")
    })
}

/// A string that is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl Secret {
    /// The string, for where it must go.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
