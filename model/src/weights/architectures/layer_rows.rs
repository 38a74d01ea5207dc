//! Keys for the differences between the layers of Gemma 4.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::Fields,
    bases::experts,
    config_rows::{ConfigRow, flag, kv_heads, number, size_or},
    rope,
    row_groups::LLAMA_SIZES,
    window,
};
use crate::{
    config::{GptConfig, HeadSizes, MAX_LAYERS, PerLayerInputs},
    error::Result,
};

/// Gemma 4's dense models without per-layer embeddings or experts.
pub(super) const GEMMA4_UNIFIED: &[&[ConfigRow]] = &[LLAMA_SIZES, SIZES, LAYERS];
pub(super) const GEMMA4: &[&[ConfigRow]] = &[LLAMA_SIZES, SIZES, LAYERS, &[EXPERTS, PER_LAYER_INPUTS]];

const SIZES: &[ConfigRow] = &[
    kv_heads(4),
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
    ConfigRow::Activation {
        key: "hidden_activation",
        names: super::config_rows::ACTIVATIONS,
        absent: "gelu_pytorch_tanh",
    },
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
    ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: None },
    flag("attention_k_eq_v", |c| &mut c.keys_as_values, false),
    size_or(&["num_kv_shared_layers"], |c| &mut c.n_shared_kv_layers, |_| 0),
];
const LAYERS: &[ConfigRow] =
    &[VISIBILITY, ConfigRow::Window(&window::GEMMA4), HEADS, WIDE_MLP, ConfigRow::Rope(&rope::GEMMA4)];

/// The second embedding; a width of 0 means none.
const PER_LAYER_INPUTS: ConfigRow = ConfigRow::Custom {
    keys: &["hidden_size_per_layer_input", "vocab_size_per_layer_input"],
    read: |fields, config| {
        let width = fields.size_or("hidden_size_per_layer_input", 256)?;
        let vocab_size = fields.size_or("vocab_size_per_layer_input", 262_144)?;
        config.per_layer_inputs = (width > 0).then_some(PerLayerInputs { vocab_size, width });
        Ok(())
    },
    write: |config, written| {
        let none = PerLayerInputs { vocab_size: config.vocab_size, width: 0 };
        let PerLayerInputs { vocab_size, width } = config.per_layer_inputs.unwrap_or(none);
        written.insert("hidden_size_per_layer_input".to_owned(), json!(width));
        written.insert("vocab_size_per_layer_input".to_owned(), json!(vocab_size));
    },
};

/// The experts beside the MLP.
const EXPERTS: ConfigRow = ConfigRow::Custom {
    keys: &["enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"],
    read: |fields, config| {
        if fields.flag_or("enable_moe_block", false)? {
            let size = |key: &'static str| fields.size(key)?.ok_or_else(|| fields.missing(&[key]));
            let experts = experts(config);
            experts.beside_mlp = true;
            experts.n_experts = size("num_experts")?;
            experts.n_active = size("top_k_experts")?;
            experts.d_ff = size("moe_intermediate_size")?;
        }
        Ok(())
    },
    write: |config, written| {
        written.insert("enable_moe_block".to_owned(), json!(config.experts.is_some()));
        if let Some(experts) = &config.experts {
            written.insert("num_experts".to_owned(), json!(experts.n_experts));
            written.insert("top_k_experts".to_owned(), json!(experts.n_active));
            written.insert("moe_intermediate_size".to_owned(), json!(experts.d_ff));
        }
    },
};

const GLOBAL_DIM: &str = "global_head_dim";
const GLOBAL_KV: &str = "num_global_key_value_heads";
const PER_LAYER: &str = "per_layer_config";
const DIM: &str = "head_dim";
const KV: &str = "num_key_value_heads";
const WIDE: &str = "use_double_wide_mlp";
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

/// Pictures may see ahead, text may not.
const VISIBILITY: ConfigRow = ConfigRow::Custom {
    keys: &[BIDIRECTIONAL],
    read: |fields, _| match fields.get(BIDIRECTIONAL) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(value) if value == "vision" => Ok(()),
        Some(value) => Err(fields.unsupported(BIDIRECTIONAL, value, "null or \"vision\"")),
    },
    write: |_, _| {},
};

/// The heads of the layers without the window, which the last layer always is.
const HEADS: ConfigRow = ConfigRow::Custom {
    keys: &[GLOBAL_DIM, GLOBAL_KV, PER_LAYER],
    read: |fields, config| {
        let last = config.n_layers.saturating_sub(1);
        if config.sliding_window.is_some() && !config.full_layers.contains(&last) {
            let full_layers = [&config.full_layers[..], &[last]].concat();
            window::set(config, config.sliding_window, full_layers);
        }
        let usual = config.heads_with(true);
        let full = match fields.object(PER_LAYER)? {
            Some(per_layer) => listed(&per_layer, config)?,
            None => HeadSizes {
                head_dim: fields.size_or(GLOBAL_DIM, 512)?,
                n_kv_heads: match config.keys_as_values {
                    true => fields.size_or(GLOBAL_KV, usual.n_kv_heads)?,
                    false => usual.n_kv_heads,
                },
            },
        };
        match config.sliding_window {
            Some(_) => config.full_heads = Some(full).filter(|full| *full != usual),
            None => (config.n_kv_heads, config.head_dim) = (full.n_kv_heads, full.head_dim),
        }
        Ok(())
    },
    write: |config, written| {
        let HeadSizes { n_kv_heads, head_dim } = config.heads_with(false);
        written.insert(GLOBAL_DIM.to_owned(), json!(head_dim));
        written.insert(GLOBAL_KV.to_owned(), json!(n_kv_heads));
        let full = (0..config.n_layers).filter(|layer| config.window_of(*layer).is_none());
        let own = |layer: usize| (layer.to_string(), json!({ DIM: head_dim, KV: n_kv_heads }));
        written.insert(PER_LAYER.to_owned(), Value::Object(full.map(own).collect::<Map<_, _>>()));
    },
};

/// The heads that `per_layer`, an object for each layer that differs, gives to the layers without the window.
fn listed(per_layer: &Fields<'_>, config: &GptConfig) -> Result<HeadSizes> {
    let usual = config.heads_with(true);
    let mut found = None;
    for layer in (0..config.n_layers.min(MAX_LAYERS)).filter(|layer| config.window_of(*layer).is_none()) {
        let key = layer.to_string();
        let heads = match per_layer.object(&key)? {
            Some(own) => {
                if let Some(other) = own.keys().find(|other| ![DIM, KV].contains(other)) {
                    let value = own.get(other).unwrap_or(&Value::Null);
                    return Err(own.unsupported(other, value, "no key but `head_dim` and `num_key_value_heads`"));
                }
                HeadSizes {
                    head_dim: own.size_or(DIM, usual.head_dim)?,
                    n_kv_heads: own.size_or(KV, usual.n_kv_heads)?,
                }
            }
            None => usual,
        };
        if found.is_some_and(|found| found != heads) {
            let value = per_layer.get(&key).unwrap_or(&Value::Null);
            return Err(per_layer.unsupported(&key, value, "the same heads for all layers without the window"));
        }
        found = Some(heads);
    }
    let is_full =
        |key: &str| key.parse().is_ok_and(|layer| layer < config.n_layers && config.window_of(layer).is_none());
    match per_layer.keys().find(|key| !is_full(key)) {
        Some(key) => {
            let value = per_layer.get(key).unwrap_or(&Value::Null);
            Err(per_layer.unsupported(key, value, "only layers without the window, by number"))
        }
        None => Ok(found.unwrap_or(usual)),
    }
}

/// The key has no effect if no layers share keys.
const WIDE_MLP: ConfigRow = ConfigRow::Custom {
    keys: &[WIDE],
    read: |fields, config| {
        config.wide_shared_mlp = fields.flag_or(WIDE, false)? && config.n_shared_kv_layers > 0;
        Ok(())
    },
    write: |config, written| {
        written.insert(WIDE.to_owned(), json!(config.wide_shared_mlp));
    },
};
