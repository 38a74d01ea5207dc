//! Keys of models with Mamba-2 layers that set more than one field, or that few classes have.

use serde_json::{Map, Value, json};

use super::{
    bases::{described, experts, mamba},
    config_rows::{ConfigRow, flag, size_or},
    rope,
};
use crate::config::{GptConfig, MAX_LAYERS, Mamba2, Positions};

/// The sizes of the layers in Granite 4 H and Bamba.
pub(super) const MAMBA: &[ConfigRow] = &[
    size_or(&["mamba_n_heads"], |c| &mut mamba(c).n_heads, |_| 128),
    size_or(&["mamba_n_groups"], |c| &mut mamba(c).n_groups, |_| 1),
    size_or(&["mamba_d_state"], |c| &mut mamba(c).state_dim, |_| 256),
    size_or(&["mamba_d_conv"], |c| &mut mamba(c).conv_kernel, |_| 4),
    flag("mamba_conv_bias", |c| &mut mamba(c).conv_bias, true),
    flag("mamba_proj_bias", |c| &mut mamba(c).bias, false),
    HEAD_DIM,
    TIME_STEPS,
];

/// All values together are a multiple of the residual stream's width.
const HEAD_DIM: ConfigRow = ConfigRow::Custom {
    keys: &["mamba_d_head", EXPAND],
    read: |fields, config| {
        let width = config.d_model.saturating_mul(fields.size_or(EXPAND, 2)?);
        let n_heads = mamba(config).n_heads;
        let own = width / n_heads.max(1);
        let head_dim = match fields.get("mamba_d_head") {
            Some(Value::String(auto)) if auto == "auto" => own,
            _ => fields.size_or("mamba_d_head", own)?,
        };
        if head_dim.checked_mul(n_heads) != Some(width) {
            let supported = format!("{own}, with `{EXPAND}`, `hidden_size` and `mamba_n_heads` = {n_heads}");
            return Err(fields.unsupported("mamba_d_head", &json!(head_dim), &supported));
        }
        mamba(config).head_dim = head_dim;
        Ok(())
    },
    write: |config, written| {
        let mamba = of(config);
        written.insert("mamba_d_head".to_owned(), json!(mamba.head_dim));
        written.insert(EXPAND.to_owned(), json!(mamba.value_width() / config.d_model.max(1)));
    },
};

const EXPAND: &str = "mamba_expand";

/// The shortest and the longest time step. In transformers, the form for single tokens ignores them, the one for whole texts
/// does not.
const TIME_STEPS: ConfigRow = ConfigRow::Custom {
    keys: &[LIMITS],
    read: |fields, config| {
        let [least, most] = match fields.get(LIMITS) {
            None => [0.0, f64::INFINITY],
            Some(found) => time_steps(found).ok_or_else(|| fields.wrong(LIMITS, "a list of two numbers", found))?,
        };
        let mamba = mamba(config);
        mamba.min_time_step = least;
        mamba.max_time_step = most.is_finite().then_some(most);
        Ok(())
    },
    write: |config, written| {
        let mamba = of(config);
        // Versions of transformers differ in how they write infinity.
        if mamba.time_steps() != [0.0, f64::INFINITY] {
            let most = mamba.max_time_step.map_or_else(|| json!({ "__float__": "Infinity" }), |most| json!(most));
            written.insert(LIMITS.to_owned(), json!([mamba.min_time_step, most]));
        }
    },
};

const LIMITS: &str = "time_step_limit";

fn time_steps(found: &Value) -> Option<[f64; 2]> {
    let number = |value: &Value| match value.get("__float__").unwrap_or(value) {
        Value::String(text) if text == "Infinity" => Some(f64::INFINITY),
        value => value.as_f64(),
    };
    match &found.as_array()?[..] {
        [least, most] => Some([number(least)?, number(most)?]),
        _ => None,
    }
}

/// The Mamba-2 layers of a configuration; of no size, if it has none.
fn of(config: &GptConfig) -> Mamba2 {
    *mamba(&mut config.clone())
}

/// The kinds of the layers, under their older names too. Without Mamba-2 layers, sizes of them have no meaning. Reads what the
/// other rows set, so it is the last one.
pub(super) const GRANITE_LAYER_TYPES: ConfigRow = ConfigRow::Custom {
    keys: &["layer_types", "layers_block_type"],
    read: |fields, config| {
        let key = if fields.get("layer_types").is_some() { "layer_types" } else { "layers_block_type" };
        let attends = match fields.get(key) {
            None => vec![false; config.n_layers.min(MAX_LAYERS + 1)],
            Some(types) => {
                let list = types.as_array().filter(|list| list.len() == config.n_layers);
                list.and_then(|list| list.iter().map(attends).collect()).ok_or_else(|| {
                    let supported =
                        "\"mamba\" (or \"linear_attention\") or \"attention\" (or \"full_attention\") for each layer";
                    fields.unsupported(key, types, supported)
                })?
            }
        };
        set_attention_layers(config, &attends);
        Ok(())
    },
    write: |config, written| {
        let kind = |layer| if config.recurrence_of(layer).is_some() { "mamba" } else { "attention" };
        written.insert("layer_types".to_owned(), json!((0..config.n_layers).map(kind).collect::<Vec<_>>()));
        write_no_sizes(config, written);
    },
};

fn attends(kind: &Value) -> Option<bool> {
    match kind.as_str()? {
        "mamba" | "linear_attention" => Some(false),
        "attention" | "full_attention" => Some(true),
        _ => None,
    }
}

/// The numbers of the layers that attend. Reads what the other rows set, so it is the last one.
pub(super) const BAMBA_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &["attn_layer_indices"],
    read: |fields, config| {
        let attending = fields.whole_numbers("attn_layer_indices")?;
        let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
        set_attention_layers(config, &layers.map(|layer| attending.contains(&(layer as i64))).collect::<Vec<_>>());
        Ok(())
    },
    write: |config, written| {
        let attending: Vec<_> = (0..config.n_layers).filter(|layer| config.recurrence_of(*layer).is_none()).collect();
        written.insert("attn_layer_indices".to_owned(), json!(attending));
        write_no_sizes(config, written);
    },
};

fn set_attention_layers(config: &mut GptConfig, attends: &[bool]) {
    if attends.iter().all(|attends| *attends) {
        config.recurrent = None;
    }
    if let Some(recurrent) = &mut config.recurrent {
        recurrent.attention_layers = (0..attends.len()).filter(|&layer| attends[layer]).collect();
    }
}

/// Sizes for a model without Mamba-2 layers that transformers accepts.
fn write_no_sizes(config: &GptConfig, written: &mut Map<String, Value>) {
    if config.recurrent.is_none() {
        written.retain(|key, _| !key.starts_with("mamba_"));
        written.insert("mamba_n_heads".to_owned(), json!(1));
    }
}

/// Granite 4 rotates queries and keys only if this says so.
pub(super) const GRANITE_POSITIONS: ConfigRow = ConfigRow::Custom {
    keys: &[POSITIONS],
    read: |fields, config| match fields.text_or(POSITIONS, "nope")? {
        "rope" => rope::WHOLE_HEADS.read(fields, config),
        "nope" => {
            config.positions = Positions::None;
            Ok(())
        }
        other => Err(fields.unsupported(POSITIONS, &json!(other), "\"rope\", \"nope\"")),
    },
    write: |config, written| {
        let rotates = matches!(config.positions, Positions::Rope(_));
        written.insert(POSITIONS.to_owned(), json!(if rotates { "rope" } else { "nope" }));
        rope::WHOLE_HEADS.write(config, written);
    },
};

const POSITIONS: &str = "position_embedding_type";

/// Granite 4 calls the MLP of a model without experts shared too.
pub(super) const GRANITE_EXPERTS: ConfigRow = ConfigRow::Custom {
    keys: &["num_local_experts", "num_experts_per_tok", SHARED],
    read: |fields, config| {
        let shared_d_ff = fields.size_or(SHARED, 1024)?;
        match fields.size_or("num_local_experts", 8)? {
            0 => {
                config.experts = None;
                config.d_ff = shared_d_ff;
            }
            n_experts => {
                let d_ff = config.d_ff;
                let experts = experts(config);
                (experts.n_experts, experts.d_ff, experts.shared_d_ff) = (n_experts, d_ff, shared_d_ff);
                experts.n_active = fields.size_or("num_experts_per_tok", 2)?;
            }
        }
        Ok(())
    },
    write: |config, written| {
        let experts = config.experts.as_ref().map(|_| described(config));
        let shared_d_ff = experts.as_ref().map_or(config.d_ff, |experts| experts.shared_d_ff);
        written.insert("num_local_experts".to_owned(), json!(experts.as_ref().map_or(0, |experts| experts.n_experts)));
        written.insert("num_experts_per_tok".to_owned(), json!(experts.as_ref().map_or(0, |experts| experts.n_active)));
        written.insert(SHARED.to_owned(), json!(shared_d_ff));
    },
};

const SHARED: &str = "shared_intermediate_size";
