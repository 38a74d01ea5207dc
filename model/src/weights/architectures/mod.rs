//! The table of architectures: how each Hugging Face class describes [`GptConfig`] and names its parameters.
//!
//! This folder is the only place that knows Hugging Face's names. A new architecture is a new row: the configuration
//! that the class always has, the keys of its `config.json` for each of Hearth's fields, the keys that may have one
//! value only, and the tensors for each of Hearth's parameters. The rows are in `table/`, by family, lists that several
//! classes share in `row_groups`; CONTRIBUTING.md adds one step by step.

pub(super) mod bases;
pub(super) mod config_rows;
mod encoder_rows;
mod expert_rows;
mod gpt_rows;
mod latent_rows;
mod layer_rows;
mod mamba_rows;
mod names;
mod recurrent_rows;
pub(super) mod refused;
mod rope;
mod row_groups;
mod seq2seq_rows;
mod table;
mod variant_rows;
pub(super) mod window;
pub(super) mod wrappers;

use serde_json::{Map, Value, json};

use self::config_rows::ConfigRow;
pub(super) use self::table::architectures;
use super::{
    config_json::{Fields, Fixed},
    tensor_names::{NameRow, TensorNames},
};
use crate::{config::GptConfig, error::Result};

/// The class under which configurations are saved that no Hugging Face class expresses: Hearth's own field and
/// parameter names.
pub(super) const OWN_CLASS: &str = "HearthForCausalLM";

/// How the names of classes end that predict masked tokens.
const MASKED_CLASS: &str = "ForMaskedLM";

/// How one Hugging Face class describes its configuration and names its parameters.
pub(super) struct Architecture {
    /// As in `architectures` of `config.json`.
    pub(super) class: &'static str,
    /// As in `model_type` of `config.json`.
    pub(super) model_type: &'static str,
    /// The configuration before keys are read; sizes are not set yet.
    base: fn() -> GptConfig,
    /// The keys of `config.json` and the fields that they set, in the order in which they are read.
    config: &'static [&'static [ConfigRow]],
    /// Keys that would change the computation, and the one value that is supported.
    fixed: &'static [(&'static str, Fixed)],
    /// The tensors of each parameter.
    names: &'static [&'static [NameRow]],
    /// See [`TensorNames`].
    base_prefix: &'static str,
}

impl Architecture {
    /// Reads `config.json`. Keys that would change the computation but are not supported are errors that name the key.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) with the key.
    pub(super) fn read(&self, fields: &Fields<'_>) -> Result<GptConfig> {
        let is_own = |key: &str| {
            self.config.iter().copied().flatten().any(|row| row.reads(key))
                || self.fixed.iter().any(|(fixed, _)| *fixed == key)
        };
        let neutral = NEUTRAL.iter().filter(|(key, _)| !is_own(key));
        for (key, only) in self.fixed.iter().chain(neutral) {
            fields.only(key, *only)?;
        }
        let mut config = (self.base)();
        self.config.iter().copied().flatten().try_for_each(|row| row.read(fields, &mut config))?;
        Ok(config)
    }

    /// Writes `config.json`, if the class can express `config`: the result is read back and compared. Dropout may
    /// differ: serving does not use it, and most classes have no field for it.
    pub(super) fn write(&self, config: &GptConfig) -> Option<Map<String, Value>> {
        let written = self.write_rows(config);
        let read = self.read(&Fields::new(&written, std::path::Path::new("config.json"))).ok()?;
        (read.with_dropout(0.0) == config.clone().with_dropout(0.0)).then_some(written)
    }

    /// The class's keys that change when `field` of `config` changes (a path within it, with dots); empty if the field is derived
    /// from other keys.
    pub(super) fn keys_of(&self, field: &str, config: &GptConfig) -> Vec<String> {
        let changed = || -> Option<GptConfig> {
            let mut fields = serde_json::to_value(config).ok()?;
            let value = fields.pointer_mut(&format!("/{}", field.replace('.', "/")))?;
            *value = match &*value {
                Value::Bool(flag) => json!(!flag),
                Value::Number(size) if size.is_u64() => json!(size.as_u64()?.checked_add(1)?),
                number => json!(number.as_f64()? + 1.0),
            };
            serde_json::from_value(fields).ok()
        };
        let Some(changed) = changed() else { return Vec::new() };
        let (before, after) = (self.write_rows(config), self.write_rows(&changed));
        after.into_iter().filter(|(key, value)| before.get(key) != Some(value)).map(|(key, _)| key).collect()
    }

    /// Whether the class is bidirectional.
    pub(super) fn is_encoder(&self) -> bool {
        (self.base)().bidirectional
    }

    /// How the files name their tensors.
    pub(super) fn tensor_names(&self) -> TensorNames {
        let Self { class, names, base_prefix, .. } = *self;
        let is_masked = class.ends_with(MASKED_CLASS);
        let body_prefix = if is_masked { base_prefix } else { "" };
        let is_base = self.is_encoder() && !is_masked;
        TensorNames { class, rows: Some(names), base_prefix, body_prefix, is_base }
    }

    fn write_rows(&self, config: &GptConfig) -> Map<String, Value> {
        let mut written = Map::new();
        self.config.iter().copied().flatten().for_each(|row| row.write(config, &mut written));
        written
    }
}

/// The Hugging Face classes that Hearth opens and saves, and its own.
pub fn known_architectures() -> Vec<&'static str> {
    architectures().map(|architecture| architecture.class).chain([OWN_CLASS]).collect()
}

/// Keys that would change the computation in any class or fork that knows them, and the value for which they do not. They are
/// checked unless the class's own rows read them, or its own list has another value.
const NEUTRAL: &[(&str, Fixed)] = &[
    ("is_encoder_decoder", Fixed::Flag(false)),
    ("add_cross_attention", Fixed::Flag(false)),
    ("cross_attention_hidden_size", Fixed::Nothing),
    ("pruned_heads", Fixed::Nothing),
    ("is_causal", Fixed::Flag(true)),
    ("use_bidirectional_attention", Fixed::Flag(false)),
    ("attn_logit_softcapping", Fixed::Nothing),
    ("final_logit_softcapping", Fixed::Nothing),
    ("query_pre_attn_scalar", Fixed::Nothing),
    ("clip_qkv", Fixed::Nothing),
    ("attention_multiplier", Fixed::Nothing),
    ("embedding_multiplier", Fixed::Number(1.0)),
    ("residual_multiplier", Fixed::Number(1.0)),
    ("logits_scaling", Fixed::Number(1.0)),
    ("logit_scale", Fixed::Number(1.0)),
    ("scale_attn_weights", Fixed::Flag(true)),
    ("scale_attn_by_inverse_layer_idx", Fixed::Flag(false)),
    ("use_qk_norm", Fixed::Flag(false)),
    ("qk_layernorm", Fixed::Flag(false)),
    ("attn_temperature_tuning", Fixed::Nothing),
    ("attention_chunk_size", Fixed::Nothing),
    ("no_rope_layers", Fixed::Nothing),
    ("no_rope_layer_interval", Fixed::Nothing),
    ("num_experts", Fixed::Nothing),
    ("num_local_experts", Fixed::Nothing),
    ("n_routed_experts", Fixed::Nothing),
    ("per_layer_config", Fixed::Nothing),
    ("alibi", Fixed::Flag(false)),
    ("multi_query", Fixed::Flag(false)),
    ("new_decoder_architecture", Fixed::Flag(false)),
    ("parallel_attn", Fixed::Flag(false)),
];
