//! Variants of Llama with one or two differences, such as an MLP without a gate or another pairing of rotated
//! dimensions.

use super::super::{
    Architecture, Fixed,
    bases::llama,
    config_rows::{ACTIVATIONS, ConfigRow, derived, flag, head_dim, kv_heads, number, size},
    names, rope,
    row_groups::{
        ATTENTION_BIAS, GLM, GROUPED_HEADS, HEAD_DIM, HEAD_DIM_128, HEADS, LIKE_LLAMA, LLAMA_SIZES, NO_BIASES, SILU,
        SILU_UNTIED, UNTIED, rms_eps,
    },
    variant_rows::{CWM_BOS, EXAONE_EPS, HUNYUAN_DENSE, INTERNLM3_BIASES, MINICPM_SCALES, MINISTRAL3_TEMPERATURE},
    window,
};
use crate::config::{GptConfig, NormKind};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "MinistralForCausalLM",
        model_type: "ministral",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(8),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                ConfigRow::Window(&window::MINISTRAL),
            ],
        ],
        fixed: NO_BIASES,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Ministral3ForCausalLM",
        model_type: "ministral3",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(8),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::MINISTRAL3),
                MINISTRAL3_TEMPERATURE,
                rms_eps(1e-5),
                ConfigRow::Window(&window::PHI3),
            ],
        ],
        fixed: NO_BIASES,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Ernie4_5ForCausalLM",
        model_type: "ernie4_5",
        config: &[
            LLAMA_SIZES,
            SILU,
            &[
                kv_heads(2),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::COHERE),
                rms_eps(1e-5),
                flag("use_bias", |c| &mut c.qkv_bias, false),
                flag("use_bias", |c| &mut c.attn_out_bias, false),
                flag("use_bias", |c| &mut c.mlp_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: NO_BIASES,
        names: names::INTERLEAVED,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "GlmForCausalLM",
        model_type: "glm",
        config: &[LLAMA_SIZES, SILU_UNTIED, GLM],
        names: names::GLM,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "HunYuanDenseV1ForCausalLM",
        model_type: "hunyuan_v1_dense",
        base: || GptConfig { qk_norm: true, qk_norm_after_rope: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[ConfigRow::Rope(&rope::HUNYUAN), rms_eps(1e-5), HUNYUAN_DENSE, ConfigRow::Window(&window::NONE)],
        ],
        names: names::HUNYUAN,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "SeedOssForCausalLM",
        model_type: "seed_oss",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(8),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                number("residual_dropout", |c| &mut c.dropout, 0.1),
                flag("attention_bias", |c| &mut c.qkv_bias, true),
                flag("attention_out_bias", |c| &mut c.attn_out_bias, false),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "ApertusForCausalLM",
        model_type: "apertus",
        base: || GptConfig { qk_norm: true, gated_mlp: false, xielu: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[ConfigRow::Rope(&rope::STATED), rms_eps(1e-5), ConfigRow::Window(&window::NONE)],
        ],
        fixed: &[("hidden_act", Fixed::Text("xielu")), ("mlp_bias", Fixed::Flag(false))],
        names: names::APERTUS,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "ArceeForCausalLM",
        model_type: "arcee",
        base: || GptConfig { gated_mlp: false, ..llama() },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "relu2" },
                rms_eps(1e-5),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::UNGATED,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "NemotronForCausalLM",
        model_type: "nemotron",
        base: || GptConfig {
            norm: NormKind::LayerNorm,
            norm_bias: true,
            norm_weight_offset: 1.0,
            gated_mlp: false,
            ..llama()
        },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[
                ConfigRow::Rope(&rope::PHI),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "relu2" },
                number("norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::UNGATED,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "OlmoForCausalLM",
        model_type: "olmo",
        base: || GptConfig { norm: NormKind::LayerNorm, norm_weight: false, norm_eps: 1e-5, ..llama() },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Cap { key: "clip_qkv", of: |c| &mut c.clip_qkv, absent: None },
                ConfigRow::Window(&window::NONE),
            ],
        ],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "HeliumForCausalLM",
        model_type: "helium",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(20),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::HELIUM),
                rms_eps(1e-8),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::INTERLEAVED,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "CwmForCausalLM",
        model_type: "cwm",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(8),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::STATED),
                rms_eps(1e-5),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::CWM),
                CWM_BOS,
            ],
        ],
        fixed: &[("attention_bias", Fixed::Flag(false))],
        ..LIKE_LLAMA
    },
    // Its code comes with its released weights: transformers has no such class.
    Architecture {
        class: "MiniCPMForCausalLM",
        model_type: "minicpm",
        config: &[
            LLAMA_SIZES,
            SILU,
            ATTENTION_BIAS,
            &[
                GROUPED_HEADS,
                derived(|c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::NONE),
            ],
            MINICPM_SCALES,
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false)), ("sparse_config", Fixed::Nothing)],
        ..LIKE_LLAMA
    },
    // EXAONE 3. Transformers computes both of these as Llama.
    Architecture {
        class: "ExaoneForCausalLM",
        model_type: "exaone",
        base: llama,
        config: &[
            &[
                size(&["vocab_size"], |c| &mut c.vocab_size),
                size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
                size(&["num_hidden_layers", "num_layers"], |c| &mut c.n_layers),
                size(&["num_attention_heads"], |c| &mut c.n_heads),
                size(&["hidden_size"], |c| &mut c.d_model),
                size(&["intermediate_size"], |c| &mut c.d_ff),
            ],
            SILU_UNTIED,
            &[kv_heads(8), HEAD_DIM, ConfigRow::Rope(&rope::COHERE), EXAONE_EPS, ConfigRow::Window(&window::NONE)],
        ],
        fixed: &[
            ("attention_bias", Fixed::Flag(false)),
            ("mlp_bias", Fixed::Flag(false)),
            ("activation_function", Fixed::Text("silu")),
        ],
        names: names::EXAONE,
        base_prefix: "",
    },
    Architecture {
        class: "InternLM3ForCausalLM",
        model_type: "internlm3",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(2),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-5),
                INTERNLM3_BIASES,
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        ..LIKE_LLAMA
    },
];
