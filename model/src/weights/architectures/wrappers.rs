//! Classes for text with images or sound, whose text part is a class of the table. Only the text part is opened: its
//! configuration is converted to the text class's form, and the tensors of the other parts are not read.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::config_json::Fields;
use crate::error::Result;

/// A class that wraps a text class.
pub(in super::super) struct Wrapper {
    /// As in `architectures` of `config.json`.
    pub(in super::super) class: &'static str,
    /// As in `model_type` of `config.json`.
    model_type: &'static str,
    /// The types that the text part may have, and the class of the table for each. The first is the default.
    texts: &'static [(&'static str, &'static str)],
    /// Optional keys of the text part for which the wrapper's defaults differ from the text class's: a JSON object.
    defaults: &'static str,
    /// How the names of the other parts' tensors begin.
    others: &'static [&'static str],
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        class: "Gemma3ForConditionalGeneration",
        model_type: "gemma3",
        texts: &[("gemma3_text", "Gemma3ForCausalLM")],
        // Released files leave these out.
        defaults: r#"{"vocab_size": 262208, "num_attention_heads": 8, "max_position_embeddings": 131072}"#,
        others: PICTURES,
    },
    Wrapper {
        class: "Mistral3ForConditionalGeneration",
        model_type: "mistral3",
        texts: &[("mistral", "MistralForCausalLM"), ("ministral3", "Ministral3ForCausalLM")],
        defaults: r#"{"tie_word_embeddings": false}"#,
        others: PICTURES,
    },
    Wrapper {
        class: "Qwen2VLForConditionalGeneration",
        model_type: "qwen2_vl",
        texts: &[("qwen2_vl_text", "Qwen2ForCausalLM"), ("qwen2_vl", "Qwen2ForCausalLM")],
        defaults: QWEN2_VL,
        others: PICTURES,
    },
    Wrapper {
        class: "Qwen2_5_VLForConditionalGeneration",
        model_type: "qwen2_5_vl",
        texts: &[("qwen2_5_vl_text", "Qwen2ForCausalLM"), ("qwen2_5_vl", "Qwen2ForCausalLM")],
        defaults: QWEN2_VL,
        others: PICTURES,
    },
    Wrapper {
        class: "Qwen3VLForConditionalGeneration",
        model_type: "qwen3_vl",
        texts: &[("qwen3_vl_text", "Qwen3ForCausalLM"), ("qwen3_vl", "Qwen3ForCausalLM")],
        defaults: r#"{"rope_theta": 500000.0}"#,
        others: PICTURES,
    },
    Wrapper {
        class: QWEN3_VL_MOE,
        model_type: "qwen3_vl_moe",
        texts: &[("qwen3_vl_moe_text", "Qwen3MoeForCausalLM"), ("qwen3_vl_moe", "Qwen3MoeForCausalLM")],
        // Its weights of experts are always divided by their sum. Files state the number of experts.
        defaults: r#"{"rope_theta": 500000.0, "norm_topk_prob": true, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                      "num_key_value_heads": 16}"#,
        others: PICTURES,
    },
    Wrapper {
        class: "Qwen3_5ForConditionalGeneration",
        model_type: "qwen3_5",
        texts: &[("qwen3_5_text", "Qwen3_5ForCausalLM")],
        defaults: "{}",
        others: PICTURES,
    },
    Wrapper {
        class: "Qwen3_5MoeForConditionalGeneration",
        model_type: "qwen3_5_moe",
        texts: &[("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")],
        defaults: "{}",
        others: PICTURES,
    },
    Wrapper {
        class: "Gemma4ForConditionalGeneration",
        model_type: "gemma4",
        texts: &[("gemma4_text", "Gemma4ForCausalLM")],
        defaults: "{}",
        others: PICTURES_AND_SOUND,
    },
    Wrapper {
        class: "Gemma4UnifiedForConditionalGeneration",
        model_type: "gemma4_unified",
        texts: &[("gemma4_unified_text", "Gemma4UnifiedForCausalLM")],
        defaults: r#"{"sliding_window": 1024}"#,
        others: PICTURES_AND_SOUND,
    },
    Wrapper {
        class: "MuseGlimmerForConditionalGeneration",
        model_type: "muse_glimmer",
        texts: &[("muse_glimmer_text", "MuseGlimmerForCausalLM")],
        defaults: "{}",
        others: &["vision_tower.", "vision_adapter.", "vision_projection."],
    },
];

const QWEN3_VL_MOE: &str = "Qwen3VLMoeForConditionalGeneration";

const QWEN2_VL: &str =
    r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "max_position_embeddings": 32768}"#;

/// Prefixes of the names of the text part's tensors, in newer and in older files. The rest is the text class's name, in
/// newer files without its `model.`.
const TEXT_PREFIXES: [&str; 2] = ["model.language_model.", "language_model."];
/// How the names of other parts' tensors begin, with or without `model.`.
const PICTURES: &[&str] = &["visual.", "vision_tower.", "multi_modal_projector."];
const PICTURES_AND_SOUND: &[&str] =
    &["vision_tower.", "vision_embedder.", "embed_vision.", "audio_tower.", "embed_audio."];

/// The names that wrappers give to a tensor that the text class calls `name`, or `short` without its prefix.
pub(in super::super) fn wrapped_names(name: &str, short: &str) -> [String; 2] {
    let [newer, older] = TEXT_PREFIXES;
    [format!("{newer}{short}"), format!("{older}{name}")]
}

const TEXT_CONFIG: &str = "text_config";
const TIED: &str = "tie_word_embeddings";
/// The objects of the rotary positions.
const ROPE: [&str; 2] = ["rope_scaling", "rope_parameters"];
/// Keys of rotary positions that differ between the three coordinates of a token. For text, all three are equal.
const SECTIONS: [&str; 2] = ["mrope_section", "mrope_interleaved"];
const SECTIONED: &str = "mrope";

/// The classes of the wrappers.
pub(in super::super) fn wrapper_classes() -> impl Iterator<Item = &'static str> {
    WRAPPERS.iter().map(|wrapper| wrapper.class)
}

/// The configuration of the text class if `json`, the contents of `config.json` at `path`, is one of a wrapper; otherwise
/// `json` itself.
///
/// # Errors
/// [`Error::File`](crate::Error::File) if the text part is of a type that the wrapper may not have.
pub(in super::super) fn text_part(
    json: Map<String, Value>,
    path: &Path,
) -> Result<(Map<String, Value>, Option<&'static Wrapper>)> {
    let fields = Fields::new(&json, path);
    let class = fields.get("architectures").and_then(|classes| classes[0].as_str());
    let model_type = fields.get("model_type").and_then(Value::as_str);
    let is_named = |wrapper: &&Wrapper| match class {
        Some(class) => class == wrapper.class,
        None => model_type == Some(wrapper.model_type),
    };
    let Some(wrapper) = WRAPPERS.iter().find(is_named) else { return Ok((json, None)) };
    // The first files of Qwen 2 VL have the keys of both parts side by side.
    let nested = fields.object(TEXT_CONFIG)?;
    let text = nested.unwrap_or(fields);
    let text_type = text.text_or("model_type", wrapper.texts[0].0)?;
    let Some((_, text_class)) = wrapper.texts.iter().find(|(known, _)| *known == text_type) else {
        let known: Vec<_> = wrapper.texts.iter().map(|(known, _)| *known).collect();
        return Err(text.unsupported("model_type", &json!(text_type), &known.join(", ")));
    };
    let mut own: Map<String, Value> = serde_json::from_str(wrapper.defaults).unwrap_or_default();
    let tied = |fields: &Fields<'_>| fields.get(TIED).map(|_| fields.flag_or(TIED, false)).transpose();
    let mut is_tied = [tied(&fields)?, tied(&text)?];
    if wrapper.class == QWEN3_VL_MOE && is_tied[0].is_some() {
        // Its text part says true by default, whatever the whole says, which counts.
        is_tied[1] = None;
    }
    // Keys outside, such as `eos_token_id`, count where the text part does not have them.
    own.extend(fields.to_map());
    own.extend(text.to_map());
    own.remove(TEXT_CONFIG);
    if is_tied.iter().any(Option::is_some) {
        own.insert(TIED.to_owned(), json!(is_tied.contains(&Some(true))));
    }
    for rope in ROPE {
        if let Some(rope) = own.get_mut(rope).and_then(Value::as_object_mut) {
            rope.retain(|key, value| !SECTIONS.contains(&key.as_str()) && value != SECTIONED);
        }
    }
    own.insert("architectures".to_owned(), json!([text_class]));
    own.remove("model_type");
    Ok((own, Some(wrapper)))
}

/// The part of the model to which a tensor of a wrapper's files belongs.
pub(in super::super) enum WrappedTensor<'a> {
    /// A tensor of the text class, with this name.
    Text(&'a str),
    /// A tensor of another part.
    Other,
}

impl WrappedTensor<'_> {
    /// By the name in the files of `wrapper`.
    pub(in super::super) fn of<'a>(name: &'a str, wrapper: &Wrapper) -> WrappedTensor<'a> {
        let within_model = name.strip_prefix("model.").unwrap_or(name);
        if wrapper.others.iter().any(|part| within_model.starts_with(part)) {
            return WrappedTensor::Other;
        }
        let text = TEXT_PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix));
        WrappedTensor::Text(text.unwrap_or(name))
    }
}
