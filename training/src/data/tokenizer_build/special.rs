//! Special tokens, and the chat template that uses them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// The default end-of-text token: GPT-2's.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Starts a message of a chat.
const IM_START: &str = "<|im_start|>";
/// Ends a message of a chat.
const IM_END: &str = "<|im_end|>";

/// ChatML: each message after its role, between start and end tokens.
const CHATML: &str = "{%- for message in messages %}\n    \
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n\
    {%- endfor %}\n\
    {%- if add_generation_prompt %}\n    \
    {{- '<|im_start|>assistant\\n' }}\n\
    {%- endif %}\n";

/// The special tokens of a tokenizer, by their strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Ends a document.
    pub eos: Option<String>,
    /// Begins a document.
    pub bos: Option<String>,
    /// Fills up rows. Must differ from `eos`: a model that is fine-tuned with padding masked must still learn to stop.
    pub pad: Option<String>,
    /// The mask token. If set, the tokenizer is for an encoder, and puts `bos` before a text and `eos` after it.
    pub mask: Option<String>,
    /// Whether to add chat tokens and a ChatML template.
    pub has_chat: bool,
}

impl SpecialTokens {
    /// Only [`END_OF_TEXT`].
    pub fn end_of_text() -> SpecialTokens {
        SpecialTokens { eos: Some(END_OF_TEXT.to_owned()), ..SpecialTokens::default() }
    }

    /// RoBERTa's special tokens: `<s>` before a text, `</s>` after it, `<pad>` and `<mask>`.
    pub fn of_encoder() -> SpecialTokens {
        let [bos, eos, pad, mask] = ["<s>", "</s>", "<pad>", "<mask>"].map(|token| Some(token.to_owned()));
        SpecialTokens { bos, eos, pad, mask, has_chat: false }
    }

    /// All special tokens, in the order of their ids.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let roles = [&self.eos, &self.bos, &self.pad, &self.mask].into_iter().flatten().map(String::as_str);
        let chat = self.has_chat.then_some([IM_START, IM_END]).into_iter().flatten();
        let mut seen = BTreeSet::new();
        // One token may have two roles: GPT-2's also begins documents.
        roles.chain(chat).filter(move |&token| seen.insert(token))
    }

    /// Special tokens without a role in `tokenizer_config.json`.
    pub(super) fn additional(&self) -> Vec<&str> {
        if self.has_chat { vec![IM_START, IM_END] } else { Vec::new() }
    }

    /// The chat template, if there is one.
    pub fn chat_template(&self) -> Option<&'static str> {
        self.has_chat.then_some(CHATML)
    }

    /// Rejects empty tokens, and padding that equals the end-of-text token.
    ///
    /// # Errors
    /// The message names the token.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.all().all(|token| !token.is_empty()),
            "a special token is empty\nhint: use a string such as `<|pad|>`"
        );
        if let (Some(pad), Some(eos)) = (&self.pad, &self.eos) {
            ensure!(
                pad != eos,
                "`{pad}` cannot be both the end-of-text token and the padding token\nhint: use another string for `--pad`: padding is excluded from the \
                 loss, so the model would not learn to stop"
            );
        }
        Ok(())
    }
}

/// A post-processor that puts the token `before` at the start of a text, and `behind`, if given, at its end.
pub(super) fn framed_by(before: (&str, u64), behind: Option<(&str, u64)>) -> Value {
    let token =
        |(content, _): (&str, u64), type_id: usize| json!({ "SpecialToken": { "id": content, "type_id": type_id } });
    let text = |id: &str, type_id: usize| json!({ "Sequence": { "id": id, "type_id": type_id } });
    let end = |type_id| behind.map(|behind| token(behind, type_id));
    let first = || [Some(token(before, 0)), Some(text("A", 0)), end(0)].into_iter().flatten();
    let known = [Some(before), behind].into_iter().flatten();
    let known =
        known.map(|(content, id)| (content.to_owned(), json!({ "id": content, "ids": [id], "tokens": [content] })));
    json!({
        "type": "TemplateProcessing",
        "single": first().collect::<Vec<_>>(),
        "pair": first().chain([text("B", 1)]).chain(end(1)).collect::<Vec<_>>(),
        "special_tokens": known.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn special_token_of_two_roles_is_listed_once() {
        let token = || Some("<s>".to_owned());
        let special = SpecialTokens { eos: token(), bos: token(), has_chat: true, ..SpecialTokens::default() };
        assert_eq!(special.all().collect::<Vec<_>>(), ["<s>", IM_START, IM_END]);
        special.check().unwrap();
        let error = SpecialTokens { pad: token(), ..special.clone() }.check().unwrap_err().to_string();
        assert!(error.contains("`<s>`"), "{error}");
        assert!(SpecialTokens { pad: Some(String::new()), ..special }.check().is_err());
    }
}
