//! What a request says of thinking.

use super::{error::ApiError, fields::Fields, reasoning::ReasoningFormat};

/// How the model thinks before it answers, and where its thoughts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    pub(crate) format: ReasoningFormat,
}

/// The formats of llama.cpp's server, and Groq's names for the same.
const FORMATS: [(&str, ReasoningFormat); 6] = [
    ("auto", ReasoningFormat::Apart),
    ("deepseek", ReasoningFormat::Apart),
    ("none", ReasoningFormat::InContent),
    ("parsed", ReasoningFormat::Apart),
    ("raw", ReasoningFormat::InContent),
    ("hidden", ReasoningFormat::Omitted),
];

impl Thinking {
    /// Reads `reasoning_format` and `include_reasoning`.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let format = fields.one_of_or("reasoning_format", &FORMATS, ReasoningFormat::default())?;
        let is_included = fields.flag_or("include_reasoning", true)?;
        let format = if is_included { format } else { ReasoningFormat::Omitted };
        Ok(Self { format })
    }
}
