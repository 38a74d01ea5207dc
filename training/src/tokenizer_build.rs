//! Tokenizers made from a text: one token for each of its characters, or byte-level BPE. Both are written in the format
//! of the `tokenizers` library, so that `transformers` opens them.

use anyhow::{Context, Result, anyhow, ensure};
use hearth_model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, path::Path};
use tokenizers::{
    AddedToken, TokenizerBuilder,
    decoders::DecoderWrapper,
    models::bpe::{BPE, BpeTrainer},
    normalizers::NormalizerWrapper,
    pre_tokenizers::byte_level::ByteLevel,
    processors::PostProcessorWrapper,
};

use crate::corpus::chunks;

/// What ends a document in a byte-level vocabulary.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Byte-level BPE holds every byte and [`END_OF_TEXT`] before any merge.
const SMALLEST_BPE: usize = 256 + 1;

/// More tokens than any model has today.
const LARGEST_BPE: usize = 1 << 20;

/// A tokenizer as the two files of a model dir.
#[derive(Clone, Debug)]
pub struct BuiltTokenizer {
    /// Contents of `tokenizer.json`.
    pub tokenizer_json: String,
    /// Contents of `tokenizer_config.json`.
    pub tokenizer_config_json: String,
}

impl BuiltTokenizer {
    /// One token for each character of `text`, ids in the order of code points (nanoGPT's). A character that is not in
    /// `text` has no id: encoding it is an error that names it.
    pub fn characters(text: &str, max_seq_len: usize) -> Result<BuiltTokenizer> {
        let chars: BTreeSet<char> = text.chars().collect();
        let vocab: Map<String, Value> =
            chars.into_iter().enumerate().map(|(id, char)| (char.to_string(), id.into())).collect();
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [],
            "normalizer": null,
            "pre_tokenizer": {
                "type": "Split",
                // Any character: the dot alone would leave newlines out.
                "pattern": { "Regex": r"[\s\S]" },
                "behavior": "Isolated",
                "invert": false,
            },
            "post_processor": null,
            "decoder": { "type": "Fuse" },
            // The format wants the unknown token's name; it is not in the vocabulary, so there is none.
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
        });
        let tokenizer_json = serde_json::to_string_pretty(&tokenizer)?;
        Ok(BuiltTokenizer { tokenizer_json, tokenizer_config_json: tokenizer_config(max_seq_len, None)? })
    }

    /// Byte-level BPE ([Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf))
    /// with a vocabulary of at most `vocab_size` tokens, its merges learned from `text`. A short text may not have enough
    /// pairs to fill the vocabulary; it encodes any text.
    pub fn bpe(text: &str, vocab_size: usize, max_seq_len: usize) -> Result<BuiltTokenizer> {
        ensure!(
            (SMALLEST_BPE..=LARGEST_BPE).contains(&vocab_size),
            "`data.vocab_size` must be from {SMALLEST_BPE} (256 bytes and `{END_OF_TEXT}`) to {LARGEST_BPE}, got \
             {vocab_size}\nhint: leave it out for a tokenizer at character level"
        );
        let byte_level = ByteLevel::default().add_prefix_space(false);
        let mut tokenizer = TokenizerBuilder::<_, NormalizerWrapper, _, PostProcessorWrapper, DecoderWrapper>::new()
            .with_model(BPE::default())
            .with_pre_tokenizer(Some(byte_level))
            .with_decoder(Some(byte_level.into()))
            .build()
            .map_err(|error| anyhow!("cannot set up the BPE tokenizer: {error}"))?;
        let mut trainer = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .build();
        tokenizer
            .train(&mut trainer, chunks(text))
            .map_err(|error| anyhow!("cannot train the BPE tokenizer: {error}"))?;
        let tokenizer_json =
            tokenizer.to_string(true).map_err(|error| anyhow!("cannot write the BPE tokenizer: {error}"))?;
        Ok(BuiltTokenizer { tokenizer_json, tokenizer_config_json: tokenizer_config(max_seq_len, Some(END_OF_TEXT))? })
    }

    /// The tokenizer, opened as serving opens it.
    pub fn open(&self) -> Result<Tokenizer> {
        Tokenizer::from_json(
            self.tokenizer_json.as_bytes(),
            Some(self.tokenizer_config_json.as_bytes()),
            Path::new("tokenizer.json"),
        )
        .context("the tokenizer that was just built does not open")
    }
}

/// `tokenizer_config.json`: what `AutoTokenizer` reads beside `tokenizer.json`.
fn tokenizer_config(max_seq_len: usize, eos_token: Option<&str>) -> Result<String> {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_seq_len,
        // Joining tokens must give the text back as it was.
        "clean_up_tokenization_spaces": false,
    });
    if let Some(eos_token) = eos_token {
        config["eos_token"] = eos_token.into();
    }
    Ok(serde_json::to_string_pretty(&config)?)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::tokenizer::{DecodeOptions, EncodeOptions};

    use super::*;
    use crate::corpus::encode_text;

    const DECODE: DecodeOptions = DecodeOptions { skip_special_tokens: false };

    #[test]
    fn characters_are_numbered_by_code_point() {
        let tokenizer = BuiltTokenizer::characters("cab\n é a", 8).unwrap().open().unwrap();
        assert_eq!(tokenizer.vocab_size(), 6);
        let ids = tokenizer.encode("\n abcé", EncodeOptions::TEXT).unwrap();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        assert_eq!(tokenizer.decode(&ids, DECODE), "\n abcé");
    }

    #[test]
    fn a_character_that_the_text_lacked_is_named() {
        let tokenizer = BuiltTokenizer::characters("abc", 8).unwrap().open().unwrap();
        let error = tokenizer.encode("abcxab", EncodeOptions::TEXT).unwrap_err().to_string();
        assert!(error.contains('x'), "{error}");
    }

    #[test]
    fn bpe_gives_any_text_back_and_has_an_end_of_text() {
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
    fn a_vocabulary_too_small_for_the_bytes_is_refused() {
        let error = BuiltTokenizer::bpe("abc", 256, 8).unwrap_err().to_string();
        assert!(error.contains("from 257") && error.contains("got 256"), "{error}");
    }

    #[test]
    fn a_text_in_pieces_has_the_token_ids_of_the_whole() {
        let line = "Some words,  it's 12 o'clock \n\n\n  and\tmore \n";
        let text = line.repeat(3000) + "the end\n\n";
        assert!(chunks(&text).count() > 1);
        for built in [BuiltTokenizer::characters(&text, 8).unwrap(), BuiltTokenizer::bpe(&text, 280, 8).unwrap()] {
            let tokenizer = built.open().unwrap();
            let whole = tokenizer.encode(&text, EncodeOptions::TEXT).unwrap();
            assert_eq!(encode_text(&tokenizer, &text).unwrap(), whole);
        }
    }
}
