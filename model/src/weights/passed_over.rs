//! What a model's files say that cannot change its numbers. The rule for everything in them that Hearth does not compute with:
//! what cannot change a number is passed over, with one line in the log; what could is an error that names it. Either way the
//! numbers are those of `transformers`.

use std::{cell::RefCell, path::Path};

use super::tensor_table::{StoredTensor, TensorTable};

/// How many names a line of the log shows.
const MAX_SHOWN: usize = 3;

/// What was passed over in one file, for the log.
#[derive(Debug, Default)]
pub(super) struct PassedOver(RefCell<Vec<String>>);

impl PassedOver {
    /// Notes one thing; `what` is a clause, such as "`x` is not read".
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
const NO_PARAMETERS: [&str; 16] = [
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
];

/// Beginnings of tensors of layers that predict more than one token, which the model's own predictions do not depend on.
const OTHER_PREDICTIONS: [&str; 1] = ["mtp."];

/// Whether the tensor `name` is of layers that predict more than one token.
pub(super) fn is_of_other_predictions(name: &str) -> bool {
    OTHER_PREDICTIONS.iter().any(|beginning| name.starts_with(beginning))
}

/// Tells whether the tensor of a name is of a head in the layer behind `n_layers` others, where a model dir has one.
pub(super) fn of_layer_behind(table: &TensorTable<'_>, n_layers: usize) -> impl Fn(&str) -> bool {
    let prefix = format!("model.layers.{n_layers}.");
    let has_head = table.get(&format!("{prefix}eh_proj.weight")).is_some();
    move |name| has_head && name.starts_with(&prefix)
}

/// Whether the model computes the same without `tensor`.
pub(super) fn is_no_parameter(tensor: &StoredTensor<'_>) -> bool {
    // A bias is a vector; a causal mask has a row for each position.
    let is_mask = tensor.name.ends_with(".bias") && tensor.shape.len() > 2;
    // Names may come without the prefix of the class.
    let name = format!(".{}", tensor.name);
    is_mask
        || is_of_other_predictions(tensor.name)
        || name.ends_with(".v_head.summary.bias")
        || NO_PARAMETERS.iter().any(|ending| name.ends_with(ending))
}

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
