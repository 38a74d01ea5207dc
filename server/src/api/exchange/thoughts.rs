//! Thoughts that travel to a client and back: the opaque strings that Anthropic's API calls `signature` and OpenAI's
//! `encrypted_content`. They are the thought's text, encoded but not encrypted: the server stores nothing.

use base64::{Engine as _, prelude::BASE64_STANDARD};

/// Before the text, so that strings of other servers are recognized.
const MARK: &str = "hearth-thought:";

/// The string that represents a thought.
pub(crate) fn encode(thought: &str) -> String {
    BASE64_STANDARD.encode(format!("{MARK}{thought}"))
}

/// The thought that a string represents; `None` if another server made it.
pub(crate) fn decode(encoded: &str) -> Option<String> {
    let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    text.strip_prefix(MARK).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_return_as_they_were_and_those_of_other_servers_are_recognized() {
        for thought in ["", "2 + 2 = 4", "caf\u{e9} \u{1f600}\n"] {
            assert_eq!(decode(&encode(thought)).as_deref(), Some(thought));
        }
        for foreign in ["", "EqQBCgIYAhIM", "not base64!", "aGVhcnRo"] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }
}
