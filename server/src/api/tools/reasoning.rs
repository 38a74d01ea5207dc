//! Reads an answer's text: thoughts become [`Piece::Reasoning`]; the rest goes to the parser for tool calls, or becomes
//! [`Piece::Content`]. The pieces, when joined, do not depend on how the text is split.
//!
//! No text is lost except the marks of thoughts and the white space next to them. A line feed keeps two thoughts apart,
//! and the texts before and after a thought.

use hearth_model::text::chat::thought::{Part, Place, ThoughtForm, ThoughtScan};

use super::{
    piece::{Piece, TextEnd},
    tool_parser::ToolParser,
};

/// Where thoughts are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReasoningFormat {
    /// Apart from the content.
    #[default]
    Apart,
    /// Into the content, as the model wrote them.
    InContent,
    /// Nowhere: the client does not want thoughts.
    Omitted,
}

/// The places of [`AnswerReader::last`].
const THOUGHT: usize = 0;
const CONTENT: usize = 1;

/// Reads one answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerReader {
    scan: ThoughtScan,
    format: ReasoningFormat,
    /// Parses the calls, if the request has tools.
    calls: Option<ToolParser>,
    /// White space that is left out if a mark is next to it.
    blanks: String,
    /// Whether white space is left out: a mark is before it.
    is_after_mark: bool,
    /// Whether there has been text since the start or the last mark.
    has_text: bool,
    /// The last character of the thoughts and of the content so far.
    last: [Option<char>; 2],
    /// Whether a mark may end the answer.
    has_end_marks: bool,
    /// Whether the whole answer follows a grammar: no thought begins in it.
    follows_grammar: bool,
    /// Whether a mark has been read since this was last asked.
    has_read_mark: bool,
}

impl AnswerReader {
    /// For an answer with thoughts of this form, and with calls if there is a parser for them.
    pub(crate) fn new(form: &'static ThoughtForm, calls: Option<ToolParser>, format: ReasoningFormat) -> Self {
        let scan = ThoughtScan::new(form);
        let has_end_marks = !form.answer_marks.is_empty();
        Self {
            scan,
            format,
            calls,
            blanks: String::new(),
            is_after_mark: false,
            has_text: false,
            last: [None; 2],
            has_end_marks,
            follows_grammar: false,
            has_read_mark: false,
        }
    }

    /// Whether a mark of a thought or an answer has been read since this was last asked.
    pub(crate) fn take_mark(&mut self) -> bool {
        std::mem::take(&mut self.has_read_mark)
    }

    /// For an answer that follows a grammar from its first to its last character.
    pub(crate) fn following_grammar(self) -> Self {
        Self { follows_grammar: true, ..self }
    }

    /// For text that begins within a thought, which one of these marks closes: directly after the opening mark, or as a
    /// continuation of the thought.
    pub(crate) fn within_thought(mut self, closes: Option<&'static [&'static str]>, is_continued: bool) -> Self {
        if closes.is_some() {
            (self.is_after_mark, self.has_text) = (!is_continued, is_continued);
        }
        Self { scan: self.scan.within(closes), ..self }
    }

    /// An id for a call.
    pub(crate) fn fresh_id(&self) -> String {
        self.calls.as_ref().map(ToolParser::fresh_id).unwrap_or_default()
    }

    /// Adds text and returns the pieces that are complete.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.scan.push(text);
        let mut pieces = Vec::new();
        while let Some(part) = self.scan.next(self.place()) {
            self.take(part, &mut pieces);
        }
        pieces
    }

    /// Ends the text and returns the rest.
    pub(crate) fn finish(&mut self, end: TextEnd) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some(part) = self.scan.finish(self.place()) {
            self.take(part, &mut pieces);
        }
        let blanks = std::mem::take(&mut self.blanks);
        if !blanks.is_empty() {
            if self.scan.is_open() {
                pieces.push(Piece::Reasoning(blanks));
            } else {
                self.take_answer(&blanks, &mut pieces);
            }
        }
        pieces.extend(self.calls.as_mut().map(|calls| calls.finish(end)).unwrap_or_default());
        pieces
    }

    fn place(&self) -> Place {
        let is_in_answer = self.follows_grammar && self.has_text;
        match self.calls.as_ref().map_or(Place::Text, ToolParser::place) {
            Place::Text if is_in_answer => Place::InCall,
            place => place,
        }
    }

    fn take(&mut self, part: Part, pieces: &mut Vec<Piece>) {
        match (part, self.format) {
            (Part::Mark(text) | Part::Thought(text), ReasoningFormat::InContent) => match &mut self.calls {
                Some(calls) => pieces.extend(calls.pass(&text)),
                None => pieces.push(Piece::Content(text)),
            },
            (Part::Answer(text), ReasoningFormat::InContent) => self.take_answer(&text, pieces),
            (Part::Mark(_), ReasoningFormat::Apart | ReasoningFormat::Omitted) => {
                self.blanks.clear();
                (self.is_after_mark, self.has_text, self.has_read_mark) = (true, false, true);
                if let Some(calls) = &mut self.calls {
                    calls.note_mark();
                }
            }
            (Part::Thought(_), ReasoningFormat::Omitted) => {}
            (Part::Thought(text), ReasoningFormat::Apart) => {
                let text = self.without_blanks(text, THOUGHT);
                let n_settled = text.trim_end().len();
                self.blanks.push_str(&text[n_settled..]);
                if n_settled > 0 {
                    self.last[THOUGHT] = text[..n_settled].chars().next_back();
                    pieces.push(Piece::Reasoning(text[..n_settled].to_owned()));
                }
            }
            (Part::Answer(text), ReasoningFormat::Apart | ReasoningFormat::Omitted) => {
                let text = self.without_blanks(text, CONTENT);
                // White space is left out if a mark follows: before the first text, or at the end of a marked answer.
                let n_settled = match (self.has_text, self.has_end_marks) {
                    (false, _) => 0,
                    (true, false) => text.len(),
                    (true, true) => text.trim_end().len(),
                };
                self.blanks.push_str(&text[n_settled..]);
                if n_settled > 0 {
                    self.last[CONTENT] = text[..n_settled].chars().next_back();
                    self.take_answer(&text[..n_settled], pieces);
                }
            }
        }
    }

    /// The text with the held white space, or without white space that follows a mark. `kind` is [`THOUGHT`] or
    /// [`CONTENT`].
    fn without_blanks(&mut self, text: String, kind: usize) -> String {
        let has_text = !text.trim_start().is_empty();
        // The parser for calls does this for the content.
        let is_apart = has_text && self.is_after_mark && (kind == THOUGHT || self.calls.is_none());
        let is_glued = is_apart && self.last[kind].is_some_and(|last| !last.is_whitespace());
        let text = match (self.is_after_mark, is_glued) {
            (true, true) => format!("\n{}", text.trim_start()),
            (true, false) => text.trim_start().to_owned(),
            (false, _) => text,
        };
        self.is_after_mark &= !has_text;
        self.has_text |= has_text;
        if has_text { std::mem::take(&mut self.blanks) + &text } else { text }
    }

    fn take_answer(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        match &mut self.calls {
            Some(calls) => pieces.extend(calls.push(text)),
            None => pieces.push(Piece::Content(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
