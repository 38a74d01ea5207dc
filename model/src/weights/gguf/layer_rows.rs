//! Files whose layers differ: heads of two sizes, keys that layers share, and inputs for each layer. The tensors of the
//! file show whether values are keys, and whether there are experts or factors.

use serde_json::{Value, json};

use super::{
    super::{
        architectures::{
            config_rows::{ConfigRow, custom},
            window,
        },
        config_json::{Fields, Fixed},
        tensor_names::{NameRow, same},
    },
    config_rows::{GEMMA3_LOGIT_CAP, RMS_EPS, WINDOW_PATTERN, of_key},
    expert_rows::EXPERTS,
};
use crate::{
    config::{GptConfig, HeadSizes, MAX_LAYERS, PerLayerInputs, Positions, Rope},
    error::Result,
};

/// The architecture's name.
pub(super) const GEMMA4: &str = "gemma4";

/// The rows of Gemma 4's keys, except the usual sizes.
pub(super) const GEMMA4_ROWS: &[ConfigRow] =
    &[WINDOWS, SHARED, HEADS, ROTATIONS, RMS_EPS, GEMMA3_LOGIT_CAP, EXPERTS, PER_LAYER_INPUTS];

const WINDOW: &str = "attention.sliding_window";
const N_SHARED: &str = "attention.shared_kv_layers";
/// One width, or one for each layer.
pub(super) const FEED_FORWARD: &str = "feed_forward_length";
const KEY_HEADS: &str = "attention.head_count_kv";
const KEY_LENGTH: &str = "attention.key_length";
const KEY_LENGTH_SWA: &str = "attention.key_length_swa";
const PER_LAYER_WIDTH: &str = "embedding_length_per_layer_input";

/// A flag for each layer: whether it has the window.
const WINDOWS: ConfigRow = of_key(&[WINDOW, WINDOW_PATTERN], |fields, config| {
    let pattern = fields.get(WINDOW_PATTERN).ok_or_else(|| fields.missing(&[WINDOW_PATTERN]))?;
    let flags = pattern.as_array().and_then(|list| list.iter().map(Value::as_bool).collect::<Option<Vec<_>>>());
    let Some(flags) = flags.filter(|flags| flags.len() == config.n_layers) else {
        return Err(fields.wrong(WINDOW_PATTERN, "a flag for each layer", pattern));
    };
    let full = (0..config.n_layers).filter(|layer| !flags[*layer]).collect();
    window::set(config, fields.size(WINDOW)?, full);
    Ok(())
});

/// The MLP's width is one number, or one for each layer.
const SHARED: ConfigRow = custom(&[N_SHARED, FEED_FORWARD], read_shared, |config, written| {
    written.insert(N_SHARED.to_owned(), json!(config.n_shared_kv_layers));
    let widths: Vec<_> = (0..config.n_layers).map(|layer| config.d_ff_of(layer)).collect();
    written.insert(FEED_FORWARD.to_owned(), if config.wide_shared_mlp { json!(widths) } else { json!(config.d_ff) });
});

fn read_shared(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    config.n_shared_kv_layers = fields.size_or(N_SHARED, 0)?;
    let widths = fields.whole_numbers(FEED_FORWARD)?;
    let width = |width: Option<&i64>| width.and_then(|width| usize::try_from(*width).ok()).unwrap_or_default();
    config.d_ff = width(widths.first());
    config.wide_shared_mlp = widths.len() > 1 && config.n_shared_kv_layers > 0 && width(widths.last()) != config.d_ff;
    // The size is not validated yet: this limits the list.
    let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
    match widths.len() <= 1 || layers.map(|layer| config.d_ff_of(layer) as i64).eq(widths.iter().copied()) {
        true => Ok(()),
        false => Err(fields.unsupported(
            FEED_FORWARD,
            &json!(widths),
            "one width, and twice that in the layers that share keys",
        )),
    }
}

const HEADS: ConfigRow = custom(
    &[KEY_HEADS, KEY_LENGTH, KEY_LENGTH_SWA, "attention.value_length", "attention.value_length_swa"],
    |fields, config| {
        let head_dim = fields.size(KEY_LENGTH)?.ok_or_else(|| fields.missing(&[KEY_LENGTH]))?;
        let of_window = fields.size_or(KEY_LENGTH_SWA, head_dim)?;
        fields.only("attention.value_length", Fixed::Number(head_dim as f64))?;
        fields.only("attention.value_length_swa", Fixed::Number(of_window as f64))?;
        let counts = fields.whole_numbers(KEY_HEADS)?;
        let of_layer = |layer: usize| counts.get(layer).or(counts.first()).copied().unwrap_or(config.n_heads as i64);
        let layers = || 0..config.n_layers.min(MAX_LAYERS + 1);
        let of_kind = |is_windowed: bool| {
            let mut counts = layers().filter(|&layer| config.window_of(layer).is_some() == is_windowed).map(of_layer);
            let first = counts.next();
            counts.all(|count| Some(count) == first).then_some(first)
        };
        let (Some(full), Some(windowed)) = (of_kind(false), of_kind(true)) else {
            return Err(fields.unsupported(KEY_HEADS, &json!(counts), "two numbers: with the window, and without"));
        };
        let heads = |count: Option<i64>, head_dim| HeadSizes {
            n_kv_heads: count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default(),
            head_dim,
        };
        let full = full.map(|full| heads(Some(full), head_dim));
        let usual = windowed.map(|windowed| heads(Some(windowed), of_window)).or(full).unwrap_or(heads(None, 0));
        (config.n_kv_heads, config.head_dim) = (usual.n_kv_heads, usual.head_dim);
        config.full_heads = full.filter(|full| *full != usual);
        Ok(())
    },
    |config, written| {
        let heads: Vec<_> = (0..config.n_layers).map(|layer| config.heads_of(layer).n_kv_heads).collect();
        written.insert(KEY_HEADS.to_owned(), json!(heads));
        let full = config.heads_with(false).head_dim;
        for (key, width) in [(KEY_LENGTH, full), ("attention.value_length", full)] {
            written.insert(key.to_owned(), json!(width));
            written.insert(format!("{key}_swa"), json!(config.head_dim));
        }
    },
);

/// In layers without the window, whole heads are paired; `rope_freqs.weight` states which pairs are rotated.
const ROTATIONS: ConfigRow = custom(
    &["rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.dimension_count_swa"],
    |fields, config| {
        let head_dim = config.full_heads.map_or(config.head_dim, |heads| heads.head_dim);
        fields.only("rope.dimension_count", Fixed::Number(head_dim as f64))?;
        config.positions = Positions::Rope(Rope::new(fields.number_or("rope.freq_base", 10_000.0)?, head_dim));
        let rotary_dim = fields.size_or("rope.dimension_count_swa", config.head_dim)?;
        let windowed = Rope::new(fields.number_or("rope.freq_base_swa", 10_000.0)?, rotary_dim);
        config.window_rope = config.sliding_window.is_some().then_some(windowed);
        Ok(())
    },
    |config, written| {
        let width = config.window_rope.as_ref().map_or(config.head_dim, |rope| rope.rotary_dim);
        written.insert("rope.dimension_count_swa".to_owned(), json!(width));
    },
);

/// The vocabulary size is the model's, which the tensors show.
const PER_LAYER_INPUTS: ConfigRow = custom(
    &[PER_LAYER_WIDTH],
    |fields, config| {
        let width = fields.size_or(PER_LAYER_WIDTH, 0)?;
        config.per_layer_inputs = (width > 0).then_some(PerLayerInputs { vocab_size: 0, width });
        Ok(())
    },
    |config, written| {
        let width = config.per_layer_inputs.map_or(0, |inputs| inputs.width);
        written.insert(PER_LAYER_WIDTH.to_owned(), json!(width));
    },
);

/// Sets the fields that only the tensors show, in an architecture whose layers differ.
pub(super) fn read_tensors(config: &mut GptConfig, has: &dyn Fn(&str) -> bool) {
    if !config.value_norm {
        return;
    }
    config.layer_scale = has("blk.0.layer_output_scale.weight");
    let first_shared = config.n_layers.saturating_sub(config.n_shared_kv_layers).min(MAX_LAYERS);
    let first_full = (0..first_shared).find(|layer| config.window_of(*layer).is_none());
    config.keys_as_values = first_full.is_some_and(|layer| !has(&format!("blk.{layer}.attn_v.weight")));
    if let Some(experts) = &mut config.experts {
        experts.beside_mlp = true;
    }
}

pub(super) const GEMMA4_NAMES: &[NameRow] = &[
    same("blocks.{}.scale.weight", "blk.{}.layer_output_scale.weight"),
    same("blocks.{}.experts.mlp_out_norm.weight", "blk.{}.post_ffw_norm_1.weight"),
    same("blocks.{}.experts.router.expert_scale", "blk.{}.ffn_down_exps.scale"),
    same("blocks.{}.experts.router_norm.weight", "blk.{}.ffn_gate_inp.scale"),
    same("blocks.{}.experts.in_norm.weight", "blk.{}.pre_ffw_norm_2.weight"),
    same("blocks.{}.experts.out_norm.weight", "blk.{}.post_ffw_norm_2.weight"),
    same("per_layer.embed.weight", "per_layer_token_embd.weight"),
    same("per_layer.proj.weight", "per_layer_model_proj.weight"),
    same("per_layer.norm.weight", "per_layer_proj_norm.weight"),
    same("blocks.{}.per_layer.gate.weight", "blk.{}.inp_gate.weight"),
    same("blocks.{}.per_layer.proj.weight", "blk.{}.proj.weight"),
    same("blocks.{}.per_layer.norm.weight", "blk.{}.post_norm.weight"),
];
