//! Parses the arguments of tool calls, with a limit on the memory of the result: `[0],` is 4 bytes of text but 400 bytes
//! as a list within a list.

use std::cell::Cell;

use serde_json::Value;

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
    pub(super) fn parse(&self, text: &str) -> Option<Value> {
        let n_left = self.n_left.get().checked_sub(max_values(text))?;
        let object = serde_json::from_str(text).ok().map(Value::Object)?;
        self.n_left.set(n_left);
        Some(object)
    }
}

/// The most values that a JSON text can have: each is the first of an object or a list, or follows a comma.
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

    /// An object whose text has room for so many values.
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
