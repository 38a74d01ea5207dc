//! Keys of encoders that set more than one field, or that only one class has.

use serde_json::json;

use super::{
    bases::mlm_head,
    config_rows::{ConfigRow, custom},
    window,
};

/// Positions begin behind the padding token's id, 1, so files have two more of them than a text can have.
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

/// The head for masked tokens has the activation of the MLPs.
pub(super) const HEAD_LIKE_MLP: &[ConfigRow] = &[custom(
    &[],
    |_, config| {
        mlm_head(config).activation = config.activation;
        Ok(())
    },
    |_, _| {},
)];
