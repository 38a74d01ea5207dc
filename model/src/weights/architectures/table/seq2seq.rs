//! Encoder-decoders: the encoder reads a source, and the decoder writes a text about it.

use super::super::{
    Architecture, Fixed,
    bases::{bart, mbart, t5},
    config_rows::{ACTIVATIONS, ConfigRow, constant, derived, flag, head_dim, number, one_kv_head_each, size, size_or},
    names,
    seq2seq_rows::{
        BART_ENCODER, MT5_ACTIVATION, MT5_HEAD, T5_ACTIVATION, T5_HEAD, T5_LAYERS, T5_POSITIONS, UMT5_POSITIONS,
    },
};
use crate::config::{GptConfig, Positions};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "T5ForConditionalGeneration",
        model_type: "t5",
        base: t5,
        // The last copies what the two models share.
        config: &[T5_SIZES, &[T5_POSITIONS, T5_ACTIVATION, T5_HEAD, T5_LAYERS]],
        fixed: &[],
        names: names::T5,
        base_prefix: "",
    },
    Architecture {
        class: "MT5ForConditionalGeneration",
        model_type: "mt5",
        base: || GptConfig { tie_embeddings: false, ..t5() },
        config: &[T5_SIZES, &[T5_POSITIONS, MT5_ACTIVATION, MT5_HEAD, T5_LAYERS]],
        fixed: &[],
        names: names::T5,
        base_prefix: "",
    },
    Architecture {
        class: "UMT5ForConditionalGeneration",
        model_type: "umt5",
        base: t5,
        config: &[T5_SIZES, &[UMT5_POSITIONS, MT5_ACTIVATION, T5_HEAD, T5_LAYERS]],
        fixed: &[],
        names: names::UMT5,
        base_prefix: "",
    },
    Architecture {
        class: "BartForConditionalGeneration",
        model_type: "bart",
        base: bart,
        config: &[&BART, &[BART_ENCODER]],
        fixed: BART_FIXED,
        names: names::BART,
        base_prefix: "model.",
    },
    Architecture {
        class: "MBartForConditionalGeneration",
        model_type: "mbart",
        base: mbart,
        config: &[&BART, &[BART_ENCODER]],
        fixed: BART_FIXED,
        names: names::BART,
        base_prefix: "model.",
    },
    Architecture {
        class: "MarianMTModel",
        model_type: "marian",
        base: || GptConfig { embed_norm: false, positions: Positions::Sinusoidal, ..bart() },
        config: &[&BART, &[BART_ENCODER]],
        fixed: &[("tie_word_embeddings", Fixed::Flag(true)), ("share_encoder_decoder_embeddings", Fixed::Flag(true))],
        names: names::BART,
        base_prefix: "model.",
    },
    Architecture {
        class: "M2M100ForConditionalGeneration",
        model_type: "m2m_100",
        base: || GptConfig {
            embed_norm: false,
            lm_head_bias: false,
            positions: Positions::SinusoidalFromTwo,
            ..mbart()
        },
        config: &[&M2M100, &[BART_ENCODER]],
        fixed: BART_FIXED,
        names: names::BART,
        base_prefix: "model.",
    },
];

const BART_FIXED: &[(&str, Fixed)] = &[("tie_word_embeddings", Fixed::Flag(true))];

const BART: [ConfigRow; 12] = bart_rows("gelu", false);
const M2M100: [ConfigRow; 12] = bart_rows("relu", true);

/// BART's keys of the decoder, and of both models, with the defaults of a class.
const fn bart_rows(activation: &'static str, is_scaled: bool) -> [ConfigRow; 12] {
    [
        size(&["vocab_size"], |c| &mut c.vocab_size),
        size(&["d_model"], |c| &mut c.d_model),
        size(&["decoder_layers"], |c| &mut c.n_layers),
        size(&["decoder_attention_heads"], |c| &mut c.n_heads),
        size(&["decoder_ffn_dim"], |c| &mut c.d_ff),
        size_or(&["max_position_embeddings"], |c| &mut c.max_seq_len, |_| 1024),
        one_kv_head_each(),
        derived(|c| &mut c.head_dim, head_dim),
        ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: activation },
        flag("scale_embedding", |c| &mut c.scale_embeddings, is_scaled),
        number("dropout", |c| &mut c.dropout, 0.1),
        constant("attention_dropout", 0.0),
    ]
}

const T5_SIZES: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["d_model"], |c| &mut c.d_model),
    size(&["d_ff"], |c| &mut c.d_ff),
    size(&["num_heads"], |c| &mut c.n_heads),
    size(&["d_kv"], |c| &mut c.head_dim),
    // No file states a maximum length: every distance has a bucket. The models were trained with 512 or 1,024 tokens.
    size_or(&["n_positions"], |c| &mut c.max_seq_len, |_| 1024),
    one_kv_head_each(),
    number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-6),
    number("dropout_rate", |c| &mut c.dropout, 0.1),
    constant("classifier_dropout", 0.0),
];
