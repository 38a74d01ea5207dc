//! How requests end.

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By a stop condition.
    Stop,
    /// At `max_tokens` or the end of the context.
    Length,
    /// The client disconnected, or the deadline passed.
    Abort,
    /// An error.
    Error,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}
