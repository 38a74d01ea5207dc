//! Mistral.

use super::{Body, CallFormat, Ids, JSON_LIST, ONE_BY_ONE};

/// `[TOOL_CALLS]name[ARGS]{..}`, in some versions with `[CALL_ID]` and an id after the name: tokenizers from version 11
/// on.
pub(crate) static MISTRAL_NAMED: CallFormat = CallFormat {
    signs: &[&["[ARGS]"]],
    openings: &["[TOOL_CALLS]"],
    body: Body::Named { before_id: "[CALL_ID]", before_arguments: "[ARGS]" },
    around_parts: ["[TOOL_CALLS]", "[ARGS]", ""],
    separator: "",
    ids: Ids::Nine,
    ..ONE_BY_ONE
};

/// `[TOOL_CALLS][{"name": .., "arguments": {..}}]`: earlier tokenizers.
pub(crate) static MISTRAL: CallFormat = CallFormat {
    signs: &[&["[TOOL_CALLS]"]],
    openings: &["[TOOL_CALLS]"],
    around_all: ["[TOOL_CALLS][", "]"],
    ids: Ids::Nine,
    ..JSON_LIST
};
