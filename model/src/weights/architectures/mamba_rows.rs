//! Keys of models with Mamba-2 layers that set more than one field, or that few classes have.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::Fixed,
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

/// The shortest and the longest time step. In transformers, the code path for single tokens ignores them, the one for
/// whole texts does not.
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

/// The Mamba-2 layers of a configuration; with sizes of 0 if it has none.
fn of(config: &GptConfig) -> Mamba2 {
    *mamba(&mut config.clone())
}

/// The types of the layers, also under older names. Without Mamba-2 layers, their sizes are ignored. Must be the last
/// row, since it reads the fields that the other rows set.
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

/// The indices of the attention layers. Must be the last row, since it reads the fields that the other rows set.
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

/// Granite 4 rotates queries and keys only if this key says so.
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
    keys: &["num_local_experts", "num_experts_per_tok", SHARED, BALANCE],
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
                experts.balance_loss = fields.number_or(BALANCE, 0.001)?;
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
        if let Some(experts) = experts {
            written.insert(BALANCE.to_owned(), json!(experts.balance_loss));
        }
    },
};

const BALANCE: &str = "router_aux_loss_coef";
const SHARED: &str = "shared_intermediate_size";

/// The type of each layer of Nemotron-H: Mamba-2, attention, MLP or experts. A list of names, or a text with a letter
/// for each layer. Must be the last row, since it reads the fields that the other rows set.
pub(super) const NEMOTRON_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &[KINDS, PATTERN, N_LAYERS],
    read: |fields, config| {
        let key = if fields.get(KINDS).is_some() { KINDS } else { PATTERN };
        let found = fields.get(key).ok_or_else(|| fields.missing(&[KINDS, PATTERN]))?;
        let kinds: Option<Vec<LayerKind>> = match found {
            Value::String(letters) => letters.chars().map(|letter| kind_of(&letter.to_string())).collect(),
            Value::Array(names) => names.iter().map(|name| kind_of(name.as_str()?)).collect(),
            _ => None,
        };
        let Some(kinds) = kinds.filter(|kinds| kinds.len() <= MAX_LAYERS) else {
            let names: Vec<_> = KIND_NAMES.iter().map(|(_, names)| names.join(" or ")).collect();
            return Err(fields.unsupported(key, found, &format!("for each layer {}", names.join(", "))));
        };
        fields.only(N_LAYERS, Fixed::Number(kinds.len() as f64))?;
        let of_kind = |kind| (0..kinds.len()).filter(|&layer| kinds[layer] == kind).collect::<Vec<_>>();
        let layers_of = |those: [LayerKind; 2]| (0..kinds.len()).filter(|&it| those.contains(&kinds[it])).collect();
        config.n_layers = kinds.len();
        config.layers_without_mlp = layers_of([LayerKind::Mamba, LayerKind::Attention]);
        config.layers_without_mixer = layers_of([LayerKind::Mlp, LayerKind::Experts]);
        config.recurrent = config.recurrent.take().filter(|_| kinds.contains(&LayerKind::Mamba));
        config.experts = config.experts.take().filter(|_| kinds.contains(&LayerKind::Experts));
        if let Some(recurrent) = &mut config.recurrent {
            recurrent.attention_layers = of_kind(LayerKind::Attention);
        }
        if let Some(experts) = &mut config.experts {
            experts.dense_layers = of_kind(LayerKind::Mlp);
        }
        Ok(())
    },
    write: |config, written| {
        let kind = |layer| match (config.has_mixer(layer), config.recurrence_of(layer), config.experts_of(layer)) {
            (true, Some(_), _) => "M",
            (true, None, _) => "*",
            (false, _, Some(_)) => "E",
            (false, _, None) => "-",
        };
        written.insert(PATTERN.to_owned(), json!((0..config.n_layers).map(kind).collect::<String>()));
        written.insert(N_LAYERS.to_owned(), json!(config.n_layers));
        if config.experts.is_none() {
            written.retain(|key, _| !key.starts_with("moe_") && !OF_EXPERTS.contains(&key.as_str()));
        }
        if config.recurrent.is_none() {
            written.retain(|key, _| !key.starts_with("mamba_") && !OF_MAMBA.contains(&key.as_str()));
        }
    },
};

const KINDS: &str = "layers_block_type";
const PATTERN: &str = "hybrid_override_pattern";
const N_LAYERS: &str = "num_hidden_layers";
const OF_EXPERTS: &[&str] =
    &["n_routed_experts", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"];
const OF_MAMBA: &[&str] = &["n_groups", "ssm_state_size", "conv_kernel", "use_conv_bias", "use_bias", "time_step_min"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerKind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

const KIND_NAMES: &[(LayerKind, &[&str])] = &[
    (LayerKind::Mamba, &["M", "mamba", "linear_attention"]),
    (LayerKind::Attention, &["*", "attention", "full_attention"]),
    (LayerKind::Mlp, &["-", "mlp"]),
    (LayerKind::Experts, &["E", "moe"]),
];

fn kind_of(name: &str) -> Option<LayerKind> {
    KIND_NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(kind, _)| *kind)
}

/// Nemotron-H has a key for the limits of time steps that its class in transformers does not read: it takes the shortest time
/// step of fresh models, in the form for whole texts.
pub(super) const NEMOTRON_TIME_STEPS: ConfigRow = ConfigRow::Custom {
    keys: &[LIMITS, "time_step_min"],
    read: |fields, config| {
        if let Some(found) = fields.get(LIMITS)
            && time_steps(found) != Some([0.0, f64::INFINITY])
        {
            return Err(fields.unsupported(LIMITS, found, "0 and infinity"));
        }
        mamba(config).min_time_step = fields.number_or("time_step_min", 0.001)?;
        Ok(())
    },
    write: |config, written| {
        written.insert("time_step_min".to_owned(), json!(of(config).min_time_step));
    },
};

/// Whether experts read and write narrower rows.
pub(super) const NEMOTRON_LATENT: ConfigRow = ConfigRow::Custom {
    keys: &["moe_latent_size"],
    read: |fields, config| {
        experts(config).latent_width = fields.size_or("moe_latent_size", 0)?;
        Ok(())
    },
    write: |config, written| {
        let width = described(config).latent_width;
        written.insert("moe_latent_size".to_owned(), if width > 0 { json!(width) } else { Value::Null });
    },
};
