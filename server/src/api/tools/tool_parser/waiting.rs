//! Tracks the text that decides whether held text is a call, so that the held text is not parsed again for each piece.

use crate::api::tools::json_scan::{JsonScan, Scanned};

/// The text that decides whether the held text is a call.
#[derive(Clone, Debug, Default)]
pub(super) enum WaitingFor {
    /// Any text.
    #[default]
    Text,
    /// Any text but whitespace.
    MoreThanBlanks,
    /// The rest of a JSON value.
    Json(JsonScan),
    /// This literal. `tail` is the end of the text so far, which may be its beginning.
    Literal { literal: &'static str, tail: String },
}

/// Whitespace of JSON.
const BLANKS: [char; 4] = [' ', '\n', '\r', '\t'];

impl WaitingFor {
    /// For held text that may become a call, and whose last `n_json` bytes are the beginning of a JSON value.
    pub(super) fn new(held: &str, n_json: usize) -> Self {
        let (_, json) = held.split_at(held.len() - n_json);
        if json.is_empty() {
            return if held.ends_with(BLANKS) { Self::MoreThanBlanks } else { Self::Text };
        }
        let mut scan = JsonScan::default();
        match scan.push(json) {
            Scanned::Open => Self::Json(scan),
            // An escape with a wrong digit, which serde_json rejects once it has four.
            Scanned::End(_) | Scanned::Malformed => Self::Text,
        }
    }

    /// For held text that may become a call, and certainly not before `literal` comes.
    pub(super) fn literal(held: &str, literal: &'static str) -> Self {
        Self::Literal { literal, tail: last_bytes(held, literal.len() - 1).to_owned() }
    }

    /// Whether the held text still may become a call with `text` after it.
    pub(super) fn goes_on(&mut self, text: &str) -> bool {
        match self {
            Self::Text => false,
            Self::MoreThanBlanks => text.trim_start_matches(BLANKS).is_empty(),
            Self::Json(scan) => scan.push(text) == Scanned::Open,
            Self::Literal { literal, tail } => {
                tail.push_str(text);
                let goes_on = !tail.contains(*literal);
                *tail = last_bytes(tail, literal.len() - 1).to_owned();
                goes_on
            }
        }
    }
}

/// The last `n` bytes of a text, or fewer so that it is whole characters.
fn last_bytes(text: &str, n: usize) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(n));
    &text[start..]
}
