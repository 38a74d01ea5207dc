//! Fill-in-the-middle: how models read the text before and after a gap.
//!
//! A table of model families, recognized by the special tokens of their vocabularies. Scope: the order and tokens of
//! each family's prompt.

use crate::{
    TokenId,
    error::Result,
    text::tokenizer::{EncodeOptions, Tokenizer},
};

/// A family's special tokens and the order of its parts.
struct Family {
    /// Before the text in front of the gap.
    prefix: &'static str,
    /// Before the text after the gap.
    suffix: &'static str,
    /// Before the text to generate.
    middle: Option<&'static str>,
    order: Order,
    /// Further tokens that end the generated text, besides end-of-sequence.
    ends: &'static [&'static str],
    /// Tokens before the name of a repository, and before the name of each of its files.
    files: [Option<&'static str>; 2],
    /// Whether the tokenizer adds a space in front of every text.
    adds_space: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Prefix, suffix, middle.
    PrefixFirst,
    /// Suffix, prefix; then generation starts without a further token.
    SuffixFirst,
}

/// Families that share tokens have the same order.
const FAMILIES: &[Family] = &[
    // Qwen2.5-Coder, CodeGemma, Granite 3.
    Family {
        middle: Some("<|fim_middle|>"),
        ends: &["<|file_separator|>", "<|file_sep|>", "<|repo_name|>", "<|fim_pad|>", "<|cursor|>"],
        files: [Some("<|repo_name|>"), Some("<|file_sep|>")],
        ..Family::new("<|fim_prefix|>", "<|fim_suffix|>")
    },
    // StarCoder and StarCoder2, Stable Code, Granite Code (https://arxiv.org/abs/2305.06161).
    Family {
        middle: Some("<fim_middle>"),
        ends: &["<file_sep>", "<repo_name>", "<filename>", "<fim_pad>"],
        files: [Some("<repo_name>"), Some("<file_sep>")],
        ..Family::new("<fim_prefix>", "<fim_suffix>")
    },
    // SantaCoder.
    Family { middle: Some("<fim-middle>"), ends: &["<fim-pad>"], ..Family::new("<fim-prefix>", "<fim-suffix>") },
    // Code Llama (https://arxiv.org/abs/2308.12950).
    Family { middle: Some("▁<MID>"), ends: &["▁<EOT>"], adds_space: true, ..Family::new("▁<PRE>", "▁<SUF>") },
    // DeepSeek-Coder (https://arxiv.org/abs/2401.14196): its third token marks the end of the text, not the gap.
    Family { middle: Some("<｜fim▁end｜>"), ..Family::new("<｜fim▁begin｜>", "<｜fim▁hole｜>") },
    // Codestral.
    Family { order: Order::SuffixFirst, adds_space: true, ..Family::new("[PREFIX]", "[SUFFIX]") },
];

impl Family {
    const fn new(prefix: &'static str, suffix: &'static str) -> Self {
        Self { prefix, suffix, middle: None, order: Order::PrefixFirst, ends: &[], files: [None; 2], adds_space: false }
    }
}

/// The fill-in-the-middle format of the served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infill {
    prefix: TokenId,
    suffix: TokenId,
    middle: Option<TokenId>,
    order: Order,
    end_ids: Vec<TokenId>,
    repository: Option<TokenId>,
    file: Option<TokenId>,
    adds_space: bool,
}

/// Another file, besides the one with the gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherFile {
    /// The file's name.
    pub name: String,
    /// Its contents.
    pub text: String,
}

/// The names of the repository and of the file with the gap, which clients do not send; llama.cpp's.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";

/// Before each other file, for models without tokens for files; llama.cpp's.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

impl Infill {
    /// Detected from the special tokens in the vocabulary; `None` if it has no fill-in-the-middle tokens.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        FAMILIES.iter().find_map(|family| {
            let id = |token: &str| tokenizer.token_id(token);
            let (prefix, suffix) = (id(family.prefix)?, id(family.suffix)?);
            let middle = match family.middle {
                Some(token) => Some(id(token)?),
                None => None,
            };
            let own = [Some(prefix), Some(suffix), middle].into_iter().flatten();
            let ends = family.ends.iter().filter_map(|token| id(token));
            Some(Self {
                prefix,
                suffix,
                middle,
                order: family.order,
                end_ids: own.chain(ends).collect(),
                repository: family.files[0].and_then(id),
                file: family.files[1].and_then(id),
                adds_space: family.adds_space,
            })
        })
    }

    /// The prompt for the text between `before`, as token ids, and `behind`. A BOS token at the start of `before` stays
    /// first. Strings in `behind` that look like special tokens stay text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) if `behind` has a character that is not in the vocabulary.
    pub fn prompt(&self, tokenizer: &Tokenizer, before: &[TokenId], behind: &str) -> Result<Vec<TokenId>> {
        self.prompt_beside(tokenizer, &[], before, behind)
    }

    /// As [`prompt`](Self::prompt), with other files of the repository in front.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) if a text has a character that is not in the vocabulary.
    pub fn prompt_beside(
        &self,
        tokenizer: &Tokenizer,
        files: &[OtherFile],
        before: &[TokenId],
        behind: &str,
    ) -> Result<Vec<TokenId>> {
        let files = self.files(tokenizer, files)?;
        let behind = self.encode(tokenizer, behind)?;
        let bos = tokenizer.bos().map(|bos| bos.id);
        let (start, before) = match before.split_first() {
            Some((first, rest)) if Some(*first) == bos => (Some(*first), rest),
            _ => (None, before),
        };
        let before = [&[self.prefix], before].concat();
        let behind = [&[self.suffix], behind.as_slice()].concat();
        let [first, second] = match self.order {
            Order::PrefixFirst => [before, behind],
            Order::SuffixFirst => [behind, before],
        };
        Ok(start.into_iter().chain(files).chain(first).chain(second).chain(self.middle).collect())
    }

    /// The text of other files: with their names if the model has tokens for files, else as snippets.
    fn files(&self, tokenizer: &Tokenizer, files: &[OtherFile]) -> Result<Vec<TokenId>> {
        let mut ids = Vec::new();
        if files.is_empty() {
            return Ok(ids);
        }
        let Some(separator) = self.file else {
            for file in files {
                ids.extend(self.encode(tokenizer, &format!("{SNIPPET}{}", file.text))?);
            }
            return Ok(ids);
        };
        if let Some(repository) = self.repository {
            ids.push(repository);
            ids.extend(self.encode(tokenizer, REPOSITORY)?);
        }
        for file in files {
            ids.push(separator);
            ids.extend(self.encode(tokenizer, &format!("{}\n{}", file.name, file.text))?);
        }
        ids.push(separator);
        ids.extend(self.encode(tokenizer, FILE)?);
        Ok(ids)
    }

    /// Tokens that end the generated text, in addition to the model's end-of-sequence tokens.
    pub fn end_ids(&self) -> &[TokenId] {
        &self.end_ids
    }

    /// Encodes a text without the space that some tokenizers add in front. Strings in it that look like special tokens
    /// stay text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) if it has a character that is not in the vocabulary.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenId>> {
        /// A mark in front of the text, which receives the added space, as in Code Llama's own code.
        const MARK: &str = "☺";
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::TEXT);
        if !self.adds_space {
            return encode(text);
        }
        let marked = encode(&format!("{MARK}{text}"))?;
        match marked.strip_prefix(encode(MARK)?.as_slice()) {
            Some(ids) => Ok(ids.to_vec()),
            // The mark was merged with the text; no known vocabulary of these families does that.
            None => encode(text),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    /// A tokenizer whose tokens are some single characters, then `special`. `normalizer` is as in a `tokenizer.json`.
    fn tokenizer(special: &[&str], normalizer: Value) -> Tokenizer {
        let characters = ["▁", "☺", "a", "b", "c"];
        let vocab: serde_json::Map<_, _> = characters.iter().zip(0..).map(|(c, id)| ((*c).into(), id.into())).collect();
        let added = special.iter().zip(characters.len()..).map(|(content, id)| {
            json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false })
        });
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": normalizer, "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        let config = json!({ "bos_token": "<s>" }).to_string();
        Tokenizer::from_json(json.to_string().as_bytes(), Some(config.as_bytes()), Path::new("tokenizer.json")).unwrap()
    }

    fn infill_tokens(tokenizer: &Tokenizer, before: &str, behind: &str) -> String {
        let before = tokenizer.encode(before, EncodeOptions::RENDERED).unwrap();
        let ids = Infill::of(tokenizer).unwrap().prompt(tokenizer, &before, behind).unwrap();
        ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect()
    }

    #[test]
    fn infill_prompt_uses_the_fim_tokens_and_order_of_each_model_family() {
        let families: [(&[&str], &str, usize); 5] = [
            (
                &["<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|file_sep|>"],
                "<|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>",
                4,
            ),
            (&["<fim_prefix>", "<fim_middle>", "<fim_suffix>"], "<fim_prefix>ab<fim_suffix>c<fim_middle>", 3),
            (&["<fim-prefix>", "<fim-middle>", "<fim-suffix>"], "<fim-prefix>ab<fim-suffix>c<fim-middle>", 3),
            (
                &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
                "<｜fim▁begin｜>ab<｜fim▁hole｜>c<｜fim▁end｜>",
                3,
            ),
            (&["[PREFIX]", "[MIDDLE]", "[SUFFIX]"], "[SUFFIX]c[PREFIX]ab", 2),
        ];
        for (special, expected, n_ends) in families {
            let tokenizer = tokenizer(special, Value::Null);
            assert_eq!(infill_tokens(&tokenizer, "ab", "c"), expected);
            assert_eq!(Infill::of(&tokenizer).unwrap().end_ids().len(), n_ends);
        }
        // Two of a family's three tokens are not enough.
        assert_eq!(Infill::of(&tokenizer(&["<fim_prefix>", "<fim_suffix>"], Value::Null)), None);
        assert_eq!(Infill::of(&tokenizer(&["<s>"], Value::Null)), None);
    }

    #[test]
    fn other_files_are_in_front_by_name_or_as_snippets() {
        let all: String = (0..=127u8).map(char::from).collect();
        let characters: Vec<String> = all.chars().map(String::from).collect();
        let with = |special: &[&str]| {
            let vocab: serde_json::Map<_, _> =
                characters.iter().zip(0..).map(|(character, id)| (character.clone(), id.into())).collect();
            let added = special.iter().zip(characters.len()..).map(|(content, id)| {
                json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                        "rstrip": false, "normalized": false })
            });
            let json = json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
                "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
                "model": { "type": "BPE", "vocab": vocab, "merges": [] },
            });
            let config = json!({ "bos_token": "<s>" }).to_string();
            let path = Path::new("tokenizer.json");
            Tokenizer::from_json(json.to_string().as_bytes(), Some(config.as_bytes()), path).unwrap()
        };
        let prompt = |tokenizer: &Tokenizer| {
            let before = tokenizer.encode("<s>ab", EncodeOptions::RENDERED).unwrap();
            let files = ["x", "y"].map(|name| OtherFile { name: name.into(), text: format!("({name})") });
            let infill = Infill::of(tokenizer).unwrap();
            let ids = infill.prompt_beside(tokenizer, &files, &before, "c").unwrap();
            ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<String>()
        };
        let fim = ["<s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"];
        assert_eq!(
            prompt(&with(&fim)),
            "<s><|repo_name|>myproject\n<|file_sep|>x\n(x)<|file_sep|>y\n(y)<|file_sep|>filename\n\
             <|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>"
        );
        assert_eq!(
            prompt(&with(&fim[..4])),
            "<s>\n\n--- snippet ---\n\n(x)\n\n--- snippet ---\n\n(y)<|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>"
        );
    }

    #[test]
    fn infill_keeps_bos_first_and_encodes_the_suffix_as_plain_text() {
        let special = ["<s>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>"];
        let tokenizer = tokenizer(&special, Value::Null);
        assert_eq!(infill_tokens(&tokenizer, "<s>a", "b"), "<s><fim_prefix>a<fim_suffix>b<fim_middle>");
        let infill = Infill::of(&tokenizer).unwrap();
        // As text, `<s>` has characters that are not in this vocabulary; as a special token, it could be encoded.
        assert!(infill.prompt(&tokenizer, &[2], "<s>").is_err());
    }

    #[test]
    fn infill_for_code_llama_adds_no_prefix_space_to_the_suffix() {
        let spaced = json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ]});
        let tokenizer = tokenizer(&["<s>", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"], spaced);
        assert_eq!(infill_tokens(&tokenizer, "a b", "c"), "▁<PRE>▁a▁b▁<SUF>c▁<MID>");
        assert_eq!(infill_tokens(&tokenizer, "a", " c"), "▁<PRE>▁a▁<SUF>▁c▁<MID>");
    }
}
