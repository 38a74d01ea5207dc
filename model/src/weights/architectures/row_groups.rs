//! Lists of rows that several classes share, and the names that classes give to nonlinearities.

use super::{
    config_rows::{
        self, ACTIVATIONS, ConfigRow, constant, derived, flag, head_dim, kv_heads, number, one_kv_head_each, size,
        size_or,
    },
    rope, window,
};
use crate::config::Activation;

/// The sizes as Llama and its kin name them.
pub(super) const LLAMA_SIZES: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["num_hidden_layers"], |c| &mut c.n_layers),
    size(&["num_attention_heads"], |c| &mut c.n_heads),
    size(&["hidden_size"], |c| &mut c.d_model),
    size(&["intermediate_size"], |c| &mut c.d_ff),
];

/// BERT's, but for sizes.
pub(super) const BERT: &[ConfigRow] = &[
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
    size_or(&["type_vocab_size"], |c| &mut c.n_token_types, |_| 2),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu" },
    number("layer_norm_eps", |c| &mut c.norm_eps, 1e-12),
    number("hidden_dropout_prob", |c| &mut c.dropout, 0.1),
    constant("attention_probs_dropout_prob", 0.0),
];

pub(super) const SILU: &[ConfigRow] =
    &[ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" }];

pub(super) const UNTIED: &[ConfigRow] = &[flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false)];

/// For all four matrices of attention, none by default.
pub(super) const ATTENTION_BIAS: &[ConfigRow] =
    &[flag("attention_bias", |c| &mut c.qkv_bias, false), flag("attention_bias", |c| &mut c.attn_out_bias, false)];

/// GLM 4's, but for sizes, activation and output matrix.
pub(super) const GLM: &[ConfigRow] = &[
    kv_heads(2),
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128),
    ConfigRow::Rope(&rope::PHI),
    number("rms_norm_eps", |c| &mut c.norm_eps, 1.5625e-7),
    flag("attention_bias", |c| &mut c.qkv_bias, true),
    ConfigRow::Window(&window::NONE),
];

/// OLMo 2 and what follows it, but for sizes, windows and rotary positions.
pub(super) const OLMO2: &[ConfigRow] = &[
    size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
];

/// Gemma 2 and what follows it, but for sizes, windows and rotary positions.
pub(super) const GEMMA2: &[ConfigRow] = &[
    kv_heads(4),
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
    ConfigRow::Activation { key: "hidden_activation", names: ACTIVATIONS, absent: "gelu_pytorch_tanh" },
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
    config_rows::GEMMA_ATTENTION,
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
];

/// Granite's, but for sizes, rotary positions and experts.
pub(super) const GRANITE: &[ConfigRow] = &[
    size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
    number("embedding_multiplier", |c| &mut c.embedding_multiplier, 1.0),
    number("residual_multiplier", |c| &mut c.residual_multiplier, 1.0),
    ConfigRow::Divisor { key: "logits_scaling", of: |c| &mut c.logit_multiplier, absent: 1.0 },
    config_rows::GRANITE_ATTENTION,
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
];

/// Cohere's, but for sizes, windows and rotary positions.
pub(super) const COHERE: &[ConfigRow] = &[
    size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    number("layer_norm_eps", |c| &mut c.norm_eps, 1e-5),
    number("logit_scale", |c| &mut c.logit_multiplier, 0.0625),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
];

/// The sizes as the first GPTs name them, of which transformers reads the newer names too.
pub(super) const GPT2_SIZES: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["n_positions", "max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["n_layer", "num_hidden_layers"], |c| &mut c.n_layers),
    size(&["n_head", "num_attention_heads"], |c| &mut c.n_heads),
    size(&["n_embd", "hidden_size"], |c| &mut c.d_model),
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
];

/// The names in `afn`, where `gelu` is the tanh approximation.
pub(super) const GPT1_ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

pub(super) const GEMMA_ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu_python", Activation::Gelu),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];
