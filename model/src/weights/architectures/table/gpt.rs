//! GPT-2 and its successors until Llama: LayerNorm, biases, mostly an MLP without a gate.

use super::super::{
    Architecture, Fixed,
    bases::{gpt2, llama, shared_norm},
    config_rows::{
        ACTIVATIONS, ConfigRow, constant, derived, flag, head_dim, kv_heads, number, one_kv_head_each, size, size_or,
    },
    gpt_rows::{
        BIGCODE_KV_HEADS, BLOOM_SLICES, CODEGEN_WIDTH, CTRL_FINAL_NORM_EPS, FALCON_BLOCKS, GPT_NEO_WINDOWS,
        GPTJ_ROTARY_DIM, MPT_ATTENTION, OPT_EMBEDDING_WIDTH, OPT_NORMS,
    },
    names, rope,
    row_groups::{
        GPT1_ACTIVATIONS, GPT2_SIZES, HEAD_DIM, HEADS, LIKE_GPT2, LIKE_LLAMA, LLAMA_SIZES, ONLY_HEAD_DIM, SILU_UNTIED,
        UNTIED, layer_norm_eps,
    },
    variant_rows::NORM_OF_EACH_HEAD,
    window,
};
use crate::config::{Activation, GptConfig, NormKind, NormPosition, Positions};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "GPT2LMHeadModel",
        model_type: "gpt2",
        config: &[
            GPT2_SIZES,
            &[
                size_or(&["n_inner"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_new" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                constant("attn_pdrop", 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        ..LIKE_GPT2
    },
    Architecture {
        class: "GPTNeoXForCausalLM",
        model_type: "gpt_neox",
        base: || GptConfig { tie_embeddings: false, ..gpt2() },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            &[
                one_kv_head_each(),
                ONLY_HEAD_DIM,
                ConfigRow::Rope(&rope::NEOX),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu" },
                layer_norm_eps(1e-5),
                number("hidden_dropout", |c| &mut c.dropout, 0.0),
                flag("attention_bias", |c| &mut c.qkv_bias, true),
                flag("attention_bias", |c| &mut c.attn_out_bias, true),
                flag("use_parallel_residual", |c| &mut c.parallel_residual, true),
            ],
        ],
        fixed: &[],
        names: names::NEOX,
        base_prefix: "gpt_neox.",
    },
    Architecture {
        class: "StableLmForCausalLM",
        model_type: "stablelm",
        base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(32),
                ONLY_HEAD_DIM,
                ConfigRow::Rope(&rope::STABLELM),
                layer_norm_eps(1e-5),
                number("hidden_dropout", |c| &mut c.dropout, 0.0),
                flag("use_parallel_residual", |c| &mut c.parallel_residual, false),
                flag("use_parallel_residual", |c| &mut c.shared_norm, false),
                flag("qk_layernorm", |c| &mut c.qk_norm, false),
                NORM_OF_EACH_HEAD,
                flag("use_qkv_bias", |c| &mut c.qkv_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::STABLELM,
        ..LIKE_LLAMA
    },
    // Scores are not scaled.
    Architecture {
        class: "GPTNeoForCausalLM",
        model_type: "gpt_neo",
        base: || GptConfig { qkv_bias: false, attention_scale: Some(1.0), ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
            size(&["num_layers", "num_hidden_layers"], |c| &mut c.n_layers),
            size(&["num_heads", "num_attention_heads"], |c| &mut c.n_heads),
            size(&["hidden_size"], |c| &mut c.d_model),
            size_or(&["intermediate_size"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
            one_kv_head_each(),
            derived(|c| &mut c.head_dim, head_dim),
            GPT_NEO_WINDOWS,
            ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_new" },
            number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
            number("embed_dropout", |c| &mut c.dropout, 0.0),
            number("resid_dropout", |c| &mut c.dropout, 0.0),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
        ]],
        names: names::GPT_NEO,
        ..LIKE_GPT2
    },
    Architecture {
        class: "Jais2ForCausalLM",
        model_type: "jais2",
        base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, gated_mlp: false, ..llama() },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            HEADS,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "relu2" },
                layer_norm_eps(1e-5),
                flag("attention_bias", |c| &mut c.qkv_bias, true),
                flag("attention_bias", |c| &mut c.attn_out_bias, true),
                flag("mlp_bias", |c| &mut c.mlp_bias, true),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::UNGATED,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Starcoder2ForCausalLM",
        model_type: "starcoder2",
        base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, gated_mlp: false, ..llama() },
        config: &[
            LLAMA_SIZES,
            &[
                size(&["num_key_value_heads"], |c| &mut c.n_kv_heads),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu_pytorch_tanh" },
                number("norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                flag("use_bias", |c| &mut c.qkv_bias, true),
                flag("use_bias", |c| &mut c.attn_out_bias, true),
                flag("use_bias", |c| &mut c.mlp_bias, true),
                number("residual_dropout", |c| &mut c.dropout, 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::PHI3),
            ],
        ],
        fixed: &[],
        names: names::STARCODER2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "PhiForCausalLM",
        model_type: "phi",
        base: || GptConfig { tie_embeddings: false, lm_head_bias: true, ..shared_norm() },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            HEADS,
            &[
                ConfigRow::Rope(&rope::PHI),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu_new" },
                layer_norm_eps(1e-5),
                flag("qk_layernorm", |c| &mut c.qk_norm, false),
                flag("qk_layernorm", |c| &mut c.qk_norm_bias, false),
                number("embd_pdrop", |c| &mut c.dropout, 0.0),
                number("resid_pdrop", |c| &mut c.dropout, 0.0),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::PHI,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "GPTJForCausalLM",
        model_type: "gptj",
        base: gptj,
        config: &[GPT2_SIZES, GPTJ],
        names: names::GPTJ,
        ..LIKE_GPT2
    },
    Architecture {
        class: "CodeGenForCausalLM",
        model_type: "codegen",
        base: gptj,
        config: &[GPT2_SIZES, &[CODEGEN_WIDTH], GPTJ],
        names: names::CODEGEN,
        ..LIKE_GPT2
    },
    Architecture {
        class: "PersimmonForCausalLM",
        model_type: "persimmon",
        base: || GptConfig { positions: llama().positions, tie_embeddings: false, ..gpt2() },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            &[
                one_kv_head_each(),
                ONLY_HEAD_DIM,
                ConfigRow::Rope(&rope::PHI),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "relu2" },
                layer_norm_eps(1e-5),
                flag("qk_layernorm", |c| &mut c.qk_norm, true),
                flag("qk_layernorm", |c| &mut c.qk_norm_bias, true),
                number("hidden_dropout", |c| &mut c.dropout, 0.0),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::PERSIMMON,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "MptForCausalLM",
        model_type: "mpt",
        base: || GptConfig {
            positions: Positions::Alibi,
            norm_bias: false,
            activation: Activation::Gelu,
            qkv_bias: false,
            attn_out_bias: false,
            mlp_bias: false,
            ..gpt2()
        },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size_or(&["max_seq_len"], |c| &mut c.max_seq_len, |_| 2048),
            size(&["n_layers"], |c| &mut c.n_layers),
            size(&["n_heads"], |c| &mut c.n_heads),
            size(&["d_model"], |c| &mut c.d_model),
            derived(|c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
            one_kv_head_each(),
            derived(|c| &mut c.head_dim, head_dim),
            number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            MPT_ATTENTION,
        ]],
        fixed: &[("expansion_ratio", Fixed::Number(4.0)), ("no_bias", Fixed::Flag(true))],
        names: names::MPT,
        ..LIKE_GPT2
    },
    Architecture {
        class: "GPTBigCodeForCausalLM",
        model_type: "gpt_bigcode",
        config: &[
            GPT2_SIZES,
            &[
                BIGCODE_KV_HEADS,
                size_or(&["n_inner"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_pytorch_tanh" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                constant("attn_pdrop", 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        names: names::BIGCODE,
        ..LIKE_GPT2
    },
    Architecture {
        class: "FalconForCausalLM",
        model_type: "falcon",
        base: || GptConfig { positions: llama().positions, ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size_or(&["max_position_embeddings"], |c| &mut c.max_seq_len, |_| 2048),
            size(&["num_hidden_layers", "n_layer"], |c| &mut c.n_layers),
            size(&["num_attention_heads", "n_head"], |c| &mut c.n_heads),
            size(&["hidden_size", "n_embed"], |c| &mut c.d_model),
            size_or(&["ffn_hidden_size"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
            derived(|c| &mut c.head_dim, head_dim),
            FALCON_BLOCKS,
            ConfigRow::Rope(&rope::WHOLE_HEADS),
            ConfigRow::Activation { key: "activation", names: ACTIVATIONS, absent: "gelu" },
            number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
            number("hidden_dropout", |c| &mut c.dropout, 0.0),
            flag("bias", |c| &mut c.qkv_bias, false),
            flag("bias", |c| &mut c.attn_out_bias, false),
            flag("bias", |c| &mut c.mlp_bias, false),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
        ]],
        // Not supported: Falcon multiplies ALiBi's bias by the scale of the scores too.
        fixed: &[("alibi", Fixed::Flag(false))],
        names: names::FALCON,
        ..LIKE_GPT2
    },
    Architecture {
        class: "OPTForCausalLM",
        model_type: "opt",
        base: || GptConfig { norm_eps: 1e-5, ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
            size(&["num_hidden_layers"], |c| &mut c.n_layers),
            size(&["num_attention_heads"], |c| &mut c.n_heads),
            size(&["hidden_size"], |c| &mut c.d_model),
            size(&["ffn_dim"], |c| &mut c.d_ff),
            one_kv_head_each(),
            derived(|c| &mut c.head_dim, head_dim),
            ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "relu" },
            number("dropout", |c| &mut c.dropout, 0.1),
            flag("enable_bias", |c| &mut c.qkv_bias, true),
            flag("enable_bias", |c| &mut c.attn_out_bias, true),
            flag("enable_bias", |c| &mut c.mlp_bias, true),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            OPT_NORMS,
            OPT_EMBEDDING_WIDTH,
        ]],
        fixed: &[("layer_norm_elementwise_affine", Fixed::Flag(true))],
        names: names::OPT,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "BloomForCausalLM",
        model_type: "bloom",
        base: || GptConfig { positions: Positions::Alibi, embed_norm: true, ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            // ALiBi sets no limit; this is the training length, if the file states it.
            size_or(&["seq_length"], |c| &mut c.max_seq_len, |_| 2048),
            size(&["n_layer", "num_hidden_layers"], |c| &mut c.n_layers),
            size(&["n_head", "num_attention_heads"], |c| &mut c.n_heads),
            size(&["hidden_size", "n_embed"], |c| &mut c.d_model),
            derived(|c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
            one_kv_head_each(),
            derived(|c| &mut c.head_dim, head_dim),
            number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
            number("hidden_dropout", |c| &mut c.dropout, 0.0),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            BLOOM_SLICES,
        ]],
        fixed: &[("apply_residual_connection_post_layernorm", Fixed::Flag(false))],
        names: names::BLOOM,
        ..LIKE_GPT2
    },
    Architecture {
        class: "OpenAIGPTLMHeadModel",
        model_type: "openai-gpt",
        base: || GptConfig { norm_position: NormPosition::Post, final_norm: false, ..gpt2() },
        config: &[
            GPT2_SIZES,
            &[
                derived(|c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                ConfigRow::Activation { key: "afn", names: GPT1_ACTIVATIONS, absent: "gelu" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                constant("attn_pdrop", 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        names: names::GPT1,
        ..LIKE_GPT2
    },
    Architecture {
        class: "CTRLLMHeadModel",
        model_type: "ctrl",
        base: || GptConfig {
            positions: Positions::Sinusoidal,
            scale_embeddings: true,
            activation: Activation::Relu,
            lm_head_bias: true,
            norm_eps: 1e-6,
            ..gpt2()
        },
        config: &[
            GPT2_SIZES,
            &[
                size(&["dff"], |c| &mut c.d_ff),
                CTRL_FINAL_NORM_EPS,
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        names: names::CTRL,
        ..LIKE_GPT2
    },
];

fn gptj() -> GptConfig {
    GptConfig { qkv_bias: false, attn_out_bias: false, tie_embeddings: false, lm_head_bias: true, ..shared_norm() }
}

/// Rows that GPT-J and CodeGen share.
const GPTJ: &[ConfigRow] = &[
    size_or(&["n_inner"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
    GPTJ_ROTARY_DIM,
    ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_new" },
    number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
    number("embd_pdrop", |c| &mut c.dropout, 0.0),
    number("resid_pdrop", |c| &mut c.dropout, 0.0),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
];
