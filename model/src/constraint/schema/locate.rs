//! The location of errors in a JSON Schema.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Map, Value};

use super::{GrammarError, join, parts, visit_all};

/// Maximum number of attempts to locate an error.
const MAX_ATTEMPTS: usize = 100;

/// Time to locate an error: no attempt starts later. One that has started may take a second more.
const LOCATE_TIME: Duration = Duration::from_millis(200);

/// Keywords whose schemas only apply where they are referenced.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Locates the error `what`: the deepest part that does not compile by itself, as far as the search gets within
/// [`MAX_ATTEMPTS`] and [`LOCATE_TIME`].
pub(in crate::constraint) fn locate(
    schema: &Value,
    what: String,
    failure: impl Fn(Value) -> Option<String>,
) -> GrammarError {
    let mut error = GrammarError::whole(what);
    let mut current = schema;
    let mut n_attempts = 0;
    let start = Instant::now();
    'deeper: loop {
        for (name, part) in parts(current) {
            n_attempts += 1;
            if n_attempts > MAX_ATTEMPTS || start.elapsed() > LOCATE_TIME {
                return error;
            }
            if let Some(what) = failure(with_definitions(part, schema)) {
                error = GrammarError { at: join(&error.at, &name), what };
                current = part;
                continue 'deeper;
            }
        }
        return error;
    }
}

/// A part that compiles by itself: with the definitions of the whole that it references, directly or through others.
fn with_definitions(part: &Value, whole: &Value) -> Value {
    let Value::Object(members) = part else { return part.clone() };
    let mut members: Map<String, Value> = members.clone();
    let referenced = referenced_definitions(part, whole);
    for keyword in DEFINITIONS {
        let definitions = whole.get(keyword).and_then(Value::as_object).into_iter().flatten();
        let needed: Map<String, Value> = definitions
            .filter(|(name, _)| referenced.contains(&(keyword, name)))
            .map(|(name, definition)| (name.clone(), definition.clone()))
            .collect();
        if !needed.is_empty() && !members.contains_key(keyword) {
            members.insert(keyword.into(), needed.into());
        }
    }
    Value::Object(members)
}

/// The definitions of the whole that a part references, directly or through others, by keyword and name.
fn referenced_definitions<'a>(part: &'a Value, whole: &'a Value) -> BTreeSet<(&'a str, &'a str)> {
    let mut referenced = BTreeSet::new();
    let mut unvisited = vec![part];
    while let Some(value) = unvisited.pop() {
        visit_all(value, &mut |members| {
            let reference = members.get("$ref").and_then(Value::as_str);
            if let Some((keyword, name)) = reference.and_then(definition_of)
                && let Some(definition) = whole.get(keyword).and_then(|definitions| definitions.get(name))
                && referenced.insert((keyword, name))
            {
                unvisited.push(definition);
            }
        });
    }
    referenced
}

/// The keyword and the name in a reference to a definition, or to a part of one. The library takes names as written,
/// without escapes.
fn definition_of(reference: &str) -> Option<(&str, &str)> {
    let mut segments = reference.strip_prefix("#/")?.split('/');
    let keyword = segments.next().filter(|keyword| DEFINITIONS.contains(keyword))?;
    Some((keyword, segments.next()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn locating_a_json_schema_error_stops_at_the_time_limit() {
        let schema =
            json!({ "properties": { "a": {}, "b": { "items": { "type": "thing" } }, "c": { "type": "thing" } } });
        let has_error = |part: Value| part.to_string().contains("thing").then(|| format!("in {part}"));
        let error = locate(&schema, "whole".to_owned(), has_error);
        assert_eq!((error.at.as_str(), error.what.as_str()), ("properties.b.items", r#"in {"type":"thing"}"#));
        // What an attempt in time found is kept; the slow one is the last.
        let slow = |part: Value| {
            let error = has_error(part)?;
            std::thread::sleep(LOCATE_TIME);
            Some(error)
        };
        let error = locate(&schema, "whole".to_owned(), slow);
        assert_eq!((error.at.as_str(), error.what.as_str()), ("properties.b", r#"in {"items":{"type":"thing"}}"#));
        let found_nothing = |_| {
            std::thread::sleep(LOCATE_TIME);
            None
        };
        assert_eq!(locate(&schema, "whole".to_owned(), found_nothing), GrammarError::whole("whole"));
    }

    #[test]
    fn json_schema_part_gets_only_the_definitions_it_references() {
        let whole = json!({
            "$defs": {
                "unused": { "$ref": "#/$defs/a" },
                "a": { "items": { "$ref": "#/$defs/b/items" } },
                "b": { "items": { "anyOf": [{ "$ref": "#/definitions/a" }, { "$ref": "#/$defs/a" }] } },
                "~1%20": {},
            },
            "definitions": { "a": {}, "b": {} },
        });
        let (defs, definitions) = (&whole["$defs"], &whole["definitions"]);
        let cases = [
            (json!({ "properties": { "a": {} } }), json!({})),
            (json!({ "$ref": "#/$defs/gone" }), json!({})),
            (json!({ "$ref": "#" }), json!({})),
            (json!({ "$ref": "#/definitions/b" }), json!({ "definitions": { "b": definitions["b"] } })),
            (json!({ "$ref": "#/$defs/~1%20" }), json!({ "$defs": { "~1%20": {} } })),
            (
                json!({ "items": { "$ref": "#/$defs/b" } }),
                json!({ "$defs": { "a": defs["a"], "b": defs["b"] }, "definitions": { "a": {} } }),
            ),
            (
                json!({ "$ref": "#/$defs/b", "$defs": { "own": {} } }),
                json!({ "$defs": { "own": {} }, "definitions": { "a": {} } }),
            ),
        ];
        for (part, added) in cases {
            let mut expected = part.clone();
            expected
                .as_object_mut()
                .into_iter()
                .for_each(|members| members.extend(added.as_object().cloned().unwrap_or_default()));
            assert_eq!(with_definitions(&part, &whole), expected);
        }
        assert_eq!(with_definitions(&json!(false), &whole), json!(false));
    }
}
