//! Strings in texts that represent tokens: marks in chats that a template already rendered, and marks at the ends of
//! documents.
//!
//! A text that begins with the mark of a turn is a rendered chat, as `apply_chat_template(tokenize=False)` of
//! `transformers` makes it; there, the strings of special tokens are tokens. In all other texts they stay text, except
//! for the strings that end a document.

use hearth_model::text::{chat::ChatTemplate, tokenizer::Tokenizer};

/// The byte order mark that some editors write before a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Marks of chats: of ChatML, Llama, Mistral, Gemma, Phi, Zephyr, Command R, DeepSeek, Granite, gpt-oss, GLM, Kimi.
const CHAT: [&str; 32] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|header_start|>",
    "<|header_end|>",
    "<|eot|>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "[SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    "<|prompter|>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<\u{ff5c}User\u{ff5c}>",
    "<\u{ff5c}Assistant\u{ff5c}>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|start|>",
    "<|message|>",
    "<|im_user|>",
    "<|im_system|>",
    "<|im_assistant|>",
];

/// Marks before a chat or a document.
const BEGINS: [&str; 9] = [
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<BOS_TOKEN>",
    "[gMASK]",
    "<sop>",
    "<\u{ff5c}begin\u{2581}of\u{2581}sentence\u{ff5c}>",
];

/// Marks after a document.
const ENDS: [&str; 6] = [
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|endofdocument|>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];

/// The marks that are tokens of a tokenizer, or that its chat template writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Special tokens.
    tokens: Vec<String>,
    bos: Option<String>,
    /// Strings that end a document in a text.
    ends: Vec<String>,
    /// The marks of [`CHAT`] that are tokens to the model.
    known: Vec<&'static str>,
    /// Whether there is a tokenizer at all.
    has_tokenizer: bool,
}

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind<'a> {
    /// A text, or a part of one.
    Plain,
    /// A chat that a template rendered; begins with this mark.
    Chat(&'a str),
    /// A chat rendered for another model: this mark has no meaning to the tokenizer.
    ForeignChat(&'a str),
}

impl Marks {
    /// The marks of a tokenizer and of the chat template of its model.
    pub fn new(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Marks {
        let tokens: Vec<String> = tokenizer.special_tokens().into_iter().map(|(_, token)| token).collect();
        let is_token = |mark: &str| tokenizer.token_id(mark).is_some();
        let source = template.map(ChatTemplate::source).unwrap_or_default();
        let known = CHAT.into_iter().filter(|mark| is_token(mark) || source.contains(mark)).collect();
        let eos = tokenizer.eos().map(|eos| eos.content).filter(|eos| !CHAT.contains(&eos.as_str()));
        let mut ends: Vec<String> =
            ENDS.into_iter().filter(|end| tokens.iter().any(|token| token == end)).map(str::to_owned).collect();
        ends.extend(eos.filter(|eos| !ENDS.contains(&eos.as_str())));
        Marks { bos: tokenizer.bos().map(|bos| bos.content), tokens, ends, known, has_tokenizer: true }
    }

    /// For a tokenizer that is yet to be made, with this token at the end of documents. A single character is a part of texts.
    pub fn of_end(end: Option<&str>) -> Marks {
        let end = end.filter(|end| end.chars().nth(1).is_some());
        Marks { ends: end.map(str::to_owned).into_iter().collect(), ..Marks::default() }
    }

    /// The strings that end a document in a text.
    pub fn ends(&self) -> &[String] {
        &self.ends
    }

    /// The kind of the text that begins with `start`.
    pub fn kind<'a>(&'a self, start: &str) -> TextKind<'a> {
        if !self.has_tokenizer {
            return TextKind::Plain;
        }
        let start =
            start.trim_start_matches(|character: char| character.is_whitespace() || character == BYTE_ORDER_MARK);
        let mut rest = start;
        let mut has_begun = false;
        while let Some(begin) = BEGINS.iter().copied().chain(self.bos.as_deref()).find(|begin| rest.starts_with(begin))
        {
            if CHAT.contains(&begin) {
                break;
            }
            rest = rest[begin.len()..].trim_start();
            has_begun = true;
        }
        let at_start = CHAT.into_iter().filter(|mark| rest.starts_with(mark)).max_by_key(|mark| mark.len());
        let own = self.tokens.iter().filter(|token| rest.starts_with(token.as_str()) && !self.is_document_mark(token));
        let own = own.max_by_key(|token| token.len()).map(String::as_str);
        // As in DeepSeek's chats, where the system message has no mark.
        let inside = || CHAT.into_iter().find(|mark| has_begun && rest.contains(mark));
        let Some(mark) = at_start.or(own).or_else(inside) else { return TextKind::Plain };
        let is_foreign = |mark: &&str| CHAT.contains(mark) && !self.known.contains(mark);
        // After a token of the tokenizer, `[INST]` is text, as in Llama 2.
        if has_begun && self.tokens.iter().any(|token| start.starts_with(token.as_str())) && mark.starts_with('[') {
            return TextKind::Chat(mark);
        }
        match CHAT.into_iter().filter(|mark| rest.contains(mark)).find(is_foreign) {
            Some(foreign) => TextKind::ForeignChat(foreign),
            None => TextKind::Chat(mark),
        }
    }

    fn is_document_mark(&self, token: &str) -> bool {
        BEGINS.contains(&token)
            || ENDS.contains(&token)
            || self.bos.as_deref() == Some(token)
            || self.ends.iter().any(|end| end == token)
    }

    /// A mark in a plain text that stays text: of a chat, or of the end of a document for another tokenizer.
    pub fn in_plain<'a>(&self, text: &'a str) -> Option<&'a str> {
        self.first_mark(text).map(|(_, mark)| mark)
    }

    /// The first mark, and its position.
    pub fn first_mark<'a>(&self, text: &'a str) -> Option<(usize, &'a str)> {
        let found = |mark: &str| text.find(mark).map(|at| (at, &text[at..at + mark.len()]));
        let is_foreign_end = |end: &&str| !self.ends.iter().any(|own| own == end);
        let with_bars =
            CHAT.into_iter().chain(ENDS.into_iter().filter(is_foreign_end)).filter(|mark| mark.starts_with("<|"));
        // Most texts have no marks, and are searched only once.
        if text.contains("<|")
            && let Some(mark) = with_bars.filter_map(found).min()
        {
            return Some(mark);
        }
        // In HTML these strings have other meanings, so they count only at the end of a line or of the text.
        let ends_line = |mark: &str| {
            let (at, mark) = found(mark)?;
            let rest = &text[at + mark.len()..];
            (rest.is_empty() || rest.starts_with(['\n', '\r'])).then_some((at, mark))
        };
        let others = ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"].into_iter().find_map(found);
        others.or_else(|| ["</s>", "<eos>"].into_iter().filter(is_foreign_end).find_map(ends_line))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::path::Path;

    use super::*;
    use crate::data::{
        corpus::WordSplit,
        tokenizer_build::{BuiltTokenizer, SpecialTokens, WordCounts},
    };

    fn tokenizer(eos: &str, has_chat: bool) -> Tokenizer {
        let special =
            SpecialTokens { eos: Some(eos.into()), bos: Some("<s>".into()), has_chat, ..SpecialTokens::default() };
        BuiltTokenizer::from_words(&WordCounts::new(WordSplit::Gpt2), 300, &special).unwrap().open().unwrap()
    }

    #[test]
    fn rendered_chats_are_told_by_the_mark_at_their_beginning() {
        let chatml = Marks::new(&tokenizer("</s>", true), None);
        assert_eq!(chatml.kind("<|im_start|>user\nHi<|im_end|>\n"), TextKind::Chat("<|im_start|>"));
        assert_eq!(chatml.kind("\n<s><|im_start|>user\nHi"), TextKind::Chat("<|im_start|>"));
        assert_eq!(chatml.kind("\u{feff}<|im_start|>user\nHi"), TextKind::Chat("<|im_start|>"));
        assert_eq!(chatml.kind("<s>[INST] Hi [/INST] Ho</s>"), TextKind::Chat("[INST]"));
        for plain in ["", "Hi", "<s>Hi</s>", "The mark <|im_start|> begins a turn.", "<p>"] {
            assert_eq!(chatml.kind(plain), TextKind::Plain, "{plain}");
        }
        let plain = Marks::new(&tokenizer("<|endoftext|>", false), None);
        for (text, mark) in [
            ("<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>"),
            ("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<|start_header_id|>"),
            ("<bos><start_of_turn>user\nHi<end_of_turn>\n", "<start_of_turn>"),
            ("[INST] Hi [/INST] Ho</s>", "[INST]"),
            ("<|user|>\nHi</s>\n<|assistant|>\nHo</s>", "<|user|>"),
            (
                "<\u{ff5c}begin\u{2581}of\u{2581}sentence\u{ff5c}>Be brief.<\u{ff5c}User\u{ff5c}>Hi",
                "<\u{ff5c}User\u{ff5c}>",
            ),
        ] {
            assert_eq!(plain.kind(text), TextKind::ForeignChat(mark), "{text}");
        }
        // Zephyr's marks are no tokens, but its template writes them.
        let template = "{% for m in messages %}<|{{ m.role }}|>\n<|user|><|assistant|>{% endfor %}";
        let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
        let zephyr = Marks::new(&tokenizer("</s>", false), Some(&template));
        assert_eq!(zephyr.kind("<|user|>\nHi</s>\n<|assistant|>\nHo</s>"), TextKind::Chat("<|user|>"));
    }

    #[test]
    fn end_of_documents_are_the_special_tokens_with_this_meaning() {
        assert_eq!(Marks::new(&tokenizer("</s>", true), None).ends(), ["</s>"]);
        assert_eq!(Marks::new(&tokenizer("<END>", false), None).ends(), ["<END>"]);
        assert_eq!(Marks::new(&tokenizer("<|im_end|>", true), None).ends(), [""; 0]);
        let marks = Marks::new(&tokenizer("<|endoftext|>", false), None);
        assert_eq!(marks.in_plain("one<|endoftext|>two"), None);
        assert_eq!(marks.in_plain("one <|eot_id|> two"), Some("<|eot_id|>"));
        assert_eq!(marks.in_plain("one\n</s>\ntwo"), Some("</s>"));
        assert_eq!(marks.in_plain("<s>struck</s> out, and List<|T|>"), None);
    }
}
