//! Mistral's `tekken.json`: byte-level BPE as `tiktoken` has it, converted to `tokenizer.json`.

use std::{collections::HashMap, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::pieces::byte_alphabet;
use crate::{
    error::{Error, Result},
    files::{python_json, regular_file},
};

/// The tokenizer's file name in folders for Mistral's own programs.
pub(crate) const TEKKEN_FILE: &str = "tekken.json";

/// The token that begins a text, as in Mistral's own programs.
const BOS: &str = "<s>";

#[derive(Deserialize)]
struct TekkenJson {
    config: ConfigJson,
    /// Tokens in the order of their ranks.
    vocab: Vec<PieceJson>,
    special_tokens: Option<Vec<SpecialJson>>,
}

#[derive(Deserialize)]
struct ConfigJson {
    /// Matches the parts of a text that are encoded one by one.
    pattern: String,
    default_vocab_size: Option<usize>,
    default_num_special_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct PieceJson {
    /// In base64.
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialJson {
    rank: usize,
    token_str: String,
}

/// The file `path` as `tokenizer.json` and `tokenizer_config.json`.
pub(super) fn read(path: &Path) -> Result<[Vec<u8>; 2]> {
    let text = regular_file::read(path)?;
    regular_file::refuse_lfs_pointer(path, &text)?;
    let refuse = |what: String| {
        Error::file(path, what)
            .with_hint("create `tokenizer.json` with `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`")
    };
    let json: TekkenJson = python_json::parse(&text)
        .map_err(|error| refuse(format!("is not a tokenizer of Mistral's format: {error}")))?;
    let special = special_tokens(&json).map_err(refuse)?;
    let n_pieces = json.config.default_vocab_size.map_or(json.vocab.len(), |size| size.saturating_sub(special.len()));
    let pieces = json.vocab.iter().take(n_pieces).map(|piece| BASE64_STANDARD.decode(&piece.token_bytes));
    let pieces: Vec<Vec<u8>> = pieces
        .collect::<Result<_, _>>()
        .map_err(|error| refuse(format!("has `token_bytes` that are not base64: {error}")))?;
    let tokenizer = tokenizer_json(&json.config.pattern, &pieces, &special);
    let role = |token: &str| special.iter().any(|special| special == token).then(|| token.to_owned());
    let config = json!({
        "bos_token": role(BOS), "eos_token": role("</s>"), "pad_token": role("<pad>"), "unk_token": role("<unk>"),
    });
    Ok([tokenizer, config].map(|json| json.to_string().into_bytes()))
}

/// The special tokens in the order of their ids, which begin at 0.
fn special_tokens(json: &TekkenJson) -> Result<Vec<String>, String> {
    let listed = json.special_tokens.as_ref().ok_or("has no `special_tokens`, as files of the first version")?;
    let n_special = json.config.default_num_special_tokens.unwrap_or(listed.len());
    if n_special < listed.len() || n_special > listed.len() + json.vocab.len() {
        return Err(format!("has {} special tokens, but `default_num_special_tokens` is {n_special}", listed.len()));
    }
    // Ids that no token has are filled up, as in transformers.
    let mut tokens: Vec<String> = (0..n_special).map(|id| format!("<SPECIAL_{id}>")).collect();
    let mut is_given = vec![false; listed.len()];
    for SpecialJson { rank, token_str } in listed {
        match is_given.get_mut(*rank) {
            Some(given) if !*given => (*given, tokens[*rank]) = (true, token_str.clone()),
            _ => return Err(format!("has the rank {rank} of `{token_str}`, which is another token's or leaves a gap")),
        }
    }
    Ok(tokens)
}

fn tokenizer_json(pattern: &str, pieces: &[Vec<u8>], special: &[String]) -> Value {
    let alphabet = byte_alphabet();
    let spell = |bytes: &[u8]| bytes.iter().map(|&byte| alphabet[usize::from(byte)]).collect::<String>();
    let ranks: HashMap<&[u8], usize> = pieces.iter().enumerate().map(|(rank, piece)| (&piece[..], rank)).collect();
    let mut vocab: Map<String, Value> =
        special.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    vocab.extend(pieces.iter().enumerate().map(|(rank, piece)| (spell(piece), (special.len() + rank).into())));
    // Any two adjacent tokens whose concatenation is a token are merged, lowest rank first.
    let merges = pieces.iter().flat_map(|piece| {
        let halves = (1..piece.len()).map(|middle| piece.split_at(middle));
        let mut pairs: Vec<_> =
            halves.filter_map(|(left, right)| Some((ranks.get(left)?, ranks.get(right)?, left, right))).collect();
        pairs.sort_unstable_by_key(|(left, right, ..)| (**left, **right));
        pairs.into_iter().map(|(.., left, right)| json!([spell(left), spell(right)])).collect::<Vec<_>>()
    });
    let added = special.iter().enumerate().map(|(id, token)| {
        json!({
            "id": id, "content": token, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    let bos = special.iter().position(|token| token == BOS).map(|id| {
        let template = json!([
            { "SpecialToken": { "id": BOS, "type_id": 0 } },
            { "Sequence": { "id": "A", "type_id": 0 } },
        ]);
        let tokens = json!({ BOS: { "id": BOS, "ids": [id], "tokens": [BOS] } });
        json!({ "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": tokens })
    });
    json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
            ],
        },
        "post_processor": bos,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        // As tiktoken: a word that is a token is that token, whatever its merges are.
        "model": { "type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges.collect::<Vec<_>>() },
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;
    use crate::text::tokenizer::{EncodeOptions, Tokenizer};

    /// The expected ids come from `MistralConverter(path).converted()` of transformers 5.24, after the begin token,
    /// which only Mistral's own program adds.
    #[test]
    fn tekken_json_encodes_as_in_transformers() {
        let words = ["he", "ll", "lo", "llo", "hello", " w", "or", " wor", "ld", "é"];
        let pieces = (0..=u8::MAX).map(|byte| vec![byte]).chain(words.map(|word| word.as_bytes().to_vec()));
        let vocab: Vec<Value> = pieces
            .enumerate()
            .map(|(rank, piece)| json!({ "rank": rank, "token_bytes": BASE64_STANDARD.encode(piece), "token_str": null }))
            .collect();
        let special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"].into_iter().enumerate();
        let special: Vec<Value> =
            special.map(|(rank, token)| json!({ "rank": rank, "token_str": token, "is_control": true })).collect();
        let mut json = json!({
            "config": {
                "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
                "num_vocab_tokens": 300, "default_vocab_size": 275, "default_num_special_tokens": 10, "version": "v7",
            },
            "vocab": vocab,
            "special_tokens": special,
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TEKKEN_FILE);
        fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 275, "the last piece is padding");
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        assert_eq!(encode("hello world"), [1, 270, 273, 274]);
        assert_eq!(encode("[INST] lo é 12</s>"), [1, 3, 42, 268, 42, 205, 179, 42, 59, 60, 2]);
        let roles = [tokenizer.bos(), tokenizer.eos(), tokenizer.unk()].map(|role| role.unwrap().id);
        assert_eq!((roles, tokenizer.pad()), ([1, 2, 0], None));
        assert_eq!(tokenizer.token(7).unwrap(), "<SPECIAL_7>");
        json.as_object_mut().unwrap().remove("special_tokens");
        fs::write(&path, json.to_string()).unwrap();
        let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("has no `special_tokens`") && error.contains("hint: create `tokenizer.json`"),
            "{error}"
        );
    }
}
