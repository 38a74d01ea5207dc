//! Encoders in GGUF files.

use super::{
    super::{
        architectures::{
            bases::{encoder, gemma2, modern_encoder, nomic_encoder},
            config_rows::ConfigRow,
            window,
        },
        config_json::{Fields, Fixed},
        tensor_names::{NameRow, same},
    },
    config_rows::{
        self, GEMMA3_WINDOW_ROPE, GROUPED_HEADS, LAYER_NORM_EPS, PLAIN_HEADS, ROPE, SIZES, WINDOW_PATTERN, of_key,
    },
    description::Gguf,
    names::{BLOCK, FUSED_QKV, GATED, OUTSIDE, SANDWICH, SEPARATE_QKV, UNGATED},
};
use crate::{
    config::{Activation, GptConfig, MAX_LAYERS},
    error::Result,
};

/// Bidirectional models have this key set.
const BOTH_WAYS: ConfigRow =
    of_key(&["attention.causal"], |fields, _| fields.only("attention.causal", Fixed::Flag(false)));

/// Token types, and norms after attention and MLP.
const BERT_NAMES: &[NameRow] = &[
    same("type_embed.weight", "token_types.weight"),
    same("blocks.{}.attn_norm.weight", "blk.{}.attn_output_norm.weight"),
    same("blocks.{}.attn_norm.bias", "blk.{}.attn_output_norm.bias"),
    same("blocks.{}.mlp_norm.weight", "blk.{}.layer_output_norm.weight"),
    same("blocks.{}.mlp_norm.bias", "blk.{}.layer_output_norm.bias"),
];

/// BERT, DistilBERT, RoBERTa and similar models.
pub(super) const BERT: Gguf = Gguf {
    name: "bert",
    base: || GptConfig { n_token_types: 0, ..encoder() },
    config: &[SIZES, PLAIN_HEADS, &[LAYER_NORM_EPS, BOTH_WAYS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BERT_NAMES, BLOCK, UNGATED],
};

pub(super) const NOMIC_BERT: Gguf = Gguf {
    name: "nomic-bert",
    base: || GptConfig { n_token_types: 0, ..nomic_encoder() },
    config: &[SIZES, PLAIN_HEADS, &[ROPE, LAYER_NORM_EPS, BOTH_WAYS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BERT_NAMES, BLOCK, GATED],
};

/// The matrices of the gated MLP are one, as in the class.
pub(super) const MODERN_BERT: Gguf = Gguf {
    name: "modern-bert",
    base: modern_encoder,
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[ROPE, MODERN_BERT_EPS, BOTH_WAYS, MODERN_BERT_WINDOW, GEMMA3_WINDOW_ROPE, MODERN_BERT_ACTIVATION],
    ],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

/// Norms as Gemma's. The window in files is the class's, which extends to half of its width on each side.
pub(super) const EMBEDDING_GEMMA: Gguf = Gguf {
    name: "gemma-embedding",
    base: || GptConfig {
        qk_norm: true,
        bidirectional: true,
        norm_weight_offset: 0.0,
        activation: Activation::GeluTanh,
        ..gemma2()
    },
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            config_rows::RMS_EPS,
            BOTH_WAYS,
            config_rows::GEMMA3_WINDOW,
            GEMMA3_WINDOW_ROPE,
            HALF_WINDOW,
            config_rows::GEMMA3_SCORES,
            DENSE,
        ],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, SANDWICH, BLOCK, GATED],
};

const HALF_WINDOW: ConfigRow = of_key(&[], |_, config| {
    config.sliding_window = config.sliding_window.map(|width| width / 2 + 1);
    Ok(())
});

/// The sizes of the layers after the pooling; their tensors imply them too.
const DENSE: ConfigRow =
    of_key(&["dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"], |_, _| Ok(()));

/// The first of each three layers has no window.
const MODERN_BERT_WINDOW: ConfigRow = of_key(&["attention.sliding_window", WINDOW_PATTERN], |fields, config| {
    let window = fields.size("attention.sliding_window")?.filter(|&window| window > 0);
    let period = fields.size_or(WINDOW_PATTERN, 3)?.max(1);
    // The size is not validated yet: this limits the list.
    let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
    let full_layers = layers.filter(|layer| layer.is_multiple_of(period)).collect();
    window::set(config, window.map(|width| width / 2 + 1), full_layers);
    Ok(())
});

/// The converter writes the epsilon under the key that the class's file has it under, or under both.
const MODERN_BERT_EPS: ConfigRow =
    of_key(&["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"], |fields, config| {
        let other = fields.number_or("attention.layer_norm_rms_epsilon", 1e-5)?;
        config.norm_eps = fields.number_or("attention.layer_norm_epsilon", other)?;
        Ok(())
    });

const MODERN_BERT_ACTIVATION: ConfigRow = of_key(&["hidden_activation"], read_activation);

fn read_activation(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    config.activation = match fields.text_or("hidden_activation", "gelu")? {
        "gelu" => Activation::Gelu,
        "silu" | "swish" => Activation::Silu,
        other => return Err(fields.unsupported("hidden_activation", &other.into(), "\"gelu\", \"silu\"")),
    };
    Ok(())
}
