//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4.

use hearth_model::text::chat::hermes;

use super::{Bare, CallFormat, ONE_BY_ONE};

pub(crate) static HERMES: CallFormat = CallFormat { signs: &[&["<tool_call>"]], ..WRITTEN };

/// For templates that write tools in a form which is not in the table: JSON objects with or without marks.
pub(crate) static ANY: CallFormat = CallFormat { bare: Bare::Json, ..WRITTEN };

const WRITTEN: CallFormat = CallFormat {
    openings: &["<tool_call>"],
    closing: Some("</tool_call>"),
    around_parts: hermes::CALL,
    separator: hermes::SEPARATOR,
    ..ONE_BY_ONE
};
