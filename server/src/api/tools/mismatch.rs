//! Why a text does not match the expected text.

/// Why a text does not start with the expected text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// It is incomplete. The last `n_json` bytes are the beginning of a JSON value.
    Cut { n_json: usize },
    /// It is incomplete, at least until this comes.
    Until(&'static str),
    /// It is something else.
    Other,
}
