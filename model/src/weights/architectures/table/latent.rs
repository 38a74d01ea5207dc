//! Latent attention: DeepSeek's and what follows it, with experts or without.

use super::super::{
    Architecture, Fixed,
    bases::{deepseek, experts, latent, mixture_with},
    config_rows::{ConfigRow, flag, number, one_kv_head_each, size, size_or},
    expert_rows::{
        FIRST_DENSE_OF_V2, FIRST_DENSE_OF_V3, GLM_LITE_LAYERS, GLM_SHARED, GROUPS, GROUPS_OF_V3, SHARED_OF_V2,
    },
    latent_rows::{
        DEEPSEEK_HEADS, KV_HEADS, MINICPM3_VALUES, PLAIN_64, PLAIN_128, PLAIN_192, QUERIES_768, QUERIES_1536, SCORES,
        V2_GROUPS,
    },
    names, rope,
    row_groups::{ATTENTION_BIAS, LLAMA_SIZES, SILU, UNTIED},
    variant_rows::MINICPM3_SCALES,
    window,
};
use crate::config::{GptConfig, RouterScores};

const EPS: ConfigRow = number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6);
const EPS_5: ConfigRow = number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5);
const VALUES_128: ConfigRow = size_or(&["v_head_dim"], |c| &mut latent(c).value_dim, |_| 128);
const TIED: ConfigRow = flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true);
const INTERLEAVED: ConfigRow = flag("rope_interleave", |c| &mut latent(c).interleaved, true);
const N_ACTIVE: &[&str] = &["num_experts_per_tok"];
const N_EXPERTS: &[&str] = &["n_routed_experts", "num_local_experts"];

/// The end of each class's rows.
const ROTATION: &[ConfigRow] = &[ConfigRow::Rope(&rope::WHOLE_HEADS), SCORES, ConfigRow::Window(&window::NONE)];

/// The rest of DeepSeek V3's experts, for which their width must be known.
const V3_ROUTER: &[ConfigRow] = &[flag("norm_topk_prob", |c| &mut experts(c).normalized, true), GLM_SHARED];

/// Keys of the code that was published with the weights.
const V3_FIXED: &[(&str, Fixed)] = &[
    ("mlp_bias", Fixed::Flag(false)),
    ("scoring_func", Fixed::Text("sigmoid")),
    ("topk_method", Fixed::Text("noaux_tc")),
    ("moe_layer_freq", Fixed::Number(1.0)),
];

fn v3() -> GptConfig {
    mixture_with(deepseek(), |experts| {
        experts.scores = RouterScores::Sigmoid;
        experts.selection_bias = true;
    })
}

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "DeepseekV2ForCausalLM",
        model_type: "deepseek_v2",
        base: || mixture_with(deepseek(), |experts| experts.normalized = false),
        config: &[
            LLAMA_SIZES,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &[
                PLAIN_128,
                VALUES_128,
                QUERIES_1536,
                EPS,
                size_or(&["n_routed_experts", "num_experts"], |c| &mut experts(c).n_experts, |_| 64),
                size(N_ACTIVE, |c| &mut experts(c).n_active),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1407),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.0),
                SHARED_OF_V2,
                V2_GROUPS,
                FIRST_DENSE_OF_V2,
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
        base_prefix: "model.",
    },
    // Kimi K2 and Moonlight too.
    Architecture {
        class: "DeepseekV3ForCausalLM",
        model_type: "deepseek_v3",
        base: v3,
        config: &[
            LLAMA_SIZES,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &[
                PLAIN_128,
                VALUES_128,
                QUERIES_1536,
                INTERLEAVED,
                EPS,
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 256),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 8),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 2048),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 2.5),
                GROUPS_OF_V3,
                FIRST_DENSE_OF_V3,
            ],
            V3_ROUTER,
            ROTATION,
        ],
        fixed: V3_FIXED,
        names: names::LATENT_MOE,
        base_prefix: "model.",
    },
    Architecture {
        class: "Glm4MoeLiteForCausalLM",
        model_type: "glm4_moe_lite",
        base: v3,
        config: &[
            LLAMA_SIZES,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            DEEPSEEK_HEADS,
            &[
                PLAIN_192,
                size_or(&["v_head_dim"], |c| &mut latent(c).value_dim, |_| 256),
                QUERIES_768,
                INTERLEAVED,
                EPS_5,
                size_or(N_EXPERTS, |c| &mut experts(c).n_experts, |_| 64),
                size_or(N_ACTIVE, |c| &mut experts(c).n_active, |_| 4),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1536),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.8),
                GROUPS,
                GLM_LITE_LAYERS,
            ],
            V3_ROUTER,
            ROTATION,
        ],
        fixed: V3_FIXED,
        names: names::LATENT_MOE,
        base_prefix: "model.",
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
                PLAIN_64,
                MINICPM3_VALUES,
                QUERIES_768,
                EPS_5,
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
            ],
            MINICPM3_SCALES,
            ROTATION,
        ],
        fixed: &[],
        names: names::LATENT,
        base_prefix: "model.",
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
            &[TIED, PLAIN_128, VALUES_128, QUERIES_1536, INTERLEAVED, EPS],
            ROTATION,
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::LATENT,
        base_prefix: "model.",
    },
];
