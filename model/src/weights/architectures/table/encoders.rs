//! Encoders: bidirectional models. Without their heads they compute vectors of texts.

use super::super::{
    Architecture, Fixed,
    bases::{encoder, gemma2, mlm_head, modern_encoder, nomic_encoder},
    config_rows::{ACTIVATIONS, ConfigRow, constant, derived, flag, head_dim, number, one_kv_head_each, size, size_or},
    encoder_rows::{
        GEMMA3_BOTH_WAYS, HEAD_LIKE_MLP, MODERN_BERT_WINDOW, MPNET_BUCKETS, NOMIC_BERT_DETAILS,
        POSITIONS_BEHIND_PADDING,
    },
    names, rope,
    row_groups::{ATTENTION_BIAS, BERT, GEMMA2, LIKE_LLAMA, LLAMA_SIZES},
    window,
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
        // The sinusoidal positions of this key are stored like learned positions.
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
        class: "MPNetModel",
        model_type: "mpnet",
        base: || GptConfig { n_token_types: 0, ..encoder() },
        config: &[LLAMA_SIZES, MPNET],
        fixed: MPNET_FIXED,
        names: names::MPNET,
        base_prefix: "mpnet.",
    },
    Architecture {
        class: "NomicBertModel",
        model_type: "nomic_bert",
        base: nomic_encoder,
        config: &[NOMIC_BERT],
        fixed: NOMIC_BERT_FIXED,
        names: names::NOMIC_BERT,
        base_prefix: "nomic_bert.",
    },
    // EmbeddingGemma.
    Architecture {
        class: "Gemma3TextModel",
        model_type: "gemma3_text",
        base: || GptConfig { qk_norm: true, bidirectional: true, ..gemma2() },
        config: &[LLAMA_SIZES, GEMMA2, GEMMA3_ENCODER],
        names: names::GEMMA2,
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
        class: "MPNetForMaskedLM",
        model_type: "mpnet",
        base: || GptConfig { n_token_types: 0, ..encoder().with_mlm_head() },
        config: &[LLAMA_SIZES, MPNET],
        fixed: MPNET_TIED,
        names: names::MPNET,
        base_prefix: "mpnet.",
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

/// Its masked-LM head has a fixed activation.
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

const MPNET: &[ConfigRow] = &[
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu" },
    number("layer_norm_eps", |c| &mut c.norm_eps, 1e-12),
    number("hidden_dropout_prob", |c| &mut c.dropout, 0.1),
    constant("attention_probs_dropout_prob", 0.0),
    POSITIONS_BEHIND_PADDING,
    MPNET_BUCKETS,
];

/// The second names are from the released files; they are GPT-2's.
const NOMIC_BERT: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size_or(&["max_position_embeddings", "n_positions"], |c| &mut c.max_seq_len, |_| 2048),
    size(&["num_hidden_layers", "n_layer"], |c| &mut c.n_layers),
    size(&["num_attention_heads", "n_head"], |c| &mut c.n_heads),
    size(&["hidden_size", "n_embd"], |c| &mut c.d_model),
    size(&["intermediate_size", "n_inner"], |c| &mut c.d_ff),
    one_kv_head_each(),
    size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
    size_or(&["type_vocab_size"], |c| &mut c.n_token_types, |_| 2),
    ConfigRow::Rope(&rope::NOMIC_BERT),
    NOMIC_BERT_DETAILS,
    number("hidden_dropout_prob", |c| &mut c.dropout, 0.0),
    constant("attention_probs_dropout_prob", 0.0),
];

const GEMMA3_ENCODER: &[ConfigRow] = &[
    ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: None },
    ConfigRow::Window(&window::GEMMA3),
    ConfigRow::Rope(&rope::GEMMA3),
    GEMMA3_BOTH_WAYS,
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

const MPNET_FIXED: &[(&str, Fixed)] = &[("pad_token_id", Fixed::Number(1.0))];
const MPNET_TIED: &[(&str, Fixed)] =
    &[("tie_word_embeddings", Fixed::Flag(true)), ("pad_token_id", Fixed::Number(1.0))];

/// Keys of the released files for block variants that they do not use.
const NOMIC_BERT_FIXED: &[(&str, Fixed)] = &[
    ("causal", Fixed::Flag(false)),
    ("prenorm", Fixed::Flag(false)),
    ("parallel_block", Fixed::Flag(false)),
    ("use_rms_norm", Fixed::Flag(false)),
    ("qkv_proj_bias", Fixed::Flag(false)),
    ("mlp_fc1_bias", Fixed::Flag(false)),
    ("mlp_fc2_bias", Fixed::Flag(false)),
    ("rotary_emb_fraction", Fixed::Number(1.0)),
    ("rotary_emb_interleaved", Fixed::Flag(false)),
    ("rotary_emb_scale_base", Fixed::Nothing),
    ("rotary_scaling_factor", Fixed::Nothing),
    ("moe_every_n_layers", Fixed::Nothing),
];

/// Positions begin after the padding token's id; files have unused entries for the earlier ones.
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
