//! The pieces of an answer.

/// A piece of an answer's text. The pieces are the same, when joined, for any split of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// More of the model's thoughts (reasoning).
    Reasoning(String),
    /// More content.
    Content(String),
    /// The start of a call, with the function's name.
    Call(String),
    /// More of the last call's arguments: JSON, as the model wrote it.
    Arguments(String),
}

/// How a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextEnd {
    /// The model ended it.
    Whole,
    /// A limit or a stop string ended it.
    Cut,
}
