//! What is done with a JSON Schema before it is compiled: bounds, settings, and the place of a mistake.

use serde_json::{Map, Value, json};

use super::GrammarError;

/// How deep a schema may nest.
const MAX_DEPTH: usize = 64;

/// Values in a schema: members, items and what they are made of.
const MAX_VALUES: usize = 20_000;

/// The longest exact count in a schema; each is that many copies of something.
const MAX_COUNT: u64 = 10_000;

/// Attempts to find the place of a mistake.
const MAX_ATTEMPTS: usize = 100;

/// Keywords whose values are bounds on numbers of things.
const COUNTS: [&str; 6] = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Keywords that hold schemas: one, a list of them, or some by name.
const PARTS: [&str; 11] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "anyOf",
    "oneOf",
    "allOf",
    "prefixItems",
    "items",
    "additionalItems",
    "additionalProperties",
];

/// Between the tokens of JSON: a space, or a line break and its indentation. Models that are free to do so may write
/// blanks for ever.
const WHITESPACE: &str = r" |\n {0,20}";

/// Where the library looks for settings in a schema.
const SETTINGS: &str = "x-guidance";

/// Refuses what is no schema, or one that nests too deep, holds too much or counts too far.
///
/// # Errors
/// The place and the bound.
pub fn check(schema: &Value) -> Result<(), GrammarError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(GrammarError::whole("must be a JSON Schema: an object, true or false"));
    }
    let mut n_values = 0;
    check_value(schema, "", 0, &mut n_values)
}

fn check_value(value: &Value, at: &str, depth: usize, n_values: &mut usize) -> Result<(), GrammarError> {
    let refuse = |what: String| Err(GrammarError { at: at.to_owned(), what });
    *n_values += 1;
    if *n_values > MAX_VALUES {
        return Err(GrammarError::whole(format!("must hold at most {MAX_VALUES} values, has more")));
    }
    if depth > MAX_DEPTH {
        return refuse(format!("must nest at most {MAX_DEPTH} levels deep, nests deeper"));
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_value(item, &join(at, &index.to_string()), depth + 1, n_values)),
        Value::Object(members) => members.iter().try_for_each(|(name, member)| {
            let at = join(at, name);
            if COUNTS.contains(&name.as_str())
                && let Some(count) = member.as_u64().filter(|count| *count > MAX_COUNT)
            {
                return Err(GrammarError { at, what: format!("must be at most {MAX_COUNT}, got {count}") });
            }
            check_value(member, &at, depth + 1, n_values)
        }),
        _ => Ok(()),
    }
}

/// The schema with our settings in place of any of its own.
pub(super) fn with_settings(schema: Value) -> Value {
    match schema {
        Value::Object(mut members) => {
            members.insert(SETTINGS.into(), json!({ "whitespace_pattern": WHITESPACE }));
            Value::Object(members)
        }
        // `true` allows any JSON, `false` none.
        Value::Bool(true) => with_settings(json!({})),
        other => other,
    }
}

/// A schema as the right side of a rule in a Lark grammar; its references are to itself.
pub fn in_lark(schema: &Value) -> String {
    format!("%json {}", with_settings(schema.clone()))
}

/// The place of the mistake `what`: the deepest part that does not compile by itself.
pub(super) fn locate(schema: &Value, what: String, failure: impl Fn(Value) -> Option<String>) -> GrammarError {
    let mut error = GrammarError::whole(what);
    let mut current = schema;
    let mut n_attempts = 0;
    'deeper: loop {
        for (name, part) in parts(current) {
            n_attempts += 1;
            if n_attempts > MAX_ATTEMPTS {
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

/// The schemas that a schema is made of, with their paths.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let Some(members) = schema.as_object() else { return Vec::new() };
    let mut parts = Vec::new();
    for (name, member) in members.iter().filter(|(name, _)| PARTS.contains(&name.as_str())) {
        let holds_names = matches!(name.as_str(), "properties" | "patternProperties" | "$defs" | "definitions");
        match member {
            Value::Array(items) => {
                parts.extend(items.iter().enumerate().map(|(index, item)| (format!("{name}.{index}"), item)));
            }
            Value::Object(named) if holds_names => {
                parts.extend(named.iter().map(|(key, part)| (format!("{name}.{key}"), part)));
            }
            part => parts.push((name.clone(), part)),
        }
    }
    parts
}

/// A part that can be compiled by itself: references go to the definitions of the whole.
fn with_definitions(part: &Value, whole: &Value) -> Value {
    let Value::Object(members) = part else { return part.clone() };
    let mut members: Map<String, Value> = members.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = whole.get(name)
            && !members.contains_key(name)
        {
            members.insert(name.into(), definitions.clone());
        }
    }
    Value::Object(members)
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}
