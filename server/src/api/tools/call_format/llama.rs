//! Llama 3 and 4.

use super::{Bare, Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::Arguments;

/// `{"name": .., "parameters": {..}}`, with or without `<|python_tag|>` in front.
pub(crate) static LLAMA: CallFormat = CallFormat {
    signs: &[&["<|python_tag|>"], &["\"parameters\""]],
    openings: &["<|python_tag|>"],
    bare: Bare::Json,
    around_parts: ["{\"name\": \"", "\", \"parameters\": ", "}"],
    separator: "; ",
    ..ONE_BY_ONE
};

/// `[name(parameter=value)]`, which some templates ask of Llama 3.2 and 4.
pub(crate) static LLAMA_PYTHON: CallFormat = CallFormat {
    signs: &[&["[func_name1("]],
    openings: &["<|python_start|>"],
    closing: Some("<|python_end|>"),
    bare: Bare::Python,
    body: Body::Framed(Arguments::Python),
    around_all: ["[", "]"],
    around_parts: ["", "(", ")"],
    separator: ", ",
    ..ONE_BY_ONE
};
