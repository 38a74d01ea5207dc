//! Finds thoughts in text that arrives in pieces. The result does not depend on the pieces.

use super::form::{Opens, ThoughtForm};

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A mark of a thought, or of the answer.
    Mark(String),
    /// Text within a thought.
    Thought(String),
    /// Text outside of thoughts.
    Answer(String),
}

/// The context outside of thoughts, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Plain text.
    #[default]
    Text,
    /// A tool call has just ended: a thought may follow as at the start of a line.
    AfterCall,
    /// Within a tool call, or an answer that follows a grammar, where nothing is a thought.
    InCall,
}

/// Finds the thoughts of a text. A thought begins as its form defines, and ends at the first mark that closes it.
#[derive(Clone, Debug)]
pub struct ThoughtScan {
    form: &'static ThoughtForm,
    /// The marks that close the open thought.
    closes: Option<&'static [&'static str]>,
    line: Line,
    quotations: Quotations,
    /// Whether a fence has opened a block of code.
    in_fence: bool,
    /// Whether a mark has opened the answer.
    is_marked: bool,
    /// Text that cannot be classified yet.
    held: String,
}

/// The current line outside of thoughts.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Whether it has more than white space.
    has_text: bool,
    /// Number of backticks that it starts with.
    n_ticks: usize,
    are_ticks_over: bool,
}

/// The current line of an open thought.
#[derive(Clone, Copy, Debug, Default)]
struct Quotations {
    /// Whether a mark of [`QUOTES`] has opened a quotation.
    are_open: [bool; QUOTES.len()],
    last: Option<char>,
}

/// Marks of quotations. Apostrophes are too common to be counted.
const QUOTES: [char; 2] = ['"', '`'];

/// Backticks that open and close a block of code.
const FENCE: usize = 3;

impl ThoughtScan {
    /// For a text that begins outside of thoughts.
    pub fn new(form: &'static ThoughtForm) -> Self {
        Self {
            form,
            closes: None,
            line: Line::default(),
            quotations: Quotations::default(),
            in_fence: false,
            is_marked: false,
            held: String::new(),
        }
    }

    /// For a text that begins within a thought, which one of these marks closes.
    #[must_use]
    pub fn within(self, closes: Option<&'static [&'static str]>) -> Self {
        Self { closes, ..self }
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) {
        self.held.push_str(text);
    }

    /// Whether a thought is open.
    pub fn is_open(&self) -> bool {
        self.closes.is_some()
    }

    /// Text that is not settled yet.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// The next part of the text that is settled. `place` is the context at the end of the last part.
    pub fn next(&mut self, place: Place) -> Option<Part> {
        let marks = || {
            let opens = self.form.marks.iter().map(|marks| marks.open).chain(self.form.answer_marks.iter().copied());
            let closes = self.closes.unwrap_or_default().iter().copied();
            closes.chain(opens.filter(|_| !self.is_open()))
        };
        // The longest of the marks at one place.
        let found = marks().filter_map(|mark| Some((self.held.find(mark)?, mark)));
        let found = found.min_by_key(|(at, mark)| (*at, usize::MAX - mark.len()));
        let n_open = marks().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
        let may_begin = marks().any(|mark| overlap(&self.held, mark) == self.held.len() && self.is_mark(mark, place));
        let n_settled = match found {
            Some((0, mark)) => {
                // It may be the beginning of a longer mark.
                let is_unsure = n_open == self.held.len()
                    && marks().any(|longer| longer.len() > mark.len() && longer.starts_with(&self.held));
                match self.is_mark(mark, place) {
                    true if is_unsure => return None,
                    true => match self.is_quoted(mark) {
                        Some(true) => mark.len(),
                        Some(false) => return Some(self.take_mark(mark)),
                        None => return None,
                    },
                    false => first_len(&self.held),
                }
            }
            Some((at, _)) => at,
            None => match self.held.len() - n_open {
                0 if n_open > 0 && !may_begin => first_len(&self.held),
                n_settled => n_settled,
            },
        };
        self.take(n_settled)
    }

    /// The rest, if no more text follows; call it until it returns `None`.
    pub fn finish(&mut self, place: Place) -> Option<Part> {
        let marks = self.closes.unwrap_or(self.form.answer_marks).iter();
        match marks.filter(|mark| self.held.starts_with(**mark)).max_by_key(|mark| mark.len()) {
            Some(mark) if self.is_mark(mark, place) => Some(self.take_mark(mark)),
            _ => self.take(self.held.len()),
        }
    }

    /// Whether the thought quotes this mark, which begins the held text: the mark has the same character directly
    /// before and after it, and the first of the two opens a quotation. `None` if the next character decides.
    fn is_quoted(&self, mark: &str) -> Option<bool> {
        let Quotations { are_open, last } = self.quotations;
        let quote = QUOTES.into_iter().zip(are_open).find(|(quote, is_open)| *is_open && last == Some(*quote));
        // Marks that are never written for anything else are not quoted.
        let may_quote = self.is_open() && self.form.opens == Opens::LineStart;
        match (quote.filter(|_| may_quote), self.held[mark.len()..].chars().next()) {
            (None, _) => Some(false),
            (Some((quote, _)), Some(next)) => Some(next == quote),
            (Some(_), None) => None,
        }
    }

    /// Whether this mark at the start of the held text counts.
    fn is_mark(&self, mark: &str, place: Place) -> bool {
        match (self.closes, place, self.form.opens) {
            (Some(_), ..) => true,
            (None, Place::InCall, _) => false,
            (None, Place::AfterCall, _) | (None, Place::Text, Opens::Anywhere) => true,
            // The mark that ends an answer may directly follow its last word.
            (None, Place::Text, Opens::LineStart) => {
                !self.in_fence && (!self.line.has_text || mark.starts_with("</") && self.is_marked)
            }
        }
    }

    fn take_mark(&mut self, mark: &'static str) -> Part {
        self.closes = match self.closes {
            Some(_) => None,
            None => self.form.marks.iter().find(|marks| marks.open == mark).map(|marks| marks.closes),
        };
        self.is_marked = self.form.answer_marks.contains(&mark) && !mark.starts_with("</");
        (self.line, self.in_fence, self.quotations) = (Line::default(), false, Quotations::default());
        self.held.drain(..mark.len());
        Part::Mark(mark.to_owned())
    }

    fn take(&mut self, n_bytes: usize) -> Option<Part> {
        if n_bytes == 0 {
            return None;
        }
        let rest = self.held.split_off(n_bytes);
        let text = std::mem::replace(&mut self.held, rest);
        if self.is_open() {
            text.chars().for_each(|character| self.quotations.note(character));
            return Some(Part::Thought(text));
        }
        text.chars().for_each(|character| self.note(character));
        Some(Part::Answer(text))
    }

    /// Notes a character outside of thoughts.
    fn note(&mut self, character: char) {
        let line = &mut self.line;
        if character == '\n' {
            *line = Line::default();
            return;
        }
        if character == '`' && !line.are_ticks_over {
            line.n_ticks += 1;
            self.in_fence ^= line.n_ticks == FENCE;
        } else if !character.is_whitespace() || line.n_ticks > 0 {
            line.are_ticks_over = true;
        }
        line.has_text |= !character.is_whitespace();
    }
}

impl Quotations {
    fn note(&mut self, character: char) {
        if character == '\n' {
            *self = Self::default();
            return;
        }
        for (quote, is_open) in QUOTES.into_iter().zip(&mut self.are_open) {
            *is_open ^= quote == character;
        }
        self.last = Some(character);
    }
}

/// The length of the first character.
fn first_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// The length of the longest suffix of `text` that is a proper prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}
