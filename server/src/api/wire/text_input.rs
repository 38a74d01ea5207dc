//! Text inputs: strings or token ids, one or several.

use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use serde_json::Value;

use super::{
    fields::{Fields, must_be, token_ids},
    schema,
};
use crate::api::error::ApiError;

/// An input text, or its token ids.
#[derive(Clone, Debug)]
pub(crate) enum TextOrIds {
    Text(String),
    Ids(Vec<TokenId>),
}

const ALLOWED: &str = "a string, an array of strings, an array of token ids, or an array of such arrays";

fn schema() -> Value {
    let ids = || schema::array(schema::token_id(), 1);
    let one = schema::any_of([schema::string(), ids()]);
    schema::any_of([schema::string(), ids(), schema::array(one, 1)])
}

impl TextOrIds {
    /// Reads the required field `name`.
    pub(crate) fn from_fields(fields: &mut Fields, name: &'static str) -> Result<Vec<Self>, ApiError> {
        let value = fields.require_as(name, ALLOWED, schema)?;
        Self::of_value(name, &value)
    }

    /// As [`from_fields`](Self::from_fields), for an optional field.
    pub(crate) fn from_fields_if_any(fields: &mut Fields, name: &'static str) -> Result<Option<Vec<Self>>, ApiError> {
        let value = fields.take_as(name, schema).filter(|value| !value.is_null());
        value.map(|value| Self::of_value(name, &value)).transpose()
    }

    fn of_value(name: &'static str, value: &Value) -> Result<Vec<Self>, ApiError> {
        let one = |value: &Value| match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            value => token_ids(value).map(Self::Ids),
        };
        let sources = match value {
            Value::Array(items) if items.iter().any(|item| !item.is_number()) => items.iter().map(one).collect(),
            Value::Array(items) if items.is_empty() => None,
            single => one(single).map(|source| vec![source]),
        };
        sources.ok_or_else(|| must_be(name, ALLOWED, value))
    }

    /// Rejects a text with too many bytes to fit into the context, before it is tokenized.
    pub(crate) fn check_length(&self, name: &'static str, model: &ServedModel) -> Result<(), ApiError> {
        match self {
            Self::Ids(_) => Ok(()),
            Self::Text(text) => Ok(model.check_text_length(name, text.len())?),
        }
    }

    /// Tokenizes the text of the field `name`; token ids are returned unchanged.
    pub(crate) fn encode(
        &self,
        name: &'static str,
        tokenizer: &Tokenizer,
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, ApiError> {
        match self {
            Self::Ids(ids) => Ok(ids.clone()),
            Self::Text(text) => tokenizer
                .encode(text, options)
                .map_err(|error| ApiError::invalid(name, format!("`{name}` cannot be encoded: {error}"))),
        }
    }
}
