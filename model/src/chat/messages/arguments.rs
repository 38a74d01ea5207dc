//! Parses the arguments of tool calls, with a limit on the memory of the result: `[0],` is 4 bytes of text but 400 bytes
//! as a list within a list.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::{
    Deserializer as _,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Deserializer, Map, Value};

/// Maximum number of values (members and items at any depth) in the arguments that one parser reads: about 25 MB. In a
/// prompt they are 100,000 tokens or more. The length of the text needs no limit of its own, since strings do not grow.
pub(super) const MAX_VALUES: usize = 50_000;

/// Parses the arguments of several tool calls, which have [`MAX_VALUES`] values at most together.
pub(super) struct ArgumentParser {
    n_left: Cell<usize>,
}

impl ArgumentParser {
    pub(super) fn new() -> Self {
        Self { n_left: Cell::new(MAX_VALUES) }
    }

    /// The JSON object in `text`; `None` if it is anything else or has too many values, which then do not count.
    /// Integers beyond 64 bits become strings of their digits: `serde_json` would round them to floats.
    pub(super) fn parse(&self, text: &str) -> Option<Value> {
        let n_before = self.n_left.get();
        let object = self.parse_counted(text).and_then(|object| match with_wide_integers_quoted(text) {
            Cow::Borrowed(_) => Some(object),
            Cow::Owned(quoted) => {
                self.n_left.set(n_before);
                self.parse_counted(&quoted)
            }
        });
        if object.is_none() {
            self.n_left.set(n_before);
        }
        object
    }

    fn parse_counted(&self, text: &str) -> Option<Value> {
        let mut deserializer = Deserializer::from_str(text);
        let object = deserializer.deserialize_map(Counted(&self.n_left)).ok()?;
        deserializer.end().ok()?;
        Some(object)
    }
}

/// A value that is subtracted from the number of values left.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.set(self.0.get().checked_sub(1).ok_or_else(|| D::Error::custom("too many values"))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            object.insert(name, members.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}

/// A valid JSON object with its integers beyond 64 bits in quotes. Borrowed if there are none.
fn with_wide_integers_quoted(json: &str) -> Cow<'_, str> {
    let (mut quoted, mut n_copied) = (String::new(), 0);
    let (mut is_in_string, mut is_escaped) = (false, false);
    // Where the current number starts. Something follows every number, since the whole is an object.
    let mut number_start = None;
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b'-' | b'0'..=b'9' if !is_in_string => {
                number_start.get_or_insert(at);
            }
            b'+' | b'.' | b'e' | b'E' => {}
            _ => {
                if let Some(start) = number_start.take()
                    && is_wide_integer(&json[start..at])
                {
                    quoted.extend([&json[n_copied..start], "\"", &json[start..at], "\""]);
                    n_copied = at;
                }
            }
        }
    }
    if quoted.is_empty() { json.into() } else { (quoted + &json[n_copied..]).into() }
}

/// Whether a JSON number is an integer that `serde_json` would round to a float.
fn is_wide_integer(number: &str) -> bool {
    let is_integer = !number.contains(['.', 'e', 'E']);
    is_integer && number.parse::<u64>().is_err() && number.parse::<i64>().is_err()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object with this many values.
    fn object(n_values: usize) -> String {
        format!("{{\"a\":[{}]}}", vec!["0"; n_values - 1].join(","))
    }

    #[test]
    fn objects_are_those_of_the_library() {
        for text in [
            "{}",
            r#" {"a": [1, -2, 3.5, 1e300, 18446744073709551615, true, null, "é\n\u0041"], "b": {"": {}}, "a": 2} "#,
            r#"{"a": -9223372036854775808, "b": -0, "c": 1.5e-7, "d": 1E+2, "e": 12345678901234567890123e-5}"#,
            r#"{"a": "123456789012345678901234", "b\"": "\\", "c": "e\\\" 123456789012345678901234"}"#,
            "",
            "null",
            "3",
            "\"a\"",
            "[0]",
            "{",
            "{} {}",
            "{\"a\": 01}",
            "{\"a\": 1e999}",
            "{123456789012345678901234: 1}",
            "{\"a\": 0123456789012345678901234}",
            &format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200)),
        ] {
            let expected = serde_json::from_str::<Map<String, Value>>(text).ok().map(Value::Object);
            assert_eq!(ArgumentParser::new().parse(text), expected, "{text}");
        }
    }

    #[test]
    fn wide_integers_keep_their_digits() {
        let text = r#"{"id": 123456789012345678901234, "b": [-9223372036854775809,18446744073709551616], "c": "1,2"}"#;
        let expected = json!({
            "id": "123456789012345678901234", "b": ["-9223372036854775809", "18446744073709551616"], "c": "1,2",
        });
        assert_eq!(ArgumentParser::new().parse(text), Some(expected));
        let parser = ArgumentParser::new();
        assert!(parser.parse(&object(MAX_VALUES).replacen('0', "123456789012345678901234", 1)).is_some());
        assert_eq!(parser.n_left.get(), 0, "counted once");
    }

    #[test]
    fn the_number_of_values_is_limited() {
        let is_parsed = |sizes: &[usize]| {
            let parser = ArgumentParser::new();
            sizes.iter().map(|&n| parser.parse(&object(n)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(is_parsed(&[MAX_VALUES, 1]), [true, false]);
        assert_eq!(is_parsed(&[MAX_VALUES + 1, 1]), [false, true], "one with too many leaves room for others");
        let half = MAX_VALUES / 2;
        assert_eq!(is_parsed(&[half, half + 1, half, 1]), [true, false, true, false]);
        // 8 MiB of text, which would be 800 MB.
        let bomb = format!("{{\"a\":[{}[0]]}}", "[0],".repeat(2 << 20));
        assert_eq!(ArgumentParser::new().parse(&bomb), None);
        // A long text is one value.
        let long = json!({ "a": "x".repeat(1 << 20) });
        assert_eq!(ArgumentParser::new().parse(&long.to_string()), Some(long));
    }
}
