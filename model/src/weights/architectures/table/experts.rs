//! Mixtures of experts: Llama's blocks with routed experts in place of the MLP.

use super::super::{
    Architecture, Fixed,
    bases::{corrected, experts, gpt_oss, llama, mixture, mixture_with, olmo2},
    config_rows::{ConfigRow, EXAONE4_ROTATION, derived, flag, kv_heads, number, size, size_or},
    expert_rows::{
        AFMOE_ROTATION, BALANCE_LOSS, CLAMPED_SWIGLU, ERNIE_LAYERS, EXAONE_LAYERS, GROUPS, HUNYUAN_EXPERTS,
        MELLUM_LAYERS, N_EXPERTS, N_LOCAL, N_ROUTED, NO_MLP, QWEN_LAYERS, ROTARY_WIDTH, UNBIASED_EXPERTS, balance_loss,
        deepseek_router, expert_sizes, first_dense, shared_experts, wide_experts,
    },
    names, rope,
    row_groups::{
        ATTENTION_BIAS, GRANITE, GROUPED_HEADS, HEAD_DIM, HEAD_DIM_128, HEADS, LIKE_LLAMA, LLAMA_SIZES, NO_BIASES,
        SILU, SILU_UNTIED, SIZES_WITHOUT_MLP, UNTIED, rms_eps,
    },
    variant_rows::ONLY_NEWER_ROPE,
    window,
};
use crate::config::{GptConfig, NormPosition, QkNormSpan};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "MixtralForCausalLM",
        model_type: "mixtral",
        base: || mixture(llama()),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &wide_experts::<8, 2>(N_LOCAL),
            &[
                kv_heads(8),
                HEAD_DIM,
                ConfigRow::Rope(&rope::MIXTRAL),
                rms_eps(1e-5),
                ConfigRow::Window(&window::PHI3),
                BALANCE_LOSS,
            ],
        ],
        fixed: NO_BIASES,
        names: names::MIXTRAL,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Qwen2MoeForCausalLM",
        model_type: "qwen2_moe",
        base: || mixture_with(GptConfig { qkv_bias: true, ..llama() }, |experts| experts.shared_gate = true),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(16),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                flag("qkv_bias", |c| &mut c.qkv_bias, true),
                ConfigRow::Window(&window::QWEN2_MOE),
            ],
            QWEN_EXPERTS,
            &expert_sizes::<60, 4, 1408>(N_EXPERTS),
            &[size_or(&["shared_expert_intermediate_size"], |c| &mut experts(c).shared_d_ff, |_| 5632)],
        ],
        names: names::QWEN_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        base: || mixture(GptConfig { qk_norm: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            &[
                kv_heads(4),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                ConfigRow::Window(&window::QWEN3_MOE),
            ],
            QWEN_EXPERTS,
            &expert_sizes::<128, 8, 768>(N_EXPERTS),
        ],
        names: names::QWEN_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "OlmoeForCausalLM",
        model_type: "olmoe",
        base: || mixture(GptConfig { qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &wide_experts::<64, 8>(N_EXPERTS),
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-5),
                ConfigRow::Window(&window::NONE),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, false),
                balance_loss(0.01),
            ],
        ],
        names: names::QWEN_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "GraniteMoeForCausalLM",
        model_type: "granitemoe",
        base: || mixture(llama()),
        config: &[LLAMA_SIZES, GRANITE, &wide_experts::<8, 2>(N_LOCAL), GRANITE_REST],
        names: names::GRANITE_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "GraniteMoeSharedForCausalLM",
        model_type: "granitemoeshared",
        base: || mixture(llama()),
        config: &[
            LLAMA_SIZES,
            GRANITE,
            &wide_experts::<8, 2>(N_LOCAL),
            GRANITE_REST,
            &[size_or(&["shared_intermediate_size"], |c| &mut experts(c).shared_d_ff, |_| 0)],
        ],
        names: names::GRANITE_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Glm4MoeForCausalLM",
        model_type: "glm4_moe",
        base: || corrected(llama()),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &expert_sizes::<128, 8, 1408>(N_ROUTED),
            &deepseek_router(true, 1.0),
            &[
                kv_heads(8),
                HEAD_DIM,
                ConfigRow::Rope(&rope::PHI),
                rms_eps(1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("use_qk_norm", |c| &mut c.qk_norm, false),
                ConfigRow::Window(&window::NONE),
                GROUPS,
                first_dense("first_k_dense_replace", 1),
            ],
        ],
        names: names::GLM_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Ernie4_5_MoeForCausalLM",
        model_type: "ernie4_5_moe",
        base: || mixture_with(llama(), |experts| experts.selection_bias = true),
        config: &[
            LLAMA_SIZES,
            SILU,
            &[
                kv_heads(4),
                HEAD_DIM,
                ConfigRow::Rope(&rope::COHERE),
                rms_eps(1e-5),
                flag("use_bias", |c| &mut c.qkv_bias, false),
                flag("use_bias", |c| &mut c.attn_out_bias, false),
                flag("use_bias", |c| &mut c.mlp_bias, false),
                flag("use_bias", |c| &mut c.lm_head_bias, false),
                UNBIASED_EXPERTS,
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::NONE),
                size_or(&["moe_num_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 64),
                size_or(&["moe_k", "num_experts_per_tok"], |c| &mut experts(c).n_active, |_| 6),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1536),
                shared_experts("moe_num_shared_experts", 2),
                ERNIE_LAYERS,
                BALANCE_LOSS,
            ],
        ],
        // A minimum of the sum of probabilities, which is never reached.
        fixed: &[("moe_norm_min", Fixed::Number(1e-12)), ("mlp_bias", Fixed::Flag(false))],
        names: names::ERNIE_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "GptOssForCausalLM",
        model_type: "gpt_oss",
        base: gpt_oss,
        config: &[
            LLAMA_SIZES,
            UNTIED,
            &[
                kv_heads(8),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 64),
                ConfigRow::Rope(&rope::GPT_OSS),
                rms_eps(1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, true),
                flag("attention_bias", |c| &mut c.attn_out_bias, true),
                ConfigRow::Window(&window::GPT_OSS),
                size_or(N_LOCAL, |c| &mut experts(c).n_experts, |_| 128),
                size_or(&["num_experts_per_tok", "experts_per_token"], |c| &mut experts(c).n_active, |_| 4),
                derived(|c| &mut experts(c).d_ff, |c| c.d_ff),
                CLAMPED_SWIGLU,
                BALANCE_LOSS,
            ],
        ],
        // The class has a fixed activation.
        fixed: &[("hidden_act", Fixed::Text("silu"))],
        names: names::GPT_OSS,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Dots1ForCausalLM",
        model_type: "dots1",
        base: || corrected(GptConfig { qk_norm: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            &[
                kv_heads(32),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                ConfigRow::Window(&window::DOTS1),
                size(N_ROUTED, |c| &mut experts(c).n_experts),
                size(&["num_experts_per_tok"], |c| &mut experts(c).n_active),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1408),
            ],
            &deepseek_router(false, 1.0),
            &[GROUPS, first_dense("first_k_dense_replace", 0)],
        ],
        names: names::GLM_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "MiniMaxM2ForCausalLM",
        model_type: "minimax_m2",
        base: || corrected(GptConfig { qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &wide_experts::<256, 8>(N_LOCAL),
            &[
                kv_heads(8),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::MINIMAX),
                ROTARY_WIDTH,
                rms_eps(1e-6),
                ConfigRow::Window(&window::NONE),
                BALANCE_LOSS,
            ],
        ],
        fixed: MINIMAX_M2_FIXED,
        names: names::MINIMAX_M2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "FlexOlmoForCausalLM",
        model_type: "flex_olmo",
        base: || mixture(olmo2()),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &wide_experts::<7, 5>(N_EXPERTS),
            &[
                ConfigRow::Rope(&rope::COHERE),
                rms_eps(1e-6),
                ConfigRow::Window(&window::NONE),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, false),
                balance_loss(0.01),
            ],
        ],
        names: names::FLEX_OLMO,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "ExaoneMoeForCausalLM",
        model_type: "exaone_moe",
        base: || corrected(GptConfig { qk_norm: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &expert_sizes::<64, 8, 1024>(N_EXPERTS),
            &[
                kv_heads(32),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-5),
                ConfigRow::Window(&window::EXAONE4),
                EXAONE4_ROTATION,
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 2.5),
                shared_experts("num_shared_experts", 1),
                GROUPS,
                EXAONE_LAYERS,
            ],
        ],
        fixed: NO_BIASES,
        names: names::EXAONE_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "HunYuanMoEV1ForCausalLM",
        model_type: "hunyuan_v1_moe",
        base: || mixture(GptConfig { qk_norm: true, qk_norm_after_rope: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[ConfigRow::Rope(&rope::HUNYUAN), rms_eps(1e-5), ConfigRow::Window(&window::NONE), HUNYUAN_EXPERTS],
        ],
        fixed: &[("use_qk_norm", Fixed::Flag(true)), ("mlp_bias", Fixed::Flag(false))],
        names: names::HUNYUAN_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "AfmoeForCausalLM",
        model_type: "afmoe",
        base: || {
            corrected(GptConfig {
                norm_position: NormPosition::Sandwich,
                qk_norm: true,
                attention_gate: true,
                ..llama()
            })
        },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &expert_sizes::<64, 6, 1408>(N_EXPERTS),
            &[
                GROUPED_HEADS,
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-5),
                flag("mup_enabled", |c| &mut c.scale_embeddings, false),
                ConfigRow::Window(&window::AFMOE),
                AFMOE_ROTATION,
                number("route_scale", |c| &mut experts(c).weight_multiplier, 1.0),
                shared_experts("num_shared_experts", 2),
                first_dense("num_dense_layers", 1),
            ],
        ],
        // The last keys are read by the code that comes with the released weights.
        fixed: &[
            ("attention_bias", Fixed::Flag(false)),
            ("mlp_bias", Fixed::Flag(false)),
            ("score_func", Fixed::Text("sigmoid")),
            ("route_norm", Fixed::Flag(true)),
            ("n_group", Fixed::Number(1.0)),
            ("topk_group", Fixed::Number(1.0)),
            ("num_expert_groups", Fixed::Number(1.0)),
            ("num_limited_groups", Fixed::Number(1.0)),
        ],
        names: names::AFMOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "MellumForCausalLM",
        model_type: "mellum",
        base: || mixture(GptConfig { qk_norm: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            &expert_sizes::<64, 8, 896>(N_EXPERTS),
            &[
                kv_heads(4),
                HEAD_DIM_128,
                ConfigRow::Window(&window::MELLUM),
                ConfigRow::Rope(&rope::MELLUM),
                ONLY_NEWER_ROPE,
                rms_eps(1e-6),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                MELLUM_LAYERS,
            ],
        ],
        names: names::QWEN_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "SolarOpenForCausalLM",
        model_type: "solar_open",
        base: || corrected(llama()),
        config: &[
            SIZES_WITHOUT_MLP,
            SILU_UNTIED,
            &expert_sizes::<128, 8, 1280>(N_ROUTED),
            &deepseek_router(true, 1.0),
            &[
                kv_heads(8),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::SOLAR),
                rms_eps(1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                ConfigRow::Window(&window::NONE),
                NO_MLP,
                GROUPS,
            ],
        ],
        fixed: &[("use_qk_norm", Fixed::Flag(false)), ("first_k_dense_replace", Fixed::Number(0.0))],
        names: names::GLM_MOE,
        ..LIKE_LLAMA
    },
];

/// The last ones are those of the code beside the released weights.
const MINIMAX_M2_FIXED: &[(&str, Fixed)] = &[
    ("attention_bias", Fixed::Flag(false)),
    ("mlp_bias", Fixed::Flag(false)),
    ("use_qk_norm", Fixed::Flag(true)),
    ("qk_norm_type", Fixed::Text("per_layer")),
    ("scoring_func", Fixed::Text("sigmoid")),
    ("use_routing_bias", Fixed::Flag(true)),
    ("shared_intermediate_size", Fixed::Nothing),
];

/// What Qwen's mixtures share.
const QWEN_EXPERTS: &[ConfigRow] =
    &[flag("norm_topk_prob", |c| &mut experts(c).normalized, false), QWEN_LAYERS, BALANCE_LOSS];

/// Granite's rotary positions, and the load-balancing loss of its experts.
const GRANITE_REST: &[ConfigRow] =
    &[ConfigRow::Rope(&rope::WHOLE_HEADS), ConfigRow::Window(&window::NONE), BALANCE_LOSS];
