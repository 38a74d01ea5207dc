//! The marks around what a model thinks before it answers.

mod scan;

pub use scan::{Part, Place, ThoughtScan};

/// The marks that open and close a thought: most models', and Magistral's.
pub const MARKS: [[&str; 2]; 2] = [["<think>", "</think>"], ["[THINK]", "[/THINK]"]];

/// The mark that closes the thought that is open at the end of a text. `None` if none is.
pub fn open_at_end(text: &str) -> Option<&'static str> {
    let open = MARKS.into_iter().filter_map(|[open, close]| {
        let at = text.rfind(open)?;
        text.rfind(close).is_none_or(|closed| closed < at).then_some((at, close))
    });
    open.max().map(|(_, close)| close)
}

/// Whether a text has a mark of a thought.
pub(super) fn has_mark(text: &str) -> bool {
    MARKS.iter().flatten().any(|mark| text.contains(mark))
}

/// Whether a text begins with a thought.
pub(super) fn begins_with(text: &str) -> bool {
    MARKS.iter().any(|[open, _]| text.trim_start().starts_with(open))
}

/// A prompt without the thought that it begins at its end, or an empty thought there: the assistant's message may begin
/// with another one.
pub(super) fn without_start(prompt: &str) -> &str {
    let trimmed = prompt.trim_end();
    let start = MARKS
        .iter()
        .find_map(|[open, close]| trimmed.strip_suffix(close).map_or(trimmed, str::trim_end).strip_suffix(open));
    start.unwrap_or(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_thought_is_the_last_one_that_is_not_closed() {
        for (text, close) in [
            ("", None),
            ("a </think> b", None),
            ("<think>a</think> b", None),
            ("a <think>", Some("</think>")),
            ("<think>a</think><think>b", Some("</think>")),
            ("[THINK]a[/THINK]<think>b", Some("</think>")),
            ("<think>a</think>[THINK]b", Some("[/THINK]")),
        ] {
            assert_eq!(open_at_end(text), close, "{text}");
        }
    }

    #[test]
    fn thought_at_the_end_of_a_prompt_is_removed_with_its_marks() {
        for (prompt, without) in [
            ("[assistant]", "[assistant]"),
            ("[assistant]\n<think>\n", "[assistant]\n"),
            ("[assistant]\n<think>\n\n</think>\n\n", "[assistant]\n"),
            ("[assistant][THINK]", "[assistant]"),
            ("<think>a</think>\n", "<think>a</think>\n"),
        ] {
            assert_eq!(without_start(prompt), without, "{prompt:?}");
        }
    }
}
