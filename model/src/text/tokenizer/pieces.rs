//! The bytes of each token: the `decoder` of `tokenizer.json`, applied to the whole vocabulary once.
//!
//! Decoders of language models work token by token, except for bytes that they remove at the start of a text, so a
//! table of bytes suffices for decoding. The result equals the library's with four exceptions: a `WordPiece` decoder
//! keeps the spaces before punctuation, which the library removes; invalid byte-fallback tokens lose only the affected
//! characters, not the whole run; a `Metaspace` decoder removes one leading space, not all of the first token's; and a
//! `BPEDecoder` leaves the space after the last word, since more may follow.

use serde::Deserialize;

use crate::TokenId;

/// Maximum factor by which all `Replace` decoders together may lengthen a token. Real tokenizers' decoders shorten
/// tokens.
const MAX_GROWTH: usize = 16;

/// The `decoder` field of `tokenizer.json`.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
pub(super) enum DecoderJson {
    #[serde(rename = "BPEDecoder")]
    Bpe {
        /// The suffix of a token that ends a word.
        suffix: String,
    },
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace {
        replacement: char,
        prepend_scheme: Option<String>,
        add_prefix_space: Option<bool>,
    },
    Replace {
        pattern: PatternJson,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    WordPiece {
        /// The prefix of a token that continues a word.
        prefix: String,
    },
    Sequence {
        decoders: Vec<DecoderJson>,
    },
}

#[derive(Debug, Deserialize)]
pub(super) enum PatternJson {
    String(String),
    Regex(String),
}

/// What the decoder removes at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leading {
    pub(super) character: char,
    /// Maximum number of characters.
    pub(super) count: usize,
}

/// A stage of decoding a single token.
#[derive(Debug)]
enum Step {
    ByteLevel,
    ByteFallback,
    Replace {
        from: String,
        to: String,
    },
    Strip {
        character: char,
        start: usize,
        stop: usize,
    },
    /// Added in front of every token.
    Prefix(char),
    /// Adds a space before every token, except tokens with this prefix, which continue a word.
    Word(String),
}

impl Step {
    /// How many times as long it can make a token.
    fn growth(&self) -> usize {
        match self {
            // An empty text is between all characters.
            Self::Replace { from, to } if from.is_empty() => to.len() + 1,
            Self::Replace { from, to } => to.len().div_ceil(from.len()).max(1),
            _ => 1,
        }
    }
}

/// The stages of a decoder.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    steps: Vec<Step>,
    leading: Option<Leading>,
    /// Whether the tokens have been joined: later stages then act on the text, not on each token.
    fused: bool,
}

impl Decoder {
    /// Reads the JSON form. The error names the unsupported feature.
    pub(super) fn new(json: Option<&DecoderJson>) -> Result<Self, String> {
        let mut decoder = Self::default();
        match json {
            Some(json) => decoder.add(json)?,
            // Without a decoder, tokens are joined by spaces.
            None => {
                decoder.steps.push(Step::Prefix(' '));
                decoder.leading = Some(Leading { character: ' ', count: 1 });
            }
        }
        Ok(decoder)
    }

    fn add(&mut self, json: &DecoderJson) -> Result<(), String> {
        match json {
            DecoderJson::Sequence { decoders } => decoders.iter().try_for_each(|decoder| self.add(decoder))?,
            DecoderJson::Bpe { suffix } => self.add_replace(&PatternJson::String(suffix.clone()), " ")?,
            DecoderJson::ByteLevel => {
                self.steps.push(Step::ByteLevel);
                self.fused = true;
            }
            DecoderJson::ByteFallback => self.steps.push(Step::ByteFallback),
            DecoderJson::Fuse => self.fused = true,
            DecoderJson::WordPiece { prefix } => {
                self.steps.push(Step::Word(prefix.clone()));
                self.leading = Some(Leading { character: ' ', count: 1 });
            }
            DecoderJson::Metaspace { replacement, prepend_scheme, add_prefix_space } => {
                self.steps.push(Step::Replace { from: replacement.to_string(), to: " ".into() });
                if prepend_scheme.as_deref() != Some("never") && *add_prefix_space != Some(false) {
                    self.leading = Some(Leading { character: ' ', count: 1 });
                }
            }
            DecoderJson::Replace { pattern, content } => self.add_replace(pattern, content)?,
            &DecoderJson::Strip { content, start, stop } => self.add_strip(content, start, stop)?,
        }
        Ok(())
    }

    fn add_replace(&mut self, pattern: &PatternJson, content: &str) -> Result<(), String> {
        match pattern {
            PatternJson::String(from) if !self.fused || from.chars().count() == 1 => {
                self.steps.push(Step::Replace { from: from.clone(), to: content.into() });
                let growth = self.steps.iter().fold(1usize, |growth, step| growth.saturating_mul(step.growth()));
                match growth <= MAX_GROWTH {
                    true => Ok(()),
                    false => Err(format!("decoder `Replace` makes tokens more than {MAX_GROWTH} times as long")),
                }
            }
            PatternJson::String(pattern) => {
                Err(format!("decoder `Replace` of `{pattern}` across tokens is not supported"))
            }
            PatternJson::Regex(pattern) => Err(format!("decoder `Replace` of the regex `{pattern}` is not supported")),
        }
    }

    fn add_strip(&mut self, character: char, start: usize, stop: usize) -> Result<(), String> {
        if !self.fused {
            self.steps.push(Step::Strip { character, start, stop });
        } else if stop == 0 {
            self.leading = (start > 0).then_some(Leading { character, count: start });
        } else {
            return Err(format!("decoder `Strip` at the end of a text (`stop`: {stop}) is not supported"));
        }
        Ok(())
    }

    /// The bytes of a token. Added tokens of a byte-level vocabulary are spelled literally, not in the byte alphabet.
    fn bytes(&self, entry: &Entry) -> Vec<u8> {
        let mut text = entry.token.clone();
        for step in &self.steps {
            match step {
                Step::ByteLevel if entry.is_added => {}
                Step::ByteLevel => return byte_level(&text).unwrap_or_else(|| text.into_bytes()),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                Step::Replace { from, to } => text = text.replace(from, to),
                &Step::Strip { character, start, stop } => text = strip(&text, character, start, stop),
                &Step::Prefix(prefix) => text.insert(0, prefix),
                Step::Word(prefix) => match text.strip_prefix(prefix.as_str()) {
                    Some(rest) => text = rest.to_owned(),
                    None => text.insert(0, ' '),
                },
            }
        }
        text.into_bytes()
    }
}

/// A token for the table.
pub(super) struct Entry {
    pub(super) id: TokenId,
    pub(super) token: String,
    pub(super) is_added: bool,
}

/// The bytes of every token, by id.
#[derive(Debug)]
pub(super) struct PieceTable {
    bytes: Vec<u8>,
    /// `ends[id]`: the end of the bytes of `id`; they begin at the end of the previous id's.
    ends: Vec<usize>,
    leading: Option<Leading>,
}

impl PieceTable {
    /// The table of `entries`, sorted by id. Ids without an entry have no bytes.
    pub(super) fn new(decoder: &Decoder, entries: &[Entry]) -> Self {
        let mut table = Self { bytes: Vec::new(), ends: Vec::new(), leading: decoder.leading };
        for entry in entries {
            // Gaps end where the previous id ends.
            table.ends.resize(entry.id as usize, table.bytes.len());
            table.bytes.extend(decoder.bytes(entry));
            table.ends.push(table.bytes.len());
        }
        table
    }

    /// The bytes of `id`; empty if there is no such token.
    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// The largest id plus 1.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn leading(&self) -> Option<Leading> {
        self.leading
    }
}

/// `<0x0A>` is the byte 10.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn strip(text: &str, character: char, start: usize, stop: usize) -> String {
    let mut text = text;
    // A file may ask for 2^64.
    for _ in 0..start.min(text.len()) {
        text = text.strip_prefix(character).unwrap_or(text);
    }
    for _ in 0..stop.min(text.len()) {
        text = text.strip_suffix(character).unwrap_or(text);
    }
    text.to_owned()
}

/// GPT-2's byte alphabet: the character of each byte.
pub(super) fn byte_alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    for character in '!'..='\u{143}' {
        if let Some(byte) = byte_of(character) {
            alphabet[usize::from(byte)] = character;
        }
    }
    alphabet
}

/// Inverts GPT-2's byte alphabet; `None` if a character is not one of its 256.
fn byte_level(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

/// GPT-2 writes printable Latin-1 as itself and the other 68 bytes, in order, as U+0100 and up.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn byte_level_alphabet_covers_each_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    #[test]
    fn token_ids_without_a_token_have_empty_bytes() {
        let entry = |id, token: &str| Entry { id, token: token.into(), is_added: false };
        let decoder = Decoder { fused: true, ..Decoder::default() };
        let table = PieceTable::new(&decoder, &[entry(1, "ab"), entry(4, "c")]);
        let pieces: Vec<&[u8]> = (0..6).map(|id| table.bytes(id)).collect();
        assert_eq!(pieces, [b"", b"ab" as &[u8], b"", b"", b"c", b""]);
        assert_eq!(table.len(), 5);
    }

    #[test]
    fn replace_decoders_that_grow_text_too_much_are_rejected() {
        let replace = |from: &str, to: &str| {
            let (pattern, content) = (PatternJson::String(from.to_owned()), to.to_owned());
            DecoderJson::Replace { pattern, content }
        };
        let decoder = |decoders: Vec<DecoderJson>| Decoder::new(Some(&DecoderJson::Sequence { decoders })).map(drop);
        assert_eq!(decoder(vec![replace("▁", " "), replace("</w>", " "), replace("a", "äö")]), Ok(()));
        for decoders in [Vec::from_iter((0..40).map(|_| replace("a", "aa"))), vec![replace("", "0123456789abcdef")]] {
            assert!(decoder(decoders).is_err_and(|error| error.contains("more than 16 times")));
        }
    }

    #[test]
    fn bpe_decoder_suffix_becomes_a_space() {
        let decoder: DecoderJson = serde_json::from_str(r#"{"type": "BPEDecoder", "suffix": "</w>"}"#).unwrap();
        let decoder = Decoder::new(Some(&decoder)).unwrap();
        let entry = |id, token: &str| Entry { id, token: token.into(), is_added: false };
        let table = PieceTable::new(&decoder, &[entry(0, "hel"), entry(1, "lo</w>"), entry(2, ",</w>")]);
        assert_eq!([0, 1, 2].map(|id| table.bytes(id)).concat(), b"hello , ");
    }

    #[test]
    fn word_pieces_that_go_on_with_a_word_have_no_space() {
        let decoder = DecoderJson::WordPiece { prefix: "##".to_owned() };
        let decoder = Decoder::new(Some(&decoder)).unwrap();
        let entry = |id, token: &str| Entry { id, token: token.into(), is_added: false };
        let table = PieceTable::new(&decoder, &[entry(0, "un"), entry(1, "##known"), entry(2, "!")]);
        assert_eq!([0, 1, 2].map(|id| table.bytes(id)).concat(), b" unknown !");
        assert_eq!(table.leading(), Some(Leading { character: ' ', count: 1 }));
    }

    #[test]
    fn strip_decoder_accepts_counts_longer_than_the_text() {
        assert_eq!(strip("aabaa", 'a', 1, usize::MAX), "ab");
        assert_eq!(strip("aa", 'a', usize::MAX, usize::MAX), "");
    }

    #[test]
    fn byte_fallback_token_needs_exactly_two_hex_digits() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        for token in ["<0x+A>", "<0x0>", "<0x0AB>", "0x0A", "<0x0A"] {
            assert_eq!(fallback_byte(token), None, "{token}");
        }
    }
}
