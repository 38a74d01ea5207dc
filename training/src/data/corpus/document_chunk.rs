//! Splits documents into pieces of bounded size, at places where no supported tokenizer would join both sides.

use super::conversation::Conversation;

/// A part of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentChunk {
    /// Its text.
    pub text: String,
    /// Whether this is the end of the document.
    pub is_last: bool,
    /// Whether it is of a chat that a template rendered: then the strings of special tokens in it are tokens.
    pub is_rendered: bool,
    /// The conversation that the text is of; it is one piece.
    pub conversation: Option<Conversation>,
}

impl DocumentChunk {
    /// A piece of a plain text.
    pub fn text(text: impl Into<String>, is_last: bool) -> DocumentChunk {
        DocumentChunk { text: text.into(), is_last, is_rendered: false, conversation: None }
    }

    /// A conversation.
    pub fn conversation(conversation: Conversation) -> DocumentChunk {
        DocumentChunk { conversation: Some(conversation.clone()), ..DocumentChunk::text(conversation.text(), true) }
    }
}

/// Minimum size of a piece in bytes; it ends at the first place after that.
pub const PIECE_BYTES: usize = 1 << 16;

/// Whether documents may be split into pieces that are encoded separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cutting {
    /// At places that the tokenizer never joins.
    Pieces,
    /// No: the tokenizer needs the whole document.
    Whole,
}

/// The end of the first piece of `text`: the first suitable place at or after `min_bytes`, if there is one.
///
/// There are two kinds of suitable places: before a space between two ASCII letters, and after a line break between a
/// character that is not white space and a letter or digit. The regular expressions of GPT-2, GPT-4, GPT-4o, Llama 3
/// and Qwen end a word at both, and start the next one there as they would at the start of a text; so do tokens of
/// single characters.
pub(super) fn place_to_cut(text: &str, min_bytes: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let from = min_bytes.max(1);
    bytes.get(from..)?.iter().enumerate().find_map(|(offset, &byte)| {
        let at = from + offset;
        match byte {
            b' ' if bytes[at - 1].is_ascii_alphabetic() && bytes.get(at + 1)?.is_ascii_alphabetic() => Some(at),
            b'\n' => {
                let before = text[..at].chars().next_back()?;
                let after = text[at + 1..].chars().next()?;
                (!before.is_whitespace() && after.is_alphanumeric()).then_some(at + 1)
            }
            _ => None,
        }
    })
}

/// The pieces of `text`, in order.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> + Send {
    pieces_of(text, PIECE_BYTES)
}

fn pieces_of(mut rest: &str, min_bytes: usize) -> impl Iterator<Item = &str> + Send {
    std::iter::from_fn(move || {
        let at = place_to_cut(rest, min_bytes).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(at);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use proptest::prelude::*;

    use super::*;
    use crate::data::corpus::words::WordSplit;

    #[test]
    fn pieces_end_at_word_boundaries_and_concatenate_to_the_text() {
        let text = "one two.\nthree \n\nfour  five\r\nsix .\n/ 7\n8\näh";
        let pieces: Vec<_> = pieces_of(text, 1).collect();
        assert_eq!(pieces, ["one", " two.\n", "three \n\nfour  five\r\nsix .\n/ 7\n", "8\n", "äh"]);
        assert_eq!(pieces.concat(), text);
        assert_eq!(pieces_of("nothing_to_cut.", 4).count(), 1);
        assert_eq!(pieces_of("", 4).count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
        #[test]
        fn words_of_the_pieces_equal_the_words_of_the_whole_text(
            text in "([ \n\r\t]{0,3}('s|'LL|'|[a-z]{0,3}|[0-9]{0,5}|[.,/-]{0,3}|\\PC{0,2}|[\u{a0}\u{2028}\u{301}]{0,2})){0,20}",
            min_bytes in 1..20_usize,
        ) {
            for split in [WordSplit::Gpt2, WordSplit::Gpt4] {
                let whole: Vec<&str> = split.words(&text).collect();
                let found: Vec<&str> = pieces_of(&text, min_bytes).flat_map(|piece| split.words(piece)).collect();
                prop_assert_eq!(found, whole);
            }
        }
    }

    #[test]
    fn place_to_cut_in_multibyte_text_is_a_character_boundary() {
        assert_eq!(place_to_cut("äöü\nß", 1).unwrap(), "äöü\n".len());
    }
}
