//! `<tool_call><function=name><parameter=x>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5, Nemotron 3.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::{Arguments, Tags};

pub(crate) static QWEN_CODER: CallFormat = CallFormat {
    signs: &[&["<function=", "<parameter="]],
    // Models forget the first mark.
    openings: &["<tool_call>", "<function="],
    closing: Some("</tool_call>"),
    body: Body::Framed(Arguments::Tags(Tags {
        before_name: "<parameter=",
        after_name: ">",
        before_value: "\n",
        after_value: "</parameter>",
        separator: "\n",
        wrapper: None,
    })),
    around_parts: ["<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"],
    ..ONE_BY_ONE
};
