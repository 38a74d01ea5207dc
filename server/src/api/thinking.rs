//! What a request says of thinking.

use hearth_model::{
    TokenId,
    chat::thought,
    tokenizer::{DecodeOptions, Tokenizer},
};

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

/// The mark that closes the thought that a prompt opens at its end.
pub(crate) fn opened_thought(prompt_ids: &[TokenId], tokenizer: &Tokenizer) -> Option<&'static str> {
    /// Enough for a mark and white space, a byte each.
    const N_LAST: usize = 32;
    let last = &prompt_ids[prompt_ids.len().saturating_sub(N_LAST)..];
    let text = tokenizer.decode(last, DecodeOptions { skip_special_tokens: false });
    let opened = thought::MARKS.into_iter().find(|[open, _]| text.trim_end().ends_with(open));
    opened.map(|[_, close]| close)
}
