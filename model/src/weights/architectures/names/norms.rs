//! Classes with norms in other places than Llama.

use super::super::super::tensor_names::{
    NameRow,
    RowSelection::{KeysOrValues, Queries, RowsOfKeys, RowsOfQueries, Values},
    ordered, same, stacked,
};
use super::llama::{
    FUSED_MLP, INTERLEAVED_QKV, LLAMA_ENDS, LLAMA_MLP, LLAMA_NORMS, LLAMA_OUT, LLAMA_QK_NORM, LLAMA_QKV,
};

/// Norms after the two parts.
pub(in super::super) const OLMO2: &[&[NameRow]] =
    &[LLAMA_ENDS, OLMO2_NORMS, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, LLAMA_MLP];

pub(super) const OLMO2_NORMS: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
];

/// Norms before and after the two parts.
const SANDWICH: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"),
    same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
];

pub(in super::super) const GEMMA2: &[&[NameRow]] =
    &[LLAMA_ENDS, SANDWICH, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, LLAMA_MLP];

pub(in super::super) const MUSE_GLIMMER: &[&[NameRow]] = &[LLAMA_ENDS, SANDWICH, GATE_AND_QKV, LLAMA_OUT, LLAMA_MLP];

/// Gates of the heads' outputs in a separate matrix.
pub(super) const GATE_AND_QKV: &[NameRow] = &[stacked(
    "blocks.{}.attn.qkv.weight",
    &[
        ("model.layers.{}.self_attn.gate_proj.weight", Queries),
        ("model.layers.{}.self_attn.q_proj.weight", Queries),
        ("model.layers.{}.self_attn.k_proj.weight", KeysOrValues),
        ("model.layers.{}.self_attn.v_proj.weight", KeysOrValues),
    ],
)];

/// As [`GEMMA2`], under other names.
pub(in super::super) const GLM4: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_self_attn_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
        same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_mlp_layernorm.weight"),
    ],
    INTERLEAVED_QKV,
    LLAMA_OUT,
    FUSED_MLP,
];

/// As Llama, with norms after the two parts where they are.
pub(in super::super) const HYPERCLOVAX: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    &[
        same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_norm1.weight"),
        same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_norm2.weight"),
    ],
    LLAMA_QKV,
    LLAMA_OUT,
    LLAMA_MLP,
];

/// One norm for both parts.
pub(in super::super) const COHERE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        ordered(RowsOfQueries, "blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
        ordered(RowsOfKeys, "blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
    ],
    INTERLEAVED_QKV,
    LLAMA_OUT,
    LLAMA_MLP,
];

/// As [`GEMMA2`], with layers that have no values or no keys, and a factor for each block.
pub(in super::super) const GEMMA4: &[&[NameRow]] = &[
    LLAMA_ENDS,
    SANDWICH,
    &[
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("model.layers.{}.self_attn.q_proj.weight", Queries),
                ("model.layers.{}.self_attn.k_proj.weight", KeysOrValues),
                ("model.layers.{}.self_attn.v_proj.weight", Values),
            ],
        ),
        stacked(
            "blocks.{}.attn.qkv.bias",
            &[
                ("model.layers.{}.self_attn.q_proj.bias", Queries),
                ("model.layers.{}.self_attn.k_proj.bias", KeysOrValues),
                ("model.layers.{}.self_attn.v_proj.bias", Values),
            ],
        ),
        same("blocks.{}.scale.weight", "model.layers.{}.layer_scalar"),
        same("per_layer.embed.weight", "model.embed_tokens_per_layer.weight"),
        same("per_layer.proj.weight", "model.per_layer_model_projection.weight"),
        same("per_layer.norm.weight", "model.per_layer_projection_norm.weight"),
        same("blocks.{}.per_layer.gate.weight", "model.layers.{}.per_layer_input_gate.weight"),
        same("blocks.{}.per_layer.proj.weight", "model.layers.{}.per_layer_projection.weight"),
        same("blocks.{}.per_layer.norm.weight", "model.layers.{}.post_per_layer_input_norm.weight"),
    ],
    &[
        same("blocks.{}.experts.mlp_out_norm.weight", "model.layers.{}.post_feedforward_layernorm_1.weight"),
        same("blocks.{}.experts.router.weight", "model.layers.{}.router.proj.weight"),
        same("blocks.{}.experts.router.expert_scale", "model.layers.{}.router.per_expert_scale"),
        same("blocks.{}.experts.router_norm.weight", "model.layers.{}.router.scale"),
        same("blocks.{}.experts.in_norm.weight", "model.layers.{}.pre_feedforward_layernorm_2.weight"),
        same("blocks.{}.experts.out_norm.weight", "model.layers.{}.post_feedforward_layernorm_2.weight"),
        same("blocks.{}.experts.routed.{}.up.weight", "model.layers.{}.experts.gate_up_proj").of_all_experts(),
        same("blocks.{}.experts.routed.{}.down.weight", "model.layers.{}.experts.down_proj").of_all_experts(),
    ],
    LLAMA_QK_NORM,
    LLAMA_OUT,
    LLAMA_MLP,
];
