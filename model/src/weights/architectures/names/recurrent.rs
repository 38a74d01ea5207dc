//! Models with recurrent layers: Llama's names around gated delta nets and short convolutions.

use super::{
    super::super::tensor_names::{
        NameRow,
        RowSelection::{
            BetasByKeyHead, DeltaByKeyHead, DeltaGates, DeltaQkv, GatedQueries, Half, KeysOrValues, Queries,
        },
        ordered, same, stacked,
    },
    experts::{EXPERTS, QWEN_SHARED},
    llama::{LLAMA_ENDS, LLAMA_MLP, LLAMA_NORMS, LLAMA_OUT, LLAMA_QK_NORM, PREDICTION},
};

const INPUT: &str = "blocks.{}.recurrent.input.weight";
const BA: &str = "blocks.{}.recurrent.ba.weight";

/// Qwen 3.5, with experts or not.
pub(in super::super) const QWEN3_5: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    GATED_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    DELTA_NET,
    &[
        stacked(
            INPUT,
            &[
                ("model.layers.{}.linear_attn.in_proj_qkv.weight", DeltaQkv),
                ("model.layers.{}.linear_attn.in_proj_z.weight", DeltaGates),
            ],
        ),
        stacked(
            BA,
            &[
                ("model.layers.{}.linear_attn.in_proj_b.weight", Half),
                ("model.layers.{}.linear_attn.in_proj_a.weight", Half),
            ],
        ),
    ],
    LLAMA_MLP,
    EXPERTS,
    QWEN_SHARED,
    PREDICTION,
];

pub(in super::super) const QWEN3_NEXT: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    GATED_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    DELTA_NET,
    &[
        ordered(DeltaByKeyHead, INPUT, "model.layers.{}.linear_attn.in_proj_qkvz.weight"),
        ordered(BetasByKeyHead, BA, "model.layers.{}.linear_attn.in_proj_ba.weight"),
    ],
    LLAMA_MLP,
    EXPERTS,
    QWEN_SHARED,
    PREDICTION,
];

/// The projection of queries has their gates too.
const GATED_QKV: &[NameRow] = &[
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.layers.{}.self_attn.q_proj.weight", GatedQueries),
            ("model.layers.{}.self_attn.k_proj.weight", KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.layers.{}.self_attn.q_proj.bias", GatedQueries),
            ("model.layers.{}.self_attn.k_proj.bias", KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.bias", KeysOrValues),
        ],
    ),
];

const DELTA_NET: &[NameRow] = &[
    same("blocks.{}.recurrent.conv.weight", "model.layers.{}.linear_attn.conv1d.weight"),
    same("blocks.{}.recurrent.decays.a_log", "model.layers.{}.linear_attn.A_log"),
    same("blocks.{}.recurrent.decays.dt_bias", "model.layers.{}.linear_attn.dt_bias"),
    same("blocks.{}.recurrent.norm.weight", "model.layers.{}.linear_attn.norm.weight"),
    same("blocks.{}.recurrent.out.weight", "model.layers.{}.linear_attn.out_proj.weight"),
];

/// LFM2, with experts or not.
pub(in super::super) const LFM2: &[&[NameRow]] = &[
    &[
        same("embed.weight", "model.embed_tokens.weight"),
        same("norm.weight", "model.embedding_norm.weight"),
        same("lm_head.weight", "lm_head.weight"),
        same("blocks.{}.attn_norm.weight", "model.layers.{}.operator_norm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.ffn_norm.weight"),
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("model.layers.{}.self_attn.q_proj.weight", Queries),
                ("model.layers.{}.self_attn.k_proj.weight", KeysOrValues),
                ("model.layers.{}.self_attn.v_proj.weight", KeysOrValues),
            ],
        ),
        same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_layernorm.weight"),
        same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_layernorm.weight"),
        same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.out_proj.weight"),
        same("blocks.{}.recurrent.input.weight", "model.layers.{}.conv.in_proj.weight"),
        same("blocks.{}.recurrent.input.bias", "model.layers.{}.conv.in_proj.bias"),
        same("blocks.{}.recurrent.conv.weight", "model.layers.{}.conv.conv.weight"),
        same("blocks.{}.recurrent.conv.bias", "model.layers.{}.conv.conv.bias"),
        same("blocks.{}.recurrent.out.weight", "model.layers.{}.conv.out_proj.weight"),
        same("blocks.{}.recurrent.out.bias", "model.layers.{}.conv.out_proj.bias"),
        stacked(
            "blocks.{}.mlp.up.weight",
            &[("model.layers.{}.feed_forward.w1.weight", Half), ("model.layers.{}.feed_forward.w3.weight", Half)],
        ),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.feed_forward.w2.weight"),
    ],
    &[
        same("blocks.{}.experts.router.weight", "model.layers.{}.feed_forward.gate.weight"),
        same("blocks.{}.experts.router.selection_bias", "model.layers.{}.feed_forward.expert_bias"),
        stacked(
            "blocks.{}.experts.routed.{}.up.weight",
            &[
                ("model.layers.{}.feed_forward.experts.{}.w1.weight", Half),
                ("model.layers.{}.feed_forward.experts.{}.w3.weight", Half),
            ],
        ),
        same("blocks.{}.experts.routed.{}.down.weight", "model.layers.{}.feed_forward.experts.{}.w2.weight"),
        same("blocks.{}.experts.routed.{}.up.weight", "model.layers.{}.feed_forward.experts.gate_up_proj")
            .of_all_experts(),
        same("blocks.{}.experts.routed.{}.down.weight", "model.layers.{}.feed_forward.experts.down_proj")
            .of_all_experts(),
    ],
];
