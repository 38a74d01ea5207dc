//! The engine's options, and the preparation of a loaded model for the inference thread.

use std::sync::OnceLock;

use crate::{
    adapters::{AdapterError, AdapterOptions, Adapters},
    memory,
    request::ModelLimits,
    scheduler::{Limits, TOKENS_PER_STATE},
    served_model::ServedModel,
    speculation::{self, MAX_DRAFT_TOKENS, Speculation, Speculator},
};
use hearth_model::{
    config::GptConfig,
    decode::{
        inspect::Inspector,
        model_runner::{ModelRunner, PredictionRunner},
    },
    files::digest::Digest,
    gpt::{
        Gpt,
        kv_cache::{PAGE_SIZE, max_places},
        prediction_head::PredictionHead,
    },
    ops::{self, KvDtype},
    system::device,
    weights::model_dir::LoadedModel,
};

/// Maximum size of the KV cache in bytes if not set.
const DEFAULT_CACHE_BYTES: usize = 1 << 30;

/// Default limit of the number of kept states.
const MAX_KEPT_STATES: usize = 256;

/// Maximum number of bytes that are tokenized at once: they use up to two hundred times as much memory.
const MAX_WORD_BYTES: usize = 1 << 20;

/// The engine's settings.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Maximum number of answers in the queue; further requests are rejected. Where one tenant fills it, there is a reserve
    /// of the same size for others.
    pub max_queue: usize,
    /// Maximum number of sequences that run at once.
    pub max_batch_size: usize,
    /// Maximum number of tokens per step, at least `max_batch_size`.
    pub max_batch_tokens: usize,
    /// KV cache size in tokens, over all sequences. `None`: a full context for every running sequence, up to 1 GiB but
    /// at least one full context; on the CPU at most a quarter of free memory.
    pub kv_cache_tokens: Option<usize>,
    /// Number of states of recurrent layers kept of prompts and answers, so that texts with the same beginning are not
    /// computed from the start. `None`: as many as fit into 1 GiB, on the CPU into an eighth of free memory, and at
    /// most 256.
    pub kept_states: Option<usize>,
    /// Dtype of the KV cache. `None`: as [suits](KvDtype::choose) each model.
    pub kv_cache_dtype: Option<KvDtype>,
    /// Disables GPU graph capture for decoding.
    pub enforce_eager: bool,
    /// Speculative decoding.
    pub speculation: Speculation,
    /// LoRA adapters.
    pub adapters: AdapterOptions,
}

/// The engine's models.
#[derive(Debug)]
pub struct Models {
    /// The served model.
    pub served: LoadedModel,
    /// A smaller model with the same vocabulary, for [`Speculation::DraftModel`].
    pub draft: Option<LoadedModel>,
    /// The served model's prediction head, for [`Speculation::PredictionHead`].
    pub prediction_head: Option<PredictionHead>,
    /// The Hugging Face class of the served model's files, which determines the names of modules in adapters.
    pub class: Option<&'static str>,
}

impl From<LoadedModel> for Models {
    fn from(served: LoadedModel) -> Self {
        Self { served, draft: None, prediction_head: None, class: None }
    }
}

impl EngineOptions {
    /// Checks the settings.
    ///
    /// # Errors
    /// The flag, its value, and the allowed values.
    pub fn check(&self) -> Result<(), StartError> {
        let EngineOptions { max_queue, max_batch_size, max_batch_tokens, kv_cache_tokens, speculation, .. } = *self;
        if speculation != Speculation::Off && !(1..=MAX_DRAFT_TOKENS).contains(&speculation.n_tokens()) {
            return Err(StartError::Options(format!(
                "`--num-speculative-tokens` must be from 1 to {MAX_DRAFT_TOKENS}, got {}",
                speculation.n_tokens()
            )));
        }
        let least_one = [
            ("--max-queue", max_queue),
            ("--max-batch-size", max_batch_size),
            ("--kv-cache-tokens", kv_cache_tokens.unwrap_or(1)),
        ];
        if let Some((flag, _)) = least_one.iter().find(|(_, value)| *value == 0) {
            return Err(StartError::Options(format!("`{flag}` must be at least 1, got 0")));
        }
        if max_batch_tokens < max_batch_size {
            return Err(StartError::Options(format!(
                "`--max-batch-tokens` must be at least `--max-batch-size`, got {max_batch_tokens} and {max_batch_size}\n\
                 hint: every running sequence needs one token per step"
            )));
        }
        Ok(())
    }
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model could not be loaded.
    #[error(transparent)]
    Model(#[from] hearth_model::Error),
    /// A setting is invalid.
    #[error("{0}")]
    Options(String),
    /// The inference thread could not be started, or panicked while starting.
    #[error("the inference thread failed to start: {0}")]
    Thread(String),
    /// An adapter cannot be served.
    #[error("`--lora`: {0}")]
    Adapter(AdapterError),
}

// Not a `#[source]`: it is already part of the message.
impl From<AdapterError> for StartError {
    fn from(error: AdapterError) -> Self {
        Self::Adapter(error)
    }
}

/// An engine's parts before it starts.
pub(crate) struct Prepared {
    pub(crate) model: ServedModel,
    pub(crate) adapters: Adapters,
    pub(crate) compute: Compute,
}

/// The models and caches with which the inference thread computes.
pub(crate) struct Compute {
    pub(crate) runner: ModelRunner,
    pub(crate) kv_dtype: KvDtype,
    pub(crate) speculator: Option<Speculator>,
    pub(crate) limits: Limits,
}

/// Sizes the cache and creates the state of the inference thread.
pub(crate) fn prepare(models: Models, options: &EngineOptions) -> Result<Prepared, StartError> {
    let Models { served: loaded, draft, prediction_head, class } = models;
    let config = loaded.gpt.config().clone();
    // Adapters are loaded before free memory is measured for the cache.
    let adapters = Adapters::new(options.adapters.clone(), &config, class, &loaded.gpt.device())?;
    let available = memory::available_on(&loaded.gpt.device());
    let kv_dtype = kv_dtype(&loaded, options)?;
    let mut bytes_per_token = loaded.gpt.kv_bytes_per_token(kv_dtype)?;
    if let (Speculation::DraftModel { .. }, Some(draft)) = (options.speculation, &draft) {
        // The draft model's cache has room for the same number of tokens.
        bytes_per_token += draft.gpt.kv_bytes_per_token(self::kv_dtype(draft, options)?)?;
    }
    if let (Speculation::PredictionHead { .. }, Some(head)) = (options.speculation, &prediction_head) {
        bytes_per_token += head.kv_bytes_per_token(kv_dtype)?;
    }
    let n_tokens = match options.kv_cache_tokens {
        Some(n_tokens) => {
            let n_bytes = n_tokens as u128 * bytes_per_token as u128;
            let refuse = |reason| StartError::Options(format!("`--kv-cache-tokens` {n_tokens} {reason}"));
            memory::require(n_bytes, available).map_err(refuse)?;
            n_tokens
        }
        None => default_cache_tokens(&config, bytes_per_token, options.max_batch_size, available),
    };
    let n_pages = n_tokens.div_ceil(PAGE_SIZE);
    let n_states = n_states(config.state_bytes(), options, available)?;
    let longest = loaded.text_limit.unwrap_or(usize::MAX).min(config.max_seq_len).max(1);
    let max_seq_len = longest.min(n_pages * PAGE_SIZE);
    let max_source_len = config.max_source_len();
    // The longest text must fit into a step of an encoder, with its source and next to decoding sequences.
    let whole_prompts = config.bidirectional || config.is_encoder_decoder();
    let longest_prompt = max_places(&config).min(n_pages * PAGE_SIZE) + options.max_batch_size;
    let max_batch_tokens =
        if whole_prompts { options.max_batch_tokens.max(longest_prompt) } else { options.max_batch_tokens };
    let limits = Limits {
        max_batch_size: options.max_batch_size,
        max_batch_tokens,
        max_adapters: options.adapters.max_loaded,
        tokens_per_state: TOKENS_PER_STATE,
        whole_prompts,
    };
    let speculator = speculator(&loaded, (draft, prediction_head), options, n_pages)?;
    let model = ServedModel {
        fingerprint: fingerprint(&loaded, kv_dtype),
        device: device::name(&loaded.gpt.device()),
        dtype: loaded.gpt.dtype().to_string(),
        limits: ModelLimits {
            vocab_size: config.vocab_size,
            max_seq_len,
            max_batch_size: options.max_batch_size,
            n_pages,
            is_recurrent: loaded.gpt.has_recurrent_layers(),
            is_encoder: config.bidirectional || !loaded.writes_text,
            max_source_len,
        },
        max_text_bytes: loaded.tokenizer.max_text_bytes(if max_source_len > 0 { max_source_len } else { max_seq_len }),
        config,
        inspector: Inspector::new(&loaded.gpt),
        tokenizer: loaded.tokenizer.with_longest_word(MAX_WORD_BYTES),
        chat_template: loaded.chat_template,
        eos_token_ids: loaded.eos_token_ids,
        decoder_start: loaded.decoder_start,
        grammars: OnceLock::new(),
        default_breakers: OnceLock::new(),
        sampling_defaults: loaded.sampling_defaults,
        own_pooling: loaded.own_pooling,
        prompts: loaded.prompts,
        classifier: loaded.classifier,
    };
    let mut runner = warmed_up(loaded.gpt, [n_pages, n_states], kv_dtype, options)?;
    if speculator.is_none() {
        // Drafts come between a step and the next.
        runner.go_ahead();
    }
    // Returns memory that loading used to the system.
    ops::give_back_memory();
    Ok(Prepared { model, adapters, compute: Compute { runner, kv_dtype, speculator, limits } })
}

/// A runner that has compiled its kernels, and captures repeated steps unless the options forbid it.
fn warmed_up(
    gpt: Gpt,
    [n_pages, n_states]: [usize; 2],
    kv_dtype: KvDtype,
    options: &EngineOptions,
) -> Result<ModelRunner, StartError> {
    let mut runner = ModelRunner::with_states(gpt, n_pages, n_states, kv_dtype)?;
    if !options.enforce_eager {
        runner.capture_steps();
    }
    runner.warm_up(options.max_batch_tokens)?;
    Ok(runner)
}

fn kv_dtype(loaded: &LoadedModel, options: &EngineOptions) -> Result<KvDtype, StartError> {
    if loaded.gpt.config().bidirectional {
        // Keys and values of an encoder live for one step: a narrower dtype would save nothing.
        return Ok(KvDtype::F32);
    }
    Ok(KvDtype::choose(options.kv_cache_dtype, loaded.gpt.dtype(), &loaded.gpt.device())?)
}

/// A fingerprint of the program's version, the architecture, the dtypes, the precision and the device. Weights are not
/// included, because hashing them takes too long.
fn fingerprint(loaded: &LoadedModel, kv_dtype: KvDtype) -> String {
    let gpt = &loaded.gpt;
    let (version, dtype, device) = (env!("CARGO_PKG_VERSION"), gpt.dtype(), gpt.device());
    let (precision, config) = (gpt.precision(), gpt.config());
    let all = format!("{version} {dtype} {kv_dtype} {precision:?} {device:?} {config:?}");
    format!("fp_{}", Digest::of(all.as_bytes()).prefix(10))
}

fn speculator(
    served: &LoadedModel,
    (draft, prediction_head): (Option<LoadedModel>, Option<PredictionHead>),
    options: &EngineOptions,
    n_pages: usize,
) -> Result<Option<Speculator>, StartError> {
    let speculation = options.speculation;
    let refuse = |what: String| Err(StartError::Options(what));
    match (speculation, draft) {
        (Speculation::Off, _) => Ok(None),
        (Speculation::PromptLookup { n_tokens }, _) => Ok(Some(Speculator::by_prompt_lookup(n_tokens))),
        (Speculation::PredictionHead { n_tokens }, _) => {
            let Some(head) = prediction_head else {
                return refuse(
                    "`--speculative mtp` needs a model with a prediction head, and this one has none in its files\n\
                     hint: Qwen 3.5, Qwen 3 Next, and models that were trained with `objective.mtp` have one; `--speculative prompt-lookup` works with every model"
                        .to_owned(),
                );
            };
            let kv_dtype = kv_dtype(served, options)?;
            tracing::info!(
                "prediction head: {:.1} MB of weights, and {:.1} KiB of keys and values for each token",
                head.n_bytes() as f64 / 1e6,
                head.kv_bytes_per_token(kv_dtype)? as f64 / 1024.0
            );
            let runner = PredictionRunner::new(head, n_pages, kv_dtype)?;
            Ok(Some(Speculator::by_prediction_head(runner, &served.gpt.device(), n_tokens)))
        }
        (Speculation::DraftModel { .. }, None) => refuse("`--speculative draft` needs a `--draft-model`".to_owned()),
        (Speculation::DraftModel { n_tokens }, Some(draft)) => {
            if let Some(what) = speculation::difference(&served.tokenizer, &draft.tokenizer) {
                return refuse(format!(
                    "`--draft-model` must have the tokens of the served model: {what}\n\
                     hint: a draft model is a smaller one of the same family"
                ));
            }
            if draft.gpt.config().is_encoder_decoder() {
                return refuse("`--draft-model` must be a model without an encoder".to_owned());
            }
            if draft.gpt.has_recurrent_layers() {
                return refuse(
                    "`--draft-model` must be a model without recurrent layers, whose state cannot go back to before a \
                     rejected token\nhint: `--speculative prompt-lookup` needs no draft model"
                        .to_owned(),
                );
            }
            let (max_seq_len, kv_dtype) = (draft.gpt.config().max_seq_len, kv_dtype(&draft, options)?);
            let runner = warmed_up(draft.gpt, [n_pages, 0], kv_dtype, options)?;
            Ok(Some(Speculator::by_draft_model(runner, max_seq_len, n_tokens)))
        }
    }
}

/// States of running sequences: each has one, another one to go back to while drafts are verified, and while a sequence leaves a
/// kept state there are both.
pub(crate) fn n_running_states(max_batch_size: usize) -> usize {
    2 * max_batch_size + 1
}

/// The number of states of a model whose sequences have `state_bytes` each; 0 without recurrent layers.
fn n_states(state_bytes: usize, options: &EngineOptions, available_bytes: Option<u64>) -> Result<usize, StartError> {
    if state_bytes == 0 {
        return Ok(0);
    }
    let n_kept = options.kept_states.unwrap_or_else(|| default_kept_states(state_bytes, available_bytes));
    let n_states = n_running_states(options.max_batch_size) + n_kept;
    let n_bytes = n_states as u128 * state_bytes as u128;
    memory::require(n_bytes, available_bytes).map_err(|reason| {
        StartError::Options(format!(
            "{n_states} states of recurrent layers, for `--max-batch-size` {} and `--kept-states` {n_kept}, {reason}",
            options.max_batch_size
        ))
    })?;
    tracing::info!(
        "recurrent layers: {:.1} MB of state for each running sequence, and for each of {n_kept} kept states",
        state_bytes as f64 / 1e6
    );
    Ok(n_states)
}

/// The default number of states of recurrent layers to keep ([`EngineOptions::kept_states`]), if a sequence's state has
/// `state_bytes`.
pub fn default_kept_states(state_bytes: usize, available_bytes: Option<u64>) -> usize {
    let room = available_bytes.map_or(DEFAULT_CACHE_BYTES, |available| {
        usize::try_from(available / 8).unwrap_or(usize::MAX).min(DEFAULT_CACHE_BYTES)
    });
    (room / state_bytes.max(1)).clamp(1, MAX_KEPT_STATES)
}

/// Room for a full context of every running sequence, up to [`DEFAULT_CACHE_BYTES`] but at least one full context; on
/// the CPU at most a quarter of free memory.
fn default_cache_tokens(
    config: &GptConfig,
    bytes_per_token: usize,
    max_batch_size: usize,
    available_bytes: Option<u64>,
) -> usize {
    let context = max_places(config);
    let held_by = |n_bytes: usize| n_bytes / bytes_per_token.max(1);
    let wanted = context.saturating_mul(max_batch_size).min(held_by(DEFAULT_CACHE_BYTES).max(context));
    let Some(available) = available_bytes else { return wanted };
    let affordable = held_by(usize::try_from(available / 4).unwrap_or(usize::MAX)).max(PAGE_SIZE);
    if affordable < context {
        tracing::warn!(
            "the KV cache is limited to {affordable} tokens, 25 % of free memory; the model's context is {context} tokens \
             (set the size with `--kv-cache-tokens`)"
        );
    }
    wanted.min(affordable)
}

#[cfg(test)]
mod tests {
    use hearth_model::config::Sizes;

    use super::*;

    #[test]
    fn default_kv_cache_size_is_bounded_by_use_1_gib_and_free_memory() {
        let sizes =
            Sizes { vocab_size: 8, max_seq_len: 1000, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 256, d_ff: 64 };
        // Two layers of keys and values of 128 numbers, 4 bytes each: 2 KiB per token.
        let config = GptConfig::llama(sizes);
        assert_eq!(KvDtype::F32.bytes_per_token(&config), 2048);
        let gib = 1 << 30;
        assert_eq!(default_cache_tokens(&config, 2048, 4, Some(16 * gib)), 4000, "no more than can be used");
        assert_eq!(default_cache_tokens(&config, 2048, 4000, Some(16 * gib)), 524_288, "1 GiB");
        assert_eq!(default_cache_tokens(&config, 2048, 4000, Some(2 * gib)), 262_144, "a quarter of what is left");
        assert_eq!(default_cache_tokens(&config, 1024, 4000, Some(2 * gib)), 524_288, "twice as many in f16");
        let long = GptConfig { max_seq_len: 1_000_000, ..config };
        assert_eq!(default_cache_tokens(&long, 2048, 4, Some(16 * gib)), 1_000_000, "one context");
        assert_eq!(default_cache_tokens(&long, 2048, 4, None), 1_000_000);
        assert_eq!(default_cache_tokens(&long, 2048, 4, Some(4 * gib)), 524_288, "a part of one");
        assert_eq!(default_cache_tokens(&long, 2048, 4, Some(0)), 16);
    }
}
