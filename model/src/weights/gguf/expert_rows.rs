//! How GGUF files describe experts. All experts of a layer are in one tensor, `[n_experts, d_out, d_in]`. The tensors
//! of the file show which layers have experts, and which biases and gates exist.

use serde_json::{Map, Value, json};

use super::super::{
    architectures::{bases::experts, config_rows::ConfigRow},
    config_json::{Fields, Fixed},
    tensor_names::{NameRow, RowSelection::Half, same, stacked},
};
use crate::{
    config::{ExpertGroups, Experts, GptConfig, MAX_LAYERS, RouterScores},
    error::Result,
};

pub(super) const COUNT: &str = "expert_count";
const USED: &str = "expert_used_count";
const D_FF: &str = "expert_feed_forward_length";
const SHARED_D_FF: &str = "expert_shared_feed_forward_length";
const SHARED: &str = "expert_shared_count";
pub(super) const SCORES: &str = "expert_gating_func";
const SCALE: &str = "expert_weights_scale";
const NORMALIZED: &str = "expert_weights_norm";
const GROUPS: &str = "expert_group_count";
const GROUPS_USED: &str = "expert_group_used_count";

const FIRST_DENSE: &str = "leading_dense_block_count";
const STEP: &str = "interleave_moe_layer_step";

/// The last two name the layers with experts; the tensors show this too.
pub(super) const KEYS: &[&str] =
    &[COUNT, USED, D_FF, SHARED_D_FF, SHARED, SCORES, SCALE, NORMALIZED, GROUPS, GROUPS_USED, FIRST_DENSE, STEP];

/// The experts, in an architecture that has them, or may.
pub(super) const EXPERTS: ConfigRow = ConfigRow::Custom { keys: KEYS, read, write };

pub(super) fn read(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    let n_experts = fields.size_or(COUNT, 0)?;
    if n_experts == 0 {
        KEYS.iter().try_for_each(|key| fields.only(key, Fixed::Nothing))?;
        config.experts = None;
        return Ok(());
    }
    let d_ff = fields.size_or(D_FF, config.d_ff)?;
    let experts = experts(config);
    experts.n_experts = n_experts;
    experts.n_active = fields.size(USED)?.ok_or_else(|| fields.missing(&[USED]))?;
    experts.d_ff = d_ff;
    experts.shared_d_ff = match fields.size(SHARED)? {
        Some(n_shared) => n_shared.saturating_mul(d_ff),
        None => fields.size_or(SHARED_D_FF, 0)?,
    };
    experts.scores = match fields.size(SCORES)? {
        // In older files, and in files that do not state it.
        None | Some(0) => experts.scores,
        Some(1) => RouterScores::Softmax,
        Some(2) => RouterScores::Sigmoid,
        Some(other) => return Err(fields.unsupported(SCORES, &json!(other), "1 (softmax), 2 (sigmoid)")),
    };
    // Zero means no scale.
    experts.weight_multiplier = fields.number_if_any(SCALE)?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
    experts.normalized = fields.flag_or(NORMALIZED, experts.normalized)?;
    let (n_groups, n_active) = (fields.size_or(GROUPS, 1)?, fields.size_or(GROUPS_USED, 1)?);
    experts.groups = (n_groups > 1).then_some(ExpertGroups { n_groups, n_active, n_best: 2 });
    Ok(())
}

pub(super) fn write(config: &GptConfig, written: &mut Map<String, Value>) {
    let Some(experts) = &config.experts else { return };
    let Experts { n_experts, n_active, d_ff, shared_d_ff, scores, weight_multiplier, normalized, groups, .. } = experts;
    let n_dense = (0..config.n_layers).take_while(|&layer| config.experts_of(layer).is_none()).count();
    let mut write = |key: &str, value: Value| written.insert(key.to_owned(), value);
    write(COUNT, json!(n_experts));
    write(USED, json!(n_active));
    write(D_FF, json!(d_ff));
    if *shared_d_ff > 0 {
        write(SHARED_D_FF, json!(shared_d_ff));
    }
    // llama.cpp requires the first key for some architectures, and the last two for others.
    if shared_d_ff.is_multiple_of(*d_ff) {
        write(SHARED, json!(shared_d_ff / d_ff));
    }
    write(FIRST_DENSE, json!(n_dense));
    write(STEP, json!(1));
    write(SCORES, json!(if *scores == RouterScores::Softmax { 1 } else { 2 }));
    write(NORMALIZED, json!(normalized));
    if *weight_multiplier != 1.0 {
        write(SCALE, json!(weight_multiplier));
    }
    if let Some(groups) = groups {
        write(GROUPS, json!(groups.n_groups));
        write(GROUPS_USED, json!(groups.n_active));
    }
}

/// Granite 4 H: a model without experts has the width of its MLP under the shared expert's key, and also a number of
/// experts to choose.
pub(super) const GRANITE_HYBRID_EXPERTS: ConfigRow = ConfigRow::Custom {
    keys: KEYS,
    read: |fields, config| {
        if fields.size_or(COUNT, 0)? > 0 {
            return read(fields, config);
        }
        config.d_ff = fields.size_or(SHARED_D_FF, config.d_ff)?;
        config.experts = None;
        Ok(())
    },
    write,
};

/// Nemotron-H: the shared expert's width is a separate key, whatever the number of shared experts is.
pub(super) const NEMOTRON_EXPERTS: ConfigRow = ConfigRow::Custom {
    keys: KEYS,
    read: |fields, config| {
        read(fields, config)?;
        if let Some(experts) = &mut config.experts {
            experts.shared_d_ff = fields.size_or(SHARED_D_FF, 0)?;
        }
        Ok(())
    },
    write,
};

/// Sets the fields that only the tensors show.
pub(super) fn read_tensors(config: &mut GptConfig, has: &dyn Fn(&str) -> bool) {
    // The size is not validated yet: this limits the list.
    let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
    let Some(experts) = &mut config.experts else { return };
    let has_router = |layer: &usize| has(&format!("blk.{layer}.ffn_gate_inp.weight"));
    let Some(first) = layers.clone().find(has_router) else { return };
    let is_dense = |layer: &usize| !has_router(layer) && config.layers_without_mlp.binary_search(layer).is_err();
    experts.dense_layers = layers.filter(is_dense).collect();
    experts.router_bias = has(&format!("blk.{first}.ffn_gate_inp.bias"));
    experts.selection_bias = has(&format!("blk.{first}.exp_probs_b.bias"));
    experts.shared_gate = has(&format!("blk.{first}.ffn_gate_inp_shexp.weight"));
}

/// Llama and Mixtral share the architecture's name; the first files have a tensor for each expert.
pub(super) const NAMES: &[NameRow] = &[
    same("blocks.{}.experts.router.weight", "blk.{}.ffn_gate_inp.weight"),
    same("blocks.{}.experts.router.bias", "blk.{}.ffn_gate_inp.bias"),
    same("blocks.{}.experts.router.selection_bias", "blk.{}.exp_probs_b.bias"),
    stacked(UP, &[("blk.{}.ffn_gate_exps.weight", Half), ("blk.{}.ffn_up_exps.weight", Half)]).of_all_experts(),
    same(UP, "blk.{}.ffn_gate_up_exps.weight").of_all_experts(),
    stacked(UP, &[("blk.{}.ffn_gate.{}.weight", Half), ("blk.{}.ffn_up.{}.weight", Half)]),
    same(DOWN, "blk.{}.ffn_down_exps.weight").of_all_experts(),
    same(DOWN, "blk.{}.ffn_down.{}.weight"),
    stacked(
        "blocks.{}.experts.shared.up.weight",
        &[("blk.{}.ffn_gate_shexp.weight", Half), ("blk.{}.ffn_up_shexp.weight", Half)],
    ),
    same("blocks.{}.experts.shared.down.weight", "blk.{}.ffn_down_shexp.weight"),
    same("blocks.{}.experts.shared_gate.weight", "blk.{}.ffn_gate_inp_shexp.weight"),
];

/// As [`NAMES`], for experts without gates.
pub(super) const UNGATED_NAMES: &[NameRow] = &[
    same(UP, "blk.{}.ffn_up_exps.weight").of_all_experts(),
    same("blocks.{}.experts.shared.up.weight", "blk.{}.ffn_up_shexp.weight"),
    same("blocks.{}.experts.latent_down.weight", "blk.{}.ffn_latent_down.weight"),
    same("blocks.{}.experts.latent_up.weight", "blk.{}.ffn_latent_up.weight"),
];

/// The biases of experts.
pub(super) const BIASES: &[NameRow] = &[
    stacked(
        "blocks.{}.experts.routed.{}.up.bias",
        &[("blk.{}.ffn_gate_exps.bias", Half), ("blk.{}.ffn_up_exps.bias", Half)],
    )
    .of_all_experts(),
    same("blocks.{}.experts.routed.{}.down.bias", "blk.{}.ffn_down_exps.bias").of_all_experts(),
];

const UP: &str = "blocks.{}.experts.routed.{}.up.weight";
const DOWN: &str = "blocks.{}.experts.routed.{}.down.weight";
