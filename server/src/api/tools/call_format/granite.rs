//! `<|tool_call|>[{"name": .., "arguments": {..}}]`: Granite 3, which in some versions writes `<tool_call>`.

use super::{CallFormat, JSON_LIST};

pub(crate) static GRANITE: CallFormat = CallFormat {
    signs: &[&["<|tool_call|>"]],
    openings: &["<|tool_call|>", "<tool_call>"],
    around_all: ["<|tool_call|>[", "]"],
    ..JSON_LIST
};
