//! The use of texts' vectors, as a request states it, and the prompts that an embedding model expects for it.

use hearth_engine::ServedModel;
use hearth_model::gpt::pooling::OwnPooling;
use serde_json::json;

use crate::api::{
    error::ApiError,
    wire::fields::{Fields, must_be},
};

/// The use of the vectors of a request's texts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextUse {
    /// The request does not state it.
    Unsaid,
    /// The use of the model's prompt with this name.
    Named(String),
    /// One of the usual uses.
    Usual(InputType),
}

/// The uses that clients have words for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputType {
    /// To search by.
    Query,
    /// To be found.
    Document,
    Classification,
    Clustering,
}

/// The names of vLLM, Jina and Voyage, and Cohere's.
const INPUT_TYPES: [(&str, InputType); 7] = [
    ("query", InputType::Query),
    ("document", InputType::Document),
    ("passage", InputType::Document),
    ("search_query", InputType::Query),
    ("search_document", InputType::Document),
    ("classification", InputType::Classification),
    ("clustering", InputType::Clustering),
];

impl TextUse {
    /// Reads `prompt_name` and `input_type`.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let named = Self::named(fields)?;
        let usual = Self::of_input_type(fields)?;
        match (&named, &usual) {
            (Self::Named(_), Self::Usual(_)) => {
                let message = "`prompt_name` and `input_type` both say what comes before the texts: give one of them";
                Err(ApiError::invalid("prompt_name", message.to_owned()))
            }
            (Self::Unsaid, _) => Ok(usual),
            _ => Ok(named),
        }
    }

    /// Reads `prompt_name`.
    pub(crate) fn named(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(fields.string("prompt_name")?.map_or(Self::Unsaid, Self::Named))
    }

    /// Reads `input_type`.
    pub(crate) fn of_input_type(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(fields.one_of("input_type", &INPUT_TYPES)?.map_or(Self::Unsaid, Self::Usual))
    }

    /// Whether the texts are queries of a model that reads queries differently from documents.
    pub(crate) fn is_query(&self) -> bool {
        match self {
            Self::Usual(input_type) => *input_type == InputType::Query,
            Self::Named(name) => name == "query",
            Self::Unsaid => false,
        }
    }

    /// The prompt before each text; empty if there is none.
    pub(crate) fn prompt<'a>(&self, model: &'a ServedModel) -> Result<&'a str, ApiError> {
        let prompts = &model.prompts;
        Ok(match self {
            Self::Unsaid => prompts.usual(),
            Self::Usual(InputType::Query) => prompts.query(),
            Self::Usual(InputType::Document) => prompts.document(),
            Self::Usual(InputType::Classification) => prompts.other("classification"),
            Self::Usual(InputType::Clustering) => prompts.other("clustering"),
            Self::Named(name) => match prompts.by_name.get(name) {
                Some(prompt) => prompt,
                // Such a model marks queries and documents in other ways.
                None if matches!(model.own_pooling, OwnPooling::Late(_)) => "",
                None => {
                    let names: Vec<_> = prompts.by_name.keys().map(|name| format!("`{name}`")).collect();
                    let allowed = match names.as_slice() {
                        [] => "left out with a model that has no prompts".to_owned(),
                        names => format!("one of the model's prompts, {}", names.join(", ")),
                    };
                    return Err(must_be("prompt_name", &allowed, &json!(name)));
                }
            },
        })
    }
}
