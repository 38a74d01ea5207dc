//! Llama and its kin.

use super::super::super::tensor_names::{
    NameRow,
    RowSelection::{
        EachKeyHead, EachQueryHead, Half, InterleavedKeys, InterleavedQueries, KeysOrValues, Queries, ReversedKeys,
        ReversedQueries, Scalar, Value,
    },
    ordered, same, stacked,
};

pub(in super::super) const LLAMA: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, LLAMA_MLP, PREDICTION];

/// Llama's tensors outside blocks.
pub(super) const LLAMA_ENDS: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("norm.weight", "model.norm.weight"),
    same("norm.bias", "model.norm.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

/// The tensors that compute the input of a prediction head's layer.
pub(super) const PREDICTION: &[NameRow] = &[
    same("join.token_norm.weight", "model.pre_fc_norm_embedding.weight"),
    same("join.hidden_norm.weight", "model.pre_fc_norm_hidden.weight"),
    same("join.linear.weight", "model.fc.weight"),
];

pub(super) const LLAMA_NORMS: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    same("blocks.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.bias", "model.layers.{}.post_attention_layernorm.bias"),
];

/// Queries, keys and values in separate matrices, with rows in these orders.
macro_rules! separate_qkv {
    ($queries:ident, $keys:ident) => {
        &[
            stacked(
                "blocks.{}.attn.qkv.weight",
                &[
                    ("model.layers.{}.self_attn.q_proj.weight", $queries),
                    ("model.layers.{}.self_attn.k_proj.weight", $keys),
                    ("model.layers.{}.self_attn.v_proj.weight", KeysOrValues),
                ],
            ),
            stacked(
                "blocks.{}.attn.qkv.bias",
                &[
                    ("model.layers.{}.self_attn.q_proj.bias", $queries),
                    ("model.layers.{}.self_attn.k_proj.bias", $keys),
                    ("model.layers.{}.self_attn.v_proj.bias", KeysOrValues),
                ],
            ),
        ]
    };
}

pub(super) const LLAMA_QKV: &[NameRow] = separate_qkv!(Queries, KeysOrValues);

/// Dimensions that rotate together are next to each other.
pub(super) const INTERLEAVED_QKV: &[NameRow] = separate_qkv!(InterleavedQueries, InterleavedKeys);

pub(super) const LLAMA_QK_NORM: &[NameRow] = &[
    same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
    same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
];

/// The norms are named as layers, and have biases.
pub(super) const QK_LAYER_NORM: &[NameRow] = &[
    same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_layernorm.weight"),
    same("blocks.{}.attn.q_norm.bias", "model.layers.{}.self_attn.q_layernorm.bias"),
    same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_layernorm.weight"),
    same("blocks.{}.attn.k_norm.bias", "model.layers.{}.self_attn.k_layernorm.bias"),
];

/// Each head has a norm.
pub(in super::super) const STABLELM: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    &[
        ordered(EachQueryHead, "blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_layernorm.norms.{}.weight"),
        ordered(EachKeyHead, "blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_layernorm.norms.{}.weight"),
    ],
    LLAMA_OUT,
    LLAMA_MLP,
];

pub(super) const LLAMA_OUT: &[NameRow] = &[
    same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.o_proj.bias"),
];

pub(super) const LLAMA_MLP: &[NameRow] = &[
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("model.layers.{}.mlp.gate_proj.weight", Half), ("model.layers.{}.mlp.up_proj.weight", Half)],
    ),
    stacked(
        "blocks.{}.mlp.up.bias",
        &[("model.layers.{}.mlp.gate_proj.bias", Half), ("model.layers.{}.mlp.up_proj.bias", Half)],
    ),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.down_proj.bias"),
];

/// An MLP without a gate.
const UNGATED_MLP: &[NameRow] = &[
    same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.up_proj.weight"),
    same("blocks.{}.mlp.up.bias", "model.layers.{}.mlp.up_proj.bias"),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.down_proj.bias"),
];

pub(in super::super) const APERTUS: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.attention_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.feedforward_layernorm.weight"),
        stacked(
            "blocks.{}.mlp.xielu.weight",
            &[
                ("model.layers.{}.mlp.act_fn.alpha_p", Value),
                ("model.layers.{}.mlp.act_fn.alpha_n", Value),
                ("model.layers.{}.mlp.act_fn.beta", Scalar),
                ("model.layers.{}.mlp.act_fn.eps", Scalar),
            ],
        ),
    ],
    LLAMA_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    UNGATED_MLP,
];

/// The gate and the up projection in one matrix, in Hearth's order.
pub(super) const FUSED_MLP: &[NameRow] = &[
    same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.gate_up_proj.weight"),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
];

pub(in super::super) const INTERLEAVED: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, INTERLEAVED_QKV, LLAMA_OUT, LLAMA_MLP];

pub(in super::super) const UNGATED: &[&[NameRow]] = &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, LLAMA_OUT, UNGATED_MLP];

pub(in super::super) const GLM: &[&[NameRow]] = &[LLAMA_ENDS, LLAMA_NORMS, INTERLEAVED_QKV, LLAMA_OUT, FUSED_MLP];

pub(in super::super) const HUNYUAN: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, HUNYUAN_QK_NORM, LLAMA_OUT, LLAMA_MLP];

pub(super) const HUNYUAN_QK_NORM: &[NameRow] = &[
    same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.query_layernorm.weight"),
    same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.key_layernorm.weight"),
];

/// Queries and keys are rotated by the negative angle.
pub(in super::super) const NANOCHAT: &[&[NameRow]] = &[
    LLAMA_ENDS,
    separate_qkv!(ReversedQueries, ReversedKeys),
    &[
        same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.fc1.weight"),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.fc2.weight"),
    ],
    LLAMA_OUT,
];

/// Stacked matrices in our order.
pub(in super::super) const PHI3: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    &[same("blocks.{}.attn.qkv.weight", "model.layers.{}.self_attn.qkv_proj.weight")],
    LLAMA_OUT,
    FUSED_MLP,
];

/// GPT-2's names around a gated MLP. Converted files have Llama's.
pub(in super::super) const EXAONE: &[&[NameRow]] = &[
    &[
        same("embed.weight", "transformer.wte.weight"),
        same("norm.weight", "transformer.ln_f.weight"),
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.ln_2.weight"),
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("transformer.h.{}.attn.attention.q_proj.weight", Queries),
                ("transformer.h.{}.attn.attention.k_proj.weight", KeysOrValues),
                ("transformer.h.{}.attn.attention.v_proj.weight", KeysOrValues),
            ],
        ),
        same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.attention.out_proj.weight"),
        stacked(
            "blocks.{}.mlp.up.weight",
            &[("transformer.h.{}.mlp.c_fc_0.weight", Half), ("transformer.h.{}.mlp.c_fc_1.weight", Half)],
        ),
        same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
    ],
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_OUT,
    LLAMA_MLP,
];
