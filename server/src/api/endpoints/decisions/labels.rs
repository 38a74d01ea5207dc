//! The labels that the model may answer with: each is one token where the answer begins.

use std::collections::BTreeSet;

use hearth_model::{
    TokenId,
    text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};

use super::questions::LabelKind;

/// Number of the prompt's last tokens with which labels are tokenized: enough for the start of an assistant's message.
const N_LAST: usize = 16;

/// A label and its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) text: String,
    pub(super) id: TokenId,
}

/// The labels of a tokenizer after prompts with the same end.
#[derive(Debug)]
pub(super) struct Labels {
    yes_or_no: Vec<Label>,
    digits: Vec<Label>,
    letters: Vec<Label>,
}

impl Labels {
    /// `prompt` is any prompt of the request.
    pub(super) fn new(tokenizer: &Tokenizer, prompt: &[TokenId]) -> Self {
        let end = PromptEnd::of(tokenizer, prompt);
        let words = |words: [&str; 2]| end.labels(words.map(str::to_owned));
        let yes_or_no =
            [["yes", "no"], ["Yes", "No"]].into_iter().map(words).find(|labels| labels.len() == 2).unwrap_or_default();
        let single = || ('A'..='Z').chain('a'..='z');
        let double = || ('A'..='Z').flat_map(|first| ('A'..='Z').map(move |second| format!("{first}{second}")));
        let mixed = || ('A'..='Z').flat_map(|first| ('a'..='z').map(move |second| format!("{first}{second}")));
        Self {
            yes_or_no,
            digits: end.labels(('0'..='9').map(String::from)),
            letters: end.labels(single().map(String::from).chain(double()).chain(mixed())),
        }
    }

    /// `n` labels of this kind, or letters if there are not enough.
    ///
    /// # Errors
    /// The number of labels that there are.
    pub(super) fn first(&self, kind: LabelKind, n: usize) -> Result<&[Label], usize> {
        let own = match kind {
            LabelKind::YesOrNo => &self.yes_or_no,
            LabelKind::Digits => &self.digits,
            LabelKind::Letters => &self.letters,
        };
        own.get(..n).or_else(|| self.letters.get(..n)).ok_or(self.letters.len())
    }
}

/// The end of a prompt, after which labels are tokenized: tokens depend on the text before them.
struct PromptEnd<'a> {
    tokenizer: &'a Tokenizer,
    text: String,
    ids: Vec<TokenId>,
}

impl<'a> PromptEnd<'a> {
    /// The text after the last special token; empty if the text is long, or tokenizes differently on its own.
    fn of(tokenizer: &'a Tokenizer, prompt: &[TokenId]) -> Self {
        let last = &prompt[prompt.len().saturating_sub(N_LAST)..];
        let start = last.iter().rposition(|&id| tokenizer.is_special(id)).map(|at| at + 1);
        let ids = start.map(|start| last[start..].to_vec()).unwrap_or_default();
        let text = tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: false });
        let is_same = tokenizer.encode(&text, EncodeOptions::TEXT).is_ok_and(|again| again == ids);
        if is_same { Self { tokenizer, text, ids } } else { Self { tokenizer, text: String::new(), ids: Vec::new() } }
    }

    /// The texts that are one token each, which no other has.
    fn labels(&self, texts: impl IntoIterator<Item = String>) -> Vec<Label> {
        let mut taken = BTreeSet::new();
        let label = |text: String| {
            let ids = self.tokenizer.encode(&format!("{}{text}", self.text), EncodeOptions::TEXT).ok()?;
            let (&id, before) = ids.split_last()?;
            (before == self.ids && taken.insert(id)).then_some(Label { text, id })
        };
        texts.into_iter().filter_map(label).collect()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// Each ASCII character is a token; `BC` and `no` are too, and `<a>` is a special one.
    fn tokenizer() -> Tokenizer {
        let mut vocab: serde_json::Map<_, _> =
            (0..128u8).map(|byte| (char::from(byte).to_string(), byte.into())).collect();
        vocab.extend([("BC".to_owned(), 128.into()), ("no".to_owned(), 129.into()), ("\nA".to_owned(), 130.into())]);
        let special = json!({ "id": 131, "content": "<a>", "special": true, "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false });
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": { "type": "Fuse" },
            "model": { "type": "BPE", "vocab": vocab, "merges": [["B", "C"], ["n", "o"], ["\n", "A"]] },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    #[test]
    fn labels_are_single_tokens_behind_the_prompt() {
        let tokenizer = tokenizer();
        let prompt = |text: &str| tokenizer.encode(text, EncodeOptions::RENDERED).unwrap();
        let labels = Labels::new(&tokenizer, &prompt("x<a>"));
        let texts = |kind, n| {
            let labels = labels.first(kind, n);
            labels.map(|labels| labels.iter().map(|label| label.text.as_str()).collect::<String>())
        };
        assert_eq!(texts(LabelKind::Digits, 3), Ok("012".into()));
        // `yes` is not one token.
        assert_eq!(texts(LabelKind::YesOrNo, 2), Ok("AB".into()));
        assert_eq!(labels.first(LabelKind::Letters, 53).unwrap()[52], Label { text: "BC".into(), id: 128 });
        assert_eq!(labels.first(LabelKind::Letters, 54), Err(53));
        assert_eq!(labels.first(LabelKind::Digits, 11).unwrap()[0].text, "A", "there are ten digits");
        // Behind a line break, `A` is part of another token.
        let behind = Labels::new(&tokenizer, &prompt("x<a>\n"));
        assert_eq!(behind.first(LabelKind::Letters, 1).unwrap()[0].text, "B");
    }
}
