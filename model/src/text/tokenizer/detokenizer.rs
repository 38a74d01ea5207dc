//! Incremental decoding, one token at a time.

use super::{DecodeOptions, Tokenizer};
use crate::TokenId;

/// Converts a stream of ids to text deltas.
///
/// The deltas and the result of [`finish`](Self::finish), concatenated, equal [`Tokenizer::decode`] of all ids, because
/// `decode` uses this stream. A token may end in the middle of a character; its bytes are held back until the character
/// is complete or invalid. So at most three bytes are held, and the cost of a push does not depend on the length of the
/// text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    options: DecodeOptions,
    /// The beginning of an incomplete character.
    incomplete: Vec<u8>,
    /// Number of leading characters that the decoder must still remove.
    n_strip: usize,
}

impl Detokenizer {
    /// A stream for a text that begins with the first pushed id.
    pub fn new(tokenizer: &Tokenizer, options: DecodeOptions) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            options,
            incomplete: Vec::new(),
            n_strip: tokenizer.inner.pieces.leading().map_or(0, |leading| leading.count),
        }
    }

    /// Continues after `ids`, such as a prompt, whose text is not returned: steps that only apply to the start of a
    /// text (SentencePiece removes the first space) are done, and a character that `ids` began is completed.
    pub fn with_prefix(mut self, ids: &[TokenId]) -> Self {
        for &id in ids {
            self.push(id);
        }
        self
    }

    /// The text completed by this id; empty while a character is incomplete.
    pub fn push(&mut self, id: TokenId) -> String {
        if self.options.skip_special_tokens && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.incomplete.extend_from_slice(self.tokenizer.inner.pieces.bytes(id));
        let text = self.take_complete();
        self.strip_leading(text)
    }

    /// Ends the text: U+FFFD if it stopped within a character, else empty.
    pub fn finish(&mut self) -> String {
        if self.incomplete.is_empty() {
            return String::new();
        }
        self.incomplete.clear();
        char::REPLACEMENT_CHARACTER.into()
    }

    /// Removes and returns all text except an incomplete last character, with U+FFFD for each invalid sequence.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.incomplete.as_slice();
        loop {
            let error = match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.incomplete.clear();
                    return text;
                }
                Err(error) => error,
            };
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            match error.error_len() {
                Some(len) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &invalid[len..];
                }
                None => {
                    self.incomplete = invalid.to_vec();
                    return text;
                }
            }
        }
    }

    fn strip_leading(&mut self, mut text: String) -> String {
        while self.n_strip > 0 && !text.is_empty() {
            let character = self.tokenizer.inner.pieces.leading().map(|leading| leading.character);
            if text.chars().next() == character {
                text.remove(0);
                self.n_strip -= 1;
            } else {
                self.n_strip = 0;
            }
        }
        text
    }
}
