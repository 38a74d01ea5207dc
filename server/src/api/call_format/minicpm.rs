//! Python's calls in a block of code, between `<|tool_call_start|>` and `<|tool_call_end|>`: MiniCPM 3 and 4.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::call_arguments::Arguments;

pub(crate) static MINICPM: CallFormat = CallFormat {
    signs: &[&["<|tool_call_start|>", "```python"]],
    openings: &["<|tool_call_start|>"],
    closing: Some("<|tool_call_end|>"),
    body: Body::Framed(Arguments::Python),
    around_all: ["<|tool_call_start|>\n```python\n", "\n```\n<|tool_call_end|>"],
    around_parts: ["", "(", ")"],
    ..ONE_BY_ONE
};
