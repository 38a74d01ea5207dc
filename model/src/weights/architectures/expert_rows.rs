//! Keys about experts that set more than one field, or that only one class has.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::Fields,
    bases::{described, experts},
    config_rows::{ConfigRow, derived, flag, number, size_or},
    window::{self, WINDOW},
};
use crate::{
    config::{ClampedSwiglu, ExpertGroups, Experts, GptConfig, MAX_LAYERS, Positions},
    error::Result,
};

/// Weight of the load-balancing loss.
pub(super) const BALANCE_LOSS: ConfigRow = balance_loss(0.001);

/// As [`BALANCE_LOSS`], with another default.
pub(super) const fn balance_loss(absent: f64) -> ConfigRow {
    number("router_aux_loss_coef", |c| &mut experts(c).balance_loss, absent)
}

/// The layers with an MLP are listed, or all but every n-th.
pub(super) const QWEN_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &["mlp_only_layers", "decoder_sparse_step"],
    read: |fields, config| {
        let listed = fields.whole_numbers("mlp_only_layers")?;
        let step = fields.size_or("decoder_sparse_step", 1)?;
        if step == 0 {
            return Err(fields.unsupported("decoder_sparse_step", &json!(0), "1 and above"));
        }
        let is_dense = |layer: &usize| listed.contains(&(*layer as i64)) || !(layer + 1).is_multiple_of(step);
        let dense = layers(config).filter(is_dense).collect();
        experts(config).dense_layers = dense;
        Ok(())
    },
    write: |config, written| {
        written.insert("mlp_only_layers".to_owned(), json!(described(config).dense_layers));
        written.insert("decoder_sparse_step".to_owned(), json!(1));
    },
};

/// This many of the first layers have an MLP.
pub(super) const fn first_dense(key: &'static str, absent: usize) -> ConfigRow {
    ConfigRow::Indirect {
        key,
        absent,
        set: |config, n_dense| experts(config).dense_layers = layers(config).take(n_dense).collect(),
        get: |config| described(config).dense_layers.len(),
    }
}

/// The kinds of the layers' MLPs are listed; otherwise the first have no experts.
pub(super) const GLM_LITE_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &[LAYER_TYPES, "first_k_dense_replace"],
    read: |fields, config| match fields.get(LAYER_TYPES) {
        Some(types) => read_layer_types(types, fields, config),
        None => first_dense("first_k_dense_replace", 1).read(fields, config),
    },
    write: write_layer_types,
};

/// The kinds of the layers' MLPs are listed; otherwise all have experts.
pub(super) const MELLUM_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &[LAYER_TYPES],
    read: |fields, config| fields.get(LAYER_TYPES).map_or(Ok(()), |types| read_layer_types(types, fields, config)),
    write: write_layer_types,
};

/// As [`GLM_LITE_LAYERS`], with both keys written.
pub(super) const EXAONE_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &[LAYER_TYPES, "first_k_dense_replace"],
    read: |fields, config| match fields.get(LAYER_TYPES) {
        Some(types) => read_layer_types(types, fields, config),
        None => first_dense("first_k_dense_replace", 1).read(fields, config),
    },
    write: |config, written| {
        write_layer_types(config, written);
        let n_first = (0..config.n_layers).take_while(|&layer| config.experts_of(layer).is_none()).count();
        written.insert("first_k_dense_replace".to_owned(), json!(n_first));
    },
};

const LAYER_TYPES: &str = "mlp_layer_types";

fn read_layer_types(types: &Value, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    let n_layers = config.n_layers;
    let is_known = |kind: &Value| kind == "dense" || kind == "sparse";
    let Some(list) = types.as_array().filter(|list| list.len() == n_layers && list.iter().all(is_known)) else {
        let supported = format!("\"dense\" or \"sparse\" for each of the {n_layers} layers");
        return Err(fields.unsupported(LAYER_TYPES, types, &supported));
    };
    experts(config).dense_layers = (0..n_layers).filter(|&layer| list[layer] == "dense").collect();
    Ok(())
}

fn write_layer_types(config: &GptConfig, written: &mut Map<String, Value>) {
    let kind = |layer| if config.experts_of(layer).is_some() { "sparse" } else { "dense" };
    written.insert(LAYER_TYPES.to_owned(), json!((0..config.n_layers).map(kind).collect::<Vec<_>>()));
}

/// Every n-th of some layers in the middle has experts.
pub(super) const ERNIE_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &["moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"],
    read: |fields, config| {
        let first = fields.size_or("moe_layer_start_index", 1)?;
        let last = match fields.whole_numbers("moe_layer_end_index")?[..] {
            [] | [-1] => config.n_layers.saturating_sub(1),
            _ => fields.size_or("moe_layer_end_index", 0)?,
        };
        let interval = fields.size_or("moe_layer_interval", 1)?;
        if interval == 0 {
            return Err(fields.unsupported("moe_layer_interval", &json!(0), "1 and above"));
        }
        let has_experts = |layer: &usize| (layer + 1).is_multiple_of(interval) && (first..=last).contains(layer);
        let dense = layers(config).filter(|layer| !has_experts(layer)).collect();
        experts(config).dense_layers = dense;
        Ok(())
    },
    write: |config, written| {
        let of_experts: Vec<_> = (0..config.n_layers).filter(|layer| config.experts_of(*layer).is_some()).collect();
        let (first, last) = (of_experts.first().copied().unwrap_or(1), of_experts.last().copied().unwrap_or(0));
        let interval = of_experts.get(1).map_or(1, |second| second - first);
        written.insert("moe_layer_start_index".to_owned(), json!(first));
        written.insert("moe_layer_end_index".to_owned(), json!(last));
        written.insert("moe_layer_interval".to_owned(), json!(interval));
    },
};

/// DeepSeek's groups; one group means no groups. A group's score is the sum of its two best scores.
pub(super) const GROUPS: ConfigRow = groups::<1, 1>();

/// As [`GROUPS`], with defaults for these numbers.
pub(super) const fn groups<const GROUPS: usize, const ACTIVE: usize>() -> ConfigRow {
    ConfigRow::Custom {
        keys: &["n_group", "topk_group"],
        read: |fields, config| {
            let (n_groups, n_active) = (fields.size_or("n_group", GROUPS)?, fields.size_or("topk_group", ACTIVE)?);
            experts(config).groups = (n_groups > 1).then_some(ExpertGroups { n_groups, n_active, n_best: 2 });
            Ok(())
        },
        write: |config, written| {
            let groups = described(config).groups;
            let [n_groups, n_active] = groups.map_or([1, 1], |groups| [groups.n_groups, groups.n_active]);
            written.insert("n_group".to_owned(), json!(n_groups));
            written.insert("topk_group".to_owned(), json!(n_active));
        },
    }
}

/// The width of the shared expert as a multiple of a routed expert's.
pub(super) const fn shared_experts(key: &'static str, absent: usize) -> ConfigRow {
    ConfigRow::Indirect {
        key,
        absent,
        set: |config, n_shared| {
            let experts = experts(config);
            experts.shared_d_ff = n_shared.saturating_mul(experts.d_ff);
        },
        get: |config| {
            let Experts { shared_d_ff, d_ff, .. } = described(config);
            shared_d_ff / d_ff.max(1)
        },
    }
}

/// The number of experts, the number of active ones, and the width of one.
pub(super) const fn expert_sizes<const COUNT: usize, const ACTIVE: usize, const WIDTH: usize>(
    count: &'static [&'static str],
) -> [ConfigRow; 3] {
    [
        size_or(count, |c| &mut experts(c).n_experts, |_| COUNT),
        size_or(&["num_experts_per_tok"], |c| &mut experts(c).n_active, |_| ACTIVE),
        size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| WIDTH),
    ]
}

/// How DeepSeek's router weighs experts, and the width of its shared expert as a multiple of a routed expert's. Follows
/// the row of that routed width.
pub(super) const fn deepseek_router(normalized: bool, scale: f64) -> [ConfigRow; 3] {
    [
        flag("norm_topk_prob", |c| &mut experts(c).normalized, normalized),
        number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, scale),
        shared_experts("n_shared_experts", 1),
    ]
}

/// Routed experts have no biases, whatever others have. Behind the row of those.
pub(super) const UNBIASED_EXPERTS: ConfigRow = ConfigRow::Custom {
    keys: &[],
    read: |_, config| {
        experts(config).unbiased = config.mlp_bias;
        Ok(())
    },
    write: |_, _| {},
};

/// No layer has an MLP without experts.
pub(super) const NO_MLP: ConfigRow = derived(|c| &mut c.d_ff, |c| c.experts.as_ref().map_or(0, |experts| experts.d_ff));

/// The names of the number of experts; the first is written.
pub(super) const N_EXPERTS: &[&str] = &["num_experts", "num_local_experts"];
pub(super) const N_LOCAL: &[&str] = &["num_local_experts", "num_experts"];
pub(super) const N_ROUTED: &[&str] = &["n_routed_experts", "num_local_experts"];

/// Sizes of experts whose width is the key for the MLP; no layer has an MLP.
pub(super) const fn wide_experts<const COUNT: usize, const ACTIVE: usize>(
    count: &'static [&'static str],
) -> [ConfigRow; 3] {
    [
        size_or(count, |c| &mut experts(c).n_experts, |_| COUNT),
        size_or(&["num_experts_per_tok"], |c| &mut experts(c).n_active, |_| ACTIVE),
        derived(|c| &mut experts(c).d_ff, |c| c.d_ff),
    ]
}

/// The layers without the window do not rotate. Where the file does not list them, they are every n-th. Behind the row of windows.
pub(super) const AFMOE_ROTATION: ConfigRow = ConfigRow::Custom {
    keys: &[EVERY],
    read: |fields, config| {
        let period = fields.size_or(EVERY, 4)?;
        if period == 0 {
            return Err(fields.unsupported(EVERY, &json!(0), "1 and above"));
        }
        if fields.get("layer_types").is_none() {
            let full = layers(config).filter(|layer| (layer + 1).is_multiple_of(period)).collect();
            let window = if fields.has(WINDOW) { fields.size(WINDOW)? } else { Some(1024) };
            window::set(config, window, full);
        }
        config.unrotated_layers = layers(config).filter(|&layer| config.window_of(layer).is_none()).collect();
        Ok(())
    },
    write: |_, _| {},
};

const EVERY: &str = "global_attn_every_n_layers";

/// Hunyuan's experts and its shared expert are as wide as the key for the MLP says. Numbers may be listed by layer, if
/// all are equal.
pub(super) const HUNYUAN_EXPERTS: ConfigRow = ConfigRow::Custom {
    keys: &["num_experts", "moe_topk"],
    read: |fields, config| {
        let (n_experts, n_active) = (alike(fields, "num_experts", 1)?, alike(fields, "moe_topk", 1)?);
        let d_ff = config.d_ff;
        let experts = experts(config);
        (experts.n_experts, experts.n_active) = (n_experts, n_active);
        (experts.d_ff, experts.shared_d_ff) = (d_ff, d_ff);
        Ok(())
    },
    write: |config, written| {
        let Experts { n_experts, n_active, .. } = described(config);
        written.insert("num_experts".to_owned(), json!(n_experts));
        written.insert("moe_topk".to_owned(), json!(n_active));
    },
};

/// A number for all layers, or a list of as good as one.
fn alike(fields: &Fields<'_>, key: &str, absent: usize) -> Result<usize> {
    let Some(found @ Value::Array(list)) = fields.get(key) else { return fields.size_or(key, absent) };
    let first = list.first().and_then(Value::as_u64);
    let first = first.filter(|first| list.iter().all(|value| value.as_u64() == Some(*first)));
    first.map(|first| first as usize).ok_or_else(|| fields.unsupported(key, found, "the same number for all layers"))
}

/// MiniMax's files have the rotated part of each head as a width.
pub(super) const ROTARY_WIDTH: ConfigRow = ConfigRow::Custom {
    keys: &["rotary_dim"],
    read: |fields, config| {
        if let (Some(width), Positions::Rope(rope)) = (fields.size("rotary_dim")?, &mut config.positions) {
            rope.rotary_dim = width;
        }
        Ok(())
    },
    write: |_, _| {},
};

/// The constants of gpt-oss's activation.
pub(super) const CLAMPED_SWIGLU: ConfigRow = ConfigRow::Custom {
    keys: &["swiglu_alpha", "swiglu_limit"],
    read: |fields, config| {
        let (alpha, limit) = (fields.number_or("swiglu_alpha", 1.702)?, fields.number_or("swiglu_limit", 7.0)?);
        config.clamped_swiglu = Some(ClampedSwiglu { alpha, limit });
        Ok(())
    },
    write: |config, written| {
        if let Some(ClampedSwiglu { alpha, limit }) = config.clamped_swiglu {
            written.insert("swiglu_alpha".to_owned(), json!(alpha));
            written.insert("swiglu_limit".to_owned(), json!(limit));
        }
    },
};

/// The layers; their number is not validated yet, so the list is limited.
fn layers(config: &GptConfig) -> std::ops::Range<usize> {
    0..config.n_layers.min(MAX_LAYERS + 1)
}
