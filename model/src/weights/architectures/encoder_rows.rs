//! Keys of encoders that set more than one field, or that only one class has.

use serde_json::json;

use super::{
    super::config_json::Fixed,
    bases::mlm_head,
    config_rows::{ACTIVATIONS, ConfigRow, custom},
    window,
};
use crate::config::{Positions, RelativeBuckets};

/// Positions begin after the padding token's id, 1, so files have two more positions than a text can have.
pub(super) const POSITIONS_BEHIND_PADDING: ConfigRow = custom(
    &["max_position_embeddings"],
    |fields, config| match config.max_seq_len.checked_sub(2) {
        Some(max_seq_len) => {
            config.max_seq_len = max_seq_len;
            Ok(())
        }
        None => Err(fields.unsupported("max_position_embeddings", &json!(config.max_seq_len), "3 and above")),
    },
    |config, written| {
        written.insert("max_position_embeddings".to_owned(), json!(config.max_seq_len.saturating_add(2)));
        written.insert("pad_token_id".to_owned(), json!(1));
    },
);

/// The windows of ModernBERT's layers extend to half of their width on each side; every n-th layer has none.
pub(super) const MODERN_BERT_WINDOW: ConfigRow = custom(
    &["local_attention", "global_attn_every_n_layers", "layer_types"],
    |fields, config| {
        let width = fields.size_or("local_attention", 128)?;
        let full_layers = window::listed_or_every(fields, config.n_layers, "global_attn_every_n_layers", 3)?;
        window::set(config, Some(width / 2 + 1), full_layers);
        Ok(())
    },
    |config, written| {
        let width = config.sliding_window.map_or(128, |window| 2 * window.saturating_sub(1));
        written.insert("local_attention".to_owned(), json!(width));
        window::write_kinds(config, written);
    },
);

/// MPNet's number of buckets is in the file, but other numbers are not computed with. The largest distance is not in the file.
pub(super) const MPNET_BUCKETS: ConfigRow = custom(
    &["relative_attention_num_buckets"],
    |fields, config| {
        fields.only("relative_attention_num_buckets", Fixed::Number(32.0))?;
        config.positions = Positions::LearnedAndRelative(RelativeBuckets { n_buckets: 32, max_distance: 128 });
        Ok(())
    },
    |_, written| {
        written.insert("relative_attention_num_buckets".to_owned(), json!(32));
    },
);

/// NomicBERT's activation and epsilon, which the released files name otherwise: `swiglu` is gated SiLU.
pub(super) const NOMIC_BERT_DETAILS: ConfigRow = custom(
    &["hidden_act", "activation_function", "layer_norm_eps", "layer_norm_epsilon"],
    |fields, config| {
        fields.only("activation_function", Fixed::Text("swiglu"))?;
        let activation = ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" };
        activation.read(fields, config)?;
        let eps = fields.number_or("layer_norm_epsilon", 1e-12)?;
        config.norm_eps = fields.number_or("layer_norm_eps", eps)?;
        Ok(())
    },
    |config, written| {
        ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" }.write(config, written);
        written.insert("layer_norm_eps".to_owned(), json!(config.norm_eps));
        // Transformers does not accept `null` here. The number has no effect: the token's weights are loaded like any
        // others.
        written.insert("pad_token_id".to_owned(), json!(0));
    },
);

/// Gemma 3 as an encoder: its windows then extend to half of their width on each side.
pub(super) const GEMMA3_BOTH_WAYS: ConfigRow = custom(
    &["use_bidirectional_attention"],
    |fields, config| {
        config.bidirectional = fields.flag_or("use_bidirectional_attention", false)?;
        if config.bidirectional {
            config.sliding_window = config.sliding_window.map(|width| width / 2 + 1);
        }
        Ok(())
    },
    |config, written| {
        written.insert("use_bidirectional_attention".to_owned(), json!(config.bidirectional));
        if let (Some(window), true) = (config.sliding_window, config.bidirectional) {
            written.insert("sliding_window".to_owned(), json!(2 * window.saturating_sub(1)));
        }
    },
);

/// The masked-LM head has the activation of the MLPs.
pub(super) const HEAD_LIKE_MLP: &[ConfigRow] = &[custom(
    &[],
    |_, config| {
        mlm_head(config).activation = config.activation;
        Ok(())
    },
    |_, _| {},
)];
