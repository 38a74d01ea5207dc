//! Tokenizes long texts in windows: the library takes up to two hundred bytes of memory per byte of a text.
//!
//! This requires a tokenizer whose splits into words depend only on the text next to each split, so that it can
//! continue from any split as if the text began there. Most byte-level tokenizers do; others process a text as a whole.

use std::ops::Range;

use tokenizers::{
    NormalizedString, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizerWrapper,
    SplitDelimiterBehavior, Token, pre_tokenizers::split::SplitPattern,
};

use super::{Tokenizer, from_library};
use crate::{
    TokenId,
    error::{Error, Result},
};

/// Size of a window in bytes.
pub(super) const WINDOW_BYTES: usize = 1 << 17;

/// Bytes and words at the end of a window that following text may change: a special token that is cut, or a run of
/// spaces that continues.
const MARGIN_BYTES: usize = 1 << 10;
const MARGIN_WORDS: usize = 8;

/// The processing stages of a part of a text.
pub(super) struct Stages<'a> {
    /// Finds special tokens, and normalizes the rest.
    pub(super) read: &'a dyn Fn(&str) -> Result<PreTokenizedString>,
    /// Converts a word to tokens, with offsets in the word.
    pub(super) tokenize: &'a dyn Fn(&NormalizedString) -> Result<Vec<Token>>,
}

impl Tokenizer {
    /// Tokenizes a text with `read`, which runs the library's stages on a part. Uses windows of this many bytes if this
    /// does not change the result.
    pub(super) fn ids_in_windows(
        &self,
        text: &str,
        window_bytes: usize,
        read: impl Fn(&str) -> Result<PreTokenizedString>,
    ) -> Result<Vec<TokenId>> {
        let mut ids = Vec::new();
        let stages = Stages { read: &read, tokenize: &|piece| self.tokenize_piece(piece) };
        self.tokens_in_windows(text, window_bytes, &stages, &mut |id, _| ids.push(id))?;
        Ok(ids)
    }

    /// Tokenizes a text and passes each token to `sink`, with its bytes in the text if `stages` gives offsets in the
    /// original word.
    pub(super) fn tokens_in_windows(
        &self,
        mut text: &str,
        window_bytes: usize,
        stages: &Stages<'_>,
        sink: &mut dyn FnMut(TokenId, Range<usize>),
    ) -> Result<()> {
        let longest = self.longest_word.max(WINDOW_BYTES);
        if !self.inner.may_go_on && text.len() > longest {
            return Err(self.too_long());
        }
        // The longest word, with the bytes and words after it that settle it.
        let most_bytes = longest.saturating_add(2 * MARGIN_BYTES);
        // Bytes of the text before the rest.
        let mut n_done = 0;
        let mut n_bytes = if self.inner.may_go_on { window_bytes } else { text.len() };
        while text.len() > n_bytes {
            let window = text.get(..text.floor_char_boundary(n_bytes)).unwrap_or(text);
            let mut split = (stages.read)(window)?;
            self.pre_tokenize(&mut split)?;
            let n_settled = settled(&split, window);
            if n_settled == 0 {
                // A single word that is longer than the window.
                if n_bytes >= most_bytes {
                    return Err(self.too_long());
                }
                n_bytes = n_bytes.saturating_mul(2).min(most_bytes);
                continue;
            }
            let is_settled = |end: usize| end <= n_settled;
            split
                .tokenize(|piece| match is_settled(piece.offsets_original().1) {
                    true => Ok((stages.tokenize)(piece)?),
                    false => Ok(Vec::new()),
                })
                .map_err(from_library)?;
            send_tokens(&split, n_done, &is_settled, sink);
            text = text.get(n_settled..).unwrap_or_default();
            n_done += n_settled;
            n_bytes = window_bytes;
        }
        let mut split = (stages.read)(text)?;
        self.pre_tokenize(&mut split)?;
        split.tokenize(|piece| Ok((stages.tokenize)(piece)?)).map_err(from_library)?;
        send_tokens(&split, n_done, &|_| true, sink);
        Ok(())
    }

    fn too_long(&self) -> Error {
        let longest = self.longest_word;
        Error::Tokenizer {
            what: format!("the text has a word longer than {longest} bytes, the limit for a single word"),
            hint: "send a shorter text, or token ids".into(),
        }
    }
}

/// Passes the tokens of the wanted words to `sink`; a word is wanted by its end in the part of the text that begins at
/// byte `start`.
fn send_tokens(
    split: &PreTokenizedString,
    start: usize,
    is_wanted: &dyn Fn(usize) -> bool,
    sink: &mut dyn FnMut(TokenId, Range<usize>),
) {
    for (_, (word_start, word_end), tokens) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        if is_wanted(word_end) {
            let from = start + word_start;
            let tokens = tokens.iter().flatten();
            tokens.for_each(|token| sink(token.id, from + token.offsets.0..from + token.offsets.1));
        }
    }
}

/// Where to cut the window: the end of the last word that text after the window cannot change, followed by a character
/// that no normalizer combines with the previous one; 0 if there is none. A normalizer may write one character as
/// several, and words may be split between these: such words share bytes of the text, so the text is not cut there.
fn settled(split: &PreTokenizedString, window: &str) -> usize {
    let words = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let bytes: Vec<_> = words.into_iter().map(|(_, bytes, _)| bytes).collect();
    let pairs = bytes.iter().zip(bytes.iter().skip(1)).rev().skip(MARGIN_WORDS - 1);
    let mut ends = pairs.filter(|((_, end), (next_start, _))| end <= next_start).map(|((_, end), _)| *end);
    let next = |end: usize| window.get(end..).and_then(|rest| rest.chars().next());
    ends.find(|&end| end + MARGIN_BYTES <= window.len() && next(end).is_some_and(starts_anew)).unwrap_or(0)
}

/// Whether no normalizer combines a character with the previous one: ASCII, kana, Chinese characters and Hangul
/// syllables, but neither combining marks nor parts of syllables.
fn starts_anew(character: char) -> bool {
    matches!(
        character,
        '\0'..='\u{7f}'
            | '\u{3001}'..='\u{3029}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{3400}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7a3}'
    )
}

/// Whether tokenizing may continue from the end of any word as if the text began there.
pub(super) fn may_go_on(library: &tokenizers::Tokenizer) -> bool {
    let is_composed_only = matches!(library.get_normalizer(), None | Some(NormalizerWrapper::NFC(_)));
    let steps = match library.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::Sequence(steps)) => steps.as_ref(),
        Some(step) => std::slice::from_ref(step),
        None => &[],
    };
    let cuts_alike = match steps {
        [PreTokenizerWrapper::ByteLevel(bytes)] => bytes.use_regex && !bytes.add_prefix_space,
        [PreTokenizerWrapper::Digits(_), PreTokenizerWrapper::ByteLevel(bytes)] => {
            bytes.use_regex && !bytes.add_prefix_space
        }
        [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(bytes)] => {
            let keeps_all = matches!(split.behavior, SplitDelimiterBehavior::Isolated) && !split.invert;
            keeps_all && !looks_back(&split.pattern) && !bytes.use_regex && !bytes.add_prefix_space
        }
        _ => false,
    };
    is_composed_only && cuts_alike
}

/// Whether a pattern depends on the text before a word, or on the start of the text.
fn looks_back(pattern: &SplitPattern) -> bool {
    match pattern {
        SplitPattern::String(_) => false,
        SplitPattern::Regex(regex) => {
            let begins = regex.starts_with('^') || ["(^", "|^", ":^"].iter().any(|start| regex.contains(start));
            begins || ["(?<", "\\b", "\\B", "\\A", "\\G", "\\K"].iter().any(|sign| regex.contains(sign))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::text::tokenizer::EncodeOptions;

    const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    /// Every byte is a token, and there are some merges; cut into words by `pre_tokenizer`.
    fn tokenizer(pre_tokenizer: Value, normalizer: Value) -> Tokenizer {
        let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let mut stand_ins = 256..;
        let alphabet = (0..=255u8).map(|byte| {
            let code = if printable(byte) { u32::from(byte) } else { stand_ins.next().unwrap() };
            char::from_u32(code).unwrap().to_string()
        });
        let mut vocab: serde_json::Map<String, Value> = alphabet.zip((0..).map(Value::from)).collect();
        let merges = [("\u{120}", "\u{120}"), ("\u{120}", "a"), ("1", "2"), ("a", "b"), ("\u{10a}", "\u{10a}")];
        for (left, right) in merges {
            let id = vocab.len();
            vocab.insert(format!("{left}{right}"), id.into());
        }
        let json = json!({
            "added_tokens": [{
                "id": vocab.len(), "content": "<|end|>", "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
            "model": { "type": "BPE", "vocab": vocab, "merges": merges.map(|(left, right)| [left, right]) },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    fn byte_level(use_regex: bool) -> Value {
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
    }

    fn of_families() -> [Tokenizer; 3] {
        let split =
            json!({ "type": "Split", "pattern": { "Regex": LLAMA_3 }, "behavior": "Isolated", "invert": false });
        let digits = json!({ "type": "Digits", "individual_digits": true });
        let sequence = |first: Value, second: Value| json!({ "type": "Sequence", "pretokenizers": [first, second] });
        [
            tokenizer(byte_level(true), Value::Null),
            tokenizer(sequence(digits, byte_level(true)), Value::Null),
            tokenizer(sequence(split, byte_level(false)), json!({ "type": "NFC" })),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
        #[test]
        fn encoding_in_windows_equals_encoding_the_whole_text(
            parts in prop::collection::vec(
                prop_oneof![
                    "[ab12 \n\r\t.,'s]{0,60}", "\\PC{0,8}", " {0,3000}", "\n{0,2000}", "(\n {0,40}){0,60}", "[ab]{0,2500}",
                    "[0-9]{0,2000}", "(e\u{301}\u{323}|x\u{323}\u{301}){0,20}", Just("<|end|>".to_owned()), "(a |b\n){0,500}",
                    // Composed forms that NFC takes apart into a letter and marks, which other patterns match.
                    "(a?[\u{fb2c}\u{fb2d}\u{958}][,a ]){0,300}",
                ],
                40..200,
            ),
        ) {
            let text = parts.concat();
            for tokenizer in of_families() {
                prop_assert!(tokenizer.inner.may_go_on);
                let library = &tokenizer.inner.library;
                let read =
                    |text: &str| Ok(library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text));
                let whole = tokenizer.ids_in_windows(&text, usize::MAX, read).unwrap();
                prop_assert_eq!(tokenizer.ids_in_windows(&text, 1 << 12, read).unwrap(), whole);
            }
        }
    }

    #[test]
    fn encoding_a_word_above_the_length_limit_is_rejected() {
        const LONGEST: usize = 1 << 18;
        let whole = tokenizer(Value::Null, Value::Null);
        assert!(!whole.inner.may_go_on);
        let [gpt_2, ..] = of_families();
        let (words, word) = ("a ".repeat(LONGEST), "a".repeat(2 * LONGEST));
        for (tokenizer, text) in [(whole, &word), (gpt_2.clone(), &word)] {
            assert!(tokenizer.encode(text, EncodeOptions::TEXT).is_ok());
            let bounded = tokenizer.with_longest_word(LONGEST);
            let error = bounded.encode(text, EncodeOptions::TEXT).unwrap_err().to_string();
            assert!(error.contains(&format!("longer than {LONGEST} bytes")) && error.contains("hint: "), "{error}");
        }
        assert!(gpt_2.with_longest_word(LONGEST).encode(&words, EncodeOptions::TEXT).is_ok());
    }

    /// Also if the limit is not a multiple of the window.
    #[test]
    fn words_up_to_the_length_limit_are_encoded() {
        const LONGEST: usize = WINDOW_BYTES + WINDOW_BYTES / 2 + 1;
        let [gpt_2, ..] = of_families();
        let limited = gpt_2.clone().with_longest_word(LONGEST);
        let around = "a ".repeat(WINDOW_BYTES);
        // The length includes the space in front of the word.
        let text = |n_bytes: usize| format!("{around}{} {around}", "b".repeat(n_bytes - 1));
        for n_bytes in [WINDOW_BYTES, LONGEST] {
            let ids = limited.encode(&text(n_bytes), EncodeOptions::TEXT).unwrap();
            assert_eq!(ids, gpt_2.encode(&text(n_bytes), EncodeOptions::TEXT).unwrap(), "{n_bytes}");
        }
        assert!(limited.encode(&text(LONGEST + 4 * MARGIN_BYTES), EncodeOptions::TEXT).is_err());
    }

    #[test]
    fn split_patterns_with_lookbehind_or_anchors_are_detected() {
        let pattern = |regex: &str| SplitPattern::Regex(regex.to_owned());
        assert!(!looks_back(&pattern(LLAMA_3)));
        for regex in ["(?<=a)b", "(?<!a)b", "\\bword", "^a", "a|^b", "(?:^a)"] {
            assert!(looks_back(&pattern(regex)), "{regex}");
        }
    }
}
