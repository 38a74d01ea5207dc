//! Lists of rows that several classes share, and the names that classes give to nonlinearities.

use super::{
    Architecture, Fixed,
    bases::{gpt2, llama},
    config_rows::{
        self, ACTIVATIONS, ConfigRow, constant, custom, derived, flag, head_dim, kv_heads, number, one_kv_head_each,
        size, size_or,
    },
    names, rope, window,
};
use crate::config::Activation;

/// The fields that most classes have in common: a row overrides at least the class's name and its keys.
pub(super) const LIKE_LLAMA: Architecture = Architecture {
    class: "",
    model_type: "",
    base: llama,
    config: &[],
    fixed: NO_MLP_BIAS,
    names: names::LLAMA,
    base_prefix: "model.",
};

/// As [`LIKE_LLAMA`], for the first GPTs.
pub(super) const LIKE_GPT2: Architecture = Architecture {
    class: "",
    model_type: "",
    base: gpt2,
    config: &[],
    fixed: &[],
    names: names::GPT2,
    base_prefix: "transformer.",
};

pub(super) const NO_MLP_BIAS: &[(&str, Fixed)] = &[("mlp_bias", Fixed::Flag(false))];
pub(super) const NO_BIASES: &[(&str, Fixed)] =
    &[("attention_bias", Fixed::Flag(false)), ("mlp_bias", Fixed::Flag(false))];

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
    layer_norm_eps(1e-12),
    number("hidden_dropout_prob", |c| &mut c.dropout, 0.1),
    constant("attention_probs_dropout_prob", 0.0),
];

/// [`LLAMA_SIZES`] but for the width of the MLP.
pub(super) const SIZES_WITHOUT_MLP: &[ConfigRow] = LLAMA_SIZES.split_at(LLAMA_SIZES.len() - 1).0;

pub(super) const SILU: &[ConfigRow] =
    &[ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" }];

pub(super) const UNTIED: &[ConfigRow] = &[flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false)];

pub(super) const SILU_UNTIED: &[ConfigRow] = &[
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
];

/// By default as many key heads as query heads.
pub(super) const GROUPED_HEADS: ConfigRow = size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads);
/// By default the residual stream's width divided by the number of heads.
pub(super) const HEAD_DIM: ConfigRow = size_or(&["head_dim"], |c| &mut c.head_dim, head_dim);
/// As [`HEAD_DIM`], for classes that do not support another width. They would rotate by the key, so another value is
/// rejected.
pub(super) const ONLY_HEAD_DIM: ConfigRow = custom(
    &["head_dim"],
    |fields, config| {
        config.head_dim = head_dim(config);
        fields.only("head_dim", Fixed::Number(config.head_dim as f64))
    },
    |_, _| {},
);
pub(super) const HEAD_DIM_128: ConfigRow = size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128);

pub(super) const HEADS: &[ConfigRow] = &[GROUPED_HEADS, HEAD_DIM];

pub(super) const fn rms_eps(absent: f64) -> ConfigRow {
    number("rms_norm_eps", |c| &mut c.norm_eps, absent)
}

pub(super) const fn layer_norm_eps(absent: f64) -> ConfigRow {
    number("layer_norm_eps", |c| &mut c.norm_eps, absent)
}

/// One flag for all four matrices of attention; false by default.
pub(super) const ATTENTION_BIAS: &[ConfigRow] =
    &[flag("attention_bias", |c| &mut c.qkv_bias, false), flag("attention_bias", |c| &mut c.attn_out_bias, false)];

/// GLM 4's, but for sizes, activation and output matrix.
pub(super) const GLM: &[ConfigRow] = &[
    kv_heads(2),
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128),
    ConfigRow::Rope(&rope::PHI),
    rms_eps(1.5625e-7),
    flag("attention_bias", |c| &mut c.qkv_bias, true),
    ConfigRow::Window(&window::NONE),
];

/// OLMo 2 and its successors, except for sizes, windows and rotary positions.
pub(super) const OLMO2: &[ConfigRow] = &[
    GROUPED_HEADS,
    HEAD_DIM,
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    rms_eps(1e-5),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
];

/// Gemma 2 and its successors, except for sizes, windows and rotary positions.
pub(super) const GEMMA2: &[ConfigRow] = &[
    kv_heads(4),
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
    ConfigRow::Activation { key: "hidden_activation", names: ACTIVATIONS, absent: "gelu_pytorch_tanh" },
    rms_eps(1e-6),
    config_rows::GEMMA_ATTENTION,
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
];

/// Granite's, but for sizes, rotary positions and experts.
pub(super) const GRANITE: &[ConfigRow] = &[
    GROUPED_HEADS,
    HEAD_DIM,
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    rms_eps(1e-6),
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
    GROUPED_HEADS,
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    layer_norm_eps(1e-5),
    number("logit_scale", |c| &mut c.logit_multiplier, 0.0625),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
];

/// The sizes under the names of the first GPTs; transformers also reads the newer names.
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
