//! Splits text into the words within which byte-level BPE merges.
//!
//! The two common splitting rules, written by hand: an order of magnitude faster than the regular expressions that
//! define them, which use lookahead. `tokenizer.json` has the expressions, for other programs.

use std::sync::OnceLock;

use clap::ValueEnum;

/// How text is split into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WordSplit {
    /// Letters, digits and the rest, each with a space in front.
    Gpt2,
    /// As GPT-2, with contractions in any case, digits in threes and line breaks apart.
    Gpt4,
}

/// GPT-4's expression, as in `tokenizer.json` files (also Llama 3's).
pub(crate) const GPT4_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Maximum number of digits in a word of GPT-4's rule.
const GPT4_DIGITS: usize = 3;

impl WordSplit {
    /// The words of `text`, in order; concatenated they are the text.
    pub fn words(self, mut text: &str) -> impl Iterator<Item = &str> {
        std::iter::from_fn(move || {
            let first = text.chars().next()?;
            let n_bytes = match self {
                WordSplit::Gpt2 => gpt2_word(text, first),
                WordSplit::Gpt4 => gpt4_word(text, first),
            };
            let (word, rest) = text.split_at(n_bytes);
            text = rest;
            Some(word)
        })
    }
}

/// Character classes of the expressions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    Other,
}

fn class(character: char) -> Class {
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\u{7f}' => Class::Other,
        _ => class_beyond_ascii(character),
    }
}

/// Uses the tables of the regex library, not those of `char`: these may be of another Unicode version, and
/// `char::is_alphabetic` covers more than `\p{L}`.
fn class_beyond_ascii(character: char) -> Class {
    static TABLES: OnceLock<[CharSet; 2]> = OnceLock::new();
    let [letters, numbers] = TABLES.get_or_init(|| [CharSet::of(r"\p{L}"), CharSet::of(r"\p{N}")]);
    if letters.contains(character) {
        Class::Letter
    } else if numbers.contains(character) {
        Class::Number
    } else if character.is_whitespace() {
        Class::Space
    } else {
        Class::Other
    }
}

/// A set of characters, one bit per code point.
struct CharSet(Vec<u64>);

impl CharSet {
    /// The characters of a class of regular expressions.
    fn of(pattern: &str) -> CharSet {
        use regex_syntax::hir::{Class, HirKind};

        let mut bits = vec![0_u64; (char::MAX as usize).div_ceil(64) + 1];
        let hir = regex_syntax::parse(pattern);
        // The expressions are constants, and tested.
        if let Ok(HirKind::Class(Class::Unicode(class))) = hir.as_ref().map(|hir| hir.kind()) {
            for code in class.iter().flat_map(|range| u32::from(range.start())..=u32::from(range.end())) {
                bits[code as usize / 64] |= 1 << (code % 64);
            }
        }
        CharSet(bits)
    }

    fn contains(&self, character: char) -> bool {
        let code = character as usize;
        self.0[code / 64] >> (code % 64) & 1 == 1
    }
}

/// Length in bytes of the run of characters of one or two classes at the start of `text`.
fn run(text: &str, is_in: impl Fn(char) -> bool) -> usize {
    text.char_indices().find(|&(_, character)| !is_in(character)).map_or(text.len(), |(at, _)| at)
}

fn run_of(text: &str, wanted: Class) -> usize {
    // Most text is ASCII, which needs no decoding.
    run(text, |character| class(character) == wanted)
}

fn gpt2_word(text: &str, first: char) -> usize {
    if first == '\''
        && let Some(n_bytes) = contraction(text, |character| character)
    {
        return n_bytes;
    }
    let after_space = if first == ' ' { &text[1..] } else { text };
    let skipped = text.len() - after_space.len();
    match after_space.chars().next().map(class) {
        Some(kind) if kind != Class::Space => skipped + run_of(after_space, kind),
        _ => spaces(text),
    }
}

fn gpt4_word(text: &str, first: char) -> usize {
    // The long s is a case variant of s in Unicode.
    let lower = |character: char| if character == '\u{17f}' { 's' } else { character.to_ascii_lowercase() };
    if first == '\''
        && let Some(n_bytes) = contraction(text, lower)
    {
        return n_bytes;
    }
    let kind = class(first);
    let rest = &text[first.len_utf8()..];
    let next = rest.chars().next().map(class);
    match kind {
        Class::Letter => return run_of(text, Class::Letter),
        Class::Number => {
            let mut digits = text.char_indices().take_while(|&(_, character)| class(character) == Class::Number);
            return digits.nth(GPT4_DIGITS).map_or_else(|| run_of(text, Class::Number), |(at, _)| at);
        }
        _ if next == Some(Class::Letter) && !matches!(first, '\r' | '\n') => {
            return first.len_utf8() + run_of(rest, Class::Letter);
        }
        _ => {}
    }
    let after_space = if first == ' ' { rest } else { text };
    let n_other = run_of(after_space, Class::Other);
    if n_other > 0 {
        let end = text.len() - after_space.len() + n_other;
        return end + run(&text[end..], |character| matches!(character, '\r' | '\n'));
    }
    let n_space = run_of(text, Class::Space);
    match text[..n_space].rfind(['\r', '\n']) {
        Some(line_break) => line_break + 1,
        None => spaces(text),
    }
}

/// Length in bytes of the white space at the start of `text`, without its last character if a word follows.
fn spaces(text: &str) -> usize {
    let n_bytes = run_of(text, Class::Space);
    if n_bytes == text.len() {
        return n_bytes;
    }
    match text[..n_bytes].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => n_bytes,
    }
}

/// Length in bytes of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at the start of `text`.
fn contraction(text: &str, fold: impl Fn(char) -> char) -> Option<usize> {
    let mut characters =
        text.char_indices().skip(1).map(|(at, character)| (at + character.len_utf8(), fold(character)));
    let (end, first) = characters.next()?;
    match first {
        's' | 't' | 'm' | 'd' => Some(end),
        'r' | 'v' => characters.next().filter(|&(_, second)| second == 'e').map(|(end, _)| end),
        'l' => characters.next().filter(|&(_, second)| second == 'l').map(|(end, _)| end),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use proptest::prelude::*;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
        pre_tokenizers::split::{Split, SplitPattern},
    };

    use super::*;

    /// GPT-2's expression, which the pre-tokenizer `ByteLevel` includes.
    const GPT2_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    /// The words by the regular expression, as the library finds them.
    fn by_pattern(pattern: &str, text: &str) -> Vec<String> {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        let mut found = PreTokenizedString::from(text);
        split.pre_tokenize(&mut found).unwrap();
        let words = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        words.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }

    fn check(text: &str) {
        for (split, pattern) in [(WordSplit::Gpt2, GPT2_PATTERN), (WordSplit::Gpt4, GPT4_PATTERN)] {
            let words: Vec<_> = split.words(text).collect();
            assert_eq!(words, by_pattern(pattern, text), "{split:?} of {text:?}");
        }
    }

    #[test]
    fn word_split_matches_the_gpt2_and_gpt4_patterns_on_chosen_texts() {
        for text in [
            "",
            " ",
            "   ",
            "Hello, world!  It's 12345 o'clock.\n\n  Don't DON'T we'LL\r\n\r\n\tx = y;  \n",
            "a\n\n\nb \n c\u{a0}d\u{3000} e",
            "'s''t're'ſ 'S'",
            "x1234567890y ½²Ⅷ٣٤٥٦",
            "e\u{301}te\u{301} ʰ ⅰ \u{345} 日本語。\n漢字\r",
            "...\n\n...\r\n /path\n/x  -- \t!",
            "🙂🙂\u{200d}🙂 \u{85}\u{2028}\u{b}\u{c} z",
        ] {
            check(text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn word_split_matches_the_gpt2_and_gpt4_patterns_on_random_texts(
            text in "([ \n\r\t]{0,3}('s|'LL|'|[a-z]{0,3}|[0-9]{0,5}|[.,/-]{0,3}|\\PC{0,2}|[\u{a0}\u{2028}\u{301}\u{17f}]{0,2})){0,12}",
        ) {
            check(&text);
        }
    }

    /// The library finds words with its own tables.
    #[test]
    fn class_of_every_character_matches_the_regex_of_the_library() {
        let all: String = ('\0'..=char::MAX).filter(|&character| character != '\u{0}').collect();
        for (pattern, wanted) in [(r"\p{L}+", Class::Letter), (r"\p{N}+", Class::Number), (r"\s+", Class::Space)] {
            // Runs of the class and runs of other characters, alternating.
            let mut is_wanted = all.chars().next().is_some_and(|first| class(first) == wanted);
            for word in by_pattern(pattern, &all) {
                let differs = word.chars().find(|&character| (class(character) == wanted) != is_wanted);
                assert_eq!(differs, None, "{pattern}");
                is_wanted = !is_wanted;
            }
        }
    }
}
