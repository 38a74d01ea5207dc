//! Llama and its kin: RMSNorm before each part, a gated MLP, rotary positions.

use super::super::{
    Architecture,
    bases::{llama, nanochat},
    config_rows::{ACTIVATIONS, ConfigRow, NO_ROPE_LAYERS, flag, kv_heads, number},
    names, rope,
    row_groups::{
        ATTENTION_BIAS, GRANITE, HEAD_DIM, HEAD_DIM_128, HEADS, LIKE_LLAMA, LLAMA_SIZES, NO_BIASES, SILU, SILU_UNTIED,
        UNTIED, rms_eps,
    },
    variant_rows::NANOCHAT_NORMS,
    window,
};
use crate::config::GptConfig;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "LlamaForCausalLM",
        model_type: "llama",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "MistralForCausalLM",
        model_type: "mistral",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(8),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                ConfigRow::Window(&window::MISTRAL),
            ],
        ],
        fixed: NO_BIASES,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        base: || GptConfig { qkv_bias: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(32),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                ConfigRow::Window(&window::QWEN),
            ],
        ],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        base: || GptConfig { qk_norm: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            &[
                kv_heads(32),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                ConfigRow::Window(&window::QWEN),
            ],
        ],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "NanoChatForCausalLM",
        model_type: "nanochat",
        base: nanochat,
        config: &[
            LLAMA_SIZES,
            UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                NANOCHAT_NORMS,
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "relu2" },
                rms_eps(1e-6),
                ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: Some(15.0) },
                ConfigRow::Window(&window::NONE),
            ],
        ],
        names: names::NANOCHAT,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        base: || GptConfig { tie_embeddings: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            SILU,
            ATTENTION_BIAS,
            &[
                kv_heads(4),
                HEAD_DIM,
                ConfigRow::Rope(&rope::SMOLLM3),
                NO_ROPE_LAYERS,
                rms_eps(1e-6),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::SMOLLM3),
            ],
        ],
        fixed: &[],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "GraniteForCausalLM",
        model_type: "granite",
        config: &[
            LLAMA_SIZES,
            GRANITE,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Phi3ForCausalLM",
        model_type: "phi3",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            HEADS,
            &[
                ConfigRow::Rope(&rope::PHI3),
                rms_eps(1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.0),
                number("resid_pdrop", |c| &mut c.dropout, 0.0),
                ConfigRow::Window(&window::PHI3),
            ],
        ],
        fixed: NO_BIASES,
        names: names::PHI3,
        ..LIKE_LLAMA
    },
];
