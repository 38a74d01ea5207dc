//! Encoders: models whose positions see each other both ways. Without their heads they make vectors of texts.

use super::super::{
    Architecture, Fixed,
    bases::{encoder, mlm_head, modern_encoder},
    config_rows::{ACTIVATIONS, ConfigRow, constant, derived, flag, head_dim, number, one_kv_head_each, size, size_or},
    encoder_rows::{HEAD_LIKE_MLP, MODERN_BERT_WINDOW, POSITIONS_BEHIND_PADDING},
    names, rope,
    row_groups::{ATTENTION_BIAS, BERT, LIKE_LLAMA, LLAMA_SIZES},
};
use crate::config::GptConfig;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "BertModel",
        model_type: "bert",
        base: encoder,
        config: &[LLAMA_SIZES, BERT],
        fixed: BERT_FIXED,
        names: names::BERT,
        base_prefix: "bert.",
    },
    Architecture {
        class: "RobertaModel",
        model_type: "roberta",
        base: encoder,
        config: &[LLAMA_SIZES, BERT, ROBERTA_POSITIONS],
        fixed: ROBERTA_FIXED,
        names: names::ROBERTA,
        base_prefix: "roberta.",
    },
    Architecture {
        class: "XLMRobertaModel",
        model_type: "xlm-roberta",
        base: encoder,
        config: &[LLAMA_SIZES, BERT, ROBERTA_POSITIONS],
        fixed: ROBERTA_FIXED,
        names: names::ROBERTA,
        base_prefix: "roberta.",
    },
    Architecture {
        class: "CamembertModel",
        model_type: "camembert",
        base: encoder,
        config: &[LLAMA_SIZES, BERT, ROBERTA_POSITIONS],
        fixed: ROBERTA_FIXED,
        names: names::ROBERTA,
        base_prefix: "roberta.",
    },
    Architecture {
        class: "DistilBertModel",
        model_type: "distilbert",
        base: || GptConfig { n_token_types: 0, ..encoder() },
        config: &[DISTILBERT],
        // The sines that this key stands for are stored like learned positions.
        fixed: &[],
        names: names::DISTILBERT,
        base_prefix: "distilbert.",
    },
    Architecture {
        class: "ModernBertModel",
        model_type: "modernbert",
        base: modern_encoder,
        config: &[LLAMA_SIZES, ATTENTION_BIAS, MODERN_BERT],
        fixed: &[],
        names: names::MODERN_BERT,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "BertForMaskedLM",
        model_type: "bert",
        base: || encoder().with_mlm_head(),
        config: &[LLAMA_SIZES, BERT, HEAD_LIKE_MLP],
        fixed: BERT_TIED,
        names: names::BERT,
        base_prefix: "bert.",
    },
    Architecture { class: "RobertaForMaskedLM", model_type: "roberta", ..ROBERTA_MASKED },
    Architecture { class: "XLMRobertaForMaskedLM", model_type: "xlm-roberta", ..ROBERTA_MASKED },
    Architecture { class: "CamembertForMaskedLM", model_type: "camembert", ..ROBERTA_MASKED },
    Architecture {
        class: "DistilBertForMaskedLM",
        model_type: "distilbert",
        base: || GptConfig { n_token_types: 0, ..encoder().with_mlm_head() },
        config: &[DISTILBERT, HEAD_LIKE_MLP],
        fixed: TIED,
        names: names::DISTILBERT,
        base_prefix: "distilbert.",
    },
    Architecture {
        class: "ModernBertForMaskedLM",
        model_type: "modernbert",
        base: || modern_encoder().with_mlm_head(),
        config: &[LLAMA_SIZES, ATTENTION_BIAS, MODERN_BERT, MODERN_BERT_HEAD],
        fixed: &[("tie_word_embeddings", Fixed::Flag(true)), ("classifier_activation", Fixed::Text("gelu"))],
        names: names::MODERN_BERT,
        ..LIKE_LLAMA
    },
];

/// Its head has an activation of its own.
const ROBERTA_MASKED: Architecture = Architecture {
    class: "",
    model_type: "",
    base: || encoder().with_mlm_head(),
    config: &[LLAMA_SIZES, BERT, ROBERTA_POSITIONS],
    fixed: ROBERTA_TIED,
    names: names::ROBERTA,
    base_prefix: "roberta.",
};

const DISTILBERT: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size_or(&["max_position_embeddings"], |c| &mut c.max_seq_len, |_| 512),
    size(&["n_layers", "num_hidden_layers"], |c| &mut c.n_layers),
    size(&["n_heads", "num_attention_heads"], |c| &mut c.n_heads),
    size(&["dim", "hidden_size"], |c| &mut c.d_model),
    size(&["hidden_dim"], |c| &mut c.d_ff),
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
    ConfigRow::Activation { key: "activation", names: ACTIVATIONS, absent: "gelu" },
    number("dropout", |c| &mut c.dropout, 0.1),
    constant("attention_dropout", 0.0),
];

const MODERN_BERT: &[ConfigRow] = &[
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
    MODERN_BERT_WINDOW,
    ConfigRow::Rope(&rope::MODERN_BERT),
    ConfigRow::Activation { key: "hidden_activation", names: ACTIVATIONS, absent: "gelu" },
    number("norm_eps", |c| &mut c.norm_eps, 1e-5),
    flag("norm_bias", |c| &mut c.norm_bias, false),
    flag("mlp_bias", |c| &mut c.mlp_bias, false),
    number("embedding_dropout", |c| &mut c.dropout, 0.0),
    number("mlp_dropout", |c| &mut c.dropout, 0.0),
    constant("attention_dropout", 0.0),
];

const MODERN_BERT_HEAD: &[ConfigRow] =
    &[flag("classifier_bias", |c| &mut mlm_head(c).bias, false), flag("decoder_bias", |c| &mut c.lm_head_bias, true)];

const TIED: &[(&str, Fixed)] = &[("tie_word_embeddings", Fixed::Flag(true))];
const BERT_TIED: &[(&str, Fixed)] = &[
    ("tie_word_embeddings", Fixed::Flag(true)),
    ("position_embedding_type", Fixed::Text("absolute")),
    ("is_decoder", Fixed::Flag(false)),
];

const BERT_FIXED: &[(&str, Fixed)] =
    &[("position_embedding_type", Fixed::Text("absolute")), ("is_decoder", Fixed::Flag(false))];

/// Positions begin behind the padding token's id, for which files leave room.
const ROBERTA_POSITIONS: &[ConfigRow] = &[POSITIONS_BEHIND_PADDING];
const ROBERTA_FIXED: &[(&str, Fixed)] = &[
    ("position_embedding_type", Fixed::Text("absolute")),
    ("is_decoder", Fixed::Flag(false)),
    ("pad_token_id", Fixed::Number(1.0)),
];
const ROBERTA_TIED: &[(&str, Fixed)] = &[
    ("tie_word_embeddings", Fixed::Flag(true)),
    ("position_embedding_type", Fixed::Text("absolute")),
    ("is_decoder", Fixed::Flag(false)),
    ("pad_token_id", Fixed::Number(1.0)),
];
