//! JSON Schemas as grammars, and the limits on them.
//!
//! A schema is read as sets of values ([`reader`], [`values`]), which are written as rules ([`grammar`]). Strings are
//! regular expressions over their JSON text ([`pattern`], [`characters`]), so that a pattern means the same for a character
//! however it is escaped.

mod characters;
mod document;
mod formats;
mod grammar;
mod pattern;
mod reader;
mod terminal;
mod values;

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

use serde_json::{Map, Value, json};

use self::document::visit;
pub(super) use self::grammar::written;
use super::GrammarError;

/// Maximum nesting of a schema.
const MAX_DEPTH: usize = 64;

/// Maximum number of values in a schema: members, items and their contents.
pub const MAX_VALUES: usize = 20_000;

/// Limit for the sum of `multipleOf` values in a schema, or their product if it combines schemas: the library tracks
/// each remainder.
const MAX_REMAINDERS: f64 = 50_000.0;

/// Maximum number of patterns and formats in a schema that combines schemas: the library tracks every combination of
/// their states.
const MAX_JOINT_PATTERNS: usize = 16;

/// White space between the tokens of JSON: a space, or a line break and its indentation. Without this limit, models may
/// generate white space for ever.
const WHITESPACE: &str = r" |\n {0,20}";

/// The key of settings in a schema, by the library's name; only `lenient` is read.
const SETTINGS: &str = "x-guidance";

/// Rejects values that are not schemas, and schemas that exceed a limit.
///
/// # Errors
/// The location and the limit.
pub fn check(schema: &Value) -> Result<(), GrammarError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(GrammarError::whole("must be a JSON Schema: an object, true or false"));
    }
    check_size(schema, "", 0, &mut 0)?;
    let (mut factors, mut n_patterns, mut joint) = (Vec::new(), 0, false);
    visit(schema, &mut |members| {
        factors.extend(members.get("multipleOf").and_then(Value::as_f64).map(digits));
        n_patterns +=
            ["pattern", "format"].iter().filter(|name| members.get(**name).is_some_and(Value::is_string)).count();
        joint |= joins_others(members);
    });
    let n_remainders: f64 = if joint { factors.iter().product() } else { factors.iter().sum() };
    if n_remainders > MAX_REMAINDERS {
        let together = if joint { "multiplied, because the schema combines others" } else { "together" };
        let what = format!("`multipleOf` must be at most {MAX_REMAINDERS} {together}, got {n_remainders}");
        return Err(GrammarError::whole(what));
    }
    if joint && n_patterns > MAX_JOINT_PATTERNS {
        let what = format!(
            "a schema that combines others, as with `allOf`, must have at most {MAX_JOINT_PATTERNS} `pattern`s and `format`s, \
             got {n_patterns}"
        );
        return Err(GrammarError::whole(what));
    }
    Ok(())
}

/// A Lark grammar with its schemas, after `%json`, written as grammars. Invalid JSON is left to the compiler.
///
/// # Errors
/// A schema is wrong, cannot be enforced, or exceeds a limit.
pub(super) fn written_in_lark(source: &str) -> Result<String, GrammarError> {
    let mut pieces = source.split("%json");
    let mut lark = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let mut values = serde_json::Deserializer::from_str(piece).into_iter::<Value>();
        match values.next() {
            Some(Ok(schema)) if schema.is_object() || schema.is_boolean() => {
                let rest = &piece[values.byte_offset()..];
                let refused = |GrammarError { at, what }: GrammarError| {
                    let place = if at.is_empty() { "a schema".to_owned() } else { format!("a schema whose `{at}`") };
                    GrammarError::whole(format!("has {place} {what}"))
                };
                let written = checked_and_written(&schema).map_err(refused)?;
                lark.push_str(&format!("%lark {{\n{written}}}{rest}"));
            }
            _ => {
                lark.push_str("%json");
                lark.push_str(piece);
            }
        }
    }
    Ok(lark)
}

fn checked_and_written(schema: &Value) -> Result<String, GrammarError> {
    check(schema)?;
    written(schema)
}

/// The regular expressions in a schema.
pub(super) fn patterns(schema: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    visit(schema, &mut |members| {
        found.extend(members.get("pattern").and_then(Value::as_str));
        let named = members.get("patternProperties").and_then(Value::as_object);
        found.extend(named.into_iter().flatten().map(|(pattern, _)| pattern.as_str()));
    });
    found
}

/// The significant digits of a number as a whole number: 5 for 0.05.
fn digits(number: f64) -> f64 {
    let text: String = number.to_string().chars().filter(char::is_ascii_digit).collect();
    text.parse().unwrap_or(f64::INFINITY)
}

fn check_size(value: &Value, at: &str, depth: usize, n_values: &mut usize) -> Result<(), GrammarError> {
    *n_values += 1;
    if *n_values > MAX_VALUES {
        return Err(GrammarError::whole(format!("must have at most {MAX_VALUES} values, got more")));
    }
    if depth > MAX_DEPTH {
        let what = format!("must nest at most {MAX_DEPTH} levels deep, got more");
        return Err(GrammarError { at: at.to_owned(), what });
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_size(item, &join(at, &index.to_string()), depth + 1, n_values)),
        Value::Object(members) => {
            members.iter().try_for_each(|(name, member)| check_size(member, &join(at, name), depth + 1, n_values))
        }
        _ => Ok(()),
    }
}

/// Keywords that apply several schemas to the same value.
const JOINTS: [&str; 7] = ["$ref", "anyOf", "oneOf", "allOf", "if", "not", "dependentSchemas"];

/// Keywords whose meaning depends on sibling keywords or on other schemas for the same value.
const JOINED: [&str; 7] =
    ["properties", "patternProperties", "additionalProperties", "items", "pattern", "format", "multipleOf"];

/// Whether a schema itself applies several schemas to the same value.
fn joins_others(members: &Map<String, Value>) -> bool {
    let n_joints = JOINTS.iter().filter(|name| members.contains_key(**name)).count();
    let several = members.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    several || n_joints > 1 || n_joints == 1 && JOINED.iter().any(|name| members.contains_key(*name))
}

/// Makes a schema lenient: keywords that cannot be enforced are ignored instead of rejected. This is logged once per
/// `name` and set of keywords.
pub fn lenient(mut schema: Value, name: &str) -> Value {
    if let Value::Object(members) = &mut schema {
        members.insert(SETTINGS.into(), json!({ "lenient": name }));
    }
    schema
}

/// The name of a lenient schema, which ignores keywords that cannot be enforced. A client may ask for this with `true`.
fn lenient_name(schema: &Value) -> Option<&str> {
    match schema.get(SETTINGS)?.get("lenient")? {
        Value::Bool(true) => Some("a client's schema"),
        name => name.as_str(),
    }
}

/// Maximum number of warnings about keywords: clients could fill a log.
const MAX_LOGGED: usize = 1000;

/// Logs keywords, with their paths, that the schema of the tool `name` has and that are not enforced; each once.
pub fn log_passed_over(name: &str, keywords: &BTreeSet<String>) {
    static LOGGED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
    let mut hasher = DefaultHasher::new();
    (name, keywords).hash(&mut hasher);
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() < MAX_LOGGED && logged.insert(hasher.finish()) {
        tracing::warn!("{}", passed_over(name, keywords));
    }
}

/// The line of the log about keywords, with their paths. Clients choose the names, so they are escaped.
fn passed_over(name: &str, keywords: &BTreeSet<String>) -> String {
    let keywords = keywords.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("tool {name:?}: keywords of its schema that cannot be enforced are passed over: {keywords:?}")
}

/// A schema as the right side of a rule in a Lark grammar. Its `$ref`s refer to the schema itself.
pub fn in_lark(schema: &Value) -> String {
    // `&` is an operator in Lark, and their number is limited: it is escaped in strings, so that it does not count.
    format!("%json {}", schema.to_string().replace('&', r"\u0026"))
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_choose_are_escaped_in_the_log() {
        let line = passed_over("f\n\u{1b}[31m", &BTreeSet::from(["properties.a\nb.not".to_owned()]));
        assert!(!line.contains(char::is_control) && line.contains(r"f\n") && line.contains(r"a\nb"), "{line}");
    }
}
