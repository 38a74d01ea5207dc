//! JSON as Python's `json` module writes and reads it. Models' files are written with it, and it accepts more than
//! JSON: `NaN`, `Infinity`, numbers beyond the range of f64, and duplicate keys, of which the last one counts.

use std::{borrow::Cow, str};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The value of the JSON `text`. Numbers that are not finite become the strings `NaN`, `Infinity` and `-Infinity`: an
/// error only where a number is read.
///
/// # Errors
/// `text` is not valid JSON in this sense, or does not describe a `T`.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    // Nearly all files are plain JSON.
    let error = match serde_json::from_slice(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // Through a map, in which a later value replaces an earlier one: a struct rejects the second.
    let value = str::from_utf8(text).ok().and_then(|text| serde_json::from_str::<Value>(&quote_numbers(text)).ok());
    match value {
        Some(value) => serde_json::from_value(value),
        None => Err(error),
    }
}

/// `text` with quotes around the numbers that are not finite.
fn quote_numbers(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let len = match first {
            '"' => len_of_string(rest),
            first if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            first => first.len_utf8(),
        };
        let (token, behind) = rest.split_at(len);
        quoted.push_str(&quote_number(token));
        rest = behind;
    }
    quoted
}

/// The length in bytes of the string that `text` begins with, with its quotes.
fn len_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// `token` in quotes if it is a number that is not finite.
fn quote_number(token: &str) -> Cow<'_, str> {
    let is_digits = token.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    match token {
        "NaN" | "Infinity" | "-Infinity" => format!("\"{token}\"").into(),
        _ if is_digits && token.parse().is_ok_and(f64::is_infinite) => {
            format!("\"{}Infinity\"", if token.starts_with('-') { "-" } else { "" }).into()
        }
        _ => token.into(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    /// The expected values come from Python's `json.loads`.
    #[test]
    fn json_of_python_may_have_infinite_numbers_and_a_key_twice() {
        let text =
            r#"{"a": [NaN, -Infinity,Infinity], "b": 1e999, "c": -1e999, "NaN": "a \" NaN \\", "d": 1, "d": 2.5e-3}"#;
        let expected = json!({
            "a": ["NaN", "-Infinity", "Infinity"],
            "b": "Infinity",
            "c": "-Infinity",
            "NaN": "a \" NaN \\",
            "d": 0.0025,
        });
        assert_eq!(parse::<Value>(text.as_bytes()).unwrap(), expected);
        #[derive(Debug, Deserialize)]
        struct Typed {
            d: f64,
        }
        assert_eq!(parse::<Typed>(text.as_bytes()).unwrap().d, 0.0025);
        assert!(parse::<Typed>(br#"{"d": Infinity}"#).is_err());
        for wrong in [r#"{"a": nan}"#, r#"{"a": Infinity"#, r#"{"a": "Infinity}"#, "Infinity-", "", "é"] {
            assert!(parse::<Value>(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
