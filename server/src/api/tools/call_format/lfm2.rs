//! `<|tool_call_start|>[name(parameter=value)]<|tool_call_end|>`: LFM2.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::Arguments;

pub(crate) static LFM2: CallFormat = CallFormat {
    // The last one is LFM 2.5's.
    signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: ["]],
    openings: &["<|tool_call_start|>"],
    closing: Some("<|tool_call_end|>"),
    body: Body::Framed(Arguments::Python),
    around_all: ["<|tool_call_start|>[", "]<|tool_call_end|>"],
    around_parts: ["", "(", ")"],
    separator: ", ",
    ..ONE_BY_ONE
};
