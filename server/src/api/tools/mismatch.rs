//! Why a text is not read as what is expected.

/// Why a text does not start with what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// It is incomplete. The last `n_json` bytes are the beginning of a JSON value.
    Cut { n_json: usize },
    /// It is incomplete, at least until this comes.
    Until(&'static str),
    /// It is something else.
    Other,
}
