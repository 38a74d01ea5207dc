//! `<tool_call>name<arg_key>x</arg_key><arg_value>value</arg_value></tool_call>`: GLM from 4.5 on.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::{Arguments, Tags};

/// A part a line: up to 4.6.
pub(crate) static GLM: CallFormat = CallFormat { signs: &[&["<arg_key>", "<arg_value>"]], ..IN_LINES };

/// Without line breaks: from 4.7 on.
pub(crate) static GLM_DENSE: CallFormat = CallFormat {
    signs: &[&["</arg_key><arg_value>"]],
    body: Body::Framed(Arguments::Tags(Tags { before_value: "<arg_value>", separator: "", ..TAGS })),
    around_parts: ["<tool_call>", "", "</tool_call>"],
    separator: "",
    ..IN_LINES
};

const IN_LINES: CallFormat = CallFormat {
    openings: &["<tool_call>"],
    closing: Some("</tool_call>"),
    body: Body::Framed(Arguments::Tags(TAGS)),
    around_parts: ["<tool_call>", "\n", "</tool_call>"],
    inner_marks: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    ..ONE_BY_ONE
};

const TAGS: Tags = Tags {
    before_name: "<arg_key>",
    after_name: "</arg_key>",
    before_value: "\n<arg_value>",
    after_value: "</arg_value>",
    separator: "\n",
    wrapper: None,
};
