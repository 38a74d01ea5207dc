//! Reads a text from its start. The text may be incomplete.

use super::{Function, Mismatch};

/// The rest of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(rest: &'a str) -> Self {
        Self { rest }
    }

    pub(crate) fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Passes over a text, in any white space.
    pub(crate) fn expect(&mut self, text: &str) -> Result<(), Mismatch> {
        text.split_whitespace().try_for_each(|word| {
            self.skip_blanks();
            match self.rest.strip_prefix(word) {
                Some(rest) => {
                    self.rest = rest;
                    Ok(())
                }
                None if word.starts_with(self.rest) => Err(Mismatch::Cut { n_json: 0 }),
                None => Err(Mismatch::Other),
            }
        })
    }

    /// Whether the text continues with `text`, which is then consumed.
    ///
    /// # Errors
    /// The text is too short to decide.
    pub(crate) fn accepts(&mut self, text: &str) -> Result<bool, Mismatch> {
        let mut ahead = *self;
        match ahead.expect(text) {
            Ok(()) => *self = ahead,
            Err(Mismatch::Other) => return Ok(false),
            Err(cut) => return Err(cut),
        }
        Ok(true)
    }

    /// The text before `end`, which is passed over.
    pub(crate) fn until(&mut self, end: &'static str) -> Result<&'a str, Mismatch> {
        let (text, rest) = self.rest.split_once(end).ok_or(Mismatch::Until(end))?;
        self.rest = rest;
        Ok(text)
    }

    /// A function's name.
    pub(crate) fn function<'f>(&mut self, functions: &'f [Function]) -> Result<&'f Function, Mismatch> {
        self.skip_blanks();
        let is_of_name = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
        let n_bytes = self.rest.find(|character| !is_of_name(character)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(n_bytes);
        if rest.is_empty() && functions.iter().any(|function| function.name.starts_with(name)) {
            return Err(Mismatch::Cut { n_json: 0 });
        }
        let function = functions.iter().find(|function| function.name == name).ok_or(Mismatch::Other)?;
        self.rest = rest;
        Ok(function)
    }

    /// The next character. Incomplete without one.
    pub(crate) fn peek(&self) -> Result<char, Mismatch> {
        self.rest.chars().next().ok_or(Mismatch::Cut { n_json: 0 })
    }

    /// Passes over a character.
    pub(crate) fn next(&mut self) -> Result<char, Mismatch> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        Ok(character)
    }

    /// Passes over the characters that `is_part` accepts.
    pub(crate) fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let n_bytes = self.rest.find(|character| !is_part(character)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(n_bytes);
        self.rest = rest;
        text
    }
}
