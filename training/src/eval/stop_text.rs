//! Strings that end a generated text.

use hearth_model::{
    TokenId,
    tokenizer::{DecodeOptions, Tokenizer},
};

/// Minimum number of tokens at the end of a growing text that are searched for stop strings.
const MIN_WINDOW: usize = 32;

/// Strings that end a text, and the tokenizer that decodes it.
#[derive(Clone, Debug)]
pub struct StopText {
    tokenizer: Tokenizer,
    strings: Vec<String>,
    /// Tokens at the end of a growing text that are searched: as many as the longest string has bytes, so that none is longer.
    window: usize,
}

impl StopText {
    /// These strings; `None` if there are none. Empty ones are ignored.
    pub fn new(tokenizer: &Tokenizer, strings: &[String]) -> Option<Self> {
        let strings: Vec<String> = strings.iter().filter(|string| !string.is_empty()).cloned().collect();
        let longest = strings.iter().map(String::len).max()?;
        Some(Self { tokenizer: tokenizer.clone(), strings, window: longest.max(MIN_WINDOW) })
    }

    /// Whether the end of `output` has a stop string.
    pub fn is_in(&self, output: &[TokenId]) -> bool {
        let end = &output[output.len().saturating_sub(self.window)..];
        self.find(&self.tokenizer.decode(end, DecodeOptions { skip_special_tokens: true })).is_some()
    }

    /// Whether the end of `output` has a stop string once `id` is appended.
    pub fn is_completed(&self, output: &[TokenId], id: TokenId) -> bool {
        let end = &output[output.len().saturating_sub(self.window - 1)..];
        self.is_in(&[end, &[id]].concat())
    }

    /// The text before the first stop string.
    pub fn cut<'a>(&self, text: &'a str) -> &'a str {
        self.find(text).map_or(text, |at| &text[..at])
    }

    fn find(&self, text: &str) -> Option<usize> {
        self.strings.iter().filter_map(|string| text.find(string)).min()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use hearth_model::tokenizer::EncodeOptions;

    use super::*;
    use crate::data::{
        corpus::WordSplit,
        tokenizer_build::{BuiltTokenizer, SpecialTokens, WordCounts},
    };

    #[test]
    fn stop_string_longer_than_the_minimum_search_window_ends_the_text() {
        let special = SpecialTokens { eos: Some("</s>".into()), bos: None, pad: None, has_chat: false };
        let mut counts = WordCounts::new(WordSplit::Gpt2);
        counts.add("a b");
        let tokenizer = BuiltTokenizer::from_words(&counts, 260, &special).unwrap().open().unwrap();
        let string = "= end of the answer, with more bytes than tokens are searched at least =";
        let stop = StopText::new(&tokenizer, &[string.to_owned(), "~".to_owned()]).unwrap();
        let ids = tokenizer.encode(&format!("text {string}"), EncodeOptions::TEXT).unwrap();
        assert!(ids.len() > MIN_WINDOW + 5);
        let (&last, before) = ids.split_last().unwrap();
        assert!(!stop.is_in(before));
        assert!(stop.is_completed(before, last) && stop.is_in(&ids));
        assert_eq!(stop.cut(&format!("text {string} rest")), "text ");
    }
}
