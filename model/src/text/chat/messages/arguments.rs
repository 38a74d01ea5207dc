//! The arguments of earlier tool calls, in the forms in which templates take them. The arguments that a model wrote may
//! not be an object: they may be cut off, malformed or missing.
//!
//! Parsing is limited in the memory of the result: `[0],` is 4 bytes of text but 400 bytes as a list within a list.

use std::cell::Cell;

use minijinja::value::Serde;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{super::python, Message};

/// Maximum number of values (members and items at any depth) in the arguments that one parser reads: about 25 MB. In a
/// prompt they are 100,000 tokens or more. The length of the text needs no separate limit, since strings do not grow.
pub(super) const MAX_VALUES: usize = 50_000;

/// The member that holds arguments that are not an object, where a template reads only objects.
const WRAPPER: &str = "arguments";

/// A form of the arguments of earlier calls. In each, arguments that are missing, null or empty are an empty object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentForm {
    /// Objects, of strings that are JSON objects, as OpenAI sends them. Other strings stay strings, and so do arguments
    /// that would bring the conversation to more than [`MAX_VALUES`] parsed values. Integers beyond 64 bits become
    /// floats.
    Objects,
    /// Strings.
    Strings,
    /// Objects. Arguments that are not an object become the member [`WRAPPER`] of one, so that templates that loop over
    /// the arguments write them.
    OnlyObjects,
}

impl ArgumentForm {
    /// The forms that do not change arguments, with the one that most templates accept first.
    pub(super) const AS_WRITTEN: [Self; 2] = [Self::Objects, Self::Strings];
    /// All forms.
    pub(super) const ALL: [Self; 3] = [Self::Objects, Self::Strings, Self::OnlyObjects];

    /// The messages in this form.
    pub(super) fn of(self, messages: &[Message]) -> Vec<Message> {
        let parser = ArgumentParser::new();
        with_arguments(messages, |given| match (self, given) {
            (Self::Strings, Value::String(text)) => text.into(),
            (Self::Strings, other) => written(&other).into(),
            (_, Value::String(text)) => match parser.parse(&text) {
                Some(object) => object,
                None if self == Self::OnlyObjects => json!({ WRAPPER: text }),
                None => text.into(),
            },
            (Self::OnlyObjects, other) if !other.is_object() => json!({ WRAPPER: other }),
            (_, other) => other,
        })
    }
}

/// Whether there are calls.
pub(super) fn has_calls(messages: &[Message]) -> bool {
    messages.iter().any(|message| message.extra.contains_key("tool_calls"))
}

/// Whether a call has arguments that are no JSON object.
pub(super) fn has_others(messages: &[Message]) -> bool {
    let calls = messages.iter().filter_map(|message| message.extra.get("tool_calls")?.as_array()).flatten();
    let mut given = calls.filter_map(|call| call.get("function").unwrap_or(call).get("arguments"));
    given.any(|arguments| match arguments {
        Value::String(text) => !text.trim_start().starts_with('{') || serde_json::from_str::<IgnoredAny>(text).is_err(),
        other => !other.is_object(),
    })
}

/// The messages with the arguments of each call changed.
fn with_arguments(messages: &[Message], change: impl Fn(Value) -> Value) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|message| message.extra.get_mut("tool_calls")?.as_array_mut());
    for call in calls.flatten() {
        // Data sets also have calls without `function` around their members.
        let function = match call.get("function").is_some_and(Value::is_object) {
            true => call.get_mut("function"),
            false => Some(call).filter(|call| call.get("name").is_some()),
        };
        let Some(function) = function.and_then(Value::as_object_mut) else { continue };
        let given = function.get_mut("arguments").map(Value::take).unwrap_or_default();
        let is_nothing = match &given {
            Value::Null => true,
            Value::String(text) => matches!(text.trim(), "" | "null"),
            _ => false,
        };
        function.insert("arguments".into(), change(if is_nothing { json!({}) } else { given }));
    }
    messages
}

/// A value as JSON, as templates write it.
fn written(value: &Value) -> String {
    python::to_json(&minijinja::Value::from(Serde(value))).unwrap_or_else(|_| value.to_string())
}

/// Parses the arguments of several tool calls, which have [`MAX_VALUES`] values at most together.
struct ArgumentParser {
    n_left: Cell<usize>,
}

impl ArgumentParser {
    fn new() -> Self {
        Self { n_left: Cell::new(MAX_VALUES) }
    }

    /// The JSON object in `text`; `None` if it is anything else or has too many values, which then do not count.
    fn parse(&self, text: &str) -> Option<Value> {
        let n_left = self.n_left.get().checked_sub(max_values(text))?;
        let object = serde_json::from_str(text).ok().map(Value::Object)?;
        self.n_left.set(n_left);
        Some(object)
    }
}

/// Maximum number of values that a JSON text can have: each is the first of an object or a list, or follows a comma.
fn max_values(json: &str) -> usize {
    let (mut n_values, mut is_in_string, mut is_escaped) = (0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b'[' | b'{' | b',' if !is_in_string => n_values += 1,
            _ => {}
        }
    }
    n_values
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object with `n_values` values.
    fn object(n_values: usize) -> String {
        format!("{{\"a\":[{}]}}", vec!["0"; n_values - 1].join(","))
    }

    #[test]
    fn tool_call_arguments_are_parsed_only_if_a_json_object() {
        let text = r#" {"a": [1, -2.5, null, "é\n[,{\\"], "b": {"": {}}} "#;
        let expected = json!({ "a": [1, -2.5, null, "é\n[,{\\"], "b": { "": {} } });
        assert_eq!(ArgumentParser::new().parse(text), Some(expected));
        assert_eq!(max_values(text), 8, "as many as there are, and one for each list and object");
        for text in ["", "null", "3", "\"a\"", "[0]", "{", "{} {}"] {
            assert_eq!(ArgumentParser::new().parse(text), None, "{text}");
        }
    }

    #[test]
    fn tool_call_argument_values_are_limited_in_number() {
        let is_parsed = |sizes: &[usize]| {
            let parser = ArgumentParser::new();
            sizes.iter().map(|&n| parser.parse(&object(n)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(is_parsed(&[MAX_VALUES, 2]), [true, false]);
        assert_eq!(is_parsed(&[MAX_VALUES + 1, 2]), [false, true], "one with too many leaves room for others");
        let half = MAX_VALUES / 2;
        assert_eq!(is_parsed(&[half, half + 1, half, 2]), [true, false, true, false]);
        // 8 MiB of text, which would be 800 MB.
        let bomb = format!("{{\"a\":[{}[0]]}}", "[0],".repeat(2 << 20));
        assert_eq!(ArgumentParser::new().parse(&bomb), None);
        // A long text is one value.
        let long = json!({ "a": "x".repeat(1 << 20) });
        assert_eq!(ArgumentParser::new().parse(&long.to_string()), Some(long));
    }
}
