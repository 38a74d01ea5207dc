//! Mixtures of experts: Llama's names around routers and experts.

use super::{
    super::super::tensor_names::{
        NameRow,
        RowSelection::{Half, Pairs, Transposed, TransposedPairs},
        ordered, same, stacked,
    },
    llama::{
        HUNYUAN_QK_NORM, INTERLEAVED_QKV, LLAMA_ENDS, LLAMA_MLP, LLAMA_NORMS, LLAMA_OUT, LLAMA_QK_NORM, LLAMA_QKV,
    },
    norms::{GATE_AND_QKV, OLMO2_NORMS},
};

const ROUTER: &str = "blocks.{}.experts.router.weight";
const SELECTION: &str = "blocks.{}.experts.router.selection_bias";
const UP: &str = "blocks.{}.experts.routed.{}.up.weight";
const DOWN: &str = "blocks.{}.experts.routed.{}.down.weight";
const UP_BIAS: &str = "blocks.{}.experts.routed.{}.up.bias";
const DOWN_BIAS: &str = "blocks.{}.experts.routed.{}.down.bias";
const SHARED_UP: &str = "blocks.{}.experts.shared.up.weight";
const SHARED_DOWN: &str = "blocks.{}.experts.shared.down.weight";

/// Qwen 2 and 3, OLMoE. Files may have all experts of a layer in one tensor, as `transformers` holds them.
pub(in super::super) const QWEN_MOE: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, LLAMA_MLP, EXPERTS, QWEN_SHARED];

pub(super) const EXPERTS: &[NameRow] = &[
    same(ROUTER, "model.layers.{}.mlp.gate.weight"),
    stacked(
        UP,
        &[
            ("model.layers.{}.mlp.experts.{}.gate_proj.weight", Half),
            ("model.layers.{}.mlp.experts.{}.up_proj.weight", Half),
        ],
    ),
    same(UP, "model.layers.{}.mlp.experts.gate_up_proj").of_all_experts(),
    same(DOWN, "model.layers.{}.mlp.experts.{}.down_proj.weight"),
    same(DOWN, "model.layers.{}.mlp.experts.down_proj").of_all_experts(),
    // Transposed, as released files of Qwen 3 VL have them; `dir_weights` renames them.
    ordered(Transposed, UP, "model.layers.{}.mlp.experts.gate_up").of_all_experts(),
    ordered(Transposed, DOWN, "model.layers.{}.mlp.experts.down").of_all_experts(),
];

pub(super) const QWEN_SHARED: &[NameRow] = &[
    stacked(
        SHARED_UP,
        &[
            ("model.layers.{}.mlp.shared_expert.gate_proj.weight", Half),
            ("model.layers.{}.mlp.shared_expert.up_proj.weight", Half),
        ],
    ),
    same(SHARED_DOWN, "model.layers.{}.mlp.shared_expert.down_proj.weight"),
    same("blocks.{}.experts.shared_gate.weight", "model.layers.{}.mlp.shared_expert_gate.weight"),
];

/// GLM 4, DeepSeek.
pub(in super::super) const GLM_MOE: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, LLAMA_MLP, EXPERTS, SHARED_EXPERTS, SELECTION_BIAS];

pub(super) const SELECTION_BIAS: &[NameRow] = &[same(SELECTION, "model.layers.{}.mlp.gate.e_score_correction_bias")];

pub(super) const SHARED_EXPERTS: &[NameRow] = &[
    stacked(
        SHARED_UP,
        &[
            ("model.layers.{}.mlp.shared_experts.gate_proj.weight", Half),
            ("model.layers.{}.mlp.shared_experts.up_proj.weight", Half),
        ],
    ),
    stacked(
        "blocks.{}.experts.shared.up.bias",
        &[
            ("model.layers.{}.mlp.shared_experts.gate_proj.bias", Half),
            ("model.layers.{}.mlp.shared_experts.up_proj.bias", Half),
        ],
    ),
    same(SHARED_DOWN, "model.layers.{}.mlp.shared_experts.down_proj.weight"),
    same("blocks.{}.experts.shared.down.bias", "model.layers.{}.mlp.shared_experts.down_proj.bias"),
];

/// Neighbouring dimensions rotate together.
pub(in super::super) const ERNIE_MOE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    INTERLEAVED_QKV,
    LLAMA_OUT,
    LLAMA_MLP,
    EXPERTS,
    SHARED_EXPERTS,
    &[
        same(SELECTION, "model.layers.{}.mlp.moe_statics.e_score_correction_bias").as_one_row(),
        same(SELECTION, "model.layers.{}.mlp.gate.moe_statics.e_score_correction_bias").as_one_row(),
        same("lm_head.bias", "lm_head.bias"),
    ],
];

pub(in super::super) const MIXTRAL: &[&[NameRow]] = &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, LLAMA_OUT, MIXTRAL_EXPERTS];

const MIXTRAL_EXPERTS: &[NameRow] = &[
    same(ROUTER, "model.layers.{}.block_sparse_moe.gate.weight"),
    stacked(
        UP,
        &[
            ("model.layers.{}.block_sparse_moe.experts.{}.w1.weight", Half),
            ("model.layers.{}.block_sparse_moe.experts.{}.w3.weight", Half),
        ],
    ),
    same(DOWN, "model.layers.{}.block_sparse_moe.experts.{}.w2.weight"),
    same(ROUTER, "model.layers.{}.mlp.gate.weight"),
    same(UP, "model.layers.{}.mlp.experts.gate_up_proj").of_all_experts(),
    same(DOWN, "model.layers.{}.mlp.experts.down_proj").of_all_experts(),
];

pub(in super::super) const MINIMAX_M2: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    MIXTRAL_EXPERTS,
    &[
        same(SELECTION, "model.layers.{}.block_sparse_moe.e_score_correction_bias"),
        same(SELECTION, "model.layers.{}.mlp.e_score_correction_bias"),
    ],
];

/// OLMoE's experts between OLMo 2's norms.
pub(in super::super) const FLEX_OLMO: &[&[NameRow]] =
    &[LLAMA_ENDS, OLMO2_NORMS, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, EXPERTS];

pub(in super::super) const EXAONE_MOE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    LLAMA_MLP,
    EXPERTS,
    SHARED_EXPERTS,
    &[
        same(SELECTION, "model.layers.{}.mlp.e_score_correction_bias"),
        same(SELECTION, "model.layers.{}.mlp.gate.e_score_correction_bias"),
    ],
];

pub(in super::super) const HUNYUAN_MOE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    HUNYUAN_QK_NORM,
    LLAMA_OUT,
    &[
        same(ROUTER, "model.layers.{}.mlp.gate.wg.weight"),
        stacked(
            SHARED_UP,
            &[
                ("model.layers.{}.mlp.shared_mlp.gate_proj.weight", Half),
                ("model.layers.{}.mlp.shared_mlp.up_proj.weight", Half),
            ],
        ),
        same(SHARED_DOWN, "model.layers.{}.mlp.shared_mlp.down_proj.weight"),
    ],
    EXPERTS,
];

pub(in super::super) const GRANITE_MOE: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, LLAMA_QKV, LLAMA_OUT, GRANITE_EXPERTS];

pub(super) const GRANITE_EXPERTS: &[NameRow] = &[
    same(ROUTER, "model.layers.{}.block_sparse_moe.router.layer.weight"),
    same(ROUTER, "model.layers.{}.block_sparse_moe.router.weight"),
    same(UP, "model.layers.{}.block_sparse_moe.input_linear.weight").of_all_experts(),
    same(UP, "model.layers.{}.block_sparse_moe.experts.gate_up_proj").of_all_experts(),
    same(DOWN, "model.layers.{}.block_sparse_moe.output_linear.weight").of_all_experts(),
    same(DOWN, "model.layers.{}.block_sparse_moe.experts.down_proj").of_all_experts(),
    same(SHARED_UP, "model.layers.{}.shared_mlp.input_linear.weight"),
    same(SHARED_DOWN, "model.layers.{}.shared_mlp.output_linear.weight"),
];

/// Experts' matrices are transposed, unless they are in MXFP4. Rows of the gate and of the up projection alternate.
pub(in super::super) const GPT_OSS: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_OUT,
    &[
        same("blocks.{}.attn.sinks.weight", "model.layers.{}.self_attn.sinks"),
        same(ROUTER, "model.layers.{}.mlp.router.weight"),
        same("blocks.{}.experts.router.bias", "model.layers.{}.mlp.router.bias"),
        ordered(TransposedPairs, UP, "model.layers.{}.mlp.experts.gate_up_proj").of_all_experts(),
        ordered(Pairs, UP, "model.layers.{}.mlp.experts.{}.gate_up_proj"),
        ordered(Pairs, UP_BIAS, "model.layers.{}.mlp.experts.gate_up_proj_bias").of_all_experts(),
        ordered(Transposed, DOWN, "model.layers.{}.mlp.experts.down_proj").of_all_experts(),
        same(DOWN, "model.layers.{}.mlp.experts.{}.down_proj"),
        same(DOWN_BIAS, "model.layers.{}.mlp.experts.down_proj_bias").of_all_experts(),
    ],
];

/// Norms before and after attention and MLP, and gates of the heads' outputs in a separate matrix.
pub(in super::super) const AFMOE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.pre_mlp_layernorm.weight"),
        same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_mlp_layernorm.weight"),
        same(ROUTER, "model.layers.{}.mlp.router.gate.weight"),
        same(SELECTION, "model.layers.{}.mlp.expert_bias"),
    ],
    GATE_AND_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    LLAMA_MLP,
    EXPERTS,
    SHARED_EXPERTS,
];
