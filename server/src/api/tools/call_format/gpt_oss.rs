//! `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{..}`: gpt-oss's harmony. The recipient may also
//! stand in the header of the message.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::Arguments;

pub(crate) static GPT_OSS: CallFormat = CallFormat {
    signs: &[&["<|channel|>", "to=functions."], &["<|channel|>", "\"functions.\""]],
    openings: &["<|channel|>commentary to=functions.", "<|start|>assistant to=functions."],
    // The prompt ends with the message's role. After a role that the model writes, white space is optional.
    first_openings: &[" to=functions.", "to=functions."],
    closing: Some("<|call|>"),
    body: Body::Framed(Arguments::Json),
    around_parts: ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""],
    other_betweens: &[
        "<|channel|>commentary json<|message|>",
        "<|channel|>commentary <|constrain|>json<|message|>",
        "<|message|>",
    ],
    separator: "<|call|><|start|>assistant",
    inner_marks: &["<|channel|>", "<|start|>", "<|constrain|>", "<|message|>"],
    ..ONE_BY_ONE
};
