//! Ignored contents of a model's files. The rule for everything that Hearth does not use: if it cannot change the
//! numbers, it is ignored, with one line in the log; if it could, it is an error that names it. Either way the numbers
//! are those of `transformers`.

use std::{cell::RefCell, path::Path};

use super::tensor_table::{StoredTensor, TensorTable};
use crate::config::{GptConfig, Positions};

/// How many names a line of the log shows.
const MAX_SHOWN: usize = 3;

/// What was ignored in one file, for the log.
#[derive(Debug, Default)]
pub(super) struct PassedOver(RefCell<Vec<String>>);

impl PassedOver {
    /// Records one thing; `what` is a clause, such as "`x` is not read".
    pub(super) fn note(&self, what: String) {
        self.0.borrow_mut().push(what);
    }

    /// Writes all notes to the log, in one line.
    pub(super) fn log(&self, path: &Path) {
        let notes = self.0.borrow();
        if !notes.is_empty() {
            tracing::info!("`{}`: passed over, as in transformers: {}", path.display(), notes.join("; "));
        }
    }
}

/// The first of `names` in backquotes, and how many more there are.
pub(super) fn shown(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_SHOWN);
    let first = names.into_iter().take(MAX_SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// Endings of tensors that hold no parameters: tables of rotary angles, causal masks and lists of positions, which old versions
/// of classes saved; scales of a KV cache in 8 bits, which are for other programs; and the state of a training program.
const NO_PARAMETERS: [&str; 18] = [
    "inv_freq",
    "cos_cached",
    "sin_cached",
    ".rope.freqs",
    ".masked_bias",
    ".causal_mask",
    ".position_ids",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
    ".prob_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
    "._extra_state",
    // The value head of reinforcement learning, which reads the last hidden states.
    "v_head.summary.weight",
    // The classification head, which is read elsewhere.
    ".score.weight",
    // T5's cross-attention has no relative positions.
    ".EncDecAttention.relative_attention_bias.weight",
];

/// Prefixes of tensors of layers that predict further tokens, on which the model's own predictions do not depend.
const OTHER_PREDICTIONS: [&str; 1] = ["mtp."];

/// Beginnings of tensors, without the prefix of the class, that turn an encoder's hidden states into something else: scores of
/// classes, a vector of the first (`pooler`), and predictions of masked tokens.
const ENCODER_HEADS: [&str; 11] = [
    "classifier.",
    "pre_classifier.",
    "pooler.",
    "cls.",
    "lm_head.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "head.",
    "decoder.",
    // The layer for token vectors in ColBERT.
    "linear.",
];

/// Whether the tensor of this name is part of no hidden state of an encoder.
pub(super) fn is_encoder_head(name: &str) -> bool {
    let within = |name: &str| ENCODER_HEADS.iter().any(|beginning| name.starts_with(beginning));
    within(name) || name.split_once('.').is_some_and(|(_, name)| name.starts_with("pooler."))
}

/// Whether `tensor` is the embedding of an encoder-decoder once more, which many files have three times, or a table of the sines
/// that are added to it.
pub(super) fn is_copy(tensor: &StoredTensor<'_>, table: &TensorTable<'_>, config: &GptConfig) -> bool {
    let ends_with =
        |endings: &[&str]| config.is_encoder_decoder() && endings.iter().any(|end| tensor.name.ends_with(end));
    let shared = || ["shared.weight", "model.shared.weight"].into_iter().find_map(|name| table.get(name));
    let is_embedding = ends_with(&["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]);
    let is_table = matches!(config.positions, Positions::Sinusoidal | Positions::SinusoidalFromTwo);
    (is_embedding && shared().is_some_and(|shared| tensor.has_values_of(shared).unwrap_or(false)))
        || (is_table && ends_with(&["embed_positions.weight", "embed_positions.weights"]))
}

/// Whether `name` belongs to a layer that predicts one more token: a layer with a special name, or one after the
/// `n_layers` layers of a model such as DeepSeek V3. The latter has a matrix that no other layer has; `has` is whether
/// a tensor exists.
pub(super) fn is_of_predicting_layer(name: &str, n_layers: usize, has: impl Fn(&str) -> bool) -> bool {
    const LAYERS: &str = "model.layers.";
    let number = name.strip_prefix(LAYERS).and_then(|rest| rest.split('.').next());
    let is_behind = number.is_some_and(|number| {
        number.parse().is_ok_and(|layer: usize| layer >= n_layers) && has(&format!("{LAYERS}{number}.eh_proj.weight"))
    });
    is_behind || OTHER_PREDICTIONS.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether the model computes the same without `tensor`.
pub(super) fn is_no_parameter(tensor: &StoredTensor<'_>) -> bool {
    // A bias is a vector; a causal mask has a row for each position.
    let is_mask = tensor.name.ends_with(".bias") && tensor.shape.len() > 2;
    // Names may come without the prefix of the class.
    let name = format!(".{}", tensor.name);
    let is_other = OTHER_PREDICTIONS.iter().any(|beginning| tensor.name.starts_with(beginning));
    // Transformers saves an expert of no width.
    let is_empty = tensor.shape.contains(&0);
    is_mask
        || is_empty
        || is_other
        || name.ends_with(".v_head.summary.bias")
        || NO_PARAMETERS.iter().any(|ending| name.ends_with(ending))
}

/// Whether the tensor `name`, in a model dir or a GGUF file, computes keys or values in a layer that uses an earlier
/// layer's: Gemma's checkpoints have such tensors, and nothing reads them.
pub(super) fn is_of_shared_keys(name: &str, config: &GptConfig) -> bool {
    if config.n_shared_kv_layers == 0 {
        return false;
    }
    let within_model = name.strip_prefix("model.").unwrap_or(name);
    let Some(within) = within_model.strip_prefix("layers.").or_else(|| name.strip_prefix("blk.")) else { return false };
    let Some((layer, part)) = within.split_once('.') else { return false };
    let is_shared = |layer: usize| layer < config.n_layers && config.kv_layer_of(layer) != layer;
    layer.parse().is_ok_and(is_shared) && KEYS_AND_VALUES.iter().any(|beginning| part.starts_with(beginning))
}

/// How tensors of keys and values begin within a layer.
const KEYS_AND_VALUES: [&str; 8] = [
    "self_attn.k_proj.",
    "self_attn.v_proj.",
    "self_attn.k_norm.",
    "self_attn.v_norm.",
    "attn_k.",
    "attn_v.",
    "attn_k_norm.",
    "attn_v_norm.",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{ggml_types::ElementType, tensor_table::ValueKind};

    #[test]
    fn tables_masks_and_cache_scales_are_no_parameters_and_biases_are() {
        let is_no_parameter = |name: &str, shape: &[usize]| {
            is_no_parameter(&StoredTensor {
                path: Path::new(""),
                name,
                shape: shape.to_vec(),
                kind: ValueKind::Weights(ElementType::F32),
                asked_by: "",
                bytes: &[],
            })
        };
        for (name, shape) in [
            ("model.layers.0.self_attn.rotary_emb.inv_freq", &[4][..]),
            ("rotary_emb.inv_freq", &[4]),
            ("transformer.h.0.attn.bias", &[1, 1, 8, 8]),
            ("h.0.attn.masked_bias", &[]),
            ("position_ids", &[1, 8]),
            ("model.layers.0.self_attn.k_scale", &[]),
            ("model.layers.0.self_attn.k_proj.k_scale", &[1]),
            ("v_head.summary.bias", &[1]),
            ("mtp.layers.0.mlp.down_proj.weight", &[8, 8]),
            ("model.layers.0.mlp.shared_experts.down_proj.weight", &[8, 0]),
        ] {
            assert!(is_no_parameter(name, shape), "{name}");
        }
        for (name, shape) in [
            ("transformer.h.0.attn.bias", &[8][..]),
            ("model.layers.0.self_attn.k_proj.bias", &[8]),
            ("model.layers.0.self_attn.k_proj.weight_scale", &[1]),
            ("model.layers.0.mlp.down_proj.input_scale", &[1]),
            ("model.layers.0.self_attn.k_norm.weight", &[8]),
        ] {
            assert!(!is_no_parameter(name, shape), "{name}");
        }
    }
}
