//! Latent attention: DeepSeek and its successors, with experts or without.

use super::super::{
    Architecture, Fixed,
    bases::{corrected, deepseek, experts, latent, mixture_with},
    config_rows::{ConfigRow, flag, number, one_kv_head_each, size, size_or},
    expert_rows::{
        GLM_LITE_LAYERS, GROUPS, N_ROUTED, deepseek_router, expert_sizes, first_dense, groups, shared_experts,
    },
    latent_rows::{DEEPSEEK_HEADS, KV_HEADS, MINICPM3_VALUES, SCORES, V2_GROUPS, plain_dim, query_rank},
    names, rope,
    row_groups::{ATTENTION_BIAS, LIKE_LLAMA, LLAMA_SIZES, SILU, SILU_UNTIED, rms_eps},
    variant_rows::MINICPM3_SCALES,
    window,
};

const VALUES_128: ConfigRow = size_or(&["v_head_dim"], |c| &mut latent(c).value_dim, |_| 128);
const TIED: ConfigRow = flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true);
const INTERLEAVED: ConfigRow = flag("rope_interleave", |c| &mut latent(c).interleaved, true);

/// The end of each class's rows.
const ROTATION: &[ConfigRow] = &[ConfigRow::Rope(&rope::WHOLE_HEADS), SCORES, ConfigRow::Window(&window::NONE)];

/// Keys of the code that was published with the weights.
const V3_FIXED: &[(&str, Fixed)] = &[
    ("mlp_bias", Fixed::Flag(false)),
    ("scoring_func", Fixed::Text("sigmoid")),
    ("topk_method", Fixed::Text("noaux_tc")),
    ("moe_layer_freq", Fixed::Number(1.0)),
];

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "DeepseekV2ForCausalLM",
        model_type: "deepseek_v2",
        base: || mixture_with(deepseek(), |experts| experts.normalized = false),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &[
                plain_dim(128),
                VALUES_128,
                query_rank::<1536>(),
                rms_eps(1e-6),
                size_or(&["n_routed_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 64),
                size(&["num_experts_per_tok"], |c| &mut experts(c).n_active),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1407),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.0),
                shared_experts("n_shared_experts", 2),
                V2_GROUPS,
                first_dense("first_k_dense_replace", 0),
            ],
            ROTATION,
        ],
        fixed: &[
            ("mlp_bias", Fixed::Flag(false)),
            ("norm_topk_prob", Fixed::Flag(false)),
            ("scoring_func", Fixed::Text("softmax")),
            ("moe_layer_freq", Fixed::Number(1.0)),
        ],
        names: names::LATENT_MOE,
        ..LIKE_LLAMA
    },
    // Kimi K2 and Moonlight too.
    Architecture {
        class: "DeepseekV3ForCausalLM",
        model_type: "deepseek_v3",
        base: || corrected(deepseek()),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &expert_sizes::<256, 8, 2048>(N_ROUTED),
            &deepseek_router(true, 2.5),
            &[
                plain_dim(128),
                VALUES_128,
                query_rank::<1536>(),
                INTERLEAVED,
                rms_eps(1e-6),
                groups::<8, 4>(),
                first_dense("first_k_dense_replace", 3),
            ],
            ROTATION,
        ],
        fixed: V3_FIXED,
        names: names::LATENT_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Glm4MoeLiteForCausalLM",
        model_type: "glm4_moe_lite",
        base: || corrected(deepseek()),
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &expert_sizes::<64, 4, 1536>(N_ROUTED),
            &deepseek_router(true, 1.8),
            &[
                plain_dim(192),
                size_or(&["v_head_dim"], |c| &mut latent(c).value_dim, |_| 256),
                query_rank::<768>(),
                INTERLEAVED,
                rms_eps(1e-5),
                GROUPS,
                GLM_LITE_LAYERS,
            ],
            ROTATION,
        ],
        fixed: V3_FIXED,
        names: names::LATENT_MOE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "MiniCPM3ForCausalLM",
        model_type: "minicpm3",
        base: || {
            let mut config = deepseek();
            latent(&mut config).interleaved = false;
            config
        },
        config: &[
            LLAMA_SIZES,
            SILU,
            ATTENTION_BIAS,
            &[
                TIED,
                one_kv_head_each(),
                KV_HEADS,
                size_or(&["kv_lora_rank"], |c| &mut latent(c).kv_rank, |_| 256),
                size_or(&["qk_rope_head_dim"], |c| &mut latent(c).rope_dim, |_| 32),
                plain_dim(64),
                MINICPM3_VALUES,
                query_rank::<768>(),
                rms_eps(1e-5),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
            ],
            MINICPM3_SCALES,
            ROTATION,
        ],
        fixed: &[],
        names: names::LATENT,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "YoutuForCausalLM",
        model_type: "youtu",
        base: deepseek,
        config: &[
            LLAMA_SIZES,
            SILU,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &[TIED, plain_dim(128), VALUES_128, query_rank::<1536>(), INTERLEAVED, rms_eps(1e-6)],
            ROTATION,
        ],
        names: names::LATENT,
        ..LIKE_LLAMA
    },
];
