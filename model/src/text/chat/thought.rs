//! The marks around a model's thoughts (reasoning) before its answer.

mod form;
mod scan;

pub use form::{Opens, ThoughtForm, ThoughtMarks};
pub use scan::{Part, Place, ThoughtScan};

/// All marks around thoughts, of all forms.
fn marks() -> impl Iterator<Item = &'static ThoughtMarks> {
    form::all().flat_map(|form| form.marks)
}

/// The marks that can close the thought that is open at the end of a text. `None` if no thought is open.
pub fn open_at_end(text: &str) -> Option<&'static [&'static str]> {
    let open = marks().filter_map(|marks| {
        let at = text.rfind(marks.open)?;
        let is_closed = marks.closes.iter().filter_map(|close| text.rfind(close)).any(|closed| closed > at);
        (!is_closed).then_some((at, marks.closes))
    });
    open.max_by_key(|(at, _)| *at).map(|(_, closes)| closes)
}

/// Whether a text has a mark of a thought.
pub(super) fn has_mark(text: &str) -> bool {
    let closes = form::all().filter(|form| form.opens == Opens::LineStart).flat_map(|form| form.marks);
    let mut closes = closes.flat_map(|marks| marks.closes);
    marks().any(|marks| text.contains(marks.open)) || closes.any(|close| text.contains(close))
}

/// Whether a text begins with a thought.
pub(super) fn begins_with(text: &str) -> bool {
    marks().any(|marks| text.trim_start().starts_with(marks.open))
}

/// A prompt without the thought that it begins at its end, or an empty thought there: the assistant's message may begin
/// with another one.
pub(super) fn without_start(prompt: &str) -> &str {
    let trimmed = prompt.trim_end();
    let start = marks().find_map(|marks| {
        let closed = marks.closes.iter().find_map(|close| trimmed.strip_suffix(close));
        closed.map_or(trimmed, str::trim_end).strip_suffix(marks.open)
    });
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
            assert_eq!(open_at_end(text), close.map(|close| [close]).as_ref().map(|close| &close[..]), "{text}");
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
