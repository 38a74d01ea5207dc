//! YAML files as JSON: plain values, lists and maps, as PyYAML writes them. Aliases, anchors and tags are rejected.

use std::path::Path;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

use crate::{
    error::{Error, Result},
    files::regular_file,
};

/// Configurations have some KB.
const MAX_BYTES: usize = 1 << 20;
/// Lists and maps within each other.
const MAX_DEPTH: usize = 16;

/// Reads the map that the file at `path` holds.
///
/// # Errors
/// [`Error::Io`] when it cannot be read; [`Error::File`] with the unsupported feature, and its line.
pub(super) fn read(path: &Path) -> Result<Map<String, Value>> {
    let bytes = regular_file::read(path)?;
    if bytes.len() > MAX_BYTES {
        return Err(Error::file(path, format!("has {} bytes, allowed are {MAX_BYTES}", bytes.len())));
    }
    let text = String::from_utf8(bytes).map_err(|_| Error::file(path, "is not UTF-8"))?;
    parse(&text).map_err(|what| Error::file(path, what))
}

/// A list or a map that is being read.
enum Open {
    List(Vec<Value>),
    /// With the key of the value that comes next.
    Map(Map<String, Value>, Option<String>),
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("is not YAML: {error}"))?;
        let at = |what: &str| format!("line {}: {what}", span.start.line());
        let value = match event {
            Event::SequenceStart(0, None) => {
                open.push(Open::List(Vec::new()));
                None
            }
            Event::MappingStart(0, None) => {
                open.push(Open::Map(Map::new(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(list)) => Some(Value::Array(list)),
                Some(Open::Map(map, _)) => Some(Value::Object(map)),
                None => None,
            },
            Event::Scalar(text, style, 0, None) => match open.last_mut() {
                Some(Open::Map(_, key @ None)) => {
                    *key = Some(text.into_owned());
                    None
                }
                _ if style == ScalarStyle::Plain => Some(plain(&text).map_err(|what| at(&what))?),
                _ => Some(Value::String(text.into_owned())),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                None
            }
            Event::Alias(_) | Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                return Err(at("aliases, anchors and tags are not supported"));
            }
        };
        if open.len() > MAX_DEPTH {
            return Err(at(&format!("more than {MAX_DEPTH} lists and maps within each other")));
        }
        let Some(value) = value else { continue };
        match open.last_mut() {
            Some(Open::List(list)) => list.push(value),
            Some(Open::Map(map, key)) => {
                let key = key.take().ok_or_else(|| at("a key must be a plain value"))?;
                if let Some((key, _)) = map.insert(key.clone(), value).map(|old| (key, old)) {
                    return Err(at(&format!("`{key}` is there twice")));
                }
            }
            None => root = Some(value),
        }
    }
    match root {
        Some(Value::Object(map)) => Ok(map),
        _ => Err("is not a map".to_owned()),
    }
}

/// A value without quotes.
fn plain(text: &str) -> Result<Value, String> {
    let lower = text.to_ascii_lowercase();
    Ok(match lower.as_str() {
        "" | "~" | "null" => Value::Null,
        "true" => true.into(),
        "false" => false.into(),
        _ => {
            if let Ok(int) = text.parse::<i64>() {
                return Ok(int.into());
            }
            let name = lower.trim_start_matches(['+', '-']);
            if [".nan", ".inf"].contains(&name) {
                return Err(format!("`{text}` is not a finite number"));
            }
            // Rust also parses names such as `inf` and `nan` as numbers; in YAML these are strings.
            let is_number = name.starts_with(|first: char| first.is_ascii_digit() || first == '.');
            match text.parse::<f64>().ok().filter(|_| is_number) {
                Some(float) => {
                    Number::from_f64(float).map(Value::Number).ok_or_else(|| format!("`{text}` is too large"))?
                }
                None => Value::String(text.to_owned()),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_written_by_pyyaml_is_read() {
        let text =
            "a: 1\nb: 1.0e-05\nc: null\nd: true\nname: nan\ne:\n  x: -3\n  y: 'no: 1'\nf:\n- 0\n- 1\ng: []\nh: {}\n";
        let expected = json!({
            "a": 1, "b": 1e-5, "c": null, "d": true, "name": "nan", "e": { "x": -3, "y": "no: 1" }, "f": [0, 1], "g": [],
            "h": {},
        });
        assert_eq!(Value::Object(parse(text).unwrap()), expected);
    }

    #[test]
    fn unsupported_yaml_is_rejected_with_a_reason() {
        for (text, expected) in [
            ("a: 1\nb: .nan", "line 2: `.nan` is not a finite number"),
            ("a: &x 1\nb: *x", "line 1: aliases"),
            ("a: !!python/object:os.system 1", "line 1: aliases, anchors and tags"),
            ("a: 1\na: 2", "line 2: `a` is there twice"),
            ("- 1", "is not a map"),
            ("a: [", "is not YAML"),
            ("? [1]\n: 2", "must be a plain value"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let deep = format!("a: {}{}", "[".repeat(20), "]".repeat(20));
        assert!(parse(&deep).unwrap_err().contains("more than 16"));
    }
}
