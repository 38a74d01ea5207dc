//! Models in llama.cpp's format: one GGUF file, or several, with weights, configuration, tokenizer and chat template.
//! `export` writes them.
//!
//! `header` reads metadata and the list of tensors, `architectures` turns metadata into a configuration, `names` maps
//! tensors to parameters, and `weights::loader` loads them.

pub(super) mod adapter_file;
mod architectures;
mod config_rows;
mod description;
mod encoders;
mod expert_rows;
pub mod export;
mod header;
mod latent;
mod layer_rows;
mod mamba;
mod mixtures;
mod names;
mod pre_tokenizers;
mod recurrent;
mod rope_factors;
mod tokenizer;
mod word_piece;
mod writer;
mod xielu;

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value as Json, json};

use self::{
    config_rows::WINDOW_PATTERN,
    description::{Gguf, POOLING_TYPE},
    header::{Header, Metadata, Value},
    layer_rows::FEED_FORWARD,
    mamba::{MLP_WIDTH, NEMOTRON_H},
    recurrent::{KEY_HEADS, PREDICTING_LAYERS, RECURRENT_LAYERS},
    tokenizer::{TokenizerFiles, Vocabulary},
    xielu::XieluNumbers,
};
use super::{
    config_json::Fields,
    file_names::GENERATION_FILE,
    generation_config::sampling_defaults,
    loader::{self, LoadPlan},
    opened_model::{LoadOptions, LoadedModel, LoadedText},
    own_pooling,
    packed::PackedMatrices,
    passed_over::shown,
    prediction_head,
    tensor_table::TensorTable,
};
use crate::{
    config::{GptConfig, MAX_LAYERS},
    error::Result,
    files::{decimal, mmap::Mmap, regular_file},
    gpt::{
        Gpt,
        lora::LoraValues,
        pooling::{DenseActivation, DenseLayer, OwnPooling, Prompts},
        prediction_head::PredictionHead,
    },
    text::{
        chat::{self, ChatTemplate},
        tokenizer::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer},
    },
};

const ARCHITECTURE: &str = "general.architecture";
const TEMPLATE: &str = "tokenizer.chat_template";
/// The template for conversations with tools.
const TOOL_TEMPLATE: &str = "tokenizer.chat_template.tool_use";
const SAMPLING_PREFIX: &str = "general.sampling.";
/// Keys after [`SAMPLING_PREFIX`], and their names in `generation_config.json`.
const SAMPLING: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
];
const SPLIT_COUNT: &str = "split.count";
const SPLIT_NUMBER: &str = "split.no";
const SPLIT_TENSORS: &str = "split.tensors.count";
/// Enough for a model of a terabyte in files of a gigabyte.
const MAX_FILES: u64 = 1000;

/// Whether `path` is to be read as GGUF: a file of that name or that content.
pub(super) fn is_gguf(path: &Path) -> bool {
    let begins_with_magic = || {
        let mut magic = [0; 4];
        let read = regular_file::open(path).and_then(|mut file: File| file.read_exact(&mut magic));
        read.is_ok() && magic == *b"GGUF"
    };
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) && !path.is_dir()
        || begins_with_magic()
}

/// Opens the model in the file `path` as a whole.
pub(super) fn load(path: &Path, options: &LoadOptions, merged: Option<&LoraValues>) -> Result<LoadedModel> {
    with_model(path, |metadata, mut tensors| {
        let Vocabulary { tokenizer, eos_token_ids } = tokenizer::read(metadata)?;
        let dense_layers = take_dense_layers(&mut tensors)?;
        let gpt = build(metadata, tensors, options, merged)?;
        let chat_template = chat_template(metadata)?;
        let sampling_defaults = sampling_defaults(&generation_config(metadata), path, gpt.config().vocab_size);
        let own_pooling = own_pooling(metadata, dense_layers)?;
        Ok(LoadedModel {
            gpt,
            tokenizer,
            chat_template,
            eos_token_ids,
            decoder_start: Vec::new(),
            sampling_defaults,
            own_pooling,
            writes_text: true,
            prompts: Prompts::default(),
            text_limit: None,
            classifier: None,
        })
    })
}

/// Opens only the tokenizer in the file `path`; there need not be tensors.
pub(super) fn load_tokenizer(path: &Path) -> Result<Tokenizer> {
    let map = Mmap::open(path)?;
    Ok(tokenizer::read(&Header::parse(&map, path)?.metadata)?.tokenizer)
}

/// Opens the contents of the file `path` other than the model.
pub(super) fn load_text(path: &Path) -> Result<LoadedText> {
    with_model(path, |metadata, _| {
        let Vocabulary { tokenizer, eos_token_ids } = tokenizer::read(metadata)?;
        Ok(LoadedText { tokenizer, chat_template: chat_template(metadata)?, eos_token_ids })
    })
}

/// Opens only the model in the file `path`; there need not be a tokenizer.
pub(super) fn load_gpt(path: &Path, options: &LoadOptions, merged: Option<&LoraValues>) -> Result<Gpt> {
    with_model(path, |metadata, mut tensors| {
        take_dense_layers(&mut tensors)?;
        build(metadata, tensors, options, merged)
    })
}

/// The contents of the file `path` other than configuration and weights, as files of a model dir, by name.
pub(super) fn files_beside_weights(path: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let map = Mmap::open(path)?;
    let metadata = Header::parse(&map, path)?.metadata;
    let TokenizerFiles { tokenizer, config } = tokenizer::files(&metadata)?;
    let templates = template_sources(&metadata)?.map(|(default, tool_use)| {
        let files = [(chat::DEFAULT_FILE, Some(default)), (chat::TOOL_USE_FILE, tool_use)];
        files.into_iter().filter_map(|(name, source)| Some((name, source?.as_bytes().to_vec())))
    });
    let generation = generation_config(&metadata);
    let generation =
        (!generation.is_empty()).then(|| (GENERATION_FILE, Json::Object(generation).to_string().into_bytes()));
    let files = [(TOKENIZER_FILE, tokenizer), (TOKENIZER_CONFIG_FILE, config)].into_iter().chain(generation);
    Ok(files.chain(templates.into_iter().flatten()).map(|(name, bytes)| (name.to_owned(), bytes)).collect())
}

/// Reads the architecture of the model in the file `path`.
pub(super) fn load_config(path: &Path) -> Result<GptConfig> {
    with_model(path, |metadata, mut tensors| Ok(read_config(metadata, &mut tensors)?.1))
}

/// Whether the file `path` has quantized tensors.
pub(super) fn is_quantized(path: &Path) -> Result<bool> {
    with_model(path, |_, tensors| {
        Ok(tensors.iter().any(|tensor| tensor.element().is_ok_and(|element| element.dtype().is_quantized())))
    })
}

/// The pooling that the file states, with the layers after the pooling.
fn own_pooling(metadata: &Metadata<'_>, layers: Vec<DenseLayer>) -> Result<OwnPooling> {
    let key = format!("{}.{POOLING_TYPE}", architecture(metadata)?.name);
    Ok(match own_pooling::of_gguf(metadata.unsigned(&key)?, &key, metadata.path) {
        OwnPooling::As(pooling) if !layers.is_empty() => OwnPooling::Layered(pooling, layers.into()),
        other => other,
    })
}

/// Removes the layers after the pooling from the tensors.
fn take_dense_layers(tensors: &mut TensorTable<'_>) -> Result<Vec<DenseLayer>> {
    const NAMES: [&str; 2] = ["dense_2", "dense_3"];
    let is_there = |name: &&&str| tensors.get(&format!("{name}.weight")).is_some();
    let layer = |name: &&str| own_pooling::dense_from(tensors, name, DenseActivation::Identity);
    let layers = NAMES.iter().filter(is_there).map(layer).collect::<Result<_>>()?;
    tensors.rename(|name| (!NAMES.iter().any(|layer| name.starts_with(layer))).then_some(name))?;
    Ok(layers)
}

fn build(
    metadata: &Metadata<'_>,
    mut tensors: TensorTable<'_>,
    options: &LoadOptions,
    merged: Option<&LoraValues>,
) -> Result<Gpt> {
    let (gguf, config) = read_config(metadata, &mut tensors)?;
    let xielu = config.xielu.then(|| XieluNumbers::read(metadata, config.n_layers)).transpose()?;
    let mut tensors: TensorTable<'_> = tensors;
    for numbers in xielu.iter().flat_map(|xielu| xielu.tensors(metadata.path)) {
        tensors.insert(numbers)?;
    }
    loader::load(&tensors, &LoadPlan { merged, ..plan(gguf, &config, options) })
}

/// The load plan, without the tensors.
fn plan<'a>(gguf: &Gguf, config: &'a GptConfig, options: &'a LoadOptions) -> LoadPlan<'a> {
    LoadPlan {
        names: gguf.names(),
        packed: None,
        config,
        dtype: options.dtype,
        keeps_f16: true,
        device: &options.device,
        merged: None,
    }
}

/// Opens the prediction head of `gpt`, the model in the file `path`, if the file has one.
pub(super) fn load_prediction_head(path: &Path, options: &LoadOptions, gpt: &Gpt) -> Result<Option<PredictionHead>> {
    with_model(path, |metadata, tensors| {
        let (gguf, _) = read_config(metadata, &mut tensors.clone())?;
        prediction_head::load(tensors, PackedMatrices::new(), plan(gguf, gpt.config(), options), gpt)
    })
}

/// Bytes of the tensors of the prediction head of the model in the file `path`, which has `n_layers`.
pub(super) fn prediction_head_bytes(path: &Path, n_layers: usize) -> Result<u64> {
    with_model(path, |_, tensors| Ok(prediction_head::n_bytes(&tensors, n_layers)))
}

/// As [`with_files`], for files of models.
fn with_model<T>(path: &Path, read: impl FnOnce(&Metadata<'_>, TensorTable<'_>) -> Result<T>) -> Result<T> {
    with_files(path, |metadata, tensors| {
        if adapter_file::is_adapter(metadata)? {
            return Err(metadata
                .error("is an adapter and not a model")
                .with_hint("serve it with the model that it updates: `hearth serve --model MODEL --lora NAME=FILE`"));
        }
        read(metadata, tensors)
    })
}

/// The files of the model in the file `path`: this one, and the others where it is one of several.
pub(super) fn weight_files(path: &Path) -> Result<Vec<PathBuf>> {
    let first = Mmap::open(path)?;
    let others = other_files(&Header::parse(&first, path)?.metadata)?;
    Ok([vec![path.to_owned()], others].concat())
}

/// Maps the file at `path`, and the model's other files if there are several, for as long as `read` runs.
fn with_files<T>(path: &Path, read: impl FnOnce(&Metadata<'_>, TensorTable<'_>) -> Result<T>) -> Result<T> {
    let first = Mmap::open(path)?;
    let Header { metadata, mut tensors } = Header::parse(&first, path)?;
    let others = other_files(&metadata)?;
    let maps = others.iter().map(|path| Ok((path, Mmap::open(path)?))).collect::<Result<Vec<_>>>()?;
    for (number, (path, map)) in maps.iter().enumerate() {
        let other = Header::parse(map, path)?;
        let found = other.metadata.unsigned(SPLIT_NUMBER)?;
        if found != Some(number as u64 + 1) {
            let found = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
            let what = format!("`{SPLIT_NUMBER}` must be {}, got {found}", number + 1);
            return Err(other.metadata.error(what));
        }
        tensors.extend(other.tensors);
    }
    let all_maps = [&first].into_iter().chain(maps.iter().map(|(_, map)| map)).collect();
    let tensors = TensorTable::new(path, all_maps, header::ASKED_BY, tensors)?;
    match metadata.unsigned(SPLIT_TENSORS)? {
        Some(n_tensors) if n_tensors != tensors.len() as u64 => {
            Err(metadata.error(format!("`{SPLIT_TENSORS}` is {n_tensors}, but the files have {}", tensors.len())))
        }
        _ => read(&metadata, tensors),
    }
}

/// The paths of the other files of the model: `NAME-00001-of-00003.gguf` has two more.
fn other_files(metadata: &Metadata<'_>) -> Result<Vec<PathBuf>> {
    let n_files = match metadata.unsigned(SPLIT_COUNT)? {
        None | Some(0 | 1) => return Ok(Vec::new()),
        Some(n_files) => n_files,
    };
    if n_files > MAX_FILES {
        return Err(metadata.error(format!("`{SPLIT_COUNT}` is {n_files}; at most {MAX_FILES} are allowed")));
    }
    if metadata.unsigned(SPLIT_NUMBER)? != Some(0) {
        let what = format!("is not the first of its model's {n_files} files");
        return Err(metadata.error(what).with_hint("use the first one"));
    }
    let ending = |number: u64| format!("-{number:05}-of-{n_files:05}.gguf");
    let name = metadata.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_suffix(&ending(1)) {
        Some(stem) => {
            Ok((2..=n_files).map(|number| metadata.path.with_file_name(format!("{stem}{}", ending(number)))).collect())
        }
        None => Err(metadata
            .error(format!("is the first of {n_files} files, but its name does not end in `{}`", ending(1)))
            .with_hint("split files are found by name: restore their original names")),
    }
}

/// The configuration and the architecture. Tensors that shape it but are no parameters are taken out of `tensors`.
fn read_config(metadata: &Metadata<'_>, tensors: &mut TensorTable<'_>) -> Result<(&'static Gguf, GptConfig)> {
    let gguf = architecture(metadata)?;
    let prefix = format!("{}.", gguf.name);
    let own = metadata.keys().filter_map(|key| {
        let (name, value) = (key.strip_prefix(&prefix)?, metadata.get(key)?);
        let json = match name {
            WINDOW_PATTERN | RECURRENT_LAYERS => json_of_flags(value),
            KEY_HEADS => json_of_numbers(value),
            FEED_FORWARD if gguf.name == layer_rows::GEMMA4 => json_of_numbers(value),
            MLP_WIDTH if gguf.name.starts_with(NEMOTRON_H) => json_of_numbers(value),
            _ => None,
        };
        Some((name.to_owned(), json.unwrap_or_else(|| json_of(value))))
    });
    let own: Map<String, Json> = own.collect();
    let fields = Fields::new(&own, metadata.path).with_prefix(&prefix);
    let mut config = gguf.read(&fields, &|name| tensors.get(name).is_some())?;
    config.vocab_size = tensors.require("token_embd.weight")?.shape[0];
    if let Some(types) = tensors.get("token_types.weight") {
        config.n_token_types = types.shape[0];
    }
    if let Some(per_layer) = &mut config.per_layer_inputs {
        per_layer.vocab_size = tensors.require("per_layer_token_embd.weight")?.shape[0];
    }
    rope_factors::apply(&mut config, &fields, tensors)?;
    if fields.size_or(PREDICTING_LAYERS, 0)? > 0 {
        pass_over_layers_from(config.n_layers, tensors)?;
    }
    config.validate().map_err(|error| metadata.error(error.to_string()))?;
    Ok((gguf, config))
}

/// Removes the tensors of extra layers after the model's, which predict further tokens.
fn pass_over_layers_from(n_layers: usize, tensors: &mut TensorTable<'_>) -> Result<()> {
    let layer = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
    let is_kept = |name: &str| layer(name).is_none_or(|layer| layer < n_layers);
    let others = tensors.rename(|name| is_kept(name).then_some(name))?;
    let names = shown(others.iter().map(|tensor| tensor.name).collect());
    tracing::info!("`{}`: passed over, because only drafts depend on them: {names}", tensors.path().display());
    Ok(())
}

fn architecture(metadata: &Metadata<'_>) -> Result<&'static Gguf> {
    let name = metadata.text(ARCHITECTURE)?.ok_or_else(|| metadata.missing(ARCHITECTURE))?;
    architectures::named(name).map_err(|known| {
        metadata.error(format!("architecture `{name}` is not supported")).with_hint(format!("supported are {known}"))
    })
}

/// A value as a `config.json` would have it.
fn json_of(value: Value<'_>) -> Json {
    match value {
        Value::Unsigned(number) => json!(number),
        Value::Signed(number) => json!(number),
        Value::F32(number) if number.is_finite() => json!(decimal::to_f64(number)),
        // JSON cannot represent such numbers, and no field may be one.
        Value::F32(number) => json!(number.to_string()),
        Value::F64(number) if number.is_finite() => json!(number),
        Value::F64(number) => json!(number.to_string()),
        Value::Flag(flag) => json!(flag),
        Value::Text(text) => json!(text),
        Value::Array(array) if array.len == 0 => Json::Null,
        // The same value for each layer.
        Value::Array(array) => {
            let mut items = array.scalars().into_iter().flatten().map(json_of);
            let first = items.next();
            first.filter(|first| items.all(|item| item == *first)).unwrap_or_else(|| json!(format!("{array:?}")))
        }
    }
}

/// A list of integers, one for each layer, unless all are equal. Longer lists are not copied.
fn json_of_numbers(value: Value<'_>) -> Option<Json> {
    let Value::Array(array) = value else { return None };
    let numbers = array.scalars().filter(|_| (1..=MAX_LAYERS).contains(&array.len))?;
    let numbers: Vec<Json> = numbers.map(json_of).collect();
    let differ = numbers.iter().any(|number| *number != numbers[0]);
    (differ && numbers.iter().all(Json::is_i64)).then(|| Json::from(numbers))
}

/// A list of flags, one for each layer. Longer lists are not copied.
fn json_of_flags(value: Value<'_>) -> Option<Json> {
    let Value::Array(array) = value else { return None };
    let flag = |item| match item {
        Value::Flag(flag) => Some(flag),
        Value::Unsigned(number @ (0 | 1)) => Some(number == 1),
        Value::Signed(number @ (0 | 1)) => Some(number == 1),
        _ => None,
    };
    let flags = array.scalars().filter(|_| (1..=MAX_LAYERS).contains(&array.len))?;
    flags.map(flag).collect::<Option<Vec<_>>>().map(Json::from)
}

/// The sampling defaults in the metadata, under the names of `generation_config.json`, which llama.cpp's converter reads.
fn generation_config(metadata: &Metadata<'_>) -> Map<String, Json> {
    let advice = SAMPLING.iter().filter_map(|(key, name)| {
        let value = json_of(metadata.get(&format!("{SAMPLING_PREFIX}{key}"))?);
        Some(((*name).to_owned(), value))
    });
    let mut json: Map<String, Json> = advice.collect();
    if !json.is_empty() {
        json.insert("do_sample".to_owned(), json!(true));
    }
    json
}

fn chat_template(metadata: &Metadata<'_>) -> Result<Option<ChatTemplate>> {
    let Some((default, tool_use)) = template_sources(metadata)? else { return Ok(None) };
    ChatTemplate::with_tool_use(default, tool_use, metadata.path).map(Some)
}

/// The default chat template, and the one for conversations with tools.
fn template_sources<'a>(metadata: &Metadata<'a>) -> Result<Option<(&'a str, Option<&'a str>)>> {
    let Some(default) = metadata.text(TEMPLATE)? else { return Ok(None) };
    Ok(Some((default, metadata.text(TOOL_TEMPLATE)?)))
}
