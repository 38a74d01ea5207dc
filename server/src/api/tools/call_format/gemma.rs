//! `call:name{parameter:value}`, with strings between special marks: Gemma.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::Arguments;

/// Gemma 4.
pub(crate) static GEMMA: CallFormat = CallFormat {
    signs: &[&["<|tool_call>call:"]],
    openings: &["<|tool_call>"],
    closing: Some("<tool_call|>"),
    body: Body::Framed(Arguments::Members { quote: "<|\"|>" }),
    around_parts: ["<|tool_call>call:", "{", "}<tool_call|>"],
    separator: "",
    ..ONE_BY_ONE
};

/// FunctionGemma.
pub(crate) static FUNCTION_GEMMA: CallFormat = CallFormat {
    signs: &[&["<start_function_call>"]],
    openings: &["<start_function_call>"],
    closing: Some("<end_function_call>"),
    body: Body::Framed(Arguments::Members { quote: "<escape>" }),
    around_parts: ["<start_function_call>call:", "{", "}<end_function_call>"],
    separator: "",
    ..ONE_BY_ONE
};
