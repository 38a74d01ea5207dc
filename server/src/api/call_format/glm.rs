//! `<tool_call>name<arg_key>x</arg_key><arg_value>value</arg_value></tool_call>`: GLM from 4.5 on.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::call_arguments::{Arguments, Tags};

pub(crate) static GLM: CallFormat = CallFormat {
    signs: &[&["<arg_key>", "<arg_value>"]],
    openings: &["<tool_call>"],
    closing: Some("</tool_call>"),
    body: Body::Framed(Arguments::Tags(Tags {
        before_name: "<arg_key>",
        after_name: "</arg_key>",
        before_value: "\n<arg_value>",
        after_value: "</arg_value>",
        separator: "\n",
    })),
    around_parts: ["<tool_call>", "\n", "</tool_call>"],
    inner_marks: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    ..ONE_BY_ONE
};
