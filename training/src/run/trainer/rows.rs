//! The rows of a run's data as its objective reads them.

use std::sync::Arc;

use anyhow::Result;
use serde_json::Value;

use super::Data;
use crate::{
    config::TrainConfig,
    data::loader::{MaskedRows, Masking, RowSource},
};

/// Usual mask tokens, for tokenizers that do not name theirs.
const MASK_TOKENS: [&str; 2] = ["[MASK]", "<mask>"];

impl Data {
    /// The data with masked tokens, if the objective of `config` masks some.
    ///
    /// # Errors
    /// The tokenizer has no mask token.
    pub fn masked(self, config: &TrainConfig) -> Result<Data> {
        let Some(masks) = config.objective.objective().masks() else { return Ok(self) };
        let masking = Masking::new(&self.tokenizer, self.mask_token().as_deref(), masks, config.seed)?;
        let rows = |rows: RowSource| match rows.has_targets() {
            true => RowSource::Masked(Arc::new(MaskedRows::new(rows, masking.clone()))),
            false => rows,
        };
        let (train, val) = (rows(self.train.clone()), rows(self.val.clone()));
        Ok(Data { train, val, ..self })
    }

    /// The string of the mask token: by `tokenizer_config.json`, or as usual.
    fn mask_token(&self) -> Option<String> {
        let config = self.tokenizer_files.iter().find(|(name, _)| name == "tokenizer_config.json");
        let config: Option<Value> = config.and_then(|(_, bytes)| serde_json::from_slice(bytes).ok());
        let stated = config.and_then(|config| {
            let token = &config["mask_token"];
            token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
        });
        let usual = || {
            let mut special = self.tokenizer.special_tokens().into_iter().map(|(_, token)| token);
            special.find(|token| MASK_TOKENS.contains(&token.as_str()))
        };
        stated.or_else(usual)
    }
}
