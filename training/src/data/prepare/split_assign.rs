//! Assigns documents to the training or validation split.

use anyhow::{Result, ensure};
use hearth_model::files::digest::Digest;

use super::output::End;
use crate::data::{
    corpus::{Conversation, DocumentChunk, FilePiece, Origin, PIECE_BYTES},
    shard::{Split, SplitRule},
};

/// A piece of a document, and its split.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    /// Index of the piece's file.
    pub(super) file: usize,
    pub(super) text: String,
    /// Whether the text is of a chat that a template rendered.
    pub(super) is_rendered: bool,
    /// The conversation that the text is of.
    pub(super) conversation: Option<Conversation>,
    pub(super) split: Split,
    /// How the document ends here, if it does.
    pub(super) end: Option<End>,
}

/// Assigns the pieces of one source, in order.
#[derive(Debug)]
pub(super) struct Assigner {
    rule: Rule,
    /// The split of the current document.
    current: Option<Split>,
}

#[derive(Debug)]
enum Rule {
    /// Hashes below this value are in the validation split.
    Hash(u64),
    /// Remaining characters of the training split.
    Tail(u64),
}

impl Assigner {
    /// For a source of `n_chars` characters, which only `Tail` uses.
    pub(super) fn new(rule: SplitRule, n_chars: u64, source: &Origin) -> Result<Assigner> {
        let rule = match rule {
            // Nothing is held out, or whole files are.
            SplitRule::Tail { val_fraction: 0.0 } | SplitRule::Files => Rule::Hash(0),
            SplitRule::Hash { val_fraction } => Rule::Hash((val_fraction * 2_f64.powi(64)) as u64),
            SplitRule::Tail { val_fraction } => {
                let n_train = (n_chars as f64 * (1.0 - val_fraction)) as u64;
                ensure!(
                    n_chars == 0 || (n_train > 0 && n_train < n_chars),
                    "`{}` is too short for a validation split: {n_chars} characters, of which {n_train} would be for \
                     training\nhint: use a longer text",
                    source
                );
                Rule::Tail(n_train)
            }
        };
        Ok(Assigner { rule, current: None })
    }

    /// Assigns a piece; the piece at which the validation split begins is divided.
    pub(super) fn assign(&mut self, part: FilePiece) -> Vec<Part> {
        let FilePiece { file, piece: DocumentChunk { text, is_last, is_rendered, conversation } } = part;
        let end = is_last.then_some(End::Document);
        match &mut self.rule {
            Rule::Hash(limit) => {
                let limit = *limit;
                let split = *self.current.get_or_insert_with(|| {
                    // Only the beginning is hashed, so that a long document need not be in memory.
                    let start = &text.as_bytes()[..text.len().min(PIECE_BYTES)];
                    if Digest::of(start).to_u64() < limit { Split::Val } else { Split::Train }
                });
                if is_last {
                    self.current = None;
                }
                vec![Part { file, text, is_rendered, conversation, split, end }]
            }
            Rule::Tail(left) => {
                let n_chars = text.chars().count() as u64;
                if *left == 0 {
                    return vec![Part { file, text, is_rendered, conversation, split: Split::Val, end }];
                }
                // A conversation cannot be divided.
                if n_chars <= *left || conversation.is_some() {
                    *left = left.saturating_sub(n_chars);
                    // The part before the cut ends the training split.
                    let end = if *left == 0 { end.or(Some(End::Cut)) } else { end };
                    return vec![Part { file, text, is_rendered, conversation, split: Split::Train, end }];
                }
                let at = text.char_indices().nth(*left as usize).map_or(text.len(), |(at, _)| at);
                *left = 0;
                let (train, val) = text.split_at(at);
                let of_text = |text: &str| Part {
                    file,
                    text: text.to_owned(),
                    is_rendered,
                    conversation: None,
                    split: Split::Train,
                    end: None,
                };
                vec![
                    Part { end: Some(End::Cut), split: Split::Train, ..of_text(train) },
                    Part { end, split: Split::Val, ..of_text(val) },
                ]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn piece(text: &str, is_last: bool) -> FilePiece {
        FilePiece { file: 0, piece: DocumentChunk::text(text, is_last) }
    }

    #[test]
    fn assigner_puts_all_pieces_of_a_document_in_one_split() {
        let rule = SplitRule::Hash { val_fraction: 0.25 };
        let mut assigner = Assigner::new(rule, 0, &Origin::Path("a".into())).unwrap();
        let mut n_val = 0;
        for index in 0..4000 {
            let text = format!("document {index}");
            let first = assigner.assign(piece(&text, false))[0].split;
            let second = assigner.assign(piece("the rest", true));
            assert_eq!((second[0].split, second[0].end), (first, Some(End::Document)));
            assert_eq!(assigner.assign(piece(&text, true))[0].split, first, "its beginning decides");
            n_val += usize::from(first == Split::Val);
        }
        // A quarter of 4000, with a standard deviation of 27.
        assert!(n_val.abs_diff(1000) < 6 * 27, "{n_val}");
    }

    #[test]
    fn tail_split_holds_out_the_last_fraction_of_the_characters() {
        let cut = |pieces: &[(&str, bool)]| {
            let n_chars = pieces.iter().map(|(text, _)| text.chars().count() as u64).sum();
            let mut assigner =
                Assigner::new(SplitRule::Tail { val_fraction: 0.25 }, n_chars, &Origin::Path("a".into())).unwrap();
            let parts = pieces.iter().flat_map(|(text, is_last)| assigner.assign(piece(text, *is_last)));
            parts.map(|part| (part.text, part.split, part.end)).collect::<Vec<_>>()
        };
        let part = |text: &str, split, end| (text.to_owned(), split, end);
        assert_eq!(
            cut(&[("äö", false), ("üßéè", false), ("xy", true)]),
            [
                part("äö", Split::Train, None),
                part("üßéè", Split::Train, Some(End::Cut)),
                part("xy", Split::Val, Some(End::Document)),
            ]
        );
        assert_eq!(
            cut(&[("abc", true), ("defg", true), ("h", true)]),
            [
                part("abc", Split::Train, Some(End::Document)),
                part("def", Split::Train, Some(End::Cut)),
                part("g", Split::Val, Some(End::Document)),
                part("h", Split::Val, Some(End::Document)),
            ]
        );
        let error = Assigner::new(SplitRule::Tail { val_fraction: 0.1 }, 1, &Origin::Path("a.txt".into()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("a.txt") && error.contains("too short"), "{error}");
    }
}
