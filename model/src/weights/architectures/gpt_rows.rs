//! Keys of GPT-2's followers that set more than one field, or that only one class has.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::Fixed,
    config_rows::{ConfigRow, custom, set_score_scale},
    window,
};
use crate::config::{MAX_LAYERS, NormPosition, Positions, Rope};

/// GPT-Neo repeats lists of layers' kinds.
pub(super) const GPT_NEO_WINDOWS: ConfigRow = custom(
    &["attention_types", "attention_layers", "window_size"],
    |fields, config| {
        let kinds = json!([[["global", "local"], 12]]);
        let types = fields.get("attention_types").unwrap_or(&kinds);
        let expanded = || -> Option<Vec<bool>> {
            let mut are_full = Vec::new();
            for item in types.as_array()? {
                let kind = |kind: &Value| match kind.as_str()? {
                    "global" => Some(true),
                    "local" => Some(false),
                    _ => None,
                };
                let kinds: Vec<bool> = item[0].as_array()?.iter().map(kind).collect::<Option<_>>()?;
                let n_times = usize::try_from(item[1].as_u64()?).ok()?;
                // The number of layers is not validated yet, and neither is this.
                are_full.extend(kinds.repeat(n_times.min(MAX_LAYERS + 1)).into_iter().take(MAX_LAYERS + 1));
            }
            Some(are_full)
        };
        let Some(are_full) = expanded().filter(|are_full| are_full.len() == config.n_layers) else {
            let supported = format!("lists of \"global\" or \"local\" for the {} layers", config.n_layers);
            return Err(fields.unsupported("attention_types", types, &supported));
        };
        let full_layers = (0..config.n_layers).filter(|&layer| are_full[layer]).collect();
        window::set(config, Some(fields.size_or("window_size", 256)?), full_layers);
        Ok(())
    },
    |config, written| {
        let kind = |layer| if config.window_of(layer).is_some() { "local" } else { "global" };
        let kinds: Vec<_> = (0..config.n_layers).map(kind).collect();
        written.insert("attention_types".to_owned(), json!([[kinds, 1]]));
        written.insert("attention_layers".to_owned(), json!(kinds));
        written.insert("window_size".to_owned(), json!(config.sliding_window.unwrap_or(256)));
    },
);

/// GPT-J has no key for the rotary base, which is always 10,000.
pub(super) const GPTJ_ROTARY_DIM: ConfigRow = ConfigRow::Custom {
    keys: &["rotary_dim"],
    read: |fields, config| {
        if fields.has("rotary_dim") && fields.get("rotary_dim").is_none() {
            return Err(fields.unsupported("rotary_dim", &Value::Null, "a whole number"));
        }
        let rotary_dim = fields.size_or("rotary_dim", 64)?;
        config.positions = Positions::Rope(Rope::new(10_000.0, rotary_dim));
        Ok(())
    },
    write: |config, written| {
        if let Positions::Rope(rope) = &config.positions {
            written.insert("rotary_dim".to_owned(), json!(rope.rotary_dim));
        }
    },
};

/// One key head or as many as queries.
pub(super) const BIGCODE_KV_HEADS: ConfigRow = ConfigRow::Custom {
    keys: &["multi_query"],
    read: |fields, config| {
        config.n_kv_heads = if fields.flag_or("multi_query", true)? { 1 } else { config.n_heads };
        Ok(())
    },
    write: |config, written| {
        written.insert("multi_query".to_owned(), json!(config.n_kv_heads == 1));
    },
};

/// How Falcon's blocks are wired, and their number of key heads: `new_decoder_architecture` overrides the other keys.
pub(super) const FALCON_BLOCKS: ConfigRow = ConfigRow::Custom {
    keys: &[
        "new_decoder_architecture",
        "parallel_attn",
        "multi_query",
        "num_kv_heads",
        "n_head_kv",
        "num_ln_in_parallel_attn",
    ],
    read: |fields, config| {
        let is_new = fields.flag_or("new_decoder_architecture", false)?;
        let n_norms = fields.size("num_ln_in_parallel_attn")?;
        let is_known = matches!(n_norms, None | Some(1)) || (is_new && n_norms == Some(2));
        if !is_known {
            let supported = if is_new { "1 or 2" } else { "null or 1, with `new_decoder_architecture` false" };
            return Err(fields.unsupported("num_ln_in_parallel_attn", &json!(n_norms), supported));
        }
        if is_new {
            fields.only("parallel_attn", Fixed::Flag(true))?;
        }
        config.parallel_residual = is_new || fields.flag_or("parallel_attn", true)?;
        config.shared_norm = config.parallel_residual && !(is_new && n_norms != Some(1));
        let n_kv_heads = match fields.size("num_kv_heads")? {
            Some(n) => n,
            None => fields.size_or("n_head_kv", config.n_heads)?,
        };
        config.n_kv_heads = match () {
            () if is_new => n_kv_heads,
            () if fields.flag_or("multi_query", true)? => 1,
            // transformers only uses this number for its cache: the matrices have as many key heads as query heads.
            () => {
                fields.only("num_kv_heads", Fixed::Number(config.n_heads as f64))?;
                config.n_heads
            }
        };
        Ok(())
    },
    write: |config, written| {
        let mut write = |key: &str, value: Value| written.insert(key.to_owned(), value);
        let (n_heads, n_kv_heads) = (config.n_heads, config.n_kv_heads);
        let is_grouped = n_kv_heads != 1 && n_kv_heads != n_heads;
        let is_new = config.parallel_residual && (!config.shared_norm || is_grouped);
        write("new_decoder_architecture", json!(is_new));
        write("parallel_attn", json!(config.parallel_residual));
        write("multi_query", json!(n_kv_heads == 1));
        write("num_kv_heads", json!(n_kv_heads));
        write(
            "num_ln_in_parallel_attn",
            if is_new { json!(if config.shared_norm { 1 } else { 2 }) } else { Value::Null },
        );
    },
};

/// OPT's flag sets the position of the norms in blocks. There is a final norm only if the norms come before.
pub(super) const OPT_NORMS: ConfigRow = ConfigRow::Custom {
    keys: &["do_layer_norm_before", "_remove_final_layer_norm"],
    read: |fields, config| {
        let before = fields.flag_or("do_layer_norm_before", true)?;
        config.norm_position = if before { NormPosition::Pre } else { NormPosition::Post };
        config.final_norm = before && !fields.flag_or("_remove_final_layer_norm", false)?;
        Ok(())
    },
    write: |config, written| {
        let before = config.norm_position == NormPosition::Pre;
        written.insert("do_layer_norm_before".to_owned(), json!(before));
        written.insert("_remove_final_layer_norm".to_owned(), json!(before && !config.final_norm));
    },
};

/// One OPT model has narrower embeddings than blocks, with matrices in between, which is not supported. The other
/// models have this key too, with the width of the blocks.
pub(super) const OPT_EMBEDDING_WIDTH: ConfigRow = ConfigRow::Custom {
    keys: &["word_embed_proj_dim"],
    read: |fields, config| match fields.size("word_embed_proj_dim")? {
        Some(width) if width != config.d_model => Err(fields.unsupported(
            "word_embed_proj_dim",
            &json!(width),
            &format!("{}, as `hidden_size`", config.d_model),
        )),
        _ => Ok(()),
    },
    write: |config, written| {
        written.insert("word_embed_proj_dim".to_owned(), json!(config.d_model));
    },
};

/// With these keys, transformers adds up BLOOM's products in slices, as in its training on several devices, and leaves out
/// two biases. That is rejected.
pub(super) const BLOOM_SLICES: ConfigRow = ConfigRow::Custom {
    keys: &["pretraining_tp", "slow_but_exact"],
    read: |fields, _| match fields.size_or("pretraining_tp", 1)? {
        0 | 1 => Ok(()),
        _ => fields.only("slow_but_exact", Fixed::Flag(false)),
    },
    write: |_, _| {},
};

/// CTRL's key is for the final norm only; the norms of blocks have a constant epsilon.
pub(super) const CTRL_FINAL_NORM_EPS: ConfigRow = ConfigRow::Custom {
    keys: &["layer_norm_epsilon"],
    read: |fields, config| {
        let eps = fields.number_or("layer_norm_epsilon", config.norm_eps)?;
        config.final_norm_eps = (eps != config.norm_eps).then_some(eps);
        Ok(())
    },
    write: |config, written| {
        let eps = config.final_norm_eps.unwrap_or(config.norm_eps);
        written.insert("layer_norm_epsilon".to_owned(), json!(eps));
    },
};

/// MPT's attention. Its class multiplies scores by the number that it calls the scale of the softmax.
pub(super) const MPT_ATTENTION: ConfigRow = custom(
    &["attn_config"],
    |fields, config| {
        let empty = Map::new();
        let nested = fields.object("attn_config")?.unwrap_or_else(|| fields.within(&empty));
        for (key, allowed) in [
            ("attn_type", Fixed::Text("multihead_attention")),
            ("prefix_lm", Fixed::Flag(false)),
            ("qk_ln", Fixed::Flag(false)),
            ("alibi", Fixed::Flag(true)),
            ("alibi_bias_max", Fixed::Number(8.0)),
        ] {
            nested.only(key, allowed)?;
        }
        // As in transformers, 0 is no limit.
        config.clip_qkv = nested.number_if_any("clip_qkv")?.filter(|&limit| limit != 0.0);
        config.attention_scale = None;
        if let Some(scale) = nested.number_if_any("softmax_scale")? {
            set_score_scale(config, scale);
        }
        Ok(())
    },
    |config, written| {
        let attention = json!({ "clip_qkv": config.clip_qkv, "softmax_scale": config.attention_scale });
        written.insert("attn_config".to_owned(), attention);
    },
);

/// CodeGen's matrices consist of four parts, one for each shard of the model.
pub(super) const CODEGEN_WIDTH: ConfigRow = custom(
    &[],
    |fields, config| match config.d_model % 4 {
        0 => Ok(()),
        _ => Err(fields.unsupported("n_embd", &json!(config.d_model), "multiples of 4")),
    },
    |_, _| {},
);
