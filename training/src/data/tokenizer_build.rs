//! Trains tokenizers on a corpus: one token per character, or byte-level BPE. Both are written in the format of the
//! `tokenizers` library, so that `transformers` opens them.

mod bpe;
mod count;
mod special;
mod tiktoken;
mod word_counts;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail};
use hearth_model::text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

pub use self::{
    count::{Characters, bytes_per_token, collect_characters, count_words},
    special::{END_OF_TEXT, SpecialTokens},
    tiktoken::from_encoding,
    word_counts::WordCounts,
};
use crate::data::corpus::{ANY_CHARACTER, WordSplit, pieces};

/// A tokenizer as the files of a model dir.
#[derive(Clone, Debug)]
pub struct BuiltTokenizer {
    /// Contents of `tokenizer.json`.
    pub tokenizer_json: String,
    /// Contents of `tokenizer_config.json`.
    pub tokenizer_config_json: String,
    /// Contents of `chat_template.jinja`.
    pub chat_template: Option<String>,
}

impl BuiltTokenizer {
    /// One token for each of `chars`, with ids in the order of code points (as in nanoGPT), then the special tokens.
    /// Other characters have no id: encoding them is an error that names the character.
    ///
    /// # Errors
    /// The special tokens are invalid.
    pub fn from_characters(chars: &BTreeSet<char>, special: &SpecialTokens) -> Result<BuiltTokenizer> {
        BuiltTokenizer::from_numbered_characters(chars.iter().copied(), special)
    }

    /// A tokenizer of characters whose ids are their positions in `chars`. None may occur twice.
    ///
    /// # Errors
    /// The special tokens are invalid.
    pub fn from_numbered_characters(
        chars: impl Iterator<Item = char>,
        special: &SpecialTokens,
    ) -> Result<BuiltTokenizer> {
        special.check()?;
        let vocab: Map<String, Value> = chars.enumerate().map(|(id, char)| (char.to_string(), id.into())).collect();
        if let Some(token) = special.all().find(|token| vocab.contains_key(*token)) {
            bail!(
                "the special token `{token}` is also a character of the text\nhint: use a string that is longer than a character, \
                 such as `{END_OF_TEXT}`"
            );
        }
        let added = special.all().enumerate().map(|(index, token)| {
            json!({
                "id": vocab.len() + index, "content": token, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        });
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null,
            "pre_tokenizer": {
                "type": "Split",
                // Matches any character; the dot alone would not match newlines.
                "pattern": { "Regex": ANY_CHARACTER },
                "behavior": "Isolated",
                "invert": false,
            },
            "post_processor": null,
            "decoder": { "type": "Fuse" },
            // The format requires a name for the unknown token. The vocabulary lacks it, so unknown characters are errors.
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
        });
        BuiltTokenizer::new(serde_json::to_string_pretty(&tokenizer)?, special, None)
    }

    /// Byte-level BPE with a vocabulary of at most `vocab_size` tokens and merges learned from word counts.
    ///
    /// # Errors
    /// The vocabulary is too small for the bytes and the special tokens, or far too large.
    pub fn from_words(counts: &WordCounts, vocab_size: usize, special: &SpecialTokens) -> Result<BuiltTokenizer> {
        special.check()?;
        BuiltTokenizer::new(bpe::train(counts, vocab_size, special)?, special, None)
    }

    /// Checks for the errors of [`from_words`](Self::from_words) before anything is counted.
    ///
    /// # Errors
    /// As `from_words`.
    pub fn check_bpe(vocab_size: usize, special: &SpecialTokens) -> Result<()> {
        special.check()?;
        bpe::check_vocab_size(vocab_size, special)
    }

    /// One token for each character of `text`, for a model with that context.
    ///
    /// # Errors
    /// None for valid text.
    pub fn characters(text: &str, max_seq_len: usize) -> Result<BuiltTokenizer> {
        let built = BuiltTokenizer::from_characters(&text.chars().collect(), &SpecialTokens::default())?;
        built.with_max_length(max_seq_len, &SpecialTokens::default())
    }

    /// Byte-level BPE of `text`, split as GPT-2 does, with [`END_OF_TEXT`], for a model of that context.
    ///
    /// # Errors
    /// As [`from_words`](Self::from_words).
    pub fn bpe(text: &str, vocab_size: usize, max_seq_len: usize) -> Result<BuiltTokenizer> {
        let mut counts = WordCounts::new(WordSplit::Gpt2);
        pieces(text).for_each(|piece| counts.add(piece));
        let special = SpecialTokens::end_of_text();
        BuiltTokenizer::from_words(&counts, vocab_size, &special)?.with_max_length(max_seq_len, &special)
    }

    fn new(tokenizer_json: String, special: &SpecialTokens, max_length: Option<usize>) -> Result<BuiltTokenizer> {
        let tokenizer_json = match &special.bos {
            Some(bos) => with_frame(&tokenizer_json, bos, special.eos.as_deref().filter(|_| special.mask.is_some()))?,
            None => tokenizer_json,
        };
        Ok(BuiltTokenizer {
            tokenizer_json,
            tokenizer_config_json: tokenizer_config(special, max_length)?,
            chat_template: special.chat_template().map(str::to_owned),
        })
    }

    fn with_max_length(self, max_length: usize, special: &SpecialTokens) -> Result<BuiltTokenizer> {
        BuiltTokenizer::new(self.tokenizer_json, special, Some(max_length))
    }

    /// The files of the tokenizer, by name.
    pub fn files(&self) -> Vec<(&'static str, &str)> {
        let mut files = vec![
            ("tokenizer.json", self.tokenizer_json.as_str()),
            ("tokenizer_config.json", self.tokenizer_config_json.as_str()),
        ];
        files.extend(self.chat_template.as_deref().map(|template| ("chat_template.jinja", template)));
        files
    }

    /// The tokenizer, opened as in serving.
    ///
    /// # Errors
    /// Only if the new files are invalid, which would be a bug.
    pub fn open(&self) -> Result<Tokenizer> {
        Tokenizer::from_json(
            self.tokenizer_json.as_bytes(),
            Some(self.tokenizer_config_json.as_bytes()),
            Path::new("tokenizer.json"),
        )
        .context("cannot open the new tokenizer")
    }
}

/// The same `tokenizer.json`, with `bos` before every text and `end`, if given, after it.
fn with_frame(tokenizer_json: &str, bos: &str, end: Option<&str>) -> Result<String> {
    let mut tokenizer: Value = serde_json::from_str(tokenizer_json).context("the new tokenizer is not JSON")?;
    let id_of = |content: &str| {
        let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
        let id = added.filter(|token| token["content"] == content).find_map(|token| token["id"].as_u64());
        id.with_context(|| format!("the token `{content}`, which is put around texts, is missing"))
    };
    let end = end.map(|end| anyhow::Ok((end, id_of(end)?))).transpose()?;
    let framed = special::framed_by((bos, id_of(bos)?), end);
    tokenizer["post_processor"] = framed;
    Ok(serde_json::to_string_pretty(&tokenizer)?)
}

/// `tokenizer_config.json`, which `AutoTokenizer` reads with `tokenizer.json`.
fn tokenizer_config(special: &SpecialTokens, max_length: Option<usize>) -> Result<String> {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        // Joining tokens must restore the text exactly.
        "clean_up_tokenization_spaces": false,
    });
    if let Some(max_length) = max_length {
        config["model_max_length"] = max_length.into();
    }
    let of_encoder = |token| if special.mask.is_some() { token } else { &None };
    let roles = [
        ("bos_token", &special.bos),
        ("eos_token", &special.eos),
        ("pad_token", &special.pad),
        ("cls_token", of_encoder(&special.bos)),
        ("sep_token", of_encoder(&special.eos)),
        ("mask_token", &special.mask),
    ];
    for (role, token) in roles {
        if let Some(token) = token {
            config[role] = token.as_str().into();
        }
    }
    let additional = special.additional();
    if !additional.is_empty() {
        config["additional_special_tokens"] = additional.into();
    }
    Ok(serde_json::to_string_pretty(&config)?)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::text::tokenizer::{DecodeOptions, EncodeOptions};

    use super::*;
    use crate::data::corpus::Encoder;

    const DECODE: DecodeOptions = DecodeOptions { skip_special_tokens: false };

    #[test]
    fn character_tokenizer_numbers_characters_by_code_point() {
        let tokenizer = BuiltTokenizer::characters("cab\n é a", 8).unwrap().open().unwrap();
        assert_eq!(tokenizer.vocab_size(), 6);
        let ids = tokenizer.encode("\n abcé", EncodeOptions::TEXT).unwrap();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        assert_eq!(tokenizer.decode(&ids, DECODE), "\n abcé");
    }

    #[test]
    fn character_tokenizer_error_names_an_unknown_character() {
        let tokenizer = BuiltTokenizer::characters("abc", 8).unwrap().open().unwrap();
        let error = tokenizer.encode("abcxab", EncodeOptions::TEXT).unwrap_err().to_string();
        assert!(error.contains('x'), "{error}");
    }

    #[test]
    fn bpe_decodes_any_text_losslessly_and_has_an_end_of_text_token() {
        let text = "the cat and the hat and the cat\n".repeat(20);
        let built = BuiltTokenizer::bpe(&text, 300, 8).unwrap();
        let tokenizer = built.open().unwrap();
        assert_eq!(tokenizer.eos().unwrap().content, END_OF_TEXT);
        let other = "  Ünïcode \u{1f600}\r\n\t<|endoftext|> the cat ";
        let ids = tokenizer.encode(other, EncodeOptions::TEXT).unwrap();
        assert!(!ids.contains(&tokenizer.eos().unwrap().id), "a special token's string in a text stays text");
        assert_eq!(tokenizer.decode(&ids, DECODE), other);
        assert_eq!(tokenizer.encode("the cat", EncodeOptions::TEXT).unwrap().len(), 2, "`the` and ` cat` are merged");
        assert_eq!(built.tokenizer_json, BuiltTokenizer::bpe(&text, 300, 8).unwrap().tokenizer_json);
    }

    #[test]
    fn bpe_rejects_a_vocabulary_smaller_than_257_tokens() {
        let error = BuiltTokenizer::bpe("abc", 256, 8).unwrap_err().to_string();
        assert!(error.contains("from 257") && error.contains("got 256"), "{error}");
    }

    #[test]
    fn encoding_a_text_in_pieces_gives_the_token_ids_of_the_whole() {
        let line = "Some words,  it's 12 o'clock \n\n\n  and\tmore \n";
        let text = line.repeat(3000) + "the end\n\n";
        assert!(pieces(&text).count() > 1);
        for built in [BuiltTokenizer::characters(&text, 8).unwrap(), BuiltTokenizer::bpe(&text, 280, 8).unwrap()] {
            let tokenizer = built.open().unwrap();
            let whole = tokenizer.encode(&text, EncodeOptions::TEXT).unwrap();
            let encoder = Encoder::new(&tokenizer, built.tokenizer_json.as_bytes()).unwrap();
            assert_eq!(encoder.encode_all(&text).unwrap(), whole);
        }
    }

    #[test]
    fn byte_and_character_tokenizers_have_special_token_ids_and_roles() {
        let name = |token: &str| Some(token.to_owned());
        let (eos, bos, pad) = (name("<e>"), name("<b>"), name("<p>"));
        let special = SpecialTokens { eos, bos, pad, mask: None, has_chat: true };
        let mut counts = WordCounts::new(WordSplit::Gpt4);
        counts.add("the cat and the hat");
        let of_bytes = BuiltTokenizer::from_words(&counts, 270, &special).unwrap();
        let of_chars = BuiltTokenizer::from_characters(&"abc<e>".chars().collect(), &special).unwrap();
        for (built, first) in [(of_bytes, 0), (of_chars, 6)] {
            let tokenizer = built.open().unwrap();
            let roles = [tokenizer.eos(), tokenizer.bos(), tokenizer.pad()].map(|token| token.unwrap().id);
            assert_eq!(roles, [first, first + 1, first + 2]);
            let ids = tokenizer.encode("a<e>", EncodeOptions::PROMPT).unwrap();
            assert_eq!((ids.len(), ids[0], ids[2]), (3, first + 1, first));
            assert_eq!(tokenizer.encode("a<e>", EncodeOptions::TEXT).unwrap().len(), 4);
            assert_eq!(tokenizer.special_tokens().len(), 5);
            assert_eq!(built.files().len(), 3);
        }
    }

    #[test]
    fn encoder_tokenizer_puts_tokens_around_texts_and_has_a_mask() {
        let mut counts = WordCounts::new(WordSplit::Gpt4);
        counts.add("the cat and the hat");
        let built = BuiltTokenizer::from_words(&counts, 270, &SpecialTokens::of_encoder()).unwrap();
        let tokenizer = built.open().unwrap();
        let [bos, eos, mask] = ["<s>", "</s>", "<mask>"].map(|token| tokenizer.token_id(token).unwrap());
        let ids = tokenizer.encode("a<mask>", EncodeOptions::PROMPT).unwrap();
        assert_eq!([ids[0], ids[2], ids[3]], [bos, mask, eos]);
        assert!(built.tokenizer_config_json.contains("\"mask_token\": \"<mask>\""));
    }

    #[test]
    fn bpe_with_gpt4_word_splitting_decodes_its_text_losslessly() {
        let mut counts = WordCounts::new(WordSplit::Gpt4);
        let text = "It's 1234567 o'clock,\n\n  DON'T be late!\r\n".repeat(50);
        counts.add(&text);
        let built = BuiltTokenizer::from_words(&counts, 320, &SpecialTokens::end_of_text()).unwrap();
        let tokenizer = built.open().unwrap();
        let ids = tokenizer.encode(&text, EncodeOptions::TEXT).unwrap();
        assert_eq!(tokenizer.decode(&ids, DECODE), text);
        assert!(ids.len() * 2 < text.len());
        let encoder = crate::data::corpus::Encoder::new(&tokenizer, built.tokenizer_json.as_bytes()).unwrap();
        assert_eq!(encoder.encode_all(&text).unwrap(), ids);
    }
}
