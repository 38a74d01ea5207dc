//! `<|tool_call|>[{"name": .., "arguments": {..}}]<|/tool_call|>`, or `functools` before the list: Phi 4 mini.

use super::{CallFormat, JSON_LIST};

pub(crate) static PHI: CallFormat = CallFormat {
    signs: &[&["<|/tool|>"], &["<|/tool_call|>"], &["functools["]],
    openings: &["<|tool_call|>", "functools["],
    closing: Some("<|/tool_call|>"),
    around_all: ["<|tool_call|>[", "]<|/tool_call|>"],
    ..JSON_LIST
};
