//! `<tool_calls>[{"name": .., "arguments": {..}}]</tool_calls>`: Hunyuan.

use super::{CallFormat, JSON_LIST};

pub(crate) static HUNYUAN: CallFormat = CallFormat {
    signs: &[&["<tool_calls>"]],
    openings: &["<tool_calls>"],
    closing: Some("</tool_calls>"),
    around_all: ["<tool_calls>[", "]</tool_calls>"],
    ..JSON_LIST
};
