//! How a model dir describes its model: the schema of `config.json` and of the names of tensors, by the table of
//! architectures.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    architectures::{Architecture, OWN_CLASS, architectures, known_architectures, refused, wrappers::wrapper_classes},
    config_json::Fields,
    own_classifier::{SEQUENCE_CLASS, TOKEN_CLASS},
    packed::{Method, described},
    tensor_names::TensorNames,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    ops::{BLOCK_SIZE, Dtype},
};

const OWN_MODEL_TYPE: &str = "hearth";

/// Endings of the names of classes for text, and for masked tokens.
const TEXT_CLASSES: [&str; 2] = ["ForCausalLM", "ForMaskedLM"];

/// The schema of a model dir: a Hugging Face class's, or Hearth's own.
#[derive(Clone, Copy)]
pub(super) enum HfSchema {
    Class(&'static Architecture),
    Own,
}

impl HfSchema {
    /// The schema that the fields of `config.json` name. As in `AutoModelForCausalLM` of transformers, a known `model_type`
    /// decides, whatever name the class has, unless that is the name of a model for something else than text.
    pub(super) fn of(config: &Fields<'_>) -> Result<Self> {
        let class = config.get("architectures").and_then(|classes| classes[0].as_str());
        let model_type = config.get("model_type").and_then(Value::as_str);
        if class == Some(OWN_CLASS) || (class.is_none() && model_type == Some(OWN_MODEL_TYPE)) {
            return Ok(Self::Own);
        }
        let is_head = |known: &Architecture| {
            let of_type = class.and_then(|class| class.strip_suffix(SEQUENCE_CLASS));
            let is_like_text = |name: &str| known.class.strip_suffix(TEXT_CLASSES[0]) == Some(name);
            let is_for_tokens = class.is_some_and(|class| class.ends_with(TOKEN_CLASS));
            is_for_tokens && known.is_encoder() || of_type.is_some_and(|name| known.is_encoder() || is_like_text(name))
        };
        let is_for_text =
            class.is_none_or(|class| !class.contains("For") || TEXT_CLASSES.iter().any(|kind| class.contains(kind)));
        let of_type = || architectures().filter(|known| model_type == Some(known.model_type));
        let by_type = of_type()
            .find(|known| class == Some(known.class))
            .or_else(|| of_type().next())
            .filter(|known| is_for_text || is_head(known));
        let by_class = || architectures().find(|known| class == Some(known.class));
        if let (Some(class), Some(known)) = (class, by_type)
            && class != known.class
        {
            let (model_type, of_type) = (known.model_type, known.class);
            config.pass_over(|| format!("`architectures` is `{class}`, but `model_type` {model_type} is `{of_type}`"));
        }
        by_type.or_else(by_class).map(Self::Class).ok_or_else(|| {
            let what = match (class, model_type) {
                (Some(class), _) => format!("architecture `{class}` is not supported"),
                (None, Some(model_type)) => format!("model type `{model_type}` is not supported"),
                (None, None) => "has neither `architectures` nor `model_type`".to_owned(),
            };
            if let Some(reason) = class.and_then(refused::reason) {
                let hint = "docs/models.md lists the supported models, among them newer ones of most families";
                return config.error(format!("{what}: {reason}")).with_hint(hint);
            }
            let known: Vec<_> = known_architectures().into_iter().chain(wrapper_classes()).collect();
            config.error(what).with_hint(format!("supported are {}", known.join(", ")))
        })
    }

    /// The schema that can express `config`: the requested class, otherwise the first such class of the table,
    /// otherwise Hearth's own.
    pub(super) fn for_config(config: &GptConfig, class: Option<&str>) -> Result<(Self, Map<String, Value>)> {
        let mut candidates = architectures().filter(|known| class.is_none_or(|class| known.class == class));
        if let Some(found) = candidates.find_map(|known| Some((Self::Class(known), known.write(config)?))) {
            return Ok(found);
        }
        if let Some(class) = class.filter(|class| *class != OWN_CLASS) {
            let known = known_architectures().contains(&class);
            let what = if known { "cannot express this configuration" } else { "is not known" };
            return Err(Error::Config { field: "architecture".into(), what: format!("class `{class}` {what}") });
        }
        let written = match serde_json::to_value(config) {
            Ok(Value::Object(map)) => map,
            _ => unreachable!("a struct of plain fields is a JSON object"),
        };
        Ok((Self::Own, written))
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Class(architecture) => architecture.class,
            Self::Own => OWN_CLASS,
        }
    }

    pub(super) fn model_type(self) -> &'static str {
        match self {
            Self::Class(architecture) => architecture.model_type,
            Self::Own => OWN_MODEL_TYPE,
        }
    }

    /// The schema of the encoder alone, if this schema has a masked-LM head.
    pub(super) fn without_mlm_head(self) -> Self {
        let Self::Class(with_head) = self else { return self };
        // The first of a type.
        architectures().find(|known| known.model_type == with_head.model_type).map_or(self, Self::Class)
    }

    /// Reads the architecture from the fields of `config.json`.
    pub(super) fn read_config(self, config: &Fields<'_>) -> Result<GptConfig> {
        let read = match self {
            Self::Class(architecture) => architecture.read(config)?,
            Self::Own => {
                let mut own = config.to_map();
                own.retain(|key, _| !SHARED_KEYS.contains(&key.as_str()));
                serde_json::from_value(Value::Object(own)).map_err(|error| config.error(error.to_string()))?
            }
        };
        read.validate()
            .map_err(|error| config.error(error.to_string()).with_hint(self.name_of(&error, &read, config)))?;
        Ok(read)
    }

    /// A hint with the file's name of the field in `error`, if it is another name.
    fn name_of(self, error: &Error, config: &GptConfig, file: &Fields<'_>) -> String {
        let (Self::Class(architecture), Error::Config { field, .. }) = (self, error) else { return String::new() };
        let keys = architecture.keys_of(field, config);
        let keys: Vec<_> = keys.iter().filter(|key| **key != **field && file.has(key)).map(String::as_str).collect();
        if keys.is_empty() { String::new() } else { format!("it is set by `{}`", keys.join("`, `")) }
    }

    /// How the files name their tensors.
    pub(super) fn tensor_names(self) -> TensorNames {
        match self {
            Self::Class(architecture) => architecture.tensor_names(),
            Self::Own => TensorNames { class: OWN_CLASS, rows: None, base_prefix: "", body_prefix: "", is_base: false },
        }
    }
}

/// The key of `config.json` for the quantization of matrices.
const QUANTIZATION: &str = "quantization_config";
/// The value of `quant_method` in it for matrices in Hearth's blocks.
const OWN_METHOD: &str = "hearth";

/// How matrices are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantization {
    /// By `hearth quantize`, to this dtype.
    Own(Dtype),
    /// By another program.
    Packed(Method),
}

/// The quantization of matrices according to `config.json`, if there is one.
///
/// # Errors
/// [`Error::File`] for other quantization methods than [`Quantization`] has, and for unsupported parameters of these
/// methods.
pub(super) fn quantization(config: &Map<String, Value>, path: &Path) -> Result<Option<Quantization>> {
    let Some(json) = config.get(QUANTIZATION).filter(|value| !value.is_null()) else { return Ok(None) };
    let refuse = |key: &str, what: String| Err(Error::file(path, format!("`{QUANTIZATION}{key}` {what}")));
    let format = |key: &str| json[key].as_str().unwrap_or_default();
    let gptq = || match json["bits"].as_u64() {
        Some(bits @ (2 | 4 | 8)) => {
            let added = if format("checkpoint_format") == "gptq_v2" { 0 } else { 1 };
            let has_order = json["desc_act"] == true;
            Ok(Some(Quantization::Packed(Method::Gptq { bits: bits as u32, added, has_order })))
        }
        _ => refuse(".bits", format!("is {}; supported are 2, 4 and 8", json["bits"])),
    };
    let awq = || match (json["bits"].as_u64().or(json["w_bit"].as_u64()), format("version")) {
        (None | Some(4), "" | "gemm" | "GEMM") => Ok(Some(Quantization::Packed(Method::Awq))),
        (bits, version) => refuse("", format!("is AWQ {version:?} with {bits:?} bits; supported is `gemm` with 4")),
    };
    match format("quant_method") {
        OWN_METHOD => match Dtype::parse(format("dtype"), Dtype::is_quantized) {
            Ok(dtype) => Ok(Some(Quantization::Own(dtype))),
            Err(what) => refuse(".dtype", what),
        },
        "gptq" => gptq(),
        "awq" => awq(),
        "auto-round" if format("packing_format").contains("awq") => awq(),
        "auto-round" => gptq(),
        "compressed-tensors" => match described::compressed_tensors(json) {
            Ok(method) => Ok(Some(Quantization::Packed(method))),
            Err((key, what)) => refuse(&key, what),
        },
        "fp8" => Ok(Some(Quantization::Packed(described::fp8(json)))),
        "bitsandbytes" => Ok(Some(Quantization::Packed(Method::BitsAndBytes))),
        "mxfp4" => Ok(Some(Quantization::Packed(Method::Mxfp4))),
        _ => {
            let hint = "supported are `awq`, `bitsandbytes`, `compressed-tensors`, `fp8`, `gptq`, `mxfp4`, and `hearth`, \
                        which `hearth quantize` writes";
            let what = format!("`{QUANTIZATION}` has method {}, which is not supported", json["quant_method"]);
            Err(Error::file(path, what).with_hint(hint))
        }
    }
}

/// The entry of `config.json` for matrices in blocks of `dtype`.
pub(super) fn quantization_json(dtype: Dtype) -> (String, Value) {
    let json = json!({ "quant_method": OWN_METHOD, "dtype": dtype.to_string(), "block_size": BLOCK_SIZE });
    (QUANTIZATION.to_owned(), json)
}

/// Keys of `config.json` that are not the architecture's.
const SHARED_KEYS: &[&str] = &[
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "id2label",
    "label2id",
    "problem_type",
    "classifier_pooling",
    "classifier_activation",
    "classifier_bias",
    "sentence_transformers",
    QUANTIZATION,
];

/// `config.json` for `config`, and its schema.
///
/// # Errors
/// [`Error::Config`] when `class` is not known or cannot express `config`.
pub(super) fn config_json(
    config: &GptConfig,
    class: Option<&str>,
    dtype_name: &str,
) -> Result<(HfSchema, Map<String, Value>)> {
    let (schema, fields) = HfSchema::for_config(config, class)?;
    let mut json = Map::new();
    json.insert("architectures".to_owned(), json!([schema.class()]));
    json.insert("model_type".to_owned(), json!(schema.model_type()));
    json.insert("dtype".to_owned(), json!(dtype_name));
    json.extend(fields);
    Ok((schema, json))
}
