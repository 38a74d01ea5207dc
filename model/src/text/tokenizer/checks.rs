//! Checks for errors in `tokenizer.json` that the `tokenizers` library accepts and then panics on.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::Value;

/// Checks the stages around the model. The error describes the fault.
pub(super) fn check_stages(normalizer: &Value, pre_tokenizer: &Value, post_processor: &Value) -> Result<(), String> {
    for stage in stages(normalizer, "normalizers") {
        check_normalizer(stage)?;
    }
    for stage in stages(pre_tokenizer, "pretokenizers") {
        if kind(stage) == Some("FixedLength") && stage.get("length").and_then(Value::as_u64) == Some(0) {
            return Err("the pre-tokenizer `FixedLength` has `length` 0; it must be at least 1".into());
        }
    }
    stages(post_processor, "processors").into_iter().try_for_each(check_template)
}

fn kind(stage: &Value) -> Option<&str> {
    stage.get("type")?.as_str()
}

/// The stages of a sequence, or the only one.
fn stages<'a>(stage: &'a Value, list: &str) -> Vec<&'a Value> {
    match stage.get(list).and_then(Value::as_array) {
        Some(inner) => inner.iter().flat_map(|stage| stages(stage, list)).collect(),
        None => vec![stage],
    }
}

fn check_normalizer(stage: &Value) -> Result<(), String> {
    let is_empty = |value: Option<&Value>| value.and_then(Value::as_str) == Some("");
    match kind(stage) {
        Some("Replace")
            if ["String", "Regex"].iter().any(|pattern| is_empty(stage.pointer(&format!("/pattern/{pattern}")))) =>
        {
            Err("the normalizer `Replace` has an empty `pattern`; it must match at least one character".into())
        }
        Some("Prepend") if is_empty(stage.get("prepend")) => {
            Err("the normalizer `Prepend` has an empty `prepend`; it must have a character".into())
        }
        Some("Precompiled") => {
            let map = stage.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or_default();
            check_map(map)
                .map_err(|what| format!("the normalizer `Precompiled` has an invalid `precompiled_charsmap`: {what}"))
        }
        _ => Ok(()),
    }
}

/// Checks that a template names only tokens that it declares, and one text.
fn check_template(stage: &Value) -> Result<(), String> {
    if kind(stage) != Some("TemplateProcessing") {
        return Ok(());
    }
    let pieces = stage.get("single").and_then(Value::as_array);
    for piece in pieces.into_iter().flatten() {
        let name = |member: &str| piece.pointer(&format!("/{member}/id")).and_then(Value::as_str);
        if let Some(token) = name("SpecialToken")
            && stage.get("special_tokens").and_then(|tokens| tokens.get(token)).is_none()
        {
            return Err(format!(
                "the post-processor `TemplateProcessing` adds `{token}`, which `special_tokens` lacks"
            ));
        }
        if let Some(text) = name("Sequence").filter(|text| *text != "A") {
            return Err(format!(
                "the post-processor `TemplateProcessing` names the text `{text}` in `single`; only `A` is there"
            ));
        }
    }
    Ok(())
}

/// The model's vocabulary and merges.
#[derive(Deserialize)]
struct MergesJson {
    model: MergesModelJson,
}

#[derive(Deserialize)]
struct MergesModelJson {
    #[serde(default, deserialize_with = "keys")]
    vocab: HashSet<String>,
    #[serde(default)]
    merges: Vec<MergeJson>,
    continuing_subword_prefix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Pair(String, String),
    Line(String),
}

/// The keys of an object; ignores a list.
fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HashSet<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Vocab {
        Ids(std::collections::HashMap<String, IgnoredAny>),
        Other(IgnoredAny),
    }
    Ok(match Vocab::deserialize(deserializer)? {
        Vocab::Ids(ids) => ids.into_keys().collect(),
        Vocab::Other(_) => HashSet::new(),
    })
}

/// Checks that both parts of each merge, and their result, are tokens.
pub(super) fn check_merges(tokenizer_json: &[u8]) -> Result<(), String> {
    let Ok(MergesJson { model }) = serde_json::from_slice(tokenizer_json) else { return Ok(()) };
    let prefix = model.continuing_subword_prefix.unwrap_or_default();
    for merge in &model.merges {
        let (left, right) = match merge {
            MergeJson::Pair(left, right) => (left.as_str(), right.as_str()),
            MergeJson::Line(line) => line.split_once(' ').ok_or_else(|| format!("the merge `{line}` is no pair"))?,
        };
        let Some(rest) = right.strip_prefix(&prefix) else {
            return Err(format!(
                "the merge of `{left}` and `{right}` lacks the prefix `{prefix}` of parts within a word"
            ));
        };
        let whole = format!("{left}{rest}");
        if let Some(missing) = [left, right, &whole].into_iter().find(|token| !model.vocab.contains(*token)) {
            return Err(format!(
                "the merge of `{left}` and `{right}` needs the token `{missing}`, which the vocabulary lacks"
            ));
        }
    }
    Ok(())
}

/// Checks SentencePiece's map of characters: the length of a trie in bytes, the trie, and the texts that it leads to. The
/// library follows the trie without looking at its length.
fn check_map(base64: &str) -> Result<(), String> {
    let bytes = decoded(base64).ok_or("it is not base64")?;
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("it is cut short")?;
    let length = u32::from_le_bytes(*length) as usize;
    let (trie, texts) = rest.split_at_checked(length).ok_or("it is cut short")?;
    let texts = std::str::from_utf8(texts).map_err(|_| "its texts are not UTF-8")?;
    let units: Vec<usize> = trie.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit) as usize).collect();

    let offset = |unit: usize| (unit >> 10) << ((unit & (1 << 9)) >> 6);
    let Some(&root) = units.first() else { return Err("it is cut short".into()) };
    let mut seen = vec![false; units.len()];
    let mut left = vec![offset(root)];
    while let Some(node) = left.pop() {
        for byte in 1..=0xff {
            let Some(&unit) = units.get(node ^ byte) else { return Err("its trie is cut short".into()) };
            if unit & ((1 << 31) | 0xff) != byte {
                continue;
            }
            let child = node ^ byte ^ offset(unit);
            let Some(value) = units.get(child) else { return Err("its trie is cut short".into()) };
            let has_text = (unit >> 8) & 1 == 1;
            if has_text && !texts.is_char_boundary(value & ((1 << 31) - 1)) {
                return Err("its texts are cut short".into());
            }
            if let Some(seen) = seen.get_mut(child)
                && !std::mem::replace(seen, true)
            {
                left.push(child);
            }
        }
    }
    Ok(())
}

/// The decoded bytes of a base64 text.
fn decoded(base64: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(base64.len() / 4 * 3);
    for group in base64.trim_end_matches('=').as_bytes().chunks(4) {
        let mut bits = 0u32;
        for &byte in group {
            bits = bits << 6 | u32::from(digit(byte)?);
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend(bits.to_be_bytes().get(1..group.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_with_and_without_padding() {
        for (text, bytes) in [("", &b""[..]), ("YQ==", b"a"), ("YWI=", b"ab"), ("YWJj", b"abc"), ("YWJjZA", b"abcd")] {
            assert_eq!(decoded(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(decoded("a#=="), None);
    }
}
