//! DeepSeek.

use super::{Body, CallFormat, ONE_BY_ONE};
use crate::api::tools::call_arguments::Arguments;

/// The name after the word `function`, the arguments as a block of code: V3 and R1.
pub(crate) static DEEPSEEK: CallFormat = CallFormat {
    signs: &[&["<｜tool▁calls▁begin｜>", "```json"]],
    around_parts: ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"],
    separator: "\n",
    ..DEEPSEEK_GROUP
};

/// The name, a mark and the arguments: V3.1.
pub(crate) static DEEPSEEK_NAMED: CallFormat = CallFormat {
    signs: &[&["<｜tool▁calls▁begin｜>"]],
    around_parts: ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
    separator: "",
    ..DEEPSEEK_GROUP
};

const DEEPSEEK_GROUP: CallFormat = CallFormat {
    openings: &["<｜tool▁calls▁begin｜>"],
    closing: Some("<｜tool▁calls▁end｜>"),
    body: Body::Framed(Arguments::Json),
    around_all: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    inner_marks: &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
    ..ONE_BY_ONE
};
