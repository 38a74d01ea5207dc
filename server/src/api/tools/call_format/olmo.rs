//! Python's calls, one a line, between `<function_calls>` and `</function_calls>`: OLMo 3.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::Arguments;

pub(crate) static OLMO: CallFormat = CallFormat {
    signs: &[&["<function_calls>"]],
    openings: &["<function_calls>"],
    closing: Some("</function_calls>"),
    body: Body::Framed(Arguments::Python),
    around_all: ["<function_calls>", "</function_calls>"],
    around_parts: ["", "(", ")"],
    ..ONE_BY_ONE
};
