//! Converts token ids to text for clients: incomplete characters are held back, and so is text that may become a stop
//! string.
//!
//! The deltas concatenate to the text of an unstreamed answer, wherever tokens end.

use std::sync::Arc;

use hearth_model::{TokenId, text::tokenizer::Detokenizer};

use crate::request::StopText;

/// Finds stop strings in text that arrives in pieces.
///
/// Holds back the longest suffix that is the beginning of a stop string, so it holds at most one character less than
/// the longest stop string.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stop_strings: Arc<[String]>,
    stop_text: StopText,
    held: String,
    found: Option<String>,
}

/// The result of adding text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// No stop string yet: the text that cannot be part of one any more.
    Text(String),
    /// The text before the first complete stop string, or including it if it is to be kept; the rest is dropped.
    Stopped(String),
}

impl StopMatcher {
    /// A matcher for `stop_strings`, none of them empty.
    pub fn new(stop_strings: Arc<[String]>) -> Self {
        Self { stop_strings, stop_text: StopText::Cut, held: String::new(), found: None }
    }

    /// Sets the treatment of the stop string.
    pub fn with_stop_text(self, stop_text: StopText) -> Self {
        Self { stop_text, ..self }
    }

    /// Adds text and returns the part that cannot belong to a stop string. Must not be called after
    /// [`Matched::Stopped`].
    pub fn push(&mut self, text: &str) -> Matched {
        self.held.push_str(text);
        // The stop string that is complete first wins, then the one that starts first, so that the result does not
        // depend on the pieces.
        let found = self.stop_strings.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, stop))
        });
        if let Some((end, start, stop)) = found.min() {
            self.found = Some(stop.clone());
            self.held.truncate(match self.stop_text {
                StopText::Cut => start,
                StopText::Keep => end,
            });
            return Matched::Stopped(std::mem::take(&mut self.held));
        }
        let longest = self.stop_strings.iter().map(String::len).max().unwrap_or(0);
        let earliest = self.held.len().saturating_sub(longest.saturating_sub(1));
        let settled = (earliest..self.held.len())
            .find(|&start| {
                self.held.get(start..).is_some_and(|tail| self.stop_strings.iter().any(|stop| stop.starts_with(tail)))
            })
            .unwrap_or(self.held.len());
        let tail = self.held.split_off(settled);
        Matched::Text(std::mem::replace(&mut self.held, tail))
    }

    /// The stop string that ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Adds text and returns it with all held-back text, without searching them for stop strings.
    pub fn pass(&mut self, text: &str) -> String {
        self.held.push_str(text);
        std::mem::take(&mut self.held)
    }
}

/// Detokenizes, then searches for stop strings.
#[derive(Clone, Debug)]
pub struct TextAssembler {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    n_chars: usize,
}

impl TextAssembler {
    /// Starts at the position of `detokenizer`.
    pub fn new(detokenizer: Detokenizer, stop_strings: Arc<[String]>) -> Self {
        Self { detokenizer, matcher: StopMatcher::new(stop_strings), n_chars: 0 }
    }

    /// Sets the treatment of the stop string.
    pub fn with_stop_text(self, stop_text: StopText) -> Self {
        Self { matcher: self.matcher.with_stop_text(stop_text), ..self }
    }

    /// Number of characters (Unicode scalar values) detokenized so far, including held-back ones: the offset of the
    /// next token's text.
    pub fn n_chars(&self) -> usize {
        self.n_chars
    }

    /// The stop string that ended the text.
    pub fn stop_string(&self) -> Option<&str> {
        self.matcher.found()
    }

    /// Adds a token.
    pub fn push(&mut self, id: TokenId) -> Matched {
        let text = self.detokenize(id);
        self.matcher.push(&text)
    }

    /// Adds a token in which an answer begins: stop strings do not count in the white space before it.
    pub fn push_after_blanks(&mut self, id: TokenId) -> Matched {
        let text = self.detokenize(id);
        let (blanks, text) = text.split_at(text.len() - text.trim_start().len());
        let blanks = self.matcher.pass(blanks);
        match self.matcher.push(text) {
            Matched::Text(text) => Matched::Text(blanks + &text),
            Matched::Stopped(text) => Matched::Stopped(blanks + &text),
        }
    }

    /// Adds a token whose text must not stop the generation, for example because there are too few tokens.
    pub fn pass(&mut self, id: TokenId) -> String {
        let text = self.detokenize(id);
        self.matcher.pass(&text)
    }

    /// Ends the text and returns the held-back text.
    pub fn finish(&mut self) -> Matched {
        let text = self.detokenizer.finish();
        self.n_chars += text.chars().count();
        match self.matcher.push(&text) {
            Matched::Stopped(text) => Matched::Stopped(text),
            Matched::Text(text) => Matched::Text(text + &self.matcher.pass("")),
        }
    }

    fn detokenize(&mut self, id: TokenId) -> String {
        let text = self.detokenizer.push(id);
        self.n_chars += text.chars().count();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stop_strings: &[&str]) -> StopMatcher {
        StopMatcher::new(stop_strings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn stop_matcher_includes_the_stop_string_on_request() {
        let mut keeping = matcher(&["stop"]).with_stop_text(StopText::Keep);
        assert_eq!(keeping.push("a st"), Matched::Text("a ".into()));
        assert_eq!(keeping.push("op it"), Matched::Stopped("stop".into()));
        assert_eq!(keeping.found(), Some("stop"));
    }

    #[test]
    fn stop_matcher_without_stop_strings_holds_nothing_back() {
        assert_eq!(matcher(&[]).push("abc"), Matched::Text("abc".into()));
    }

    #[test]
    fn partial_stop_string_is_held_back_until_matched_or_ruled_out() {
        let mut stops = matcher(&["END", "\n\n"]);
        assert_eq!(stops.push("one E"), Matched::Text("one ".into()));
        assert_eq!(stops.push("N"), Matched::Text(String::new()));
        assert_eq!(stops.push("T\n"), Matched::Text("ENT".into()));
        assert_eq!(stops.push("EN"), Matched::Text("\n".into()));
        assert_eq!(stops.push("D and more"), Matched::Stopped(String::new()));
    }

    #[test]
    fn overlapping_partial_stop_match_still_matches() {
        let mut stops = matcher(&["aab"]);
        assert_eq!(stops.push("aa"), Matched::Text(String::new()));
        assert_eq!(stops.push("a"), Matched::Text("a".into()));
        assert_eq!(stops.push("b"), Matched::Stopped(String::new()));
    }

    #[test]
    fn stop_string_that_completes_first_wins() {
        assert_eq!(matcher(&["lo", "hell"]).push("say hello"), Matched::Stopped("say ".into()));
        assert_eq!(matcher(&["hello", "el"]).push("say hello"), Matched::Stopped("say h".into()));
    }

    #[test]
    fn multibyte_stop_string_is_matched_across_pushes() {
        let mut stops = matcher(&["é日"]);
        assert_eq!(stops.push("caé"), Matched::Text("ca".into()));
        assert_eq!(stops.push("日本"), Matched::Stopped(String::new()));
    }

    proptest! {
        #[test]
        fn stop_matcher_deltas_equal_the_text_before_the_first_stop(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..20),
            stop_strings in proptest::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let whole = pieces.concat();
            // The oracle lets the text grow by one character at a time until it ends with a stop string.
            let expected = whole
                .char_indices()
                .map(|(at, c)| &whole[..at + c.len_utf8()])
                .find_map(|text| stop_strings.iter().filter_map(|stop| text.strip_suffix(stop.as_str())).min_by_key(|before| before.len()));
            let mut stops = StopMatcher::new(stop_strings.clone().into());
            let mut streamed = String::new();
            let mut stopped = false;
            for piece in &pieces {
                match stops.push(piece) {
                    Matched::Text(text) => streamed += &text,
                    Matched::Stopped(text) => { streamed += &text; stopped = true; break; }
                }
            }
            if !stopped {
                streamed += &stops.pass("");
            }
            prop_assert_eq!(stopped, expected.is_some());
            prop_assert_eq!(&streamed, expected.unwrap_or(&whole));
        }
    }
}
