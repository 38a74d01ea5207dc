//! What can go wrong in the model crate: each message names the thing in backticks, says what was found against what
//! is allowed, and ends with a hint where there is one.

use std::{io, path::PathBuf};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that the model crate reports. Callers show it with `Display`; programs match on the variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write a file.
    #[error("cannot {action} `{path}`: {reason}")]
    Io {
        /// What was being done: `read`, `write`, `create`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason. Part of the message, so it is no `source` to be printed once more.
        reason: io::Error,
    },
    /// A file is there but does not hold what it should, or asks for something that is not supported.
    #[error("`{path}`: {what}{}", hint_line(hint))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, found against expected.
        what: String,
        /// What to do about it; empty if there is nothing to say.
        hint: String,
    },
    /// A tensor of a weights file is missing, surplus, or not of the shape or type that the configuration asks for.
    #[error("`{path}`: tensor `{tensor}`: {what}{}", hint_line(hint))]
    Tensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor's name in that file.
        tensor: String,
        /// What is wrong, found against expected.
        what: String,
        /// What to do about it; empty if there is nothing to say.
        hint: String,
    },
    /// A field of the architecture's configuration is out of range or contradicts another.
    #[error("configuration field `{field}`: {what}")]
    Config {
        /// The field of `GptConfig`.
        field: &'static str,
        /// What is wrong, found against expected.
        what: String,
    },
    /// No device of the kind asked for.
    #[error("device `{name}`: {what}{}", hint_line(hint))]
    Device {
        /// The device as it was asked for.
        name: String,
        /// What is wrong.
        what: String,
        /// What to do about it; empty if there is nothing to say.
        hint: String,
    },
    /// A text that the tokenizer cannot turn into token ids, or ids that it cannot turn into text.
    #[error("tokenizer: {what}{}", hint_line(hint))]
    Tokenizer {
        /// What is wrong.
        what: String,
        /// What to do about it; empty if there is nothing to say.
        hint: String,
    },
    /// A chat template that does not parse, or that fails on the messages given.
    #[error("chat template: {what}{}", hint_line(hint))]
    Template {
        /// What is wrong.
        what: String,
        /// What to do about it; empty if there is nothing to say.
        hint: String,
    },
    /// A parameter of a request is out of range.
    #[error("`{name}` {what}")]
    Param {
        /// The parameter's name as a client writes it.
        name: &'static str,
        /// What is allowed, and what was given.
        what: String,
    },
    /// The model computed something that no token can be drawn from.
    #[error(
        "the model's logits cannot be used: {what}\nhint: its weights may be broken, or too large for their dtype; weights \
         that are not finite are named when it is loaded"
    )]
    Logits {
        /// What is wrong with them.
        what: String,
    },
    /// The computation failed on the device: out of memory, device lost, a kernel that did not compile.
    #[error("the device failed: {what}")]
    Execution {
        /// The device's own words.
        what: String,
    },
}

fn hint_line(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") }
}
