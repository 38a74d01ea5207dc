//! Keys of encoder-decoders.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::{Fields, Fixed},
    config_rows::{ConfigRow, custom, head_dim},
};
use crate::{
    config::{Activation, GptConfig, Positions, RelativeBuckets},
    error::Result,
};

/// The encoder of a model whose other fields have been read: the same, but bidirectional.
fn encoder_of(config: &GptConfig) -> GptConfig {
    GptConfig { bidirectional: true, encoder: None, tie_embeddings: true, lm_head_bias: false, ..config.clone() }
}

/// The encoder that `write` describes; the configuration itself if it has no encoder.
fn described(config: &GptConfig) -> &GptConfig {
    config.encoder.as_deref().unwrap_or(config)
}

/// `is_encoder_decoder` must be true.
fn require_both(fields: &Fields<'_>) -> Result<()> {
    fields.only("is_encoder_decoder", Fixed::Flag(true))
}

/// The numbers of layers of both models, which are else alike.
pub(super) const T5_LAYERS: ConfigRow = custom(
    &["num_layers", "num_decoder_layers", "is_encoder_decoder"],
    |fields, config| {
        require_both(fields)?;
        let of_encoder = fields.size("num_layers")?.ok_or_else(|| fields.missing(&["num_layers"]))?;
        config.n_layers = fields.size_or("num_decoder_layers", of_encoder)?;
        config.encoder = Some(Box::new(GptConfig { n_layers: of_encoder, ..encoder_of(config) }));
        // The decoder's head does not apply to the encoder.
        if let Some(encoder) = &mut config.encoder {
            encoder.logit_multiplier = 1.0;
        }
        Ok(())
    },
    |config, written: &mut Map<String, Value>| {
        written.insert("is_encoder_decoder".to_owned(), json!(true));
        written.insert("num_layers".to_owned(), json!(described(config).n_layers));
        written.insert("num_decoder_layers".to_owned(), json!(config.n_layers));
    },
);

/// Names of the MLP's kind: the activation, with the prefix `gated-` if it is gated.
const FEED_FORWARD: &[(&str, Activation, bool)] = &[
    ("relu", Activation::Relu, false),
    ("gated-gelu", Activation::GeluTanh, true),
    ("gelu", Activation::Gelu, false),
    ("gelu_new", Activation::GeluTanh, false),
    ("silu", Activation::Silu, false),
    ("gated-relu", Activation::Relu, true),
    ("gated-silu", Activation::Silu, true),
];

fn read_feed_forward(fields: &Fields<'_>, config: &mut GptConfig, absent: &'static str) -> Result<()> {
    let found = fields.text_or("feed_forward_proj", absent)?;
    let Some((_, activation, is_gated)) = FEED_FORWARD.iter().find(|(name, ..)| *name == found) else {
        let names: Vec<_> = FEED_FORWARD.iter().map(|(name, ..)| format!("\"{name}\"")).collect();
        return Err(fields.unsupported("feed_forward_proj", &json!(found), &names.join(", ")));
    };
    (config.activation, config.gated_mlp) = (*activation, *is_gated);
    Ok(())
}

fn write_feed_forward(config: &GptConfig, written: &mut Map<String, Value>) {
    let is = |(_, activation, is_gated): &&(&str, Activation, bool)| {
        (*activation, *is_gated) == (config.activation, config.gated_mlp)
    };
    let name = FEED_FORWARD.iter().find(is).map(|(name, ..)| name);
    written.insert("feed_forward_proj".to_owned(), json!(name));
}

pub(super) const T5_ACTIVATION: ConfigRow =
    custom(&["feed_forward_proj"], |fields, config| read_feed_forward(fields, config, "relu"), write_feed_forward);

pub(super) const MT5_ACTIVATION: ConfigRow = custom(
    &["feed_forward_proj"],
    |fields, config| read_feed_forward(fields, config, "gated-gelu"),
    write_feed_forward,
);

/// Released files say false, newer versions of transformers say true: in both cases the output matrix is the embedding,
/// unless the files have a separate one.
pub(super) const MT5_HEAD: ConfigRow = custom(
    &["tie_word_embeddings"],
    |_, _| Ok(()),
    |config, written| {
        written.insert("tie_word_embeddings".to_owned(), json!(config.tie_embeddings));
    },
);

fn read_buckets(fields: &Fields<'_>) -> Result<RelativeBuckets> {
    Ok(RelativeBuckets {
        n_buckets: fields.size_or("relative_attention_num_buckets", 32)?,
        max_distance: fields.size_or("relative_attention_max_distance", 128)?,
    })
}

fn write_buckets(config: &GptConfig, written: &mut Map<String, Value>) {
    if let Some(RelativeBuckets { n_buckets, max_distance }) = config.positions.buckets() {
        written.insert("relative_attention_num_buckets".to_owned(), json!(n_buckets));
        written.insert("relative_attention_max_distance".to_owned(), json!(max_distance));
    }
}

pub(super) const T5_POSITIONS: ConfigRow = custom(
    &["relative_attention_num_buckets", "relative_attention_max_distance"],
    |fields, config| {
        config.positions = Positions::Relative(read_buckets(fields)?);
        Ok(())
    },
    write_buckets,
);

pub(super) const UMT5_POSITIONS: ConfigRow = custom(
    &["relative_attention_num_buckets", "relative_attention_max_distance"],
    |fields, config| {
        config.positions = Positions::RelativeByLayer(read_buckets(fields)?);
        Ok(())
    },
    write_buckets,
);

/// The first models multiply the embedding's rows by the last hidden states divided by the root of their width; later
/// ones have a separate matrix, without the division. Newer versions of transformers store the difference as
/// `scale_decoder_outputs`, and mark all models as tied.
pub(super) const T5_HEAD: ConfigRow = custom(
    &["tie_word_embeddings", "scale_decoder_outputs"],
    |fields, config| {
        let is_tied = fields.flag_or("tie_word_embeddings", true)?;
        let is_scaled = fields.flag_or("scale_decoder_outputs", is_tied)?;
        config.tie_embeddings = is_scaled;
        config.logit_multiplier = if is_scaled { (config.d_model as f64).powf(-0.5) } else { 1.0 };
        Ok(())
    },
    |config, written| {
        written.insert("tie_word_embeddings".to_owned(), json!(config.tie_embeddings));
        written.insert("scale_decoder_outputs".to_owned(), json!(config.tie_embeddings));
    },
);

/// The encoder's sizes, which differ from the decoder's. Must be the last row, since it copies the fields that encoder
/// and decoder share.
pub(super) const BART_ENCODER: ConfigRow = custom(
    &["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "is_encoder_decoder"],
    |fields, config| {
        require_both(fields)?;
        let size = |key: &'static str| fields.size(key)?.ok_or_else(|| fields.missing(&[key]));
        let mut encoder = encoder_of(config);
        encoder.n_layers = size("encoder_layers")?;
        encoder.d_ff = size("encoder_ffn_dim")?;
        encoder.n_heads = size("encoder_attention_heads")?;
        (encoder.n_kv_heads, encoder.head_dim) = (encoder.n_heads, head_dim(&encoder));
        config.encoder = Some(Box::new(encoder));
        Ok(())
    },
    |config, written| {
        let encoder = described(config);
        written.insert("is_encoder_decoder".to_owned(), json!(true));
        written.insert("encoder_layers".to_owned(), json!(encoder.n_layers));
        written.insert("encoder_ffn_dim".to_owned(), json!(encoder.d_ff));
        written.insert("encoder_attention_heads".to_owned(), json!(encoder.n_heads));
    },
);
