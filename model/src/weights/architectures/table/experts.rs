//! Mixtures of experts: Llama's blocks with routed experts in place of the MLP.

use super::super::{
    Architecture, Fixed,
    bases::{experts, gpt_oss, llama, mixture, mixture_with},
    config_rows::{ACTIVATIONS, ConfigRow, EXAONE4_ROTATION, derived, flag, head_dim, kv_heads, number, size, size_or},
    expert_rows::{
        AFMOE_ROTATION, AFMOE_SHARED, BALANCE_LOSS, CLAMPED_SWIGLU, ERNIE_LAYERS, ERNIE_SHARED, FIRST_DENSE,
        FIRST_DENSE_OF_AFMOE, GLM_SHARED, GROUPS, MELLUM_LAYERS, QWEN_LAYERS, balance_loss,
    },
    names, rope,
    row_groups::{GRANITE, LLAMA_SIZES},
    variant_rows::ONLY_NEWER_ROPE,
    window,
};
use crate::config::{GptConfig, NormPosition, QkNormSpan, RouterScores};

const SILU: ConfigRow = ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" };
const TIED: ConfigRow = flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false);
const N_EXPERTS: &[&str] = &["num_experts", "num_local_experts"];
const N_ACTIVE: &[&str] = &["num_experts_per_tok"];

/// The experts are as wide as the key for the MLP says, which no layer has.
const EXPERTS_ARE_AS_WIDE: ConfigRow = derived(|c| &mut experts(c).d_ff, |c| c.d_ff);

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "MixtralForCausalLM",
        model_type: "mixtral",
        base: || mixture(llama()),
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(8),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::MIXTRAL),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                TIED,
                ConfigRow::Window(&window::PHI3),
                size_or(&["num_local_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 8),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 2),
                EXPERTS_ARE_AS_WIDE,
                BALANCE_LOSS,
            ],
        ],
        fixed: &[("attention_bias", Fixed::Flag(false)), ("mlp_bias", Fixed::Flag(false))],
        names: names::MIXTRAL,
        base_prefix: "model.",
    },
    Architecture {
        class: "Qwen2MoeForCausalLM",
        model_type: "qwen2_moe",
        base: || mixture_with(GptConfig { qkv_bias: true, ..llama() }, |experts| experts.shared_gate = true),
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(16),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("qkv_bias", |c| &mut c.qkv_bias, true),
                TIED,
                ConfigRow::Window(&window::QWEN),
            ],
            QWEN_EXPERTS,
            &[
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 60),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 4),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1408),
                size_or(&["shared_expert_intermediate_size"], |c| &mut experts(c).shared_d_ff, |_| 5632),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::QWEN_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        base: || mixture(GptConfig { qk_norm: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(4),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                TIED,
                ConfigRow::Window(&window::QWEN3_MOE),
            ],
            QWEN_EXPERTS,
            &[
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 128),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 768),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::QWEN_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "OlmoeForCausalLM",
        model_type: "olmoe",
        base: || mixture(GptConfig { qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() }),
        config: &[
            LLAMA_SIZES,
            &[
                size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                TIED,
                ConfigRow::Window(&window::NONE),
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 64),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
                EXPERTS_ARE_AS_WIDE,
                flag("norm_topk_prob", |c| &mut experts(c).normalized, false),
                balance_loss(0.01),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::QWEN_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "GraniteMoeForCausalLM",
        model_type: "granitemoe",
        base: || mixture(llama()),
        config: &[LLAMA_SIZES, GRANITE, GRANITE_EXPERTS],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::GRANITE_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "GraniteMoeSharedForCausalLM",
        model_type: "granitemoeshared",
        base: || mixture(llama()),
        config: &[
            LLAMA_SIZES,
            GRANITE,
            GRANITE_EXPERTS,
            &[size_or(&["shared_intermediate_size"], |c| &mut experts(c).shared_d_ff, |_| 0)],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::GRANITE_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "Glm4MoeForCausalLM",
        model_type: "glm4_moe",
        base: deepseek_experts,
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(8),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::PHI),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("use_qk_norm", |c| &mut c.qk_norm, false),
                TIED,
                ConfigRow::Window(&window::NONE),
                size_or(&["n_routed_experts", "num_local_experts"], |c| &mut experts(c).n_experts, |_| 128),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1408),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.0),
                GLM_SHARED,
                GROUPS,
                FIRST_DENSE,
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::GLM_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "Ernie4_5_MoeForCausalLM",
        model_type: "ernie4_5_moe",
        base: || mixture_with(llama(), |experts| experts.selection_bias = true),
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(4),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::COHERE),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("use_bias", |c| &mut c.qkv_bias, false),
                flag("use_bias", |c| &mut c.attn_out_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::NONE),
                size_or(&["moe_num_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 64),
                size_or(&["moe_k", "num_experts_per_tok"], |c| &mut experts(c).n_active, |_| 6),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1536),
                ERNIE_SHARED,
                ERNIE_LAYERS,
                BALANCE_LOSS,
            ],
        ],
        // Of probabilities, whose sum is never as small.
        fixed: &[("moe_norm_min", Fixed::Number(1e-12)), ("mlp_bias", Fixed::Flag(false))],
        names: names::ERNIE_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "AfmoeForCausalLM",
        model_type: "afmoe",
        base: || {
            let llama =
                GptConfig { norm_position: NormPosition::Sandwich, qk_norm: true, attention_gate: true, ..llama() };
            mixture_with(llama, |experts| {
                experts.scores = RouterScores::Sigmoid;
                experts.selection_bias = true;
            })
        },
        config: &[
            LLAMA_SIZES,
            &[
                size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("mup_enabled", |c| &mut c.scale_embeddings, false),
                TIED,
                ConfigRow::Window(&window::AFMOE),
                AFMOE_ROTATION,
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 64),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 6),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1408),
                number("route_scale", |c| &mut experts(c).weight_multiplier, 1.0),
                AFMOE_SHARED,
                FIRST_DENSE_OF_AFMOE,
            ],
        ],
        // The last ones are those of the code beside the released weights.
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
        base_prefix: "model.",
    },
    Architecture {
        class: "MellumForCausalLM",
        model_type: "mellum",
        base: || mixture(GptConfig { qk_norm: true, ..llama() }),
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(4),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128),
                ConfigRow::Window(&window::MELLUM),
                ConfigRow::Rope(&rope::MELLUM),
                ONLY_NEWER_ROPE,
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                TIED,
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 64),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 896),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                MELLUM_LAYERS,
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::QWEN_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "GptOssForCausalLM",
        model_type: "gpt_oss",
        base: gpt_oss,
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(8),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 64),
                ConfigRow::Rope(&rope::GPT_OSS),
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, true),
                flag("attention_bias", |c| &mut c.attn_out_bias, true),
                TIED,
                ConfigRow::Window(&window::GPT_OSS),
                size_or(&["num_local_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 128),
                size_or(&["num_experts_per_tok", "experts_per_token"], |c| &mut experts(c).n_active, |_| 4),
                EXPERTS_ARE_AS_WIDE,
                CLAMPED_SWIGLU,
                BALANCE_LOSS,
            ],
        ],
        // The class has its own activation.
        fixed: &[("hidden_act", Fixed::Text("silu"))],
        names: names::GPT_OSS,
        base_prefix: "model.",
    },
    Architecture {
        class: "SolarOpenForCausalLM",
        model_type: "solar_open",
        base: deepseek_experts,
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
            size(&["num_hidden_layers"], |c| &mut c.n_layers),
            size(&["num_attention_heads"], |c| &mut c.n_heads),
            size(&["hidden_size"], |c| &mut c.d_model),
            kv_heads(8),
            size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128),
            ConfigRow::Rope(&rope::SOLAR),
            SILU,
            number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
            flag("attention_bias", |c| &mut c.qkv_bias, false),
            TIED,
            ConfigRow::Window(&window::NONE),
            size_or(&["n_routed_experts", "num_local_experts"], |c| &mut experts(c).n_experts, |_| 128),
            size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
            size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1280),
            // No layer has an MLP without experts.
            derived(|c| &mut c.d_ff, |c| c.experts.as_ref().map_or(0, |experts| experts.d_ff)),
            flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
            number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.0),
            GLM_SHARED,
            GROUPS,
        ]],
        fixed: &[("use_qk_norm", Fixed::Flag(false)), ("first_k_dense_replace", Fixed::Number(0.0))],
        names: names::GLM_MOE,
        base_prefix: "model.",
    },
    // K-EXAONE.
    Architecture {
        class: "ExaoneMoeForCausalLM",
        model_type: "exaone_moe",
        base: || GptConfig { qk_norm: true, ..deepseek_experts() },
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(32),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                SILU,
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                TIED,
                ConfigRow::Window(&window::EXAONE4),
                EXAONE4_ROTATION,
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 64),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1024),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 2.5),
                EXAONE_SHARED,
                GROUPS,
                GLM_LITE_LAYERS,
            ],
        ],
        fixed: &[("attention_bias", Fixed::Flag(false)), ("mlp_bias", Fixed::Flag(false))],
        names: names::EXAONE_MOE,
        base_prefix: "model.",
    },
];

/// What Qwen's mixtures share.
const QWEN_EXPERTS: &[ConfigRow] =
    &[flag("norm_topk_prob", |c| &mut experts(c).normalized, false), QWEN_LAYERS, BALANCE_LOSS];

/// Granite's rotary positions and experts.
const GRANITE_EXPERTS: &[ConfigRow] = &[
    ConfigRow::Rope(&rope::WHOLE_HEADS),
    ConfigRow::Window(&window::NONE),
    size_or(&["num_local_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 8),
    size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 2),
    EXPERTS_ARE_AS_WIDE,
    BALANCE_LOSS,
];

/// Scores as in DeepSeek V3.
fn deepseek_experts() -> GptConfig {
    mixture_with(llama(), |experts| {
        experts.scores = RouterScores::Sigmoid;
        experts.selection_bias = true;
    })
}
