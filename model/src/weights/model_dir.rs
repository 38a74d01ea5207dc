//! The model dir: the folder in Hugging Face's format that training writes and serving reads.
//!
//! `config.json`, `model.safetensors` (or shards with an index), `tokenizer.json`, `tokenizer_config.json`,
//! `chat_template.jinja`, `generation_config.json`. The functions that open a model dir also open a GGUF file (`gguf`).

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    adapter::{Adapter, AdapterModel},
    architectures::wrappers::text_part,
    config_json::Fields,
    dir_weights::{self, DirConfig, schema_and_config},
    file_names::{BESIDE_WEIGHTS, CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE},
    files::{self, TensorFiles, what_else_it_is},
    generation_config::{EOS, decoder_start, defaults_of_files},
    gguf,
    hf_schema::{self, HfSchema, Quantization},
    own_classifier, own_late, own_pooling, prediction_head,
    staged_dir::read_whole,
};
pub use super::{
    opened_model::{LoadOptions, LoadedModel, LoadedText},
    own_pooling::pooling_files,
    save_dir::{SaveOptions, save, write},
    staged_dir::mend,
};
use crate::{
    TokenId,
    config::GptConfig,
    error::{Error, Result},
    files::regular_file::{self, parse_json_object, read_json_object},
    gpt::{
        Gpt,
        lora::{LoraValues, Training},
        pooling::{OwnPooling, Prompts},
        prediction_head::PredictionHead,
    },
    ops::Dtype,
    text::{
        chat::{self, ChatTemplate},
        tokenizer::{TOKENIZER_FILE, Tokenizer},
    },
};

/// In the folder of a training run: the folder of its best model, and the file that identifies a run.
const RUN_MODEL: &str = "model";
const RUN_FILE: &str = "config.toml";

/// The model dir at `dir`; for the folder of a training run, the dir of its best model, which may not exist yet. All
/// functions here that open a model dir also open a run.
pub fn model_of(dir: &Path) -> Cow<'_, Path> {
    let is_run = dir.join(RUN_FILE).is_file() && !dir.join(CONFIG_FILE).exists();
    if is_run { dir.join(RUN_MODEL).into() } else { dir.into() }
}

/// Reads from a GGUF file with `of_gguf`, or from the model dir `dir` with `of_dir`, all of whose files belong to one model.
pub(super) fn open<T>(
    dir: &Path,
    of_gguf: impl FnOnce(&Path) -> Result<T>,
    mut of_dir: impl FnMut(&Path) -> Result<T>,
) -> Result<T> {
    let dir = &*model_of(dir);
    if gguf::is_gguf(dir) { of_gguf(dir) } else { read_whole(dir, || of_dir(dir)) }
}

/// Loads the model dir `dir`, or the model in a GGUF file.
///
/// # Errors
/// A file is missing, broken or not supported; the error names it and the field or tensor.
pub fn load(dir: &Path, options: &LoadOptions) -> Result<LoadedModel> {
    let dir = &*model_of(dir);
    if Adapter::is_in(dir) {
        return load_adapted(dir, options);
    }
    load_merged(dir, options, None)
}

/// Loads the model that the adapter in `dir` updates, with the adapter: merged into the matrices, or beside them if
/// they are quantized.
fn load_adapted(dir: &Path, options: &LoadOptions) -> Result<LoadedModel> {
    let base = adapter_base(dir)?;
    let config = load_config(&base)?;
    let class = load_class(&base).ok();
    let Adapter { values, .. } = Adapter::open(dir, AdapterModel::new(&config, class)?)?;
    let mut loaded = if is_quantized(&base)? {
        let mut loaded = load_merged(&base, options, None)?;
        loaded.gpt = loaded.gpt.with_lora(&values, 0.0, Training::No)?;
        loaded
    } else {
        load_merged(&base, options, Some(&values))?
    };
    // The files with which the adapter was trained, if they were saved.
    if dir.join(TOKENIZER_FILE).exists() {
        loaded.tokenizer = Tokenizer::from_dir(dir)?;
        loaded.chat_template = ChatTemplate::from_dir(dir)?.or(loaded.chat_template);
        return Ok(loaded.with_known_vocabulary(&dir.join(TOKENIZER_FILE)));
    }
    Ok(loaded)
}

/// The model that the adapter in `dir` updates.
///
/// # Errors
/// [`Error::File`] if its configuration names no model on this machine.
pub fn adapter_base(dir: &Path) -> Result<PathBuf> {
    Adapter::base_dir(dir)?.ok_or_else(|| {
        Error::file(dir, "is an adapter, and the model that it updates is not on this machine")
            .with_hint("merge them: `hearth merge MODEL ADAPTER OUT`")
    })
}

/// Whether the model in `dir`, or the GGUF file, has quantized matrices.
///
/// # Errors
/// As [`load`].
pub fn is_quantized(dir: &Path) -> Result<bool> {
    let dir = &*model_of(dir);
    if gguf::is_gguf(dir) { gguf::is_quantized(dir) } else { Ok(quantization(dir)?.is_some()) }
}

/// Loads a model with an adapter added to its matrices.
fn load_merged(dir: &Path, options: &LoadOptions, merged: Option<&LoraValues>) -> Result<LoadedModel> {
    open(
        dir,
        |path| Ok(gguf::load(path, options, merged)?.with_known_vocabulary(path)),
        |dir| load_dir(dir, options, merged),
    )
}

fn load_dir(dir: &Path, options: &LoadOptions, merged: Option<&LoraValues>) -> Result<LoadedModel> {
    let (gpt, config_json) = load_gpt_and_config(dir, options, merged)?;
    let tokenizer = Tokenizer::from_dir(dir)?;
    let chat_template = ChatTemplate::from_dir(dir)?;
    let config_path = dir.join(CONFIG_FILE);
    let text = (&tokenizer, chat_template.as_ref());
    let classifier = own_classifier::of_dir(dir, (&config_json, &config_path), &gpt, text)?;
    let prompts = own_pooling::prompts(dir)?;
    let late = own_late::of_dir(dir, &config_json, (gpt.config(), &tokenizer), &prompts)?;
    let own_pooling = late.map_or_else(|| own_pooling::of_dir(dir), Ok)?;
    let writes_text = !dir_weights::lacks_output(&config_json, &config_path, &TensorFiles::open(dir)?.table()?)?;
    let files = [load_generation_json(dir)?, (config_path, config_json)];
    let loaded = LoadedModel {
        own_pooling,
        writes_text,
        prompts,
        text_limit: own_pooling::text_limit(dir)?,
        classifier,
        ..loaded(gpt, tokenizer, chat_template, &files)?
    };
    Ok(loaded.with_known_vocabulary(&dir.join(TOKENIZER_FILE)))
}

/// The model with its end-of-sequence tokens and sampling defaults; `files` are `generation_config.json` and `config.json`.
fn loaded(
    gpt: Gpt,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    files: &[(PathBuf, Map<String, Value>); 2],
) -> Result<LoadedModel> {
    let sampling_defaults = defaults_of_files(files, gpt.config());
    let eos_token_ids = eos_token_ids(files, gpt.config().vocab_size, &tokenizer)?;
    let decoder_start = decoder_start(files, gpt.config())?;
    let (own_pooling, text_limit, classifier) = (OwnPooling::Unstated, None, None);
    Ok(LoadedModel {
        gpt,
        tokenizer,
        chat_template,
        eos_token_ids,
        decoder_start,
        sampling_defaults,
        own_pooling,
        writes_text: true,
        prompts: Prompts::default(),
        text_limit,
        classifier,
    })
}

/// A model dir embedded in a program: the contents of its files.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedDir {
    /// The name in messages.
    pub name: &'static str,
    /// `config.json`.
    pub config: &'static [u8],
    /// `model.safetensors`.
    pub weights: &'static [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'static [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: &'static [u8],
    /// `chat_template.jinja`.
    pub chat_template: &'static str,
    /// `generation_config.json`.
    pub generation_config: &'static [u8],
}

/// Loads an embedded model dir.
///
/// # Errors
/// As [`load`].
pub fn load_embedded(dir: &EmbeddedDir, options: &LoadOptions) -> Result<LoadedModel> {
    let name = Path::new(dir.name);
    let config_path = name.join(CONFIG_FILE);
    let config_json = parse_json_object(&config_path, dir.config)?;
    let files = TensorFiles::embedded(&name.join(WEIGHTS_FILE), dir.weights)?;
    let config = DirConfig { json: &config_json, wrapper: None, path: &config_path };
    let gpt = dir_weights::build(config, &files, options, None)?;
    let tokenizer = Tokenizer::from_json(dir.tokenizer, Some(dir.tokenizer_config), &name.join(TOKENIZER_FILE))?;
    let chat_template = ChatTemplate::new(dir.chat_template, &name.join(chat::DEFAULT_FILE))?;
    let generation_path = name.join(GENERATION_FILE);
    let generation = parse_json_object(&generation_path, dir.generation_config)?;
    let files = [(generation_path, generation), (config_path, config_json)];
    Ok(loaded(gpt, tokenizer, Some(chat_template), &files)?.with_known_vocabulary(&name.join(TOKENIZER_FILE)))
}

/// The configuration of an embedded model dir.
///
/// # Errors
/// As [`load_config`].
pub fn load_embedded_config(dir: &EmbeddedDir) -> Result<GptConfig> {
    let path = Path::new(dir.name).join(CONFIG_FILE);
    let json = parse_json_object(&path, dir.config)?;
    Ok(schema_and_config(&Fields::new(&json, &path))?.1)
}

/// The end-of-sequence tokens of the first file that lists some, and the tokenizer's `eos`: for models that were tuned
/// on chats, often only the tokenizer has the token that ends a turn.
///
/// Ids outside the model's vocabulary are ignored with a warning: they can never be sampled, and small models are often
/// saved with the ids of large ones.
fn eos_token_ids(
    files: &[(PathBuf, Map<String, Value>)],
    vocab_size: usize,
    tokenizer: &Tokenizer,
) -> Result<Vec<TokenId>> {
    let mut listed = Vec::new();
    for (path, json) in files {
        let named = Fields::new(json, path).whole_numbers(EOS).unwrap_or_else(|error| {
            tracing::warn!("{error}: ignored");
            Vec::new()
        });
        let id = |number: i64| TokenId::try_from(number).ok().filter(|&id| (id as usize) < vocab_size);
        let (known, unknown): (Vec<_>, Vec<_>) = named.into_iter().partition(|&number| id(number).is_some());
        if !unknown.is_empty() {
            tracing::warn!(
                "`{}`: `{EOS}` has {unknown:?}, but the model's `vocab_size` is {vocab_size}: ignored",
                path.display()
            );
        }
        if !known.is_empty() {
            listed = known.into_iter().filter_map(id).collect();
            break;
        }
    }
    let of_tokenizer = tokenizer.eos().map(|eos| eos.id).filter(|id| (*id as usize) < vocab_size);
    listed.extend(of_tokenizer.filter(|id| !listed.contains(id)));
    Ok(listed)
}

/// Loads only the model, from the model dir `dir` or a GGUF file; a tokenizer is not needed.
///
/// # Errors
/// As [`load`].
pub fn load_gpt(dir: &Path, options: &LoadOptions) -> Result<Gpt> {
    load_gpt_merged(dir, options, None)
}

/// [`load_gpt`], with an adapter added to the matrices, in full precision before they are rounded to a `dtype`.
///
/// # Errors
/// As [`load`]; and if a matrix to be changed is quantized.
pub fn load_gpt_merged(dir: &Path, options: &LoadOptions, merged: Option<&LoraValues>) -> Result<Gpt> {
    let of_dir = |dir: &Path| load_gpt_and_config(dir, options, merged).map(|(gpt, _)| gpt);
    open(dir, |path| gguf::load_gpt(path, options, merged), of_dir)
}

fn load_gpt_and_config(
    dir: &Path,
    options: &LoadOptions,
    merged: Option<&LoraValues>,
) -> Result<(Gpt, Map<String, Value>)> {
    let path = dir.join(CONFIG_FILE);
    if !is_there(dir)? {
        let run = dir.parent().filter(|run| dir.ends_with(RUN_MODEL) && run.join(RUN_FILE).is_file());
        return Err(match run {
            Some(run) => Error::file(run, "the run has no model yet: that is written at its first evaluation")
                .with_hint("go on with `--resume`, or use one of the run's `checkpoints/step-...`"),
            None => Error::file(dir, "does not exist").with_hint("use a model dir or a GGUF file on this machine"),
        });
    }
    if !dir.is_dir() {
        return Err(Error::file(dir, "is neither a folder nor a GGUF file").with_hint(
            "use a model dir (a folder with `config.json`, `model.safetensors` and `tokenizer.json`) or a GGUF file",
        ));
    }
    if !is_there(&path)? {
        return Err(Error::file(dir, format!("has no `{CONFIG_FILE}`")).with_hint(what_else_it_is(dir)));
    }
    let (json, wrapper) = text_part(read_json_object(&path)?, &path)?;
    let config = DirConfig { json: &json, wrapper, path: &path };
    let gpt = dir_weights::build(config, &TensorFiles::open(dir)?, options, merged)?;
    Ok((gpt, json))
}

/// Loads the prediction head of `gpt` from the files of the model: the model dir `dir` or a GGUF file; if `dir` has an
/// adapter, from the adapter's base model. `None` if there is no head.
///
/// # Errors
/// As [`load`].
pub fn load_prediction_head(dir: &Path, options: &LoadOptions, gpt: &Gpt) -> Result<Option<PredictionHead>> {
    let dir = &*model_of(dir);
    if Adapter::is_in(dir) {
        return load_prediction_head(&adapter_base(dir)?, options, gpt);
    }
    open(
        dir,
        |path| gguf::load_prediction_head(path, options, gpt),
        |dir| {
            let path = dir.join(CONFIG_FILE);
            let (json, wrapper) = text_part(read_json_object(&path)?, &path)?;
            let config = DirConfig { json: &json, wrapper, path: &path };
            dir_weights::open(config, &TensorFiles::open(dir)?, options, |tensors, packed, plan| {
                prediction_head::load(tensors, packed, plan, gpt)
            })
        },
    )
}

/// Bytes of the tensors of the prediction head in the model dir `dir`, or in a GGUF file; 0 without one.
///
/// # Errors
/// As [`load`].
pub fn prediction_head_bytes(dir: &Path) -> Result<u64> {
    let n_layers = load_config(dir)?.n_layers;
    open(
        dir,
        |path| gguf::prediction_head_bytes(path, n_layers),
        |dir| Ok(prediction_head::n_bytes(&TensorFiles::open(dir)?.table()?, n_layers)),
    )
}

/// Whether `path` exists.
///
/// # Errors
/// `path` cannot be checked, or is a dangling link.
fn is_there(path: &Path) -> Result<bool> {
    match (path.try_exists(), fs::read_link(path)) {
        (Ok(false), Ok(target)) => {
            Err(Error::file(path, format!("is a link to `{}`, which does not exist", target.display()))
                .with_hint("the model was copied without the targets of its links: copy these, too"))
        }
        (Ok(is_there), _) => Ok(is_there),
        (Err(reason), _) => Err(Error::io("read", path)(reason)),
    }
}

/// Loads only the tokenizer, from the model dir `dir` or a GGUF file.
///
/// # Errors
/// As [`load`].
pub fn load_tokenizer(dir: &Path) -> Result<Tokenizer> {
    open(dir, gguf::load_tokenizer, |dir| {
        let tokenizer = Tokenizer::from_dir(dir)?;
        // A folder may have a tokenizer alone, or a model that Hearth does not open.
        Ok(match load_config(dir) {
            Ok(config) => tokenizer.for_vocabulary(config.vocab_size),
            Err(_) => tokenizer,
        })
    })
}

/// Loads everything besides the model from the model dir `dir` or a GGUF file: tokenizer, chat template, and the tokens
/// that end a text.
///
/// # Errors
/// As [`load`].
pub fn load_text(dir: &Path) -> Result<LoadedText> {
    open(dir, gguf::load_text, |dir| {
        let vocab_size = load_config(dir)?.vocab_size;
        let tokenizer = Tokenizer::from_dir(dir)?.for_vocabulary(vocab_size);
        let eos_token_ids = read_eos_token_ids(dir, vocab_size, &tokenizer)?;
        Ok(LoadedText { chat_template: ChatTemplate::from_dir(dir)?, tokenizer, eos_token_ids })
    })
}

/// The tokens that end a text of the model in `dir`, or in a GGUF file. `tokenizer` is the model's tokenizer, or the
/// one with which an adapter was trained.
///
/// # Errors
/// As [`load`].
pub fn load_eos_token_ids(dir: &Path, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
    let of_dir = |dir: &Path| read_eos_token_ids(dir, load_config(dir)?.vocab_size, tokenizer);
    open(dir, |path| Ok(gguf::load_text(path)?.eos_token_ids), of_dir)
}

fn read_eos_token_ids(dir: &Path, vocab_size: usize, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
    let (config, config_path) = load_config_json(dir)?;
    eos_token_ids(&[load_generation_json(dir)?, (config_path, config)], vocab_size, tokenizer)
}

/// The tokens with which the decoder of the encoder-decoder in the model dir `dir` begins, as in [`LoadedModel`], and
/// the padding token. Empty for other models.
///
/// # Errors
/// As [`load`].
pub fn load_decoder_start(dir: &Path) -> Result<(Vec<TokenId>, Option<TokenId>)> {
    let dir = &*model_of(dir);
    let (config, path) = load_config_json(dir)?;
    let pad = config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| TokenId::try_from(id).ok());
    Ok((decoder_start(&[load_generation_json(dir)?, (path, config)], &load_config(dir)?)?, pad))
}

/// `generation_config.json` and its contents; empty without the file.
fn load_generation_json(dir: &Path) -> Result<(PathBuf, Map<String, Value>)> {
    let path = dir.join(GENERATION_FILE);
    let json = if path.exists() { read_json_object(&path)? } else { Map::new() };
    Ok((path, json))
}

/// Reads the architecture of the model dir `dir`, or of a GGUF file, without its weights.
///
/// # Errors
/// As [`load`].
pub fn load_config(dir: &Path) -> Result<GptConfig> {
    let dir = &*model_of(dir);
    if gguf::is_gguf(dir) {
        return gguf::load_config(dir);
    }
    let (json, path) = load_config_json(dir)?;
    hf_schema::quantization(&json, &path)?;
    Ok(schema_and_config(&Fields::new(&json, &path))?.1)
}

/// The quantized dtype of the model dir `dir`, if `hearth quantize` wrote it. `None` for GGUF files and for models that
/// other programs quantized: these have a dtype per matrix.
///
/// # Errors
/// As [`load`].
pub fn load_stored_dtype(dir: &Path) -> Result<Option<Dtype>> {
    let dir = &*model_of(dir);
    if gguf::is_gguf(dir) {
        return Ok(None);
    }
    Ok(match quantization(dir)? {
        Some(Quantization::Own(dtype)) => Some(dtype),
        _ => None,
    })
}

/// How the matrices of the model dir `dir` are quantized, if they are.
fn quantization(dir: &Path) -> Result<Option<Quantization>> {
    let (json, path) = load_config_json(dir)?;
    hf_schema::quantization(&json, &path)
}

/// The class in `config.json` of the model dir `dir`: one of
/// [`known_architectures`](super::known_architectures).
///
/// # Errors
/// As [`load`].
pub fn load_class(dir: &Path) -> Result<&'static str> {
    let dir = &*model_of(dir);
    let (json, path) = load_config_json(dir)?;
    Ok(HfSchema::of(&Fields::new(&json, &path))?.class())
}

/// `config.json` and its path; for a wrapper, in the form of its text class.
pub(super) fn load_config_json(dir: &Path) -> Result<(Map<String, Value>, PathBuf)> {
    mend(dir)?;
    let path = dir.join(CONFIG_FILE);
    let (json, _) = text_part(read_json_object(&path)?, &path)?;
    Ok((json, path))
}

/// The weights files of the model dir `dir`, sorted by name; or the GGUF file, and the other files of its model. These are
/// the files that [`load`] reads.
///
/// # Errors
/// As [`load`].
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    open(dir, gguf::weight_files, files::weight_files)
}

/// The files of the model dir `dir` besides configuration and weights, by name: tokenizer, chat templates, sampling
/// defaults. For a GGUF file: its contents of this kind, as files of a model dir.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read; [`Error::File`] if a GGUF file is invalid.
pub fn files_beside_weights(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    open(dir, gguf::files_beside_weights, read_beside_weights)
}

fn read_beside_weights(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let there = BESIDE_WEIGHTS.iter().map(|name| (*name, dir.join(name))).filter(|(_, path)| path.is_file());
    there.map(|(name, path)| Ok((name.to_owned(), regular_file::read(&path)?))).collect()
}
