//! Flags and environment variables. The doc comments are the help texts. All defaults are here.

use std::{
    convert::Infallible,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use axum::http::{HeaderName, HeaderValue, uri::Scheme};
use burn::tensor::Device;
use clap::{
    Args, ValueEnum,
    builder::{BoolishValueParser, OsStringValueParser, TypedValueParser},
    value_parser,
};
use hearth_model::{
    Error, Result,
    device::{self, DeviceChoice},
    gpt::Gpt,
    hub::{Download, ModelPart},
    model_source::ModelSource,
    ops::{self, Dtype, KvDtype},
    sampling::SamplingParams,
    weights::model_dir::{self, LoadOptions, LoadedModel},
};
use percent_encoding::percent_decode_str;

use crate::{
    api::{
        api_keys::ApiKeys,
        options::{ApiOptions, PrefixSharing, PromptLog, RequestTemplates},
        origin::{AllowedHosts, CorsOrigins, Host, Origin},
    },
    bundled,
    connection::ConnectionTimeouts,
    engine::{EngineOptions, Models, Speculation, StartError, request::MAX_CHOICES},
    memory,
    serve::ServeOptions,
    telemetry::{
        exporter::{ExportOptions, Exporter},
        sampler::{SamplerKind, TraceSampler},
    },
    tls,
};

/// All settings of the server.
#[derive(Args, Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; 0.0.0.0 for all networks
    #[arg(long, env = "HEARTH_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// TCP port to listen on; 0 for any free one
    #[arg(long, env = "HEARTH_PORT", default_value_t = 8080)]
    pub port: u16,
    /// The model and where it runs.
    #[command(flatten)]
    pub model: ModelConfig,
    /// Maximum queue length in answers, counting each choice of each prompt; requests beyond it are rejected with 429
    #[arg(long, env = "HEARTH_MAX_QUEUE", value_name = "ANSWERS", default_value_t = MAX_CHOICES)]
    pub max_queue: usize,
    /// Maximum number of sequences that run at once
    #[arg(long, env = "HEARTH_MAX_BATCH_SIZE", value_name = "SEQUENCES", default_value_t = 32)]
    pub max_batch_size: usize,
    /// Maximum number of tokens per step. Long prompts are split into chunks of this size, so larger values make prompts
    /// faster and delay other streams more
    #[arg(long, env = "HEARTH_MAX_BATCH_TOKENS", value_name = "TOKENS", default_value_t = 256)]
    pub max_batch_tokens: usize,
    /// KV cache size in tokens, allocated at startup [default: room for all running sequences, up to 1 GiB but at least
    /// one full context; on the CPU at most 25 % of free memory]
    #[arg(long, env = "HEARTH_KV_CACHE_TOKENS", value_name = "TOKENS")]
    pub kv_cache_tokens: Option<usize>,
    /// Speculative decoding: guess the next tokens and verify them in one step. Answers stay the same and are faster where
    /// guesses are correct. `prompt-lookup` copies what followed the same tokens earlier in the text; `draft` uses a smaller
    /// model [default: off, or `draft` with `--draft-model`]
    #[arg(long, env = "HEARTH_SPECULATIVE", value_name = "METHOD")]
    pub speculative: Option<SpeculativeMethod>,
    /// Draft model for speculative decoding: model dir, GGUF file, or name of a model of the Hugging Face hub. Must have the
    /// same vocabulary
    #[arg(long, env = "HEARTH_DRAFT_MODEL", value_name = "DIR|FILE|NAME", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    pub draft_model: Option<ModelSource>,
    /// Dtype of the draft model's weight matrices: `f32`, `f16`, `bf16`, or quantized to `q8`, `q5_1`, `q4_1` or `q4`
    /// [default: that of `--dtype` or `--quantize`]
    #[arg(long, env = "HEARTH_DRAFT_DTYPE", value_name = "DTYPE", value_parser = |name: &str| Dtype::parse(name, |_| true))]
    pub draft_dtype: Option<Dtype>,
    /// Maximum number of tokens to guess per step, from 1 to 16 [default: 8 with `prompt-lookup`, 3 with `draft`]
    #[arg(long, env = "HEARTH_NUM_SPECULATIVE_TOKENS", value_name = "TOKENS")]
    pub num_speculative_tokens: Option<usize>,
    /// Disable GPU graph capture for decoding (slower; works around driver bugs)
    #[arg(long, env = "HEARTH_ENFORCE_EAGER", value_parser = BoolishValueParser::new())]
    pub enforce_eager: bool,
    /// Defaults of sampling parameters.
    #[command(flatten)]
    pub sampling: SamplingConfig,
    /// Time for running requests to finish after SIGTERM or ctrl-c, in seconds; a second signal ends them immediately
    #[arg(long, env = "HEARTH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: u64,
    /// HTTP settings.
    #[command(flatten)]
    pub http: HttpConfig,
    /// Log settings.
    #[command(flatten)]
    pub log: LogConfig,
    /// Trace settings.
    #[command(flatten)]
    pub traces: TraceConfig,
}

/// The method of speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculativeMethod {
    /// No speculative decoding.
    Off,
    /// Copy what followed the same tokens earlier in the text.
    PromptLookup,
    /// Use a smaller model.
    Draft,
}

impl ServerConfig {
    /// The engine's settings.
    pub fn engine_options(&self) -> EngineOptions {
        let n_tokens = |default| self.num_speculative_tokens.unwrap_or(default);
        let speculation = match (self.speculative, &self.draft_model) {
            (Some(SpeculativeMethod::Off), _) | (None, None) => Speculation::Off,
            (Some(SpeculativeMethod::PromptLookup), _) => Speculation::PromptLookup { n_tokens: n_tokens(8) },
            (Some(SpeculativeMethod::Draft), _) | (None, Some(_)) => Speculation::DraftModel { n_tokens: n_tokens(3) },
        };
        EngineOptions {
            speculation,
            max_queue: self.max_queue,
            max_batch_size: self.max_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            kv_cache_tokens: self.kv_cache_tokens,
            kv_cache_dtype: self.model.kv_cache_dtype.asked(),
            enforce_eager: self.enforce_eager,
        }
    }

    /// Checks the settings, as far as possible without the model.
    ///
    /// # Errors
    /// Names the setting, its value, and what it requires.
    pub fn check(&self) -> Result<(), StartError> {
        self.engine_options().check()?;
        let refuse = |flag: &str, what: &str| Err(StartError::Options(format!("`{flag}` requires {what}")));
        let is_off = self.speculative.is_none() && self.draft_model.is_none();
        match self.speculative {
            Some(SpeculativeMethod::PromptLookup) if self.draft_model.is_some() => {
                refuse("--draft-model", "`--speculative draft`, got `prompt-lookup`")
            }
            Some(SpeculativeMethod::Draft) if self.draft_model.is_none() => {
                refuse("--speculative draft", "`--draft-model`, which is not given")
            }
            _ if self.draft_dtype.is_some() && self.draft_model.is_none() => {
                refuse("--draft-dtype", "`--draft-model`, which is not given")
            }
            _ if self.num_speculative_tokens.is_some() && is_off => {
                refuse("--num-speculative-tokens", "`--speculative` or `--draft-model`, neither of which is given")
            }
            // Not a rule of the command line: `hearth health` needs the certificate alone.
            _ if self.http.tls_cert.is_some() && self.http.tls_key.is_none() => {
                refuse("--tls-cert", "`--tls-key`, which is not given")
            }
            _ if self.http.tls_key.is_some() && self.http.tls_cert.is_none() => {
                refuse("--tls-key", "`--tls-cert`, which is not given")
            }
            _ => Ok(()),
        }
    }

    /// Opens the device and loads the models, which are downloaded if needed. Must run on the thread that computes with them.
    ///
    /// # Errors
    /// The device is not available, or a model cannot be downloaded or loaded.
    pub fn load(&self, progress: &mut dyn FnMut(Download)) -> Result<Models> {
        let served = self.sampling.sampling_defaults.of(self.model.load(progress)?);
        let wanted = matches!(self.engine_options().speculation, Speculation::DraftModel { .. });
        let draft = self.draft_model.as_ref().filter(|_| wanted);
        let draft = draft.map(|source| {
            let (dtype, quantize) = match self.draft_dtype {
                Some(dtype) => (Some(dtype), None),
                None => (self.model.dtype, self.model.quantize),
            };
            ModelConfig { model: Some(source.clone()), dtype, quantize, ..self.model.clone() }.load(progress)
        });
        Ok(Models { served, draft: draft.transpose()? })
    }

    /// The listener's settings.
    ///
    /// # Errors
    /// The certificate or its key cannot be used.
    pub fn serve_options(&self) -> anyhow::Result<ServeOptions> {
        let http = &self.http;
        let tls = match (&http.tls_cert, &http.tls_key) {
            (Some(certificates), Some(key)) => Some(tls::acceptor(certificates, key)?),
            _ => None,
        };
        Ok(ServeOptions {
            drain_timeout: Duration::from_secs(self.drain_timeout),
            timeouts: ConnectionTimeouts {
                head: Duration::from_secs(http.header_timeout),
                idle: Duration::from_secs(http.idle_timeout),
            },
            max_connections: http.max_connections,
            tls,
        })
    }

    /// The API's settings, for a server that listens on the address `bound`.
    ///
    /// # Errors
    /// A key, an origin or a host is malformed, or the key file cannot be read.
    pub fn api_options(&self, bound: IpAddr) -> anyhow::Result<ApiOptions> {
        let http = &self.http;
        let keys = http.keys()?;
        Ok(ApiOptions {
            hosts: http.allowed_hosts(bound, &keys)?.and_name(&self.host),
            keys,
            cors: http.cors()?,
            scheme: if http.tls_cert.is_some() { Scheme::HTTPS } else { Scheme::HTTP },
            max_body_bytes: http.max_body_bytes,
            body_timeout: Duration::from_secs(http.body_timeout),
            keep_alive: Duration::from_secs(http.sse_keep_alive),
            prefix_sharing: if http.share_prefix_cache { PrefixSharing::BetweenKeys } else { PrefixSharing::PerKey },
            request_templates: if http.trust_request_chat_template {
                RequestTemplates::Trusted
            } else {
                RequestTemplates::Refused
            },
            max_inspect_tokens: (!http.no_inspect).then_some(http.max_inspect_tokens),
            prompt_log: if self.log.log_prompts { PromptLog::Whole } else { PromptLog::Never },
            spans: None,
        })
    }

    /// The exporter of spans; `None` if no collector is configured.
    ///
    /// # Errors
    /// The collector's URL or certificate is invalid.
    pub fn exporter(&self) -> anyhow::Result<Option<Exporter>> {
        Ok(self.traces.export_options()?.map(Exporter::start).transpose()?)
    }
}

/// OpenTelemetry's default.
const EXPORT_DELAY: Duration = Duration::from_secs(5);

const MAX_BODY_BYTES: usize = 8 << 20;
const BODY_TIMEOUT: u64 = 60;
const MAX_INSPECT_TOKENS: usize = 512;
const SSE_KEEP_ALIVE: u64 = 15;

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            keys: ApiKeys::default(),
            hosts: AllowedHosts::These(Vec::new()),
            cors: CorsOrigins::These(Vec::new()),
            scheme: Scheme::HTTP,
            max_body_bytes: MAX_BODY_BYTES,
            body_timeout: Duration::from_secs(BODY_TIMEOUT),
            keep_alive: Duration::from_secs(SSE_KEEP_ALIVE),
            prefix_sharing: PrefixSharing::default(),
            request_templates: RequestTemplates::default(),
            max_inspect_tokens: Some(MAX_INSPECT_TOKENS),
            prompt_log: PromptLog::Never,
            spans: None,
        }
    }
}

/// HTTP settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct HttpConfig {
    /// API key that clients must send as `authorization: Bearer KEY`; repeatable [default: none: anyone can use the API]
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
    /// Maximum number of open connections; further ones wait
    #[arg(long, env = "HEARTH_MAX_CONNECTIONS", value_name = "CONNECTIONS", default_value_t = 1024, value_parser = at_least_1)]
    pub max_connections: usize,
    /// Timeout for receiving the head of a request, and for the TLS handshake, in seconds
    #[arg(long, env = "HEARTH_HEADER_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    pub header_timeout: u64,
    /// Timeout for receiving the body of a request, in seconds
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
    fn keys(&self) -> anyhow::Result<ApiKeys> {
        let given = ApiKeys::new(self.api_key.iter().map(|key| key.0.as_str())).context("`--api-key`")?;
        let Some(path) = &self.api_key_file else { return Ok(given) };
        Ok(given.and(keys_in(path).with_context(|| format!("`--api-key-file`: `{}`", path.display()))?))
    }

    fn cors(&self) -> anyhow::Result<CorsOrigins> {
        match self.cors_origin.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["*"] => Ok(CorsOrigins::Any),
            ["none"] => Ok(CorsOrigins::These(Vec::new())),
            ref origins => {
                Ok(CorsOrigins::These(origins.iter().map(|origin| self::origin(origin)).collect::<Result<_, _>>()?))
            }
        }
    }

    fn allowed_hosts(&self, bound: IpAddr, keys: &ApiKeys) -> anyhow::Result<AllowedHosts> {
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
    let keys: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if keys.is_empty() {
        // Without this check, an empty key file would open the API to everybody.
        bail!("the file has no key\nhint: it must have one key per line");
    }
    Ok(ApiKeys::new(keys)?)
}

/// Parses an origin as browsers write it.
fn origin(text: &str) -> anyhow::Result<Origin> {
    text.parse().map_err(|_| {
        anyhow!("`--cors-origin` must be `*`, `none` or origins such as `https://example.org`, got `{text}`\nhint: give the origin without path and trailing slash")
    })
}

fn at_least_1(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number >= 1);
    number.ok_or_else(|| "it must be a whole number, at least 1".to_owned())
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

/// Log settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logs")]
pub struct LogConfig {
    /// Format of log lines, which go to stderr
    #[arg(long, env = "HEARTH_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Include the full prompts in the log
    #[arg(long, env = "HEARTH_LOG_PROMPTS", value_parser = BoolishValueParser::new())]
    pub log_prompts: bool,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Trace settings. The variables are OpenTelemetry's own.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traces")]
pub struct TraceConfig {
    /// URL of an OpenTelemetry collector such as `http://localhost:4318`. Each request is exported as a span, by OTLP over
    /// HTTP with JSON (not gRPC) [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// HTTP header for the collector; repeatable
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = ','
    )]
    pub otlp_header: Vec<Secret>,
    /// PEM file with the CA certificates for an https collector [default: Mozilla's root certificates]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otlp_certificate: Option<PathBuf>,
    /// URL that traces are posted to, without appending `/v1/traces`; overrides `--otlp-endpoint`
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,
    /// Service name in traces [default: `service.name` of the resource attributes, or `hearth`]
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME")]
    pub otlp_service_name: Option<String>,
    /// Attribute of the server in traces; repeatable or comma-separated
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub otlp_resource_attribute: Vec<String>,
    /// Which requests are exported: all, none, a fraction of all traces, or as the caller's trace says and one of these
    /// for requests without one
    #[arg(
        long,
        env = "OTEL_TRACES_SAMPLER",
        value_name = "SAMPLER",
        value_enum,
        default_value = "parentbased_always_on"
    )]
    pub otlp_sampler: SamplerKind,
    /// Fraction of traces that the `traceidratio` samplers export, from 0 to 1
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", value_name = "FRACTION", default_value_t = 1.0, value_parser = fraction)]
    pub otlp_sampler_arg: f64,
}

fn fraction(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}

/// Decodes a percent-encoded value.
fn percent_decoded(value: &str) -> Option<String> {
    Some(percent_decode_str(value.trim()).decode_utf8().ok()?.into_owned())
}

impl TraceConfig {
    /// The exporter's settings. `None`: no collector is configured.
    fn export_options(&self) -> anyhow::Result<Option<ExportOptions>> {
        const PATH: &str = "/v1/traces";
        // An empty variable counts as unset.
        let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        let with_path = |url: String| match url.trim_end_matches('/') {
            whole if whole.ends_with(PATH) => whole.to_owned(),
            base => format!("{base}{PATH}"),
        };
        let endpoint = given(&self.otlp_traces_endpoint).or_else(|| given(&self.otlp_endpoint).map(with_path));
        let Some(endpoint) = endpoint else { return Ok(None) };
        Ok(Some(ExportOptions {
            endpoint,
            headers: self.headers()?,
            certificate: self.otlp_certificate.clone(),
            resource: self.resource()?,
            sampler: TraceSampler { kind: self.otlp_sampler, ratio: self.otlp_sampler_arg },
            delay: EXPORT_DELAY,
        }))
    }

    /// The resource attributes, with name and version of the service.
    fn resource(&self) -> anyhow::Result<Vec<(String, String)>> {
        let defaults = [("service.name", "hearth"), ("service.version", env!("CARGO_PKG_VERSION"))];
        let mut attributes: Vec<(String, String)> = defaults.map(|(key, value)| (key.into(), value.into())).into();
        let mut set = |key: &str, value: String| {
            attributes.retain(|(known, _)| known != key);
            attributes.push((key.to_owned(), value));
        };
        for given in self.otlp_resource_attribute.iter().filter(|given| !given.trim().is_empty()) {
            let attribute = given.split_once('=').and_then(|(key, value)| Some((key.trim(), percent_decoded(value)?)));
            let (key, value) = attribute.filter(|(key, _)| !key.is_empty()).with_context(|| {
                format!("`--otlp-resource-attribute` must be `NAME=VALUE`, with a percent-encoded value, got `{given}`")
            })?;
            set(key, value);
        }
        if let Some(name) = self.otlp_service_name.clone().filter(|name| !name.is_empty()) {
            set("service.name", name);
        }
        Ok(attributes)
    }

    fn headers(&self) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
        let header = |given: &Secret| {
            let (name, value) = given.0.split_once('=')?;
            // The variable's values are percent-encoded, as in the header `baggage`.
            let value = percent_decoded(value)?;
            Some((name.trim().parse().ok()?, HeaderValue::from_str(&value).ok()?))
        };
        let headers = self.otlp_header.iter().filter(|given| !given.0.trim().is_empty()).map(|given| {
            // The error does not contain the value, which may be secret.
            header(given).context("`--otlp-header` must be `NAME=VALUE`, with a percent-encoded value")
        });
        headers.collect()
    }
}

/// Defaults of sampling parameters.
#[derive(Args, Clone, Copy, Debug)]
pub struct SamplingConfig {
    /// Defaults of sampling parameters: `model` (the model's generation_config.json) or `openai` (OpenAI's defaults)
    #[arg(long, env = "HEARTH_SAMPLING_DEFAULTS", value_name = "WHOSE", value_enum, default_value_t = SamplingDefaults::Model)]
    pub sampling_defaults: SamplingDefaults,
}

/// The source of defaults of sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SamplingDefaults {
    /// The model's `generation_config.json`.
    Model,
    /// OpenAI's defaults, which change nothing.
    Openai,
}

impl SamplingDefaults {
    /// Applies the setting to a loaded model.
    pub fn of(self, model: LoadedModel) -> LoadedModel {
        match self {
            Self::Model => model,
            Self::Openai => LoadedModel { sampling_defaults: SamplingParams::default(), ..model },
        }
    }
}

/// The model and its device.
#[derive(Args, Clone, Debug)]
pub struct ModelConfig {
    /// Model dir in Hugging Face's format, GGUF file, or name of a model of the Hugging Face hub, which is downloaded if
    /// needed: `ORG/NAME[@REVISION][:FILE or QUANTIZATION]` [default: the bundled model]
    #[arg(long, env = "HEARTH_MODEL", value_name = "DIR|FILE|NAME", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    pub model: Option<ModelSource>,
    /// Device: `auto` (a GPU if there is one, else the CPU), `gpu`, `cpu`, `wgpu-software`, or another device of this build
    #[arg(long, env = "HEARTH_DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Dtype of weight matrices: `f32`, `f16` or `bf16` [default: that of the files if it is bf16, quantized or GGUF, else
    /// f32]
    #[arg(long, env = "HEARTH_DTYPE", value_parser = |name: &str| dtype_of(name, false))]
    pub dtype: Option<Dtype>,
    /// Quantize weight matrices to `q8` (8.5 bits per weight), `q5_1` (6 bits), `q4_1` (5 bits) or `q4` (4.5 bits, the least
    /// accurate); embeddings are always q8
    #[arg(long, env = "HEARTH_QUANTIZE", value_name = "DTYPE", conflicts_with = "dtype",
        value_parser = |name: &str| dtype_of(name, true))]
    pub quantize: Option<Dtype>,
    /// Dtype of the KV cache: `f32`, `f16` (half the memory), or `auto`: `f16` if weight matrices are f16 or quantized and
    /// the device supports it, else `f32`
    #[arg(long, env = "HEARTH_KV_CACHE_DTYPE", value_name = "DTYPE", value_enum, default_value_t = KvCacheDtype::Auto, hide_possible_values = true)]
    pub kv_cache_dtype: KvCacheDtype,
}

/// Parses a value of `--quantize` or `--dtype`. The error has a hint if it is a value of the other flag.
fn dtype_of(name: &str, is_quantized: bool) -> Result<Dtype, String> {
    Dtype::parse(name, |dtype| dtype.is_quantized() == is_quantized).map_err(|what| {
        let other = if is_quantized { "dtype" } else { "quantize" };
        let is_other = Dtype::parse(name, |dtype| dtype.is_quantized() != is_quantized).is_ok();
        if is_other { format!("{what}\nhint: `--{other} {name}`") } else { what }
    })
}

/// The dtype of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// Chosen for the model.
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
}

impl KvCacheDtype {
    /// The dtype chosen by the user, if any.
    pub(crate) fn asked(self) -> Option<KvDtype> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(KvDtype::F32),
            Self::F16 => Some(KvDtype::F16),
        }
    }
}

impl ModelConfig {
    /// The model's name for clients: that of its folder, or of its file without `.gguf`; of a model of the hub as it is given.
    pub fn model_id(&self) -> String {
        let path = match &self.model {
            None => return bundled::NAME.to_owned(),
            Some(ModelSource::Hub(model)) => return model.to_string(),
            Some(ModelSource::Path(path)) => path,
        };
        // A link has its own name: in Hugging Face's cache, files are links to hashes. `.` has a name once resolved.
        let resolved = path.canonicalize();
        let name = path.file_name().or_else(|| resolved.as_deref().ok()?.file_name());
        let name = name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        name.strip_suffix(".gguf").map(str::to_owned).unwrap_or(name)
    }

    /// Opens the device and loads the model, which is downloaded if needed. Must run on the thread that computes with it.
    ///
    /// # Errors
    /// The device is not available, or the model cannot be downloaded or loaded.
    pub fn load(&self, progress: &mut dyn FnMut(Download)) -> Result<LoadedModel> {
        let path = self.model.as_ref().map(|source| source.open(ModelPart::Whole, progress)).transpose()?;
        let options = LoadOptions { device: self.device()?, dtype: self.held_as() };
        match path {
            Some(path) => {
                self.require_memory(&path, &options.device)?;
                model_dir::load(&path, &options)
            }
            None => model_dir::load_embedded(&bundled::DIR, &options),
        }
    }

    /// Rejects a model that does not fit into this machine's memory, before loading it. GPU memory is not checked: its
    /// size is not known.
    fn require_memory(&self, dir: &Path, device: &Device) -> Result<()> {
        // Errors in the files are reported by the loader.
        let (Ok(config), true) = (model_dir::load_config(dir), *device == Device::flex()) else { return Ok(()) };
        let held_as = self.held_as().or(model_dir::load_stored_dtype(dir).ok().flatten());
        let bits = match held_as {
            Some(dtype) if dtype.is_quantized() => memory::bits_of(dtype),
            // The dtype of the files.
            None if dir.is_file() => memory::bits_of(Dtype::Q4),
            // f32 weights may be stored in half the memory (see `ops/cpu/lossless.rs`).
            _ => memory::bits_of(Dtype::Bf16),
        };
        let n_bytes = memory::least_weight_bytes(config.n_params(), bits);
        memory::require_possible(n_bytes, memory::limit_bytes()).map_err(|what| Error::File {
            path: dir.to_owned(),
            what,
            hint: "`--quantize q4` needs the least memory; otherwise use a smaller model or a larger machine"
                .to_owned(),
        })
    }

    /// The dtype of weight matrices, if set on the command line.
    pub(crate) fn held_as(&self) -> Option<Dtype> {
        self.quantize.or(self.dtype)
    }

    /// The dtype of a cache for the model.
    ///
    /// # Errors
    /// The model's device does not support it.
    pub(crate) fn kv_dtype(&self, gpt: &Gpt) -> Result<KvDtype> {
        KvDtype::choose(self.kv_cache_dtype.asked(), gpt.dtype(), &gpt.device())
    }

    /// Opens the device. Must run on the thread that computes with it.
    ///
    /// # Errors
    /// The device is not available.
    pub(crate) fn device(&self) -> Result<Device> {
        // Before the thread pool starts: this thread is part of it.
        ops::lead_threads();
        let chosen = device::choose(self.device)?;
        tracing::info!("device: {} ({})", device::name(&chosen.device), chosen.reason);
        Ok(chosen.device)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        traces: TraceConfig,
    }

    fn options(flags: &[&str]) -> anyhow::Result<Option<ExportOptions>> {
        Flags::try_parse_from([&["hearth"], flags].concat())?.traces.export_options()
    }

    #[cfg(unix)]
    #[test]
    fn models_are_named_by_their_path_and_not_by_what_a_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (blob, link) = (dir.path().join("5f0a"), dir.path().join("SmolLM2-Q4_1.gguf"));
        std::fs::write(&blob, "").unwrap();
        std::os::unix::fs::symlink(&blob, &link).unwrap();
        std::fs::create_dir_all(dir.path().join("my-model/inner")).unwrap();
        let name = |path: &Path| {
            #[derive(Parser)]
            struct Flags {
                #[command(flatten)]
                model: ModelConfig,
            }
            Flags::try_parse_from(["hearth".as_ref(), "--model".as_ref(), path.as_os_str()]).unwrap().model.model_id()
        };
        assert_eq!(name(&link), "SmolLM2-Q4_1");
        assert_eq!(name(&dir.path().join("my-model")), "my-model");
        assert_eq!(name(&dir.path().join("my-model/inner/..")), "my-model");
        assert_eq!(name(&dir.path().join("my-model/.")), "my-model");
    }

    #[test]
    fn traces_go_where_the_variables_say() {
        assert!(options(&[]).unwrap().is_none());
        assert!(options(&["--otlp-endpoint", ""]).unwrap().is_none());
        let endpoint = |flags: &[&str]| options(flags).unwrap().unwrap().endpoint;
        assert_eq!(endpoint(&["--otlp-endpoint", "http://x:1/"]), "http://x:1/v1/traces");
        assert_eq!(endpoint(&["--otlp-endpoint", "http://x:1/v1/traces"]), "http://x:1/v1/traces");
        let both = ["--otlp-endpoint", "http://x", "--otlp-traces-endpoint", "http://y/own"];
        assert_eq!(endpoint(&both), "http://y/own", "as it is");
    }

    #[test]
    fn the_service_has_its_name_and_attributes() {
        let resource = |flags: &[&str]| {
            let options = options(&[&["--otlp-endpoint", "http://x"], flags].concat())?.unwrap();
            anyhow::Ok(options.resource.into_iter().filter(|(key, _)| key != "service.version").collect::<Vec<_>>())
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(resource(&[]).unwrap(), [pair("service.name", "hearth")]);
        let attributes = ["--otlp-resource-attribute", "service.name=one,deployment.environment=a%20b,"];
        let own = pair("deployment.environment", "a b");
        assert_eq!(resource(&attributes).unwrap(), [pair("service.name", "one"), own.clone()]);
        let named = [&attributes[..], &["--otlp-service-name", "two"]].concat();
        assert_eq!(resource(&named).unwrap(), [own, pair("service.name", "two")]);
        for broken in ["x", "=x", "x=%ff"] {
            let error = resource(&["--otlp-resource-attribute", broken]).unwrap_err().to_string();
            assert!(error.contains("`--otlp-resource-attribute` must be `NAME=VALUE`"), "{error}");
        }
    }

    #[test]
    fn samplers_have_the_standard_s_names_and_a_fraction() {
        let sampler = |flags: &[&str]| {
            let options = options(&[&["--otlp-endpoint", "http://x"], flags].concat());
            options.map(|options| options.unwrap().sampler)
        };
        assert_eq!(sampler(&[]).unwrap(), TraceSampler::default());
        let given = ["--otlp-sampler", "parentbased_traceidratio", "--otlp-sampler-arg", "0.25"];
        let expected = TraceSampler { kind: SamplerKind::ParentbasedTraceidratio, ratio: 0.25 };
        assert_eq!(sampler(&given).unwrap(), expected);
        for broken in [["--otlp-sampler", "sometimes"], ["--otlp-sampler-arg", "2"]] {
            assert!(sampler(&broken).is_err(), "{broken:?}");
        }
    }
}
