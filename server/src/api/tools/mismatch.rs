//! Why a text does not match the expected text.

/// Why a text does not start with the expected text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The text is incomplete. Its last `n_json` bytes are the beginning of a JSON value.
    Cut { n_json: usize },
    /// The text is incomplete, at least until it contains this.
    Until(&'static str),
    /// The text is something else.
    Other,
}
