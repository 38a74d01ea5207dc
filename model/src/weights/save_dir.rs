//! Writes a model as a model dir.

use std::path::Path;

use serde_json::{Map, Value};

use super::{
    architectures::OWN_CLASS,
    file_names::{CONFIG_FILE, GENERATION_FILE},
    files::DiskDtype,
    generation_config::EOS,
    hf_schema, own_classifier,
    save::save_params,
    staged_dir::StagedDir,
};
use crate::{TokenId, error::Result, gpt::Gpt};

/// Maximum size of a shard, as in `transformers`: 5 GB.
const MAX_SHARD_BYTES: usize = 5_000_000_000;

/// How to save a model, and further files.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// The dtype of values.
    pub dtype: DiskDtype,
    /// Maximum size of a weights file in bytes; larger models are split over several files.
    pub max_shard_bytes: usize,
    /// The Hugging Face class to save as, such as the class from which the model was loaded
    /// ([`load_class`](super::model_dir::load_class)). `None`: the first class that can express the architecture; some
    /// architectures have several.
    pub class: Option<String>,
    /// End-of-sequence tokens, for `config.json` and `generation_config.json`.
    pub eos_token_ids: Vec<TokenId>,
    /// The tokens with which the decoder of an encoder-decoder begins, for both files.
    pub decoder_start: Vec<TokenId>,
    /// The padding token of `transformers`, for both files.
    pub pad_token_id: Option<TokenId>,
    /// Further files by name, such as `tokenizer.json`. A `generation_config.json` among them is written instead of one
    /// with the end-of-sequence tokens.
    pub extra_files: Vec<(String, Vec<u8>)>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            dtype: DiskDtype::F32,
            max_shard_bytes: MAX_SHARD_BYTES,
            class: None,
            eos_token_ids: Vec::new(),
            decoder_start: Vec::new(),
            pad_token_id: None,
            extra_files: Vec::new(),
        }
    }
}

/// Writes `gpt` as a model dir that Hearth and `transformers` open.
///
/// An architecture that no Hugging Face class can express is written under `HearthForCausalLM`, with Hearth's own
/// names. So is a quantized model, without rounding again; only Hearth opens it. A matrix `[d_out, d_in]` then consists
/// of `n = ceil(d_in / 32)` blocks per row. Its numbers are an integer tensor under its name: I8 `[d_out, 32 n]` in q8;
/// U8 `[d_out, 16 n]` in q4 (plus 8, two per byte, the first 16 of 32 in the low bits) and q4_1 (not plus 8); U8
/// `[d_out, 20 n]` in q5_1 (the lower four bits as in q4_1, then the fifth bits of all 32). The factors of the blocks
/// are F16 `[d_out, n]` under its name with `.scales`; in q4_1 and q5_1, the minima that are added to the products are
/// under its name with `.minima`. `quantization_config` in `config.json` has the dtype.
///
/// The new folder replaces the old one atomically, so that after a crash there is the old model or the new one. Files
/// of the old folder that are not part of a model are kept: see `weights::staged_dir`. `dir` may be missing, empty, or
/// a link to a folder; the working directory and mount points are rejected.
///
/// # Errors
/// As [`StagedDir::replacing`], [`write()`] and [`StagedDir::commit`].
pub fn save(dir: &Path, gpt: &Gpt, options: &SaveOptions) -> Result<()> {
    let staged = StagedDir::replacing(dir)?;
    write(&staged, gpt, options)?;
    staged.commit()
}

/// Writes the files of `gpt` to a staged folder, as [`save`] does. One tensor is in memory at a time.
///
/// # Errors
/// [`Error::Io`](crate::error::Error::Io) if a file cannot be written;
/// [`Error::Execution`](crate::error::Error::Execution) if the device cannot be read;
/// [`Error::Config`](crate::error::Error::Config) if the requested class is unknown or cannot express the architecture.
pub fn write(staged: &StagedDir, gpt: &Gpt, options: &SaveOptions) -> Result<()> {
    let dtype = gpt.dtype();
    let class = if dtype.is_quantized() { Some(OWN_CLASS) } else { options.class.as_deref() };
    let (mut schema, mut config) = hf_schema::config_json(gpt.config(), class, options.dtype.name())?;
    if let Some(classes) = gpt.classes() {
        if !own_classifier::expresses(schema.model_type(), classes) {
            (schema, config) = hf_schema::config_json(gpt.config(), Some(OWN_CLASS), options.dtype.name())?;
        }
        config.extend(own_classifier::config_of((schema.class(), schema.model_type()), classes));
    }
    config.extend(dtype.is_quantized().then(|| hf_schema::quantization_json(dtype.stored_as())));
    config.extend(gpt.prediction_head().map(|_| ("mtp_num_hidden_layers".to_owned(), Value::from(1))));
    let mut generation = Map::new();
    // Written even if there is none: `transformers` would use the ids of the class's first model.
    config.entry("bos_token_id").or_insert(Value::Null);
    config.entry("pad_token_id").or_insert(options.pad_token_id.map_or(Value::Null, Value::from));
    let eos = eos_json(&options.eos_token_ids);
    for (key, id) in ["decoder_start_token_id", "forced_bos_token_id"].iter().zip(&options.decoder_start) {
        config.insert((*key).to_owned(), Value::from(*id));
        generation.insert((*key).to_owned(), Value::from(*id));
    }
    generation.extend(options.pad_token_id.map(|id| ("pad_token_id".to_owned(), Value::from(id))));
    config.insert(EOS.to_owned(), eos.clone());
    generation.insert(EOS.to_owned(), eos);
    let names = schema.tensor_names();
    let names = if gpt.classes().is_some() { own_classifier::names_with_head(names) } else { names };
    save_params(gpt, &names, staged, (options.dtype, options.max_shard_bytes))?;
    if options.extra_files.iter().all(|(name, _)| name != GENERATION_FILE) {
        staged.write(GENERATION_FILE, &json_file(generation))?;
    }
    options.extra_files.iter().try_for_each(|(name, bytes)| staged.write(name, bytes))?;
    staged.write(CONFIG_FILE, &json_file(config))
}

fn json_file(object: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", Value::Object(object)).into_bytes()
}

fn eos_json(ids: &[TokenId]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => Value::from(*id),
        ids => Value::from(ids),
    }
}
