//! Finds thoughts in text that arrives in pieces. The result does not depend on the pieces.

use super::MARKS;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A mark that opens or closes a thought.
    Mark(String),
    /// Text within a thought.
    Thought(String),
    /// Text outside of thoughts.
    Answer(String),
}

/// What is known of the text outside of thoughts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Nothing but the text itself.
    #[default]
    Text,
    /// A tool call has just ended: a thought may follow as at the start of a line.
    AfterCall,
    /// Within a tool call, where nothing is a thought.
    InCall,
}

/// Finds thoughts. A thought begins at the start of a line, outside of fenced code, and ends at the first mark that is
/// not quoted.
#[derive(Clone, Debug)]
pub struct ThoughtScan {
    /// The mark that closes the open thought.
    close: Option<&'static str>,
    line: Line,
    /// Whether a fence has opened a block of code.
    in_fence: bool,
    /// Text that cannot be classified yet.
    held: String,
}

/// The current line.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Whether it has more than white space.
    has_text: bool,
    /// Backticks at its start, at most three. `None` after other text.
    fence: usize,
    is_fence_over: bool,
    /// Whether a quotation mark or a backtick has opened a quotation.
    is_quoted: [bool; QUOTES.len()],
    last: Option<char>,
}

/// Marks of quotations. Apostrophes are too common to be counted.
const QUOTES: [char; 2] = ['"', '`'];

/// Backticks that open and close a block of code.
const FENCE: usize = 3;

impl ThoughtScan {
    /// For a text that begins within a thought, which `close` closes, or outside of one.
    pub fn new(close: Option<&'static str>) -> Self {
        Self { close, line: Line::default(), in_fence: false, held: String::new() }
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) {
        self.held.push_str(text);
    }

    /// Whether a thought is open.
    pub fn is_open(&self) -> bool {
        self.close.is_some()
    }

    /// The next part that is settled. `place` is that of the end of the last part.
    pub fn next(&mut self, place: Place) -> Option<Part> {
        let opens = MARKS.map(|[open, _]| open);
        let marks = match &self.close {
            Some(close) => std::slice::from_ref(close),
            None => &opens[..],
        };
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        let n_settled = match found {
            Some((0, mark)) if self.is_mark(place) => return Some(self.take_mark(mark)),
            Some((0, _)) => 1,
            Some((at, _)) => at,
            None => {
                let n_open = marks.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
                match self.held.len() - n_open {
                    0 if n_open > 0 && !self.is_mark(place) => 1,
                    n_settled => n_settled,
                }
            }
        };
        self.take(n_settled)
    }

    /// The rest, if no more text follows.
    pub fn finish(&mut self) -> Option<Part> {
        self.take(self.held.len())
    }

    /// Whether a mark at the start of the held text opens or closes a thought.
    fn is_mark(&self, place: Place) -> bool {
        match (self.close, place) {
            (Some(_), _) => !self.line.is_in_quotation(),
            (None, Place::InCall) => false,
            (None, Place::AfterCall) => true,
            (None, Place::Text) => !self.line.has_text && !self.in_fence,
        }
    }

    fn take_mark(&mut self, mark: &'static str) -> Part {
        self.close = match self.close {
            Some(_) => None,
            None => MARKS.into_iter().find_map(|[open, close]| (open == mark).then_some(close)),
        };
        (self.line, self.in_fence) = (Line::default(), false);
        self.held.drain(..mark.len());
        Part::Mark(mark.to_owned())
    }

    fn take(&mut self, n_bytes: usize) -> Option<Part> {
        if n_bytes == 0 {
            return None;
        }
        let rest = self.held.split_off(n_bytes);
        let text = std::mem::replace(&mut self.held, rest);
        text.chars().for_each(|character| self.note(character));
        Some(if self.is_open() { Part::Thought(text) } else { Part::Answer(text) })
    }

    fn note(&mut self, character: char) {
        let line = &mut self.line;
        line.last = Some(character);
        if character == '\n' {
            *line = Line::default();
            return;
        }
        for (quote, is_quoted) in QUOTES.into_iter().zip(&mut line.is_quoted) {
            *is_quoted ^= quote == character;
        }
        if character == '`' && !line.is_fence_over {
            line.fence += 1;
            self.in_fence ^= line.fence == FENCE;
        } else if !character.is_whitespace() || line.fence > 0 {
            line.is_fence_over = true;
        }
        line.has_text |= !character.is_whitespace();
    }
}

impl Line {
    /// Whether the last character opens a quotation, so that a mark after it is what is quoted.
    fn is_in_quotation(&self) -> bool {
        QUOTES.into_iter().zip(self.is_quoted).any(|(quote, is_quoted)| is_quoted && self.last == Some(quote))
    }
}

/// The length of the longest suffix of `text` that is a proper prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}
