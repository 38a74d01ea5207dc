//! The memory use and estimated speed of a model on this machine, from its configuration and the sizes of its files.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_engine::{default_kept_states, memory};
use hearth_model::{
    config::GptConfig,
    gpt::kv_cache::max_places,
    hub::{Hub, HubModel, HubOptions, Outline},
    model_source::ModelSource,
    ops::{self, KvDtype},
    weights::model_dir,
};
use serde::Serialize;

use super::gibibytes;

/// Bits of a weight below which a model is quantized, so that its keys and values are kept in f16.
const QUANTIZED_BITS: f64 = 15.0;

/// Minimum and maximum number of bytes that are read to measure the memory's bandwidth.
const MEASURED_BYTES: [u64; 2] = [64 << 20, 512 << 20];

/// The needs of a model.
#[derive(Debug, Serialize)]
pub(super) struct ModelReport {
    model: String,
    /// The class in `config.json`; `None` for GGUF files.
    class: Option<&'static str>,
    n_layers: usize,
    n_params: usize,
    /// Number of parameters that are used for each token.
    n_active_params: usize,
    /// Bytes that are not on this machine yet.
    download_bytes: Option<u64>,
    weight_bytes: u64,
    max_context_tokens: usize,
    /// Of a source, which an encoder-decoder keeps beside its answer; 0 for other models.
    max_source_tokens: usize,
    kv_cache_dtype: String,
    kv_bytes_per_token: usize,
    /// Bytes of the recurrent layers' state per sequence.
    state_bytes: usize,
    /// Number of states kept of prompts and answers by default (`--kept-states`); each takes `state_bytes`.
    kept_states: usize,
    /// Bytes of the weights that belong to a prediction head, which is opened only for `--speculative mtp`.
    prediction_head_bytes: u64,
    /// Bytes per token of the prediction head's keys and values.
    prediction_head_kv_bytes: usize,
    /// The weights, and keys and values of one text that fills the context, with its source.
    needed_bytes: u64,
    available_bytes: Option<u64>,
    /// The longest context that fits into memory with the weights.
    fitting_tokens: Option<usize>,
    read_bytes_per_sec: f64,
    /// For one text, if reading the weights were the only cost.
    most_tokens_per_sec: f64,
}

/// Where the files are.
enum Files {
    Here(PathBuf),
    Hub(Outline),
}

impl Files {
    fn of(source: ModelSource) -> anyhow::Result<Self> {
        source.require_path()?;
        Ok(match source {
            ModelSource::Path(path) => Self::Here(path),
            ModelSource::Hub(model) => Self::Hub(outline(&model)?),
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Here(path) => path,
            Self::Hub(outline) => outline.path(),
        }
    }
}

fn outline(model: &HubModel) -> anyhow::Result<Outline> {
    Ok(model.outline(&Hub::new(HubOptions::from_env()?)?)?)
}

impl ModelReport {
    /// # Errors
    /// There is no such model, or Hearth cannot open it, with the same error as when opening it.
    pub(super) fn collect(name: &str, device: &Device) -> anyhow::Result<Self> {
        let files = Files::of(ModelSource::parse(name))?;
        let path = files.path();
        let config = model_dir::load_config(path)?;
        let sizes = if let Files::Hub(outline) = &files { outline.sizes() } else { None };
        let weight_bytes = match sizes {
            Some(sizes) => sizes.weight_bytes,
            None => model_dir::weight_files(path)?
                .iter()
                .map(|file| Ok(fs::metadata(file)?.len()))
                .sum::<anyhow::Result<_>>()?,
        };
        let (n_params, n_active_params) = (config.n_params(), config.n_active_params());
        let is_quantized = weight_bytes as f64 * 8.0 / (n_params.max(1) as f64) < QUANTIZED_BITS;
        let kv_dtype = if is_quantized && KvDtype::F16.is_for(device) { KvDtype::F16 } else { KvDtype::F32 };
        let kv_bytes_per_token = kv_dtype.bytes_per_token(&config);
        let state_bytes = config.state_bytes();
        // The tensors of a model that is not on this machine are unknown.
        let prediction_head_bytes = match &files {
            Files::Here(path) => model_dir::prediction_head_bytes(path)?,
            Files::Hub(_) => 0,
        };
        let prediction_head_kv_bytes = match prediction_head_bytes {
            0 => 0,
            _ => kv_dtype.bytes_per_token(&config.of_prediction_head()),
        };
        // An answer's source takes as much as its own tokens, in whole pages.
        let of_source = kv_bytes_per_token * (max_places(&config) - config.max_seq_len);
        let fixed_bytes = weight_bytes + (of_source + state_bytes) as u64;
        let needed_bytes = fixed_bytes + (kv_bytes_per_token * config.max_seq_len) as u64;
        let available_bytes = memory::available_on(device);
        let fitting_tokens = available_bytes.map(|available| {
            let left = available.saturating_sub(fixed_bytes);
            usize::try_from(left / (kv_bytes_per_token.max(1) as u64)).unwrap_or(usize::MAX).min(config.max_seq_len)
        });
        let read_bytes = active_bytes(&config, weight_bytes);
        let [least, most] = MEASURED_BYTES;
        let read_bytes_per_sec = ops::read_bandwidth(read_bytes.clamp(least, most) as usize, device)?;
        Ok(Self {
            model: name.to_owned(),
            class: if path.is_dir() { Some(model_dir::load_class(path)?) } else { None },
            n_layers: config.n_layers,
            n_params,
            n_active_params,
            download_bytes: sizes.map(|sizes| sizes.download_bytes),
            weight_bytes,
            max_context_tokens: config.max_seq_len,
            max_source_tokens: config.max_source_len(),
            kv_cache_dtype: kv_dtype.to_string(),
            kv_bytes_per_token,
            state_bytes,
            kept_states: if state_bytes == 0 { 0 } else { default_kept_states(state_bytes, available_bytes) },
            prediction_head_bytes,
            prediction_head_kv_bytes,
            needed_bytes,
            available_bytes,
            fitting_tokens,
            read_bytes_per_sec,
            most_tokens_per_sec: read_bytes_per_sec / (read_bytes as f64),
        })
    }
}

/// Bytes of weights that a token's step reads: without experts that it does not go through and the encoder, and of an embedding of its
/// own one row.
fn active_bytes(config: &GptConfig, weight_bytes: u64) -> u64 {
    let embedding = if config.tie_embeddings { 0 } else { config.vocab_size * config.d_model };
    let elsewhere = embedding + config.n_encoder_params();
    let active = config.n_active_params().saturating_sub(elsewhere) as f64 / (config.n_params().max(1) as f64);
    (weight_bytes as f64 * active) as u64
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, n_layers, kv_cache_dtype, max_context_tokens, .. } = self;
        let class = self.class.map(|class| format!("{class}, ")).unwrap_or_default();
        write!(f, "model     {model}: {class}{n_layers} layers, {} parameters", millions(self.n_params))?;
        match self.n_active_params {
            all if all == self.n_params => writeln!(f)?,
            active => writeln!(f, ", {} for each token", millions(active))?,
        }
        let download =
            self.download_bytes.map(|n| format!(", not downloaded yet ({})", gibibytes(n))).unwrap_or_default();
        writeln!(f, "weights   {}{download}", gibibytes(self.weight_bytes))?;
        let per_token = self.kv_bytes_per_token as f64 / 1024.0;
        write!(f, "cache     {per_token:.1} KiB for each token in {kv_cache_dtype}")?;
        writeln!(
            f,
            ", {} for the context of {max_context_tokens} tokens{}",
            gibibytes((self.kv_bytes_per_token * (max_context_tokens + self.max_source_tokens)) as u64),
            match self.max_source_tokens {
                0 => String::new(),
                n => format!(" and a source of {n}"),
            }
        )?;
        if self.state_bytes > 0 {
            let kept_bytes = gibibytes((self.kept_states * self.state_bytes) as u64);
            let (per_text, n_kept) = (self.state_bytes as f64 / 1e6, self.kept_states);
            writeln!(
                f,
                "state     {per_text:.1} MB for each text; {n_kept} are kept in the prefix cache (`--kept-states`), {kept_bytes}"
            )?;
        }
        if self.prediction_head_bytes > 0 {
            let (n_bytes, per_token) =
                (gibibytes(self.prediction_head_bytes), self.prediction_head_kv_bytes as f64 / 1024.0);
            writeln!(
                f,
                "drafts    by a prediction head (`--speculative mtp`): {n_bytes} of the weights, and {per_token:.1} KiB for each \
                 token"
            )?;
        }
        let needed = gibibytes(self.needed_bytes);
        match self.fitting_tokens {
            None => writeln!(f, "needs     {needed} with one full context")?,
            Some(tokens) if tokens >= *max_context_tokens => {
                writeln!(f, "needs     {needed} with one full context, which fits")?;
            }
            Some(0) => writeln!(f, "needs     {needed} with one full context; not even the weights fit")?,
            Some(tokens) => {
                writeln!(f, "needs     {needed} with one full context; a context of {tokens} tokens fits")?;
            }
        }
        writeln!(
            f,
            "speed     at most {:.1} tokens/s for one text: memory is read at {:.1} GB/s",
            self.most_tokens_per_sec,
            self.read_bytes_per_sec / 1e9
        )
    }
}

fn millions(n_params: usize) -> String {
    match n_params {
        0..1_000_000_000 => format!("{:.1} M", n_params as f64 / 1e6),
        _ => format!("{:.1} B", n_params as f64 / 1e9),
    }
}
