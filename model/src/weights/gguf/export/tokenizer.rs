//! `tokenizer.json` as the metadata of a GGUF file: byte-level BPE with a known way of splitting text, and SentencePiece's BPE.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::super::{TEMPLATE, TOOL_TEMPLATE, pre_tokenizers, writer::Entry};
use crate::{
    TokenId,
    error::{Error, Result},
    text::{
        chat::ChatTemplate,
        tokenizer::{EncodeOptions, SpecialToken, TOKENIZER_FILE, Tokenizer},
    },
};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The metadata of the tokenizer, and the chat templates. `json` is `tokenizer.json`; the file has `n_tokens` tokens.
///
/// # Errors
/// [`Error::File`] if there is no `tokenizer.json`, or GGUF cannot represent this tokenizer.
pub(super) fn entries(
    json: Option<&[u8]>,
    tokenizer: &Tokenizer,
    ends: &[TokenId],
    n_tokens: usize,
    chat_template: Option<&ChatTemplate>,
) -> Result<Vec<(String, Entry)>> {
    let json = json.ok_or_else(|| refused("is missing".to_owned(), "a GGUF file has its tokenizer in it"))?;
    let json: Value = serde_json::from_slice(json).map_err(|error| refused(format!("is not JSON: {error}"), ""))?;
    let model = &json["model"];
    if model["type"] != "BPE" {
        return Err(refused(
            format!("has a model of type {}", model["type"]),
            "GGUF files have byte-level BPE and SentencePiece's BPE: characters and the like cannot be exported",
        ));
    }
    let is_sentence_piece = model["byte_fallback"] == Value::Bool(true);
    let merges = merges(model);
    let mut pairs = Vec::new();
    let mut put = |key: &str, entry: Entry| pairs.push((format!("tokenizer.{key}"), entry));
    let tokens = tokens(&json, n_tokens);
    let types = types(&json, &tokens, tokenizer, is_sentence_piece);
    if is_sentence_piece {
        put("ggml.model", Entry::Text("llama".to_owned()));
        put("ggml.pre", Entry::Text("default".to_owned()));
        // llama.cpp first merges the pair whose token has the highest score.
        let ranks: HashMap<String, usize> =
            merges.iter().enumerate().rev().map(|(rank, (left, right))| (format!("{left}{right}"), rank)).collect();
        require_merges(&tokens, &types, &ranks)?;
        let last = merges.len();
        let score = |token: &String| -(*ranks.get(token).unwrap_or(&last) as f32) - 1.0;
        put("ggml.scores", Entry::Floats(tokens.iter().map(score).collect()));
        put("ggml.add_space_prefix", Entry::Flag(has_prefix(&json)));
    } else {
        put("ggml.model", Entry::Text("gpt2".to_owned()));
        put("ggml.pre", Entry::Text(pre_of(&json)?.to_owned()));
        put("ggml.merges", Entry::Texts(merges.iter().map(|(left, right)| format!("{left} {right}")).collect()));
    }
    put("ggml.tokens", Entry::Texts(tokens));
    put("ggml.token_type", Entry::Ints(types));
    let id = |token: Option<SpecialToken>| token.map(|token| token.id);
    // Without one, llama.cpp ends texts at a token of its own choice.
    let eos = id(tokenizer.eos()).or(ends.first().copied());
    let roles = [
        ("ggml.bos_token_id", id(tokenizer.bos())),
        ("ggml.eos_token_id", eos),
        ("ggml.padding_token_id", id(tokenizer.pad())),
        ("ggml.unknown_token_id", id(tokenizer.unk())),
    ];
    for (key, token) in roles {
        if let Some(token) = token {
            put(key, Entry::Unsigned(token));
        }
    }
    if let Some(end_of_turn) = ends.iter().find(|id| Some(**id) != eos) {
        put("ggml.eot_token_id", Entry::Unsigned(*end_of_turn));
    }
    let with = tokenizer.encode("a", EncodeOptions { add_special_tokens: true, ..EncodeOptions::TEXT })?;
    let adds_bos = tokenizer.bos().is_some_and(|bos| with.first() == Some(&bos.id));
    let adds_eos = eos.is_some_and(|eos| with.last() == Some(&eos));
    put("ggml.add_bos_token", Entry::Flag(adds_bos));
    put("ggml.add_eos_token", Entry::Flag(adds_eos));
    if let Some(template) = chat_template {
        let text = |source: &str| Entry::Text(source.to_owned());
        pairs.push((TEMPLATE.to_owned(), text(template.source())));
        if template.tools_source() != template.source() {
            pairs.push((TOOL_TEMPLATE.to_owned(), text(template.tools_source())));
        }
    }
    Ok(pairs)
}

/// Rejects tokens that no merge makes but that are the concatenation of two tokens: llama.cpp would merge these two.
fn require_merges(tokens: &[String], types: &[i32], ranks: &HashMap<String, usize>) -> Result<()> {
    let texts: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let normal = tokens.iter().zip(types).filter(|(_, kind)| **kind == NORMAL).map(|(token, _)| token);
    for token in normal.filter(|token| !ranks.contains_key(*token)) {
        let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        if let Some((left, right)) =
            splits.into_iter().find(|(left, right)| texts.contains(left) && texts.contains(right))
        {
            return Err(refused(
                format!(
                    "has no merge that makes the token `{token}`; from a GGUF file, `{left}` and `{right}` would become it"
                ),
                "",
            ));
        }
    }
    Ok(())
}

fn refused(what: String, hint: &str) -> Error {
    Error::file(TOKENIZER_FILE, what).with_hint(hint)
}

/// Every token by id, as spelled in the vocabulary; ids without one get a name that is never text.
fn tokens(json: &Value, n_tokens: usize) -> Vec<String> {
    let mut by_id: BTreeMap<usize, String> = BTreeMap::new();
    for (token, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        by_id.extend(id.as_u64().map(|id| (id as usize, token.clone())));
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let id = added["id"].as_u64().map(|id| id as usize);
        by_id.extend(id.zip(added["content"].as_str().map(str::to_owned)));
    }
    (0..n_tokens).map(|id| by_id.remove(&id).unwrap_or_else(|| unused(id))).collect()
}

fn unused(id: usize) -> String {
    format!("[PAD{id}]")
}

fn types(json: &Value, tokens: &[String], tokenizer: &Tokenizer, is_sentence_piece: bool) -> Vec<i32> {
    let mut added = HashMap::new();
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        if let Some(id) = token["id"].as_u64() {
            added.insert(id as usize, token["special"] == Value::Bool(true));
        }
    }
    let unk = tokenizer.unk().map(|unk| unk.id as usize);
    let is_byte = |token: &str| token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
    let kind = |(id, token): (usize, &String)| match added.get(&id) {
        _ if is_sentence_piece && unk == Some(id) => UNKNOWN,
        // Also tokens that are special by `tokenizer_config.json` alone.
        _ if tokenizer.is_special(id as TokenId) => CONTROL,
        Some(true) => CONTROL,
        Some(false) => USER_DEFINED,
        None if is_sentence_piece && is_byte(token) => BYTE,
        None if *token == unused(id) => UNUSED,
        None => NORMAL,
    };
    tokens.iter().enumerate().map(kind).collect()
}

/// Pairs of tokens; older files have them as one text.
fn merges(model: &Value) -> Vec<(String, String)> {
    let pair = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Value::Array(pair) => Some((pair.first()?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned())),
        _ => None,
    };
    model["merges"].as_array().into_iter().flatten().filter_map(pair).collect()
}

/// Whether a text gets a space in front.
fn has_prefix(json: &Value) -> bool {
    // Older files have `add_prefix_space` in place of `prepend_scheme`; without either, there is a space.
    let is_prefix = |step: &Value| {
        step["type"] == "Prepend"
            || step["type"] == "Metaspace" && step["prepend_scheme"] != "never" && step["add_prefix_space"] != false
    };
    steps(&json["normalizer"], "normalizers").iter().any(|step| is_prefix(step))
        || steps(&json["pre_tokenizer"], "pretokenizers").iter().any(|step| is_prefix(step))
}

/// The steps of a sequence, or the only step.
fn steps<'a>(json: &'a Value, list: &str) -> Vec<&'a Value> {
    match json {
        Value::Null => Vec::new(),
        one if one["type"] != "Sequence" => vec![one],
        all => all[list].as_array().into_iter().flatten().flat_map(|step| steps(step, list)).collect(),
    }
}

/// The name for how a byte-level tokenizer splits text.
fn pre_of(json: &Value) -> Result<&'static str> {
    let mut splits = Vec::new();
    for step in steps(&json["pre_tokenizer"], "pretokenizers") {
        let is = |key: &str| step[key] == Value::Bool(true);
        match step["type"].as_str() {
            Some("ByteLevel") if is("add_prefix_space") => return Err(unnamed(&json["pre_tokenizer"])),
            Some("ByteLevel") if step.get("use_regex").is_none() || is("use_regex") => {
                splits.push(pre_tokenizers::GPT2.to_owned());
            }
            Some("ByteLevel") => {}
            Some("Digits") if is("individual_digits") => splits.push(pre_tokenizers::SINGLE_DIGITS.to_owned()),
            Some("Split") if step["behavior"] == "Isolated" => match step["pattern"]["Regex"].as_str() {
                Some(pattern) => splits.push(pattern.to_owned()),
                None => return Err(unnamed(&json["pre_tokenizer"])),
            },
            _ => return Err(unnamed(&json["pre_tokenizer"])),
        }
    }
    let nfc = steps(&json["normalizer"], "normalizers").iter().any(|step| step["type"] == "NFC");
    let ignores = json["model"]["ignore_merges"] == Value::Bool(true);
    pre_tokenizers::name_of(&splits, nfc, ignores).ok_or_else(|| unnamed(&json["pre_tokenizer"]))
}

fn unnamed(pre_tokenizer: &Value) -> Error {
    let shown: String = pre_tokenizer.to_string().chars().take(300).collect();
    refused(
        format!("splits text in a way that GGUF files have no name for: {shown}"),
        "`hearth-train tokenizer --split gpt2` makes tokenizers that can be exported",
    )
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_that_only_the_configuration_calls_special_are_control_tokens() {
        let json = json!({
            "added_tokens": [],
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
            "model": { "type": "BPE", "vocab": { "a": 0, "</s>": 1, "[PAD2]": 2 }, "merges": [] },
        });
        let config = json!({ "eos_token": "</s>" });
        let [bytes, config] = [&json, &config].map(|json| json.to_string().into_bytes());
        let tokenizer = Tokenizer::from_json(&bytes, Some(&config), Path::new(TOKENIZER_FILE)).unwrap();
        assert_eq!(types(&json, &tokens(&json, 3), &tokenizer, false), [NORMAL, CONTROL, UNUSED]);
    }
}
