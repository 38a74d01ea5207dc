//! Ways to misread the experts and the recurrent layers of a configuration while the weights still fit.

use hearth_model::config::{
    Activation, ClampedSwiglu, ExpertGroups, Experts, GatedConv, GatedDeltaNet, GptConfig, Mamba2, MaskedLmHead,
    NormPosition, QueryTemperature, Recurrence, Recurrent, RouterScores,
};

/// Wrong details of attention and MLPs, with the field that is wrong.
pub(crate) fn detail_mutations(config: &GptConfig) -> Vec<(&'static str, GptConfig)> {
    let heated = |query_temperature| GptConfig { query_temperature, ..config.clone() };
    let mut mutations = Vec::new();
    match config.query_temperature {
        None => {
            mutations.push(("query_temperature", heated(Some(QueryTemperature { beta: 0.5, interval: 5 }))));
        }
        Some(QueryTemperature { beta, interval }) => {
            let warmer = QueryTemperature { beta: 1.5 * beta, interval };
            let later = QueryTemperature { beta, interval: interval + 1 };
            mutations.push(("query_temperature", heated(None)));
            mutations.push(("query_temperature.beta", heated(Some(warmer))));
            mutations.push(("query_temperature.interval", heated(Some(later))));
        }
    }
    if let Some(ClampedSwiglu { alpha, limit }) = config.clamped_swiglu {
        let with = |alpha, limit| GptConfig { clamped_swiglu: Some(ClampedSwiglu { alpha, limit }), ..config.clone() };
        mutations.push(("clamped_swiglu.alpha", with(1.2 * alpha, limit)));
        mutations.push(("clamped_swiglu.limit", with(alpha, 1.2 * limit)));
    }
    let with = |change: &dyn Fn(&mut GptConfig)| {
        let mut mutant = config.clone();
        change(&mut mutant);
        mutant
    };
    if let Some(head) = config.mlm_head {
        mutations.push(("mlm_head", with(&|c| c.mlm_head = None)));
        let other = if head.activation == Activation::Relu { Activation::Silu } else { Activation::Relu };
        mutations
            .push(("mlm_head.activation", with(&|c| c.mlm_head = Some(MaskedLmHead { activation: other, ..head }))));
        if head.bias {
            mutations.push(("mlm_head.bias", with(&|c| c.mlm_head = Some(MaskedLmHead { bias: false, ..head }))));
        }
    }
    if let Some(offset) = config.final_norm_offset {
        mutations.push(("final_norm_offset", with(&|c| c.final_norm_offset = Some(1.0 - offset))));
    }
    if config.out_norm_eps.is_some() {
        mutations.push(("out_norm_eps", with(&|c| c.out_norm_eps = None)));
    }
    if config.norm_weight && config.qk_norm && !config.qk_norm_bias && !config.plain_qk_norm {
        mutations.push(("plain_qk_norm", with(&|c| c.plain_qk_norm = true)));
    }
    if config.norm_weight && config.embed_norm && !config.norm_bias && !config.plain_embed_norm {
        mutations.push(("plain_embed_norm", with(&|c| c.plain_embed_norm = true)));
    }
    if config.attention_sinks {
        mutations.push(("attention_sinks", GptConfig { attention_sinks: false, ..config.clone() }));
    }
    mutations
}

/// The ways in which a block could lack parts of Gemma 4's.
pub(crate) fn block_mutations(config: &GptConfig) -> Vec<(&'static str, GptConfig)> {
    [
        (config.value_norm, "value_norm", GptConfig { value_norm: false, ..config.clone() }),
        (config.layer_scale, "layer_scale", GptConfig { layer_scale: false, ..config.clone() }),
        (config.per_layer_inputs.is_some(), "per_layer_inputs", GptConfig { per_layer_inputs: None, ..config.clone() }),
    ]
    .into_iter()
    .filter_map(|(has, field, mutant)| has.then_some((field, mutant)))
    .collect()
}

/// Wrong experts, with the field that is wrong.
pub(crate) fn expert_mutations(config: &GptConfig) -> Vec<(&'static str, GptConfig)> {
    let mut mutations = Vec::new();
    let Some(experts) = &config.experts else { return mutations };
    let mut mutate = |field: &'static str, change: &dyn Fn(&mut Experts)| {
        let mut mutant = config.clone();
        mutant.experts.iter_mut().for_each(change);
        mutations.push((field, mutant));
    };
    mutate("experts.n_active", &|e| e.n_active -= 1);
    // A norm behind the experts hides the scale of their weights.
    if !matches!(config.norm_position, NormPosition::Inside | NormPosition::Sandwich) {
        mutate("experts.normalized", &|e| e.normalized = !e.normalized);
        mutate("experts.weight_multiplier", &|e| e.weight_multiplier *= 1.5);
    }
    mutate("experts.scores", &|e| {
        e.scores = match e.scores {
            RouterScores::Softmax => RouterScores::Sigmoid,
            RouterScores::Sigmoid => RouterScores::Softmax,
        }
    });
    if experts.selection_bias {
        mutate("experts.selection_bias", &|e| e.selection_bias = false);
    }
    if experts.shared_d_ff > 0 {
        mutate("experts.shared_d_ff", &|e| (e.shared_d_ff, e.shared_gate) = (0, false));
    }
    if experts.shared_gate {
        mutate("experts.shared_gate", &|e| e.shared_gate = false);
    }
    if let Some(groups) = experts.groups {
        mutate("experts.groups", &|e| e.groups = None);
        mutate("experts.groups.n_active", &|e| {
            e.groups = Some(ExpertGroups { n_active: groups.n_active + 1, ..groups });
        });
        let n_best = if groups.n_best == 1 { 2 } else { 1 };
        mutate("experts.groups.n_best", &|e| e.groups = Some(ExpertGroups { n_best, ..groups }));
    }
    mutations
}

/// The same for recurrent layers: the ways in which parameters have the same shapes.
pub(crate) fn recurrent_mutations(config: &GptConfig) -> Vec<(&'static str, GptConfig)> {
    let Some(Recurrent { recurrence, attention_layers }) = &config.recurrent else { return Vec::new() };
    let with = |recurrence: Recurrence| {
        let recurrent = Recurrent { recurrence, attention_layers: attention_layers.clone() };
        GptConfig { recurrent: Some(recurrent), ..config.clone() }
    };
    match *recurrence {
        Recurrence::GatedDelta(net) => {
            let GatedDeltaNet { n_key_heads, key_dim, .. } = net;
            let fewer = GatedDeltaNet { n_key_heads: n_key_heads / 2, key_dim: 2 * key_dim, ..net };
            let tiled = GatedDeltaNet { tiled_heads: true, ..net };
            [("n_key_heads", fewer), ("tiled_heads", tiled)]
                .map(|(field, net)| (field, with(Recurrence::GatedDelta(net))))
                .into()
        }
        Recurrence::ShortConv(conv) if conv.bias => {
            vec![(
                "recurrent.recurrence.short_conv.bias",
                with(Recurrence::ShortConv(GatedConv { bias: false, ..conv })),
            )]
        }
        Recurrence::ShortConv(_) => Vec::new(),
        Recurrence::Mamba2(mamba) => {
            let Mamba2 { n_groups, state_dim, conv_bias, bias, min_time_step, max_time_step, .. } = mamba;
            let fewer = Mamba2 { n_groups: n_groups / 2, state_dim: 2 * state_dim, ..mamba };
            let mutants = [
                ("n_groups", Some(fewer)),
                ("conv_bias", conv_bias.then_some(Mamba2 { conv_bias: false, ..mamba })),
                ("bias", bias.then_some(Mamba2 { bias: false, ..mamba })),
                ("min_time_step", Some(Mamba2 { min_time_step: if min_time_step > 0.0 { 0.0 } else { 0.5 }, ..mamba })),
                (
                    "max_time_step",
                    Some(Mamba2 { max_time_step: if max_time_step.is_some() { None } else { Some(0.8) }, ..mamba }),
                ),
            ];
            mutants.into_iter().filter_map(|(field, it)| Some((field, with(Recurrence::Mamba2(it?))))).collect()
        }
    }
}
