//! Flags and environment variables. The doc comments are the help texts. All defaults are here.

use std::{net::IpAddr, time::Duration};

use axum::http::uri::Scheme;
use clap::{
    Args, ValueEnum,
    builder::{BoolishValueParser, NonEmptyStringValueParser, OsStringValueParser, TypedValueParser},
    value_parser,
};
use hearth_engine::{EngineOptions, Models, Speculation, StartError, request::MAX_CHOICES};
use hearth_model::{Result, hub::Download, model_source::ModelSource, ops::Dtype};

use crate::{
    api::guard::{
        api_keys::ApiKeys,
        options::{ApiOptions, ModelAliases, PrefixSharing, PromptLog, RequestTemplates},
        origin::{AllowedHosts, CorsOrigins},
    },
    connection::ConnectionTimeouts,
    serve::ServeOptions,
    telemetry::exporter::Exporter,
    tls,
};

mod adapters;
mod http;
mod kv_events;
mod model;
mod traces;

pub use self::{
    adapters::AdapterConfig,
    http::{HttpConfig, Secret},
    kv_events::KvEventConfig,
    model::{KvCacheDtype, ModelConfig, ProductPrecision, SamplingConfig, SamplingDefaults},
    traces::TraceConfig,
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
    /// Another name by which requests can choose the model, such as one that an agent always sends (repeatable or
    /// comma-separated); `*` for any name. Names of adapters come first
    #[arg(long, env = "HEARTH_ALIAS", value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub alias: Vec<String>,
    /// Maximum queue length in answers, counting each choice of each prompt; requests beyond it are rejected with 429. If one
    /// client fills it, others share a reserve of the same size
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
    /// Recurrent states to keep of prompts and answers, for models with recurrent layers (Qwen 3.5, LFM2): a text with
    /// the same beginning is then computed from the last kept state. The log shows the bytes per state [default: as
    /// many as fit into 1 GiB, on the CPU into an eighth of free memory; at most 256]
    #[arg(long, env = "HEARTH_KEPT_STATES", value_name = "STATES")]
    pub kept_states: Option<usize>,
    /// Speculative decoding: guess the next tokens and verify them in one step. Answers stay the same and are faster where
    /// guesses are correct. `prompt-lookup` copies what followed the same tokens earlier in the text; `draft` uses a smaller
    /// model; `mtp` the model's own prediction head, if its files have one (Qwen 3.5, Qwen 3 Next) [default: off, or `draft`
    /// with `--draft-model`]
    #[arg(long, env = "HEARTH_SPECULATIVE", value_name = "METHOD")]
    pub speculative: Option<SpeculativeMethod>,
    /// Draft model for speculative decoding: model dir, GGUF file, or name of a model of the Hugging Face hub. Must have the
    /// same vocabulary
    #[arg(long, env = "HEARTH_DRAFT_MODEL", value_name = "DIR|FILE|NAME", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    pub draft_model: Option<ModelSource>,
    /// Dtype of the draft model's weight matrices: `f32`, `f16`, `bf16`, or quantized to `q8`, `q5_1`, `q4_1` or `q4`
    /// [default: as `--dtype` or `--quantize`]
    #[arg(long, env = "HEARTH_DRAFT_DTYPE", value_name = "DTYPE", value_parser = |name: &str| Dtype::parse(name, |_| true))]
    pub draft_dtype: Option<Dtype>,
    /// Maximum number of tokens to guess per step, from 1 to 16 [default: 8 with `prompt-lookup`, 3 with `draft`,
    /// 1 with `mtp`]
    #[arg(long, env = "HEARTH_NUM_SPECULATIVE_TOKENS", value_name = "TOKENS")]
    pub num_speculative_tokens: Option<usize>,
    /// Disable GPU graph capture for decoding (slower; works around driver bugs)
    #[arg(long, env = "HEARTH_ENFORCE_EAGER", value_parser = BoolishValueParser::new())]
    pub enforce_eager: bool,
    /// LoRA adapters.
    #[command(flatten)]
    pub adapters: AdapterConfig,
    /// Defaults of sampling parameters.
    #[command(flatten)]
    pub sampling: SamplingConfig,
    /// Time for running requests to finish after SIGTERM or ctrl-c, in seconds; a second signal ends them immediately
    #[arg(long, env = "HEARTH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 25)]
    pub drain_timeout: u64,
    /// Maximum duration of a step of the model, and of other work without progress, in seconds. If it takes longer, `/health`
    /// and `/ready` return 503, so that a supervisor can restart a server that hangs. Must be longer than any step of a
    /// healthy server
    #[arg(long, env = "HEARTH_STEP_TIMEOUT", value_name = "SECONDS", default_value_t = STEP_TIMEOUT, value_parser = value_parser!(u64).range(1..))]
    pub step_timeout: u64,
    /// HTTP settings.
    #[command(flatten)]
    pub http: HttpConfig,
    /// Log settings.
    #[command(flatten)]
    pub log: LogConfig,
    /// Trace settings.
    #[command(flatten)]
    pub traces: TraceConfig,
    /// Events of the prefix cache.
    #[command(flatten)]
    pub kv_events: KvEventConfig,
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
    /// Use the model's own prediction head.
    Mtp,
}

impl ServerConfig {
    /// The engine's settings.
    pub fn engine_options(&self) -> EngineOptions {
        let n_tokens = |default| self.num_speculative_tokens.unwrap_or(default);
        let speculation = match (self.speculative, &self.draft_model) {
            (Some(SpeculativeMethod::Off), _) | (None, None) => Speculation::Off,
            (Some(SpeculativeMethod::PromptLookup), _) => Speculation::PromptLookup { n_tokens: n_tokens(8) },
            (Some(SpeculativeMethod::Mtp), _) => Speculation::PredictionHead { n_tokens: n_tokens(1) },
            (Some(SpeculativeMethod::Draft), _) | (None, Some(_)) => Speculation::DraftModel { n_tokens: n_tokens(3) },
        };
        EngineOptions {
            speculation,
            max_queue: self.max_queue,
            max_batch_size: self.max_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            kv_cache_tokens: self.kv_cache_tokens,
            kept_states: self.kept_states,
            kv_cache_dtype: self.model.kv_cache_dtype.asked(),
            enforce_eager: self.enforce_eager,
            adapters: self.adapters.options(),
        }
    }

    /// Checks the settings, as far as possible without the model.
    ///
    /// # Errors
    /// Names the setting, its value, and what it requires.
    pub fn check(&self) -> Result<(), StartError> {
        self.engine_options().check()?;
        self.adapters.check(&self.model.model_id())?;
        let refuse = |flag: &str, what: &str| Err(StartError::Options(format!("`{flag}` requires {what}")));
        let is_off = self.speculative.is_none() && self.draft_model.is_none();
        match self.speculative {
            Some(SpeculativeMethod::PromptLookup) if self.draft_model.is_some() => {
                refuse("--draft-model", "`--speculative draft`, got `prompt-lookup`")
            }
            Some(SpeculativeMethod::Mtp) if self.draft_model.is_some() => {
                refuse("--draft-model", "`--speculative draft`, got `mtp`")
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
            // Checked here and not by clap, because `hearth health` has the same flags and needs only the certificate.
            _ if self.http.tls_cert.is_some() && self.http.tls_key.is_none() => {
                refuse("--tls-cert", "`--tls-key`, which is not given")
            }
            _ if self.http.tls_key.is_some() && self.http.tls_cert.is_none() => {
                refuse("--tls-key", "`--tls-cert`, which is not given")
            }
            _ => Ok(()),
        }
    }

    /// Warnings about valid settings that do not work well together, for a process that may open `max_files` files.
    pub(crate) fn warnings(&self, max_files: Option<u64>) -> Vec<String> {
        let (n_connections, n_queue, n_batch) = (self.http.max_connections, self.max_queue, self.max_batch_size);
        let mut warnings = Vec::new();
        if n_connections < n_queue.saturating_add(n_batch) {
            warnings.push(format!(
                "`--max-connections` should be at least `--max-queue` plus `--max-batch-size`, got {n_connections}, \
                 {n_queue} and {n_batch}: before the queue is full, new connections wait, health checks too"
            ));
        }
        if let Some(max_files) = max_files.filter(|max_files| *max_files < n_connections as u64 + OTHER_FILES) {
            warnings.push(format!(
                "the process may open {max_files} files, too few for {n_connections} connections\n\
                 hint: raise the limit (`ulimit -n`, or `LimitNOFILE=` of systemd), or lower `--max-connections`"
            ));
        }
        warnings
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
            let (precision, max_seq_len) = (ProductPrecision::F32, None);
            let model = Some(source.clone());
            ModelConfig { model, dtype, quantize, precision, max_seq_len, ..self.model.clone() }.load(progress)
        });
        let with_head = matches!(self.engine_options().speculation, Speculation::PredictionHead { .. });
        let prediction_head = if with_head { self.model.load_prediction_head(&served.gpt, progress)? } else { None };
        let class = if self.adapters.options().are_on() { self.model.class()? } else { None };
        Ok(Models { served, draft: draft.transpose()?, prediction_head, class })
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
            body_pause: BODY_PAUSE,
            step_timeout: Duration::from_secs(self.step_timeout),
            keep_alive: Duration::from_secs(http.sse_keep_alive),
            prefix_sharing: if http.share_prefix_cache { PrefixSharing::BetweenKeys } else { PrefixSharing::PerKey },
            request_templates: if http.trust_request_chat_template {
                RequestTemplates::Trusted
            } else {
                RequestTemplates::Refused
            },
            max_inspect_tokens: (!http.no_inspect).then_some(http.max_inspect_tokens),
            has_adapters: self.adapters.options().are_on(),
            aliases: ModelAliases::new(self.alias.iter().cloned()),
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

/// Files that a server opens besides its connections: files of the model, the devices and the runtime.
const OTHER_FILES: u64 = 128;

const MAX_BODY_BYTES: usize = 8 << 20;
const BODY_TIMEOUT: u64 = 60;
const BODY_PAUSE: Duration = Duration::from_secs(10);
const STEP_TIMEOUT: u64 = 1800;
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
            body_pause: BODY_PAUSE,
            step_timeout: Duration::from_secs(STEP_TIMEOUT),
            keep_alive: Duration::from_secs(SSE_KEEP_ALIVE),
            prefix_sharing: PrefixSharing::default(),
            request_templates: RequestTemplates::default(),
            max_inspect_tokens: Some(MAX_INSPECT_TOKENS),
            aliases: ModelAliases::default(),
            prompt_log: PromptLog::Never,
            has_adapters: false,
            spans: None,
        }
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

fn at_least_1(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number >= 1);
    number.ok_or_else(|| "it must be a whole number, at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        config: ServerConfig,
    }

    fn warnings(args: &[&str], max_files: u64) -> Vec<String> {
        let args = [&["hearth"], args].concat();
        Command::try_parse_from(args).unwrap().config.warnings(Some(max_files))
    }

    #[test]
    fn warnings_report_too_low_connection_and_open_file_limits() {
        assert_eq!(warnings(&[], 1 << 20), Vec::<String>::new());
        let few = ["--max-connections", "100", "--max-queue", "99", "--max-batch-size", "2"];
        assert!(warnings(&few, 1 << 20).concat().contains("got 100, 99 and 2"));
        assert!(warnings(&[], 1024).concat().contains("may open 1024 files, too few for 4096 connections"));
    }
}
