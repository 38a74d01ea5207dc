//! Long texts to token ids, piece by piece: the tokenizer keeps notes on every character of what it is given at once,
//! which for a whole book is a hundred times the book.

use anyhow::{Context, Result};
use hearth_model::{
    TokenId,
    tokenizer::{EncodeOptions, Tokenizer},
};

/// Pieces are cut at the first good place from here on, in bytes.
const CHUNK_BYTES: usize = 1 << 16;

/// The token ids of `text`, the same as of the whole text encoded at once. Special-token strings in it stay text.
pub fn encode_text(tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenId>> {
    let mut ids = Vec::new();
    for chunk in chunks(text) {
        ids.extend(tokenizer.encode(chunk, EncodeOptions::TEXT).context("cannot encode the text")?);
    }
    Ok(ids)
}

/// `text` in pieces that a byte-level or character-level tokenizer treats as it would treat the whole.
///
/// A piece begins at a newline that a visible character follows. GPT-2's splitting of text into words always starts a
/// word there: the newline is never joined to what comes before it (a run of white space in front of a word gives up its
/// last character) nor to the word behind it (only a space is). A text without such a place stays whole.
pub fn chunks(text: &str) -> impl Iterator<Item = &str> + Send {
    chunks_of(text, CHUNK_BYTES)
}

fn chunks_of(mut rest: &str, min_bytes: usize) -> impl Iterator<Item = &str> + Send {
    std::iter::from_fn(move || {
        let at = cut(rest, min_bytes);
        let (chunk, after) = rest.split_at(at);
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Where the first piece of `text` ends: at the first good place at or after `min_bytes`.
fn cut(text: &str, min_bytes: usize) -> usize {
    let Some(tail) = text.as_bytes().get(min_bytes..) else { return text.len() };
    for (offset, &byte) in tail.iter().enumerate() {
        let at = min_bytes + offset;
        // A newline's byte is never part of another character, so what follows it starts one.
        if byte == b'\n' && text[at + 1..].chars().next().is_some_and(|next| !next.is_whitespace()) {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_begin_at_newlines_before_visible_characters_and_join_to_the_whole() {
        let text = "one\ntwo \n\n\nthree\n four\n\u{a0}five\nsix";
        let pieces: Vec<_> = chunks_of(text, 1).collect();
        assert_eq!(pieces, ["one", "\ntwo \n\n", "\nthree\n four\n\u{a0}five", "\nsix"]);
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn a_text_without_a_place_to_cut_stays_whole() {
        assert_eq!(chunks_of("no newline at all", 4).count(), 1);
        assert_eq!(chunks_of("ends here\n", 2).count(), 1);
        assert_eq!(chunks_of("", 4).count(), 0);
    }
}
