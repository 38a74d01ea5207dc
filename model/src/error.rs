//! The errors of the model crate. Each message names the subject in backticks, the value found and what is allowed, and
//! ends with a hint if there is one.

use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// All errors of the model crate. Display is for people; programs match on the variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system could not read or write a file.
    #[error("cannot {action} `{path}`: {reason}{}", permission_hint(reason))]
    Io {
        /// The failed action: `read`, `write`, `create`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason. Part of the message, so it is not a `source`, which would be printed twice.
        reason: io::Error,
    },
    /// A file is invalid or requires an unsupported feature.
    #[error("`{path}`: {what}{}", hint_line(hint))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error: what was found and expected.
        what: String,
        /// A hint; may be empty.
        hint: String,
    },
    /// A tensor of a weights file is missing, unexpected, or has the wrong shape or type.
    #[error("`{path}`: tensor `{tensor}`: {what}{}", hint_line(hint))]
    Tensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor's name in that file.
        tensor: String,
        /// The error: what was found and expected.
        what: String,
        /// A hint; may be empty.
        hint: String,
    },
    /// A field of the architecture's configuration is out of range or contradicts another.
    #[error("configuration field `{field}`: {what}")]
    Config {
        /// The field of `GptConfig`, with dots.
        field: Cow<'static, str>,
        /// The error: what was found and expected.
        what: String,
    },
    /// The requested device is not available.
    #[error("device `{name}`: {what}{}", hint_line(hint))]
    Device {
        /// The name of the requested device.
        name: String,
        /// The error.
        what: String,
        /// A hint; may be empty.
        hint: String,
    },
    /// The tokenizer cannot encode a text or decode ids.
    #[error("tokenizer: {what}{}", hint_line(hint))]
    Tokenizer {
        /// The error.
        what: String,
        /// A hint; may be empty.
        hint: String,
    },
    /// A chat template does not parse, or fails on the messages.
    #[error("chat template: {what}{}", hint_line(hint))]
    Template {
        /// The error.
        what: String,
        /// A hint; may be empty.
        hint: String,
    },
    /// A parameter is invalid.
    #[error("`{name}` {what}")]
    Param {
        /// The parameter's name in requests.
        name: &'static str,
        /// What is allowed, and what was found.
        what: String,
    },
    /// The model's logits are invalid, so no token can be sampled.
    #[error(
        "the model's logits are invalid: {what}\nhint: the weights may be broken or too large for their dtype; loading the \
         model reports weights that are not finite"
    )]
    Logits {
        /// The error.
        what: String,
    },
    /// The hub does not have the requested data, denies it or fails to deliver it.
    #[error("`{name}`: {what}{}", hint_line(hint))]
    Hub {
        /// The repository, or a file of it.
        name: String,
        /// The error.
        what: String,
        /// A hint; may be empty.
        hint: String,
    },
    /// The computation failed on the device: out of memory, device lost, a kernel that does not compile.
    #[error("the device failed: {what}")]
    Execution {
        /// The device's message.
        what: String,
    },
}

impl Error {
    /// For `map_err`: an [`Error::Io`] of the action `action` on the file or folder `path`.
    pub fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |reason| Self::Io { action, path: path.to_owned(), reason }
    }

    /// An [`Error::File`] without a hint.
    pub fn file(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::File { path: path.into(), what: what.into(), hint: String::new() }
    }

    /// An [`Error::Tensor`] without a hint.
    pub fn tensor(path: impl Into<PathBuf>, tensor: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Tensor { path: path.into(), tensor: tensor.into(), what: what.into(), hint: String::new() }
    }

    /// An [`Error::Template`] without a hint.
    pub fn template(what: impl Into<String>) -> Self {
        Self::Template { what: what.into(), hint: String::new() }
    }

    /// The same error with this hint; variants without hints are returned unchanged.
    #[must_use]
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::File { hint, .. }
            | Self::Tensor { hint, .. }
            | Self::Device { hint, .. }
            | Self::Tokenizer { hint, .. }
            | Self::Template { hint, .. }
            | Self::Hub { hint, .. } => *hint = text.into(),
            _ => {}
        }
        self
    }
}

fn permission_hint(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::PermissionDenied => {
            "\nhint: the user that this program runs as needs access to it; in Hearth's container that is user 10001"
        }
        _ => "",
    }
}

fn hint_line(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") }
}
