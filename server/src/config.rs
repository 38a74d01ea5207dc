//! What can be set, by flag or by environment variable. The doc comments here are the help texts, and the defaults are
//! here alone.

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
use clap::{Args, ValueEnum, builder::BoolishValueParser, value_parser};
use hearth_model::{
    Error, Result,
    device::{self, DeviceChoice},
    gpt::Gpt,
    ops::{self, Dtype, KvDtype},
    sampling::SamplingParams,
    weights::model_dir::{self, LoadOptions, LoadedModel},
};
use percent_encoding::percent_decode_str;

use crate::{
    api::{
        options::{ApiKeys, ApiOptions, PrefixSharing, PromptLog, RequestTemplates},
        origin::{AllowedHosts, CorsOrigins, Host, Origin},
    },
    bundled,
    connection::ConnectionTimeouts,
    engine::{EngineOptions, Models, Speculation, StartError, request::MAX_CHOICES},
    memory,
    serve::ServeOptions,
    telemetry::exporter::{ExportOptions, Exporter},
    tls,
};

/// How the server runs.
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
    /// Answers that may wait to start, counting each choice of each prompt; requests beyond that get a 429
    #[arg(long, env = "HEARTH_MAX_QUEUE", value_name = "ANSWERS", default_value_t = MAX_CHOICES)]
    pub max_queue: usize,
    /// Sequences that run at once
    #[arg(long, env = "HEARTH_MAX_BATCH_SIZE", value_name = "SEQUENCES", default_value_t = 32)]
    pub max_batch_size: usize,
    /// Tokens computed in one step: a long prompt delays other streams by one such step at a time
    #[arg(long, env = "HEARTH_MAX_BATCH_TOKENS", value_name = "TOKENS", default_value_t = 256)]
    pub max_batch_tokens: usize,
    /// Tokens whose keys and values are kept, over all sequences; their memory is taken at the start [default: what the
    /// running sequences can fill within 1 GiB, but one full context, and on the CPU within a quarter of the memory left]
    #[arg(long, env = "HEARTH_KV_CACHE_TOKENS", value_name = "TOKENS")]
    pub kv_cache_tokens: Option<usize>,
    /// Guess tokens ahead and compute them together; answers stay the same, and come faster where guesses come true:
    /// `prompt-lookup` guesses what followed the same words before, `draft` asks a smaller model [default: off, or
    /// `draft` with `--draft-model`]
    #[arg(long, env = "HEARTH_SPECULATIVE", value_name = "METHOD")]
    pub speculative: Option<SpeculativeMethod>,
    /// A smaller model with the same tokens, to guess with: model dir or GGUF file
    #[arg(long, env = "HEARTH_DRAFT_MODEL", value_name = "DIR|FILE")]
    pub draft_model: Option<PathBuf>,
    /// How the draft model's weight matrices are held: `f32`, `f16`, `bf16`, or rounded to `q8`, `q5_1`, `q4_1` or
    /// `q4` [default: as `--dtype` or `--quantize` say]
    #[arg(long, env = "HEARTH_DRAFT_DTYPE", value_name = "DTYPE", value_parser = |name: &str| Dtype::parse(name, |_| true))]
    pub draft_dtype: Option<Dtype>,
    /// Tokens that are guessed ahead at most, from 1 to 16 [default: 8 with `prompt-lookup`, which costs nothing, 3 with `draft`]
    #[arg(long, env = "HEARTH_NUM_SPECULATIVE_TOKENS", value_name = "TOKENS")]
    pub num_speculative_tokens: Option<usize>,
    /// Tell a GPU of each launch anew, instead of recording decoding steps and doing them again: slower, for drivers that
    /// have trouble with it
    #[arg(long, env = "HEARTH_ENFORCE_EAGER", value_parser = BoolishValueParser::new())]
    pub enforce_eager: bool,
    /// Where sampling parameters come from that a request leaves out.
    #[command(flatten)]
    pub sampling: SamplingConfig,
    /// Seconds that requests in flight get to finish after SIGTERM or ctrl-c; a second signal ends them at once
    #[arg(long, env = "HEARTH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: u64,
    /// How clients are served.
    #[command(flatten)]
    pub http: HttpConfig,
    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogConfig,
    /// Where traces go.
    #[command(flatten)]
    pub traces: TraceConfig,
}

/// How tokens are guessed ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculativeMethod {
    /// Not at all.
    Off,
    /// By what followed before.
    PromptLookup,
    /// By a smaller model.
    Draft,
}

impl ServerConfig {
    /// The engine's part.
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

    /// Refuses settings that make no sense, as far as that can be told without the model.
    ///
    /// # Errors
    /// Which setting, what was given, and what it goes with.
    pub fn check(&self) -> Result<(), StartError> {
        self.engine_options().check()?;
        let refuse = |flag: &str, what: &str| Err(StartError::Options(format!("`{flag}` goes with {what}")));
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
            _ => Ok(()),
        }
    }

    /// Opens the device and loads the models, on the thread that is to compute with them.
    ///
    /// # Errors
    /// No such device, or a broken model dir.
    pub fn load(&self) -> Result<Models> {
        let served = self.sampling.sampling_defaults.of(self.model.load()?);
        let wanted = matches!(self.engine_options().speculation, Speculation::DraftModel { .. });
        let draft = self.draft_model.as_ref().filter(|_| wanted);
        let draft = draft.map(|dir| {
            let (dtype, quantize) = match self.draft_dtype {
                Some(dtype) => (Some(dtype), None),
                None => (self.model.dtype, self.model.quantize),
            };
            ModelConfig { model: Some(dir.clone()), dtype, quantize, ..self.model.clone() }.load()
        });
        Ok(Models { served, draft: draft.transpose()? })
    }

    /// The listener's part.
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

    /// The API's part, of a server that listens on the address `bound`.
    ///
    /// # Errors
    /// A key, an origin or a host is none, or the file of keys cannot be read.
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
            prompt_log: if self.log.log_prompts { PromptLog::Whole } else { PromptLog::Never },
            spans: None,
        })
    }

    /// What exports spans, if they are to be exported.
    ///
    /// # Errors
    /// The address is none, or what goes with it cannot be used.
    pub fn exporter(&self) -> anyhow::Result<Option<Exporter>> {
        // A variable that is empty is one that is not set.
        let Some(endpoint) = self.traces.otlp_endpoint.as_ref().filter(|url| !url.is_empty()) else { return Ok(None) };
        let options = ExportOptions {
            endpoint: endpoint.clone(),
            headers: self.traces.headers()?,
            certificate: self.traces.otlp_certificate.clone(),
            service_name: self.traces.otlp_service_name.clone(),
            delay: EXPORT_DELAY,
        };
        Ok(Some(Exporter::start(options)?))
    }
}

/// OpenTelemetry's default.
const EXPORT_DELAY: Duration = Duration::from_secs(5);

const MAX_BODY_BYTES: usize = 8 << 20;
const BODY_TIMEOUT: u64 = 60;
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
            prompt_log: PromptLog::Never,
            spans: None,
        }
    }
}

/// How clients are served.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct HttpConfig {
    /// A key that clients must send, as `authorization: Bearer KEY`; may be given several times [default: none, and
    /// the API is open to all]
    #[arg(long, env = "HEARTH_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Vec<Secret>,
    /// File with such keys, one a line: other users of this machine see a command line, but not this file
    #[arg(long, env = "HEARTH_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Share computed prompts between API keys: faster where keys send the same prompts, but `cached_tokens` and response
    /// times then tell one key what another has sent [default: with several keys, each has its own]
    #[arg(long, env = "HEARTH_SHARE_PREFIX_CACHE", value_parser = BoolishValueParser::new())]
    pub share_prefix_cache: bool,
    /// Accept chat templates in requests (`chat_template`). A template is a program: it runs within limits on memory and
    /// time, up to 5 seconds, one at a time
    #[arg(long, env = "HEARTH_TRUST_REQUEST_CHAT_TEMPLATE", value_parser = BoolishValueParser::new())]
    pub trust_request_chat_template: bool,
    /// Allowed CORS origins: web pages of other origins than the server's own that may use the API. Origins such as
    /// `https://example.org` (repeatable or comma-separated), `null`, `*` for all, or `none`
    #[arg(long, env = "HEARTH_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',', default_value = "none")]
    pub cors_origin: Vec<String>,
    /// Allowed values of the header `Host`, besides `localhost` and loopback addresses: names or addresses without a port
    /// (repeatable or comma-separated), or `*` for all [default: none when listening on loopback; beyond it, all with API
    /// keys, and without them all addresses and the machine's own names]
    #[arg(long, env = "HEARTH_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    pub allowed_host: Vec<String>,
    /// Largest body of a request; larger ones are answered with 413
    #[arg(long, env = "HEARTH_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = MAX_BODY_BYTES)]
    pub max_body_bytes: usize,
    /// Connections that are served at once; others wait
    #[arg(long, env = "HEARTH_MAX_CONNECTIONS", value_name = "CONNECTIONS", default_value_t = 1024, value_parser = at_least_1)]
    pub max_connections: usize,
    /// Seconds that a client may take for the head of a request, or a TLS handshake
    #[arg(long, env = "HEARTH_HEADER_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    pub header_timeout: u64,
    /// Seconds that a client may take for the body of a request
    #[arg(long, env = "HEARTH_BODY_TIMEOUT", value_name = "SECONDS", default_value_t = BODY_TIMEOUT, value_parser = value_parser!(u64).range(1..))]
    pub body_timeout: u64,
    /// Seconds that a connection is kept without a request, or with a client that takes nothing of its answer
    #[arg(long, env = "HEARTH_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 75, value_parser = value_parser!(u64).range(1..))]
    pub idle_timeout: u64,
    /// Seconds between the comments that keep a stream without news alive
    #[arg(long, env = "HEARTH_SSE_KEEP_ALIVE", value_name = "SECONDS", default_value_t = SSE_KEEP_ALIVE, value_parser = value_parser!(u64).range(1..))]
    pub sse_keep_alive: u64,
    /// PEM file with the certificate, and those that vouch for it: makes the server speak HTTPS
    #[arg(long, env = "HEARTH_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, env = "HEARTH_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
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
                anyhow!("`--allowed-host` must be `*`, or names or IP addresses such as `example.org`, got `{text}`\nhint: a host has no scheme, no port and no path")
            })
        };
        let listed = self.allowed_host.iter().map(host).collect::<anyhow::Result<_>>()?;
        Ok(AllowedHosts::choose(listed, bound, keys))
    }
}

fn keys_in(path: &Path) -> anyhow::Result<ApiKeys> {
    let text = std::fs::read_to_string(path).context("cannot be read")?;
    let keys: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if keys.is_empty() {
        // The API would be open to all, which is not what a file of keys is for.
        bail!("holds no key\nhint: it must have one key a line");
    }
    Ok(ApiKeys::new(keys)?)
}

/// An origin as browsers write it.
fn origin(text: &str) -> anyhow::Result<Origin> {
    text.parse().map_err(|_| {
        anyhow!("`--cors-origin` must be `*`, `none` or origins such as `https://example.org`, got `{text}`\nhint: an origin has no path and no slash at its end")
    })
}

fn at_least_1(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number >= 1);
    number.ok_or_else(|| "it must be a whole number from 1 up".to_owned())
}

/// A text that is shown to nobody.
#[derive(Clone)]
pub struct Secret(String);

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logs")]
pub struct LogConfig {
    /// How log lines are written, to stderr
    #[arg(long, env = "HEARTH_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Log prompts too, as they are
    #[arg(long, env = "HEARTH_LOG_PROMPTS", value_parser = BoolishValueParser::new())]
    pub log_prompts: bool,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// Where traces go. The variables are OpenTelemetry's own.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traces")]
pub struct TraceConfig {
    /// OpenTelemetry collector that gets one span per request, as OTLP over HTTP with JSON (not gRPC): an address such as
    /// `http://localhost:4318` [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Header for the collector; may be given several times
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = ','
    )]
    pub otlp_header: Vec<Secret>,
    /// PEM file of the certificates that vouch for an https collector [default: those that browsers trust]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otlp_certificate: Option<PathBuf>,
    /// What this server is called in traces
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME", default_value = "hearth")]
    pub otlp_service_name: String,
}

impl TraceConfig {
    fn headers(&self) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
        let header = |given: &Secret| {
            let (name, value) = given.0.split_once('=')?;
            // The variable's values are percent-encoded, as in the header `baggage`.
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            Some((name.trim().parse().ok()?, HeaderValue::from_str(&value).ok()?))
        };
        let headers = self.otlp_header.iter().filter(|given| !given.0.trim().is_empty()).map(|given| {
            // The value is shown to nobody.
            header(given)
                .context("`--otlp-header` must be `NAME=VALUE`, its value percent-encoded where it is not plain")
        });
        headers.collect()
    }
}

/// Where sampling parameters come from that are not given.
#[derive(Args, Clone, Copy, Debug)]
pub struct SamplingConfig {
    /// Sampling parameters that are not given: `model`, those in the model's generation_config.json, or `openai`,
    /// OpenAI's defaults
    #[arg(long, env = "HEARTH_SAMPLING_DEFAULTS", value_name = "WHOSE", value_enum, default_value_t = SamplingDefaults::Model)]
    pub sampling_defaults: SamplingDefaults,
}

/// Whose sampling parameters count where none are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SamplingDefaults {
    /// Those that the model's makers advise.
    Model,
    /// Those that change nothing.
    Openai,
}

impl SamplingDefaults {
    /// The model, to be served so.
    pub fn of(self, model: LoadedModel) -> LoadedModel {
        match self {
            Self::Model => model,
            Self::Openai => LoadedModel { sampling_defaults: SamplingParams::default(), ..model },
        }
    }
}

/// Which model, and where it runs.
#[derive(Args, Clone, Debug)]
pub struct ModelConfig {
    /// Model dir in Hugging Face's format, or GGUF file [default: the bundled model]
    #[arg(long, env = "HEARTH_MODEL", value_name = "DIR|FILE")]
    pub model: Option<PathBuf>,
    /// Where to compute: `auto` (a real GPU if there is one, else the CPU), `gpu`, `cpu`, `wgpu-software`, and what else
    /// the build holds
    #[arg(long, env = "HEARTH_DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// How weight matrices are held: `f32`, `f16` or `bf16` [default: as the files have them where that is bf16,
    /// rounded or GGUF, else f32]
    #[arg(long, env = "HEARTH_DTYPE", value_parser = |name: &str| dtype_of(name, false))]
    pub dtype: Option<Dtype>,
    /// Round weight matrices to `q8` (8.5 bits a weight), `q5_1` (6 bits), `q4_1` (5 bits) or `q4` (4.5 bits, the least
    /// exact); embeddings as in q8
    #[arg(long, env = "HEARTH_QUANTIZE", value_name = "DTYPE", conflicts_with = "dtype",
        value_parser = |name: &str| dtype_of(name, true))]
    pub quantize: Option<Dtype>,
    /// How keys and values are held in the cache: `f32`, `f16` (half the memory), or `auto`: `f16` where weight matrices
    /// are f16 or rounded and the device has such numbers, else `f32`
    #[arg(long, env = "HEARTH_KV_CACHE_DTYPE", value_name = "DTYPE", value_enum, default_value_t = KvCacheDtype::Auto, hide_possible_values = true)]
    pub kv_cache_dtype: KvCacheDtype,
}

/// What `--quantize` takes, or what `--dtype` does; where it is the other one's, that is said.
fn dtype_of(name: &str, is_quantized: bool) -> Result<Dtype, String> {
    Dtype::parse(name, |dtype| dtype.is_quantized() == is_quantized).map_err(|what| {
        let other = if is_quantized { "dtype" } else { "quantize" };
        let is_other = Dtype::parse(name, |dtype| dtype.is_quantized() != is_quantized).is_ok();
        if is_other { format!("{what}\nhint: `--{other} {name}`") } else { what }
    })
}

/// How keys and values are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// As suits the model.
    Auto,
    /// As they are computed.
    F32,
    /// Rounded to half precision.
    F16,
}

impl KvCacheDtype {
    /// What was asked for, if anything.
    pub(crate) fn asked(self) -> Option<KvDtype> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(KvDtype::F32),
            Self::F16 => Some(KvDtype::F16),
        }
    }
}

impl ModelConfig {
    /// The model's name for clients: that of its folder, or of its file without `.gguf`.
    pub fn model_id(&self) -> String {
        let Some(dir) = &self.model else { return bundled::NAME.to_owned() };
        // `.` and `models/..` have a name too, once resolved.
        let resolved = dir.canonicalize();
        let name = resolved.as_deref().unwrap_or(dir).file_name();
        let name = name.map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned());
        name.strip_suffix(".gguf").map(str::to_owned).unwrap_or(name)
    }

    /// Opens the device and loads the model, on the thread that is to compute with it.
    ///
    /// # Errors
    /// No such device, or a broken model dir.
    pub fn load(&self) -> Result<LoadedModel> {
        let options = LoadOptions { device: self.device()?, dtype: self.held_as() };
        match &self.model {
            Some(dir) => {
                self.require_memory(dir, &options.device)?;
                model_dir::load(dir, &options)
            }
            None => model_dir::load_embedded(&bundled::DIR, &options),
        }
    }

    /// Refuses a model that this machine cannot hold, before it begins to. A GPU does not tell.
    fn require_memory(&self, dir: &Path, device: &Device) -> Result<()> {
        // What cannot be read is told by who loads it.
        let (Ok(config), true) = (model_dir::load_config(dir), *device == Device::flex()) else { return Ok(()) };
        let held_as = self.held_as().or(model_dir::load_stored_dtype(dir).ok().flatten());
        let bits = match held_as {
            Some(dtype) if dtype.is_quantized() => memory::bits_of(dtype),
            // As the file has them.
            None if dir.is_file() => memory::bits_of(Dtype::Q4),
            // What is f32 takes no more than its numbers need, which may be half of that.
            _ => memory::bits_of(Dtype::Bf16),
        };
        let n_bytes = memory::least_weight_bytes(config.n_params(), bits);
        memory::require_possible(n_bytes, memory::limit_bytes()).map_err(|what| Error::File {
            path: dir.to_owned(),
            what,
            hint: "`--quantize q4` takes the least; else it is a smaller model, or a larger machine".to_owned(),
        })
    }

    /// How weight matrices are to be held, where the command line says.
    pub(crate) fn held_as(&self) -> Option<Dtype> {
        self.quantize.or(self.dtype)
    }

    /// How a cache of the model holds keys and values.
    ///
    /// # Errors
    /// The model's device has no such numbers.
    pub(crate) fn kv_dtype(&self, gpt: &Gpt) -> Result<KvDtype> {
        KvDtype::choose(self.kv_cache_dtype.asked(), gpt.dtype(), &gpt.device())
    }

    /// Opens the device, on the thread that is to compute with it.
    ///
    /// # Errors
    /// No such device.
    pub(crate) fn device(&self) -> Result<Device> {
        // Before anything shares work: this thread takes part in it.
        ops::lead_threads();
        let chosen = device::choose(self.device)?;
        tracing::info!("device: {}: {}", device::name(&chosen.device), chosen.reason);
        Ok(chosen.device)
    }
}
