//! MiniCPM.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::{Arguments, Tags};

/// Python's calls in a block of code, between `<|tool_call_start|>` and `<|tool_call_end|>`: 3 and 4.
pub(crate) static MINICPM: CallFormat = CallFormat {
    signs: &[&["<|tool_call_start|>", "```python"]],
    openings: &["<|tool_call_start|>"],
    closing: Some("<|tool_call_end|>"),
    body: Body::Framed(Arguments::Python),
    around_all: ["<|tool_call_start|>\n```python\n", "\n```\n<|tool_call_end|>"],
    around_parts: ["", "(", ")"],
    ..ONE_BY_ONE
};

/// `<function name="f"><param name="x">value</param></function>`: 5.
pub(crate) static MINICPM_XML: CallFormat = CallFormat {
    signs: &[&["<function name=\"", "<param name=\""]],
    openings: &["<function name=\""],
    closing: Some("</function>"),
    body: Body::Framed(Arguments::Tags(Tags {
        before_name: "<param name=\"",
        after_name: "\">",
        before_value: "",
        after_value: "</param>",
        separator: "",
        wrapper: Some(["<![CDATA[", "]]>"]),
    })),
    around_parts: ["<function name=\"", "\">", "</function>"],
    ..ONE_BY_ONE
};
