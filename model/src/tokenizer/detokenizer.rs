//! Ids to text as they come, one token at a time.

use super::{DecodeOptions, Tokenizer};
use crate::TokenId;

/// Turns a stream of ids into text deltas.
///
/// The deltas and the tail of [`finish`](Self::finish), concatenated, are [`Tokenizer::decode`] of all the ids, by
/// construction: `decode` is this stream, folded. A token may end in the middle of a character; its bytes are held
/// back until the character is whole, or cannot become so any more. So at most three bytes are ever held, and a push
/// costs no more at the end of a long text than at its start.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    options: DecodeOptions,
    /// The start of a character whose end has not come yet.
    incomplete: Vec<u8>,
    /// How many leading characters the tokenizer's decoder still takes off.
    n_strip: usize,
}

impl Detokenizer {
    /// A stream for a text that begins with the first id pushed.
    pub fn new(tokenizer: &Tokenizer, options: DecodeOptions) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            options,
            incomplete: Vec::new(),
            n_strip: tokenizer.inner.pieces.leading().map_or(0, |leading| leading.count),
        }
    }

    /// Goes on after `ids`, such as a prompt, whose own text is not given out: what the decoder does at the start of
    /// a text only (SentencePiece drops the first space) is over, and a character that `ids` began is finished.
    pub fn with_prefix(mut self, ids: &[TokenId]) -> Self {
        for &id in ids {
            self.push(id);
        }
        self
    }

    /// The text that this id completes; empty while a character is incomplete.
    pub fn push(&mut self, id: TokenId) -> String {
        if self.options.skip_special_tokens && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.incomplete.extend_from_slice(self.tokenizer.inner.pieces.bytes(id));
        let text = self.take_complete();
        self.strip_leading(text)
    }

    /// The end of the text: U+FFFD if it stopped within a character, else nothing.
    pub fn finish(&mut self) -> String {
        if self.incomplete.is_empty() {
            return String::new();
        }
        self.incomplete.clear();
        char::REPLACEMENT_CHARACTER.into()
    }

    /// Takes out all but an incomplete last character, with U+FFFD for each sequence that no byte can mend.
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
