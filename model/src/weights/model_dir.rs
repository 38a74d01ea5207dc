//! The model dir: the folder in Hugging Face's format that training writes and serving reads.
//!
//! `config.json`, `model.safetensors` (or shards with an index), `tokenizer.json`, `tokenizer_config.json`,
//! `chat_template.jinja`, `generation_config.json`. Nothing else is written, and there is no export step;
//! GGUF files are read besides (`gguf`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    architectures::OWN_CLASS,
    fields::Fields,
    files::{DiskDtype, TensorFiles, what_else_it_is},
    generation_config::sampling_defaults,
    gguf,
    hf::{self, Spelling},
    layout::{BESIDE_WEIGHTS, CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE},
    staged_dir::{StagedDir, read_whole},
};
pub use super::{
    loaded::{LoadOptions, LoadedModel},
    staged_dir::mend,
};
use crate::{
    TokenId,
    chat::ChatTemplate,
    config::GptConfig,
    error::{Error, Result},
    gpt::Gpt,
    ops::Dtype,
    regular_file,
    sampling::SamplingParams,
    tokenizer::{TOKENIZER_FILE, Tokenizer},
};

const EOS: &str = "eos_token_id";

/// Shards are kept below this, as `transformers` keeps them: 5 GB.
const MAX_SHARD_BYTES: usize = 5_000_000_000;

/// Opens the model dir `dir` as a whole, or the model in a GGUF file.
///
/// # Errors
/// An error that names the file, and within it the field or tensor, that is missing, broken or not supported.
pub fn load(dir: &Path, options: &LoadOptions) -> Result<LoadedModel> {
    if gguf::is_gguf(dir) {
        return gguf::load(dir, options)?.checked(dir);
    }
    read_whole(dir, || load_dir(dir, options))
}

fn load_dir(dir: &Path, options: &LoadOptions) -> Result<LoadedModel> {
    let (gpt, config_json) = load_gpt_and_config(dir, options)?;
    let tokenizer = Tokenizer::from_dir(dir)?;
    let generation_path = dir.join(GENERATION_FILE);
    let generation = if generation_path.exists() { read_object(&generation_path)? } else { Map::new() };
    let sampling_defaults = sampling_defaults(&generation, &generation_path, gpt.config().vocab_size)?;
    let files = [(generation_path, generation), (dir.join(CONFIG_FILE), config_json)];
    let eos_token_ids = eos_token_ids(&files, &gpt, &tokenizer)?;
    let chat_template = ChatTemplate::from_dir(dir)?;
    LoadedModel { gpt, tokenizer, chat_template, eos_token_ids, sampling_defaults }.checked(&dir.join(TOKENIZER_FILE))
}

/// A model dir that is part of a program: its files' contents. There is no chat template.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedDir {
    /// For messages.
    pub name: &'static str,
    /// `config.json`.
    pub config: &'static [u8],
    /// `model.safetensors`.
    pub weights: &'static [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'static [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: &'static [u8],
}

/// Opens a model dir that is part of the program.
///
/// # Errors
/// As [`load`].
pub fn load_embedded(dir: &EmbeddedDir, options: &LoadOptions) -> Result<LoadedModel> {
    let name = Path::new(dir.name);
    let config_path = name.join(CONFIG_FILE);
    let config_json = parse_object(&config_path, dir.config)?;
    let files = TensorFiles::embedded(&name.join(WEIGHTS_FILE), dir.weights)?;
    let gpt = build(&config_json, &config_path, &files, options)?;
    let tokenizer = Tokenizer::from_json(dir.tokenizer, Some(dir.tokenizer_config), &name.join(TOKENIZER_FILE))?;
    let eos_token_ids = eos_token_ids(&[(config_path, config_json)], &gpt, &tokenizer)?;
    let sampling_defaults = SamplingParams::default();
    LoadedModel { gpt, tokenizer, chat_template: None, eos_token_ids, sampling_defaults }
        .checked(&name.join(TOKENIZER_FILE))
}

/// The first of the files that names tokens that end a text decides; else it is the tokenizer's `eos`.
///
/// Ids that the model does not have are left out with a warning: they can never be drawn, and small models are often
/// saved with the ids of the large ones.
fn eos_token_ids(files: &[(PathBuf, Map<String, Value>)], gpt: &Gpt, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
    let vocab_size = gpt.config().vocab_size;
    for (path, json) in files {
        let named = Fields::new(json, path).whole_numbers(EOS)?;
        let id = |number: i64| TokenId::try_from(number).ok().filter(|&id| (id as usize) < vocab_size);
        let (known, unknown): (Vec<_>, Vec<_>) = named.into_iter().partition(|&number| id(number).is_some());
        if !unknown.is_empty() {
            tracing::warn!(
                "`{}`: `{EOS}` names {unknown:?}, but the model's `vocab_size` is {vocab_size}: they end nothing",
                path.display()
            );
        }
        if !known.is_empty() {
            return Ok(known.into_iter().filter_map(id).collect());
        }
    }
    Ok(tokenizer.eos().map(|eos| eos.id).into_iter().collect())
}

/// Opens only the model of the model dir `dir`, or of a GGUF file; there need not be a tokenizer.
///
/// # Errors
/// As [`load`].
pub fn load_gpt(dir: &Path, options: &LoadOptions) -> Result<Gpt> {
    if gguf::is_gguf(dir) {
        return gguf::load_gpt(dir, options);
    }
    read_whole(dir, || load_gpt_and_config(dir, options).map(|(gpt, _)| gpt))
}

fn load_gpt_and_config(dir: &Path, options: &LoadOptions) -> Result<(Gpt, Map<String, Value>)> {
    let path = dir.join(CONFIG_FILE);
    let refuse =
        |what: &str, hint: &str| Err(Error::File { path: dir.to_owned(), what: what.into(), hint: hint.into() });
    if !is_there(dir)? {
        return refuse(
            "does not exist",
            "give a model dir or a GGUF file that is on this machine: nothing is downloaded",
        );
    }
    if !dir.is_dir() {
        return refuse(
            "is neither a folder nor a GGUF file",
            "give a model dir, a folder with `config.json`, `model.safetensors` and `tokenizer.json`, or a GGUF file",
        );
    }
    if !is_there(&path)? {
        return refuse(&format!("has no `{CONFIG_FILE}`"), &what_else_it_is(dir));
    }
    let json = read_object(&path)?;
    let gpt = build(&json, &path, &TensorFiles::open(dir)?, options)?;
    Ok((gpt, json))
}

/// Whether there is anything at `path`.
///
/// # Errors
/// Nobody can tell, or it is a link that leads nowhere.
fn is_there(path: &Path) -> Result<bool> {
    match (path.try_exists(), fs::read_link(path)) {
        (Ok(false), Ok(target)) => Err(Error::File {
            path: path.to_owned(),
            what: format!("is a link to `{}`, which does not exist", target.display()),
            hint: "a model that was copied without what its links lead to is not complete".to_owned(),
        }),
        (Ok(is_there), _) => Ok(is_there),
        (Err(reason), _) => Err(Error::Io { action: "read", path: path.to_owned(), reason }),
    }
}

/// The model that `config.json` (at `path`) and the weights make.
fn build(config_json: &Map<String, Value>, path: &Path, files: &TensorFiles, options: &LoadOptions) -> Result<Gpt> {
    let spelling = Spelling::of(config_json, path)?;
    let config = spelling.read_config(config_json, path)?;
    let stored = hf::stored_dtype(config_json, path)?;
    if let (Some(stored), Some(asked)) = (stored, options.dtype)
        && stored != asked
    {
        let name = if asked.is_quantized() { "quantize" } else { "dtype" };
        let what = format!(
            "is `{asked}`, but the weights are stored in `{stored}`\nhint: what is rounded stays as it is; give the model \
             that it was made of"
        );
        return Err(Error::Param { name, what });
    }
    hf::load_params(files, spelling, &config, (options.dtype.or(stored), &options.device))
}

/// Opens only the tokenizer of the model dir `dir`, or of a GGUF file.
///
/// # Errors
/// As [`load`].
pub fn load_tokenizer(dir: &Path) -> Result<Tokenizer> {
    if gguf::is_gguf(dir) {
        return gguf::load_tokenizer(dir);
    }
    read_whole(dir, || Tokenizer::from_dir(dir))
}

/// Reads the architecture of the model dir `dir`, or of a GGUF file, without its weights.
///
/// # Errors
/// As [`load`].
pub fn load_config(dir: &Path) -> Result<GptConfig> {
    if gguf::is_gguf(dir) {
        return gguf::load_config(dir);
    }
    let (json, path) = load_config_json(dir)?;
    Spelling::of(&json, &path)?.read_config(&json, &path)
}

/// How the matrices of the model dir `dir` are rounded, if its `config.json` says that they are. A GGUF file says it
/// matrix by matrix: nothing is told of it here.
///
/// # Errors
/// As [`load`].
pub fn load_stored_dtype(dir: &Path) -> Result<Option<Dtype>> {
    if gguf::is_gguf(dir) {
        return Ok(None);
    }
    let (json, path) = load_config_json(dir)?;
    hf::stored_dtype(&json, &path)
}

/// The class that `config.json` of the model dir `dir` names: one of
/// [`known_architectures`](super::known_architectures).
///
/// # Errors
/// As [`load`].
pub fn load_class(dir: &Path) -> Result<&'static str> {
    let (json, path) = load_config_json(dir)?;
    Ok(Spelling::of(&json, &path)?.class())
}

/// `config.json`, and its path.
fn load_config_json(dir: &Path) -> Result<(Map<String, Value>, PathBuf)> {
    mend(dir)?;
    let path = dir.join(CONFIG_FILE);
    Ok((read_object(&path)?, path))
}

/// The files of the model dir `dir` beside its configuration and weights, by name: tokenizer, chat templates, advice on
/// sampling. Of a GGUF file: what it holds of these, as files of a model dir.
///
/// # Errors
/// [`Error::Io`] with the file that cannot be read; [`Error::File`] with what is wrong with a GGUF file.
pub fn files_beside_weights(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    if gguf::is_gguf(dir) {
        return gguf::files_beside_weights(dir);
    }
    read_whole(dir, || read_beside_weights(dir))
}

fn read_beside_weights(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let there = BESIDE_WEIGHTS.iter().map(|name| (*name, dir.join(name))).filter(|(_, path)| path.is_file());
    there
        .map(|(name, path)| match regular_file::read(&path) {
            Ok(bytes) => Ok((name.to_owned(), bytes)),
            Err(reason) => Err(Error::Io { action: "read", path, reason }),
        })
        .collect()
}

/// How to save a model, and what goes beside its weights.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// How values are stored.
    pub dtype: DiskDtype,
    /// Weights beyond this many bytes are split over several files.
    pub max_shard_bytes: usize,
    /// The Hugging Face class to save as, such as the one that the model was loaded from ([`load_class`]). `None`: the
    /// first that expresses the architecture; some architectures go by several names.
    pub class: Option<String>,
    /// Tokens that end a text, for `config.json` and `generation_config.json`.
    pub eos_token_ids: Vec<TokenId>,
    /// Files to put beside the weights as they are, by name: `tokenizer.json` and its like. A `generation_config.json`
    /// among them is the model's.
    pub extra_files: Vec<(String, Vec<u8>)>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            dtype: DiskDtype::F32,
            max_shard_bytes: MAX_SHARD_BYTES,
            class: None,
            eos_token_ids: Vec::new(),
            extra_files: Vec::new(),
        }
    }
}

/// Writes `gpt` as a model dir that Hearth and `transformers` open.
///
/// An architecture that no Hugging Face class expresses is written under `HearthForCausalLM`, with Hearth's own names. So
/// is a model whose matrices are rounded, with the very same numbers, and only Hearth opens it: a matrix `[d_out, d_in]`
/// is a tensor of whole numbers, I8 `[d_out, 32 n]` in q8, U8 `[d_out, 16 n]` in q4 (plus 8, two in a byte, the first
/// 16 of 32 in the low bits) and q4_1 (not plus 8), U8 `[d_out, 20 n]` in q5_1 (the lower four bits as in q4_1, then the
/// fifth bits of all 32); and under its name with `.scales`, F16 `[d_out, n]`, what each 32 of them are multiplied by,
/// with `.minima` what is added in q4_1 and q5_1. `quantization_config` in `config.json` says which.
///
/// The new folder takes the place of the old one as a whole, so that a crash leaves the old model or the new one. Of the
/// old folder, files that are no part of a model stay: see `weights::staged_dir`. `dir` may be missing, be empty, or be a
/// link to a folder; the working directory and mount points are refused.
///
/// # Errors
/// Those of [`StagedDir::replacing`], [`write()`] and [`StagedDir::commit`].
pub fn save(dir: &Path, gpt: &Gpt, options: &SaveOptions) -> Result<()> {
    let staged = StagedDir::replacing(dir)?;
    write(&staged, gpt, options)?;
    staged.commit()
}

/// Writes the files of `gpt` to a folder that is not in its place yet, as [`save`] does. One tensor is in memory at a time.
///
/// # Errors
/// [`Error::Io`] with the file that could not be written; [`Error::Execution`] when the device cannot be read;
/// [`Error::Config`] when the class asked for is not known or cannot express the architecture.
pub fn write(staged: &StagedDir, gpt: &Gpt, options: &SaveOptions) -> Result<()> {
    let dtype = gpt.dtype();
    let class = if dtype.is_quantized() { Some(OWN_CLASS) } else { options.class.as_deref() };
    let (spelling, mut config) = hf::config_json(gpt.config(), class, options.dtype.name())?;
    config.extend(dtype.is_quantized().then(|| hf::quantization_json(dtype.stored_as())));
    let mut generation = Map::new();
    // Said even where there is none: `transformers` would fill in the ids of the class's first model.
    for key in ["bos_token_id", "pad_token_id"] {
        config.insert(key.to_owned(), Value::Null);
    }
    let eos = eos_json(&options.eos_token_ids);
    config.insert(EOS.to_owned(), eos.clone());
    generation.insert(EOS.to_owned(), eos);
    hf::save_params(gpt, spelling, staged, (options.dtype, options.max_shard_bytes))?;
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

fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let text = regular_file::read(path).map_err(|source| Error::Io {
        action: "read",
        path: path.to_owned(),
        reason: source,
    })?;
    parse_object(path, &text)
}

fn parse_object(path: &Path, text: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(text).map_err(|error| Error::File {
        path: path.to_owned(),
        what: format!("is not a JSON object: {error}"),
        hint: String::new(),
    })
}
