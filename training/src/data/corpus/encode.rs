//! Tokenizes text on all cores, with the same ids as encoding the whole document at once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};
use hearth_model::{
    TokenId,
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use rayon::prelude::*;
use serde_json::Value;

use super::{
    document_chunk::{Cutting, pieces},
    words::{GPT4_PATTERN, WordSplit},
};

/// Number of words whose ids a thread caches: all but the rare words of most texts, in about 8 MiB.
const CACHED_WORDS: usize = 1 << 16;
/// Longer words rarely repeat.
const LONGEST_CACHED: usize = 32;

/// Patterns of common tokenizers whose words end where [`place_to_cut`](super::document_chunk::place_to_cut) assumes.
const KNOWN_PATTERNS: [&str; 3] = [
    // GPT-4's pattern, as its authors write it.
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    // Qwen 2 and 3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // GPT-4o.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// A pattern that makes every character a word.
pub(crate) const ANY_CHARACTER: &str = r"[\s\S]";

/// Tokenizes documents.
#[derive(Debug)]
pub struct Encoder {
    tokenizer: Tokenizer,
    cutting: Cutting,
    /// How the tokenizer splits words, if known: then each distinct word is encoded once.
    words: Option<WordSplit>,
    /// One cache per thread of the pool, and one for all other threads.
    caches: Vec<Mutex<WordCache>>,
}

/// The ids of words seen before.
type WordCache = HashMap<Box<str>, Box<[TokenId]>, ahash::RandomState>;

impl Encoder {
    /// An encoder for a tokenizer and its `tokenizer.json`, which determines how texts may be split.
    ///
    /// # Errors
    /// `tokenizer_json` is not JSON.
    pub fn new(tokenizer: &Tokenizer, tokenizer_json: &[u8]) -> Result<Encoder> {
        let json: Value = serde_json::from_slice(tokenizer_json).context("`tokenizer.json` is not JSON")?;
        let normalizer = &json["normalizer"];
        let splitting = splitting_of(&json["pre_tokenizer"]);
        let is_plain = normalizer.is_null();
        let cutting = match splitting {
            Some(_) if is_plain || normalizer["type"] == "NFC" => Cutting::Pieces,
            _ => Cutting::Whole,
        };
        // Added tokens that are not special match anywhere, also across words.
        let finds_added =
            json["added_tokens"].as_array().is_some_and(|added| added.iter().any(|token| token["special"] != true));
        let words = match splitting {
            Some(Splitting::Words(words)) if is_plain && !finds_added => Some(words),
            _ => None,
        };
        let caches = (0..=rayon::current_num_threads()).map(|_| Mutex::default()).collect();
        Ok(Encoder { tokenizer: tokenizer.clone(), cutting, words, caches })
    }

    /// Whether documents may be split into pieces that are encoded separately.
    pub fn cutting(&self) -> Cutting {
        self.cutting
    }

    /// The ids of `text`: a document or a piece of one. Special-token strings in it stay text.
    ///
    /// # Errors
    /// A character is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        let encode = |text: &str| self.tokenizer.encode(text, EncodeOptions::TEXT).context("cannot encode the text");
        let Some(words) = self.words else { return encode(text) };
        let thread = rayon::current_thread_index().unwrap_or(usize::MAX).min(self.caches.len() - 1);
        // Entries are complete even after a panic with the lock held.
        let mut cache = self.caches[thread].lock().unwrap_or_else(PoisonError::into_inner);
        // English takes about 4 bytes a token.
        let mut ids = Vec::with_capacity(text.len() / 3);
        for word in words.words(text) {
            if let Some(known) = cache.get(word) {
                ids.extend_from_slice(known);
                continue;
            }
            let found = encode(word)?;
            ids.extend_from_slice(&found);
            if word.len() <= LONGEST_CACHED {
                if cache.len() == CACHED_WORDS {
                    // Clears the cache when full: the next documents may differ, and common words return soon.
                    cache.clear();
                }
                cache.insert(word.into(), found.into());
            }
        }
        Ok(ids)
    }

    /// The ids of `text`, encoded on all cores.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_all(&self, text: &str) -> Result<Vec<TokenId>> {
        let parts: Vec<&str> = match self.cutting {
            Cutting::Pieces => pieces(text).collect(),
            Cutting::Whole => vec![text],
        };
        // If there are several errors, the first in the order of the text is reported, whichever thread is faster.
        let ids: Vec<Result<Vec<TokenId>>> = parts.into_par_iter().map(|part| self.encode(part)).collect();
        let ids = ids.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(ids.concat())
    }
}

/// How a pre-tokenizer splits a text, if known.
enum Splitting {
    /// With the implementation here.
    Words(WordSplit),
    /// By the library, in a way that never joins text across [`place_to_cut`](super::document_chunk::place_to_cut).
    Known,
}

fn splitting_of(pre_tokenizer: &Value) -> Option<Splitting> {
    let single = std::slice::from_ref(pre_tokenizer);
    let steps = if pre_tokenizer["type"] == "Sequence" { pre_tokenizer["pretokenizers"].as_array()? } else { single };
    let is_bytes = |step: &Value, use_regex: bool| {
        // Older files omit the setting, which was always on.
        let uses_regex = step.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
        step["type"] == "ByteLevel" && step["add_prefix_space"] == false && uses_regex == use_regex
    };
    let pattern = |step: &Value| {
        let isolates = step["type"] == "Split" && step["behavior"] == "Isolated" && step["invert"] == false;
        isolates.then(|| step["pattern"]["Regex"].as_str().map(str::to_owned)).flatten()
    };
    match steps {
        [bytes] if is_bytes(bytes, true) => Some(Splitting::Words(WordSplit::Gpt2)),
        [digits, bytes] if digits["type"] == "Digits" && is_bytes(bytes, true) => Some(Splitting::Known),
        [any] if pattern(any)? == ANY_CHARACTER => Some(Splitting::Known),
        [split, bytes] if is_bytes(bytes, false) => match pattern(split)?.as_str() {
            GPT4_PATTERN => Some(Splitting::Words(WordSplit::Gpt4)),
            other => KNOWN_PATTERNS.contains(&other).then_some(Splitting::Known),
        },
        _ => None,
    }
}
