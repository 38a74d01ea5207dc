//! Strings that end a generated text.

use hearth_model::{
    TokenId,
    tokenizer::{DecodeOptions, Tokenizer},
};

/// Tokens at the end of a text in which a stop string is looked for while it is generated.
const WINDOW: usize = 32;

/// Strings that end a text, and the tokenizer that decodes it.
#[derive(Clone, Debug)]
pub struct StopText {
    tokenizer: Tokenizer,
    strings: Vec<String>,
}

impl StopText {
    /// These strings; `None` if there are none. Empty ones are ignored.
    pub fn new(tokenizer: &Tokenizer, strings: &[String]) -> Option<Self> {
        let strings: Vec<String> = strings.iter().filter(|string| !string.is_empty()).cloned().collect();
        (!strings.is_empty()).then(|| Self { tokenizer: tokenizer.clone(), strings })
    }

    /// Whether the end of `output` has a stop string.
    pub fn is_in(&self, output: &[TokenId]) -> bool {
        let end = &output[output.len().saturating_sub(WINDOW)..];
        self.find(&self.tokenizer.decode(end, DecodeOptions { skip_special_tokens: true })).is_some()
    }

    /// Whether `output` has one with `id` behind it.
    pub fn is_completed(&self, output: &[TokenId], id: TokenId) -> bool {
        let end = &output[output.len().saturating_sub(WINDOW - 1)..];
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
