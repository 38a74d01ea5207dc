//! Finds JSON values in a text, as the text that they are.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Deserializer;

use super::mismatch::Mismatch;

/// The JSON object or list that `text` starts with, and the text after it.
pub(crate) fn json_at_start(text: &str) -> Result<(&str, &str), Mismatch> {
    if !text.is_empty() && !text.starts_with(['{', '[']) {
        return Err(Mismatch::Other);
    }
    // serde_json rejects an incomplete number such as `1.` as invalid, not as incomplete. With one more digit it is
    // valid.
    match json_len(text).or_else(|_| json_len(&format!("{text}0")).map(|_| None)) {
        Ok(Some(n_bytes)) => Ok(text.split_at(n_bytes)),
        Ok(None) => Err(Mismatch::Cut { n_json: text.len() }),
        Err(_) => Err(Mismatch::Other),
    }
}

/// The length of the JSON value that `text` starts with. `None` if it is incomplete.
fn json_len(text: &str) -> serde_json::Result<Option<usize>> {
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(Some(values.byte_offset())),
        Some(Err(error)) if !error.is_eof() => Err(error),
        _ => Ok(None),
    }
}

/// The texts of the elements of `json`, a valid list.
pub(crate) fn elements(json: &str) -> Option<Vec<&str>> {
    let mut found = Vec::new();
    let mut rest = json.strip_prefix('[')?.trim_start();
    while !rest.starts_with(']') {
        let (_, text, after) = first_value::<IgnoredAny>(rest)?;
        found.push(text);
        rest = after_comma(after);
    }
    Some(found)
}

/// The text of a member's value in `json`, a valid object. If several members have the name, the last one counts.
pub(crate) fn member_text<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let mut found = None;
    let mut rest = json.trim_start().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (name, _, after_name) = first_value::<String>(rest)?;
        let (_, text, after_value) = first_value::<IgnoredAny>(after_name.trim_start().strip_prefix(':')?)?;
        if name == key {
            found = Some(text);
        }
        rest = after_comma(after_value);
    }
    found
}

/// `text` without leading whitespace and the comma that may follow it.
fn after_comma(text: &str) -> &str {
    let text = text.trim_start();
    text.strip_prefix(',').unwrap_or(text).trim_start()
}

/// The JSON value that `text` starts with, its text, and the text after it.
fn first_value<T: DeserializeOwned>(text: &str) -> Option<(T, &str, &str)> {
    let mut values = Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    let (own, rest) = text.split_at_checked(values.byte_offset())?;
    Some((value, own.trim_start(), rest))
}
