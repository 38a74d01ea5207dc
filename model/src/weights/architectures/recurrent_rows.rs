//! Keys about recurrent layers that set more than one field, or that only one class has.

use serde_json::{Map, Value, json};

use super::{super::config_json::Fields, config_rows::ConfigRow};
use crate::{
    config::{GptConfig, MAX_LAYERS},
    error::Result,
};

const LAYER_TYPES: &str = "layer_types";
const ATTENTION: &str = "full_attention";

/// The kinds of the layers are listed, or every n-th attends.
pub(super) const QWEN_LAYER_TYPES: ConfigRow = ConfigRow::Custom {
    keys: &[LAYER_TYPES, INTERVAL],
    read: |fields, config| {
        let attention_layers = match listed(fields, "linear_attention", config.n_layers)? {
            Some(listed) => listed,
            None => match fields.size_or(INTERVAL, 4)? {
                0 => return Err(fields.unsupported(INTERVAL, &json!(0), "1 and above")),
                interval => layers(config).filter(|layer| (layer + 1).is_multiple_of(interval)).collect(),
            },
        };
        set(config, attention_layers);
        Ok(())
    },
    write: |config, written| write_listed("linear_attention", config, written),
};

const INTERVAL: &str = "full_attention_interval";

/// A list of the types of the layers, or of the indices of the attention layers. Without a list, all layers attend.
pub(super) const LFM2_LAYER_TYPES: ConfigRow = ConfigRow::Custom {
    keys: &[LAYER_TYPES, ATTENTION_LAYERS],
    read: |fields, config| {
        let attention_layers = match listed(fields, "conv", config.n_layers)? {
            Some(listed) => listed,
            None if fields.get(ATTENTION_LAYERS).is_some() => {
                let numbers = fields.whole_numbers(ATTENTION_LAYERS)?;
                layers(config).filter(|layer| numbers.contains(&(*layer as i64))).collect()
            }
            None => layers(config).collect(),
        };
        set(config, attention_layers);
        Ok(())
    },
    write: |config, written| write_listed("conv", config, written),
};

const ATTENTION_LAYERS: &str = "full_attn_idxs";

/// By default, LFM2's MLP is narrower than its key states: two thirds, times a factor, rounded up to whole multiples.
pub(super) const LFM2_MLP: ConfigRow = ConfigRow::Custom {
    keys: &["intermediate_size", "block_ff_dim", ADJUSTED, "block_ffn_dim_multiplier", "block_multiple_of"],
    read: |fields, config| {
        // As in transformers, the older key takes precedence.
        let d_ff = match fields.size("block_ff_dim")? {
            Some(d_ff) => d_ff,
            None => fields.size("intermediate_size")?.ok_or_else(|| fields.missing(&["intermediate_size"]))?,
        };
        config.d_ff = d_ff;
        if fields.flag_or(ADJUSTED, true)? {
            // Rounded down, as Python's `int` does.
            let mut adjusted = (2.0 * d_ff as f64 / 3.0) as usize;
            let multiplier = match fields.has("block_ffn_dim_multiplier") {
                true => fields.number_if_any("block_ffn_dim_multiplier")?,
                false => Some(1.0),
            };
            if let Some(multiplier) = multiplier {
                adjusted = (multiplier * adjusted as f64) as usize;
                let multiple = fields.size_or("block_multiple_of", 256)?;
                adjusted = adjusted.checked_next_multiple_of(multiple).ok_or_else(|| {
                    fields.unsupported("block_multiple_of", &json!(multiple), "1 and above, and a width below 2^28")
                })?;
            }
            config.d_ff = adjusted;
        }
        Ok(())
    },
    write: |config, written| {
        written.insert("intermediate_size".to_owned(), json!(config.d_ff));
        written.insert(ADJUSTED.to_owned(), json!(false));
    },
};

const ADJUSTED: &str = "block_auto_adjust_ff_dim";

/// LFM2's older files have another key for tied embeddings, which takes precedence.
pub(super) const LFM2_TIED: ConfigRow = ConfigRow::Custom {
    keys: &["tie_word_embeddings", "tie_embedding"],
    read: |fields, config| {
        let usual = fields.flag_or("tie_word_embeddings", true)?;
        config.tie_embeddings = fields.flag_or("tie_embedding", usual)?;
        Ok(())
    },
    write: |config, written| {
        written.insert("tie_word_embeddings".to_owned(), json!(config.tie_embeddings));
    },
};

/// The layers that attend by the list of the layers' kinds, if there is one.
fn listed(fields: &Fields<'_>, recurrent: &str, n_layers: usize) -> Result<Option<Vec<usize>>> {
    let Some(types) = fields.get(LAYER_TYPES) else { return Ok(None) };
    let refuse = |supported: &str| Err(fields.unsupported(LAYER_TYPES, types, supported));
    let Some(list) = types.as_array().filter(|list| list.len() == n_layers) else {
        return refuse(&format!("a list with an entry for each of the {n_layers} layers"));
    };
    if list.iter().any(|kind| kind != ATTENTION && kind != recurrent) {
        return refuse(&format!("\"{ATTENTION}\" or \"{recurrent}\" for each layer"));
    }
    Ok(Some((0..n_layers).filter(|&layer| list[layer] == ATTENTION).collect()))
}

fn write_listed(recurrent: &str, config: &GptConfig, written: &mut Map<String, Value>) {
    let kind = |layer| if config.recurrence_of(layer).is_some() { recurrent } else { ATTENTION };
    written.insert(LAYER_TYPES.to_owned(), json!((0..config.n_layers).map(kind).collect::<Vec<_>>()));
}

fn set(config: &mut GptConfig, attention_layers: Vec<usize>) {
    if let Some(recurrent) = &mut config.recurrent {
        recurrent.attention_layers = attention_layers;
    }
}

/// The layers; their number is not validated yet, so the list is limited.
fn layers(config: &GptConfig) -> std::ops::Range<usize> {
    0..config.n_layers.min(MAX_LAYERS + 1)
}
