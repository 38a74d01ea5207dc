//! `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": .., "parameters": {..}}]<|END_ACTION|>`: Command R7B and A.

use super::{Body, CallFormat, JSON_LIST};

pub(crate) static COHERE: CallFormat = CallFormat {
    signs: &[&["<|START_ACTION|>"]],
    openings: &["<|START_ACTION|>"],
    closing: Some("<|END_ACTION|>"),
    body: Body::Json { name: "tool_name" },
    around_all: ["<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"],
    around_parts: ["{\"tool_call_id\": \"\0\", \"tool_name\": \"", "\", \"parameters\": ", "}"],
    separator: ",\n    ",
    ..JSON_LIST
};
