//! The Jinja environment that templates of `transformers` expect, and its errors in our words.

use std::{error::Error as _, fmt, path::Path};

use minijinja::{
    Environment, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use super::json;
use crate::error::{Error, Result};

/// Instructions that one rendering may take, a second or two. Long conversations take some thousands per message.
const MAX_INSTRUCTIONS: u64 = 50_000_000;

/// An environment with the settings, filters and functions that `transformers` gives templates.
pub(super) fn like_transformers(origin: &Path) -> Result<Environment<'static>> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| compile_error(&error, origin))?;
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(python_method);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.add_test("sequence", is_sequence);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

/// The methods of Python's values that templates call: `pycompat`'s, and what it lacks.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, minijinja::Error> {
    match value.as_str() {
        Some(text) if method == "rsplit" => rsplit(text, args),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Python's `str.rsplit` with a separator: the splits that `maxsplit` allows are those furthest to the right.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, minijinja::Error> {
    let (separator, max): (&str, Option<i64>) = from_args(args)?;
    if separator.is_empty() {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "rsplit: empty separator"));
    }
    let mut parts: Vec<_> = match max.map(usize::try_from) {
        Some(Ok(max)) => text.rsplitn(max.saturating_add(1), separator).collect(),
        // As in Python, a negative number is no limit.
        Some(Err(_)) | None => text.rsplit(separator).collect(),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// As in Python's Jinja, whatever has a length and is looked into by key or number: texts and objects too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

/// Training marks what the assistant says with `{% generation %}` blocks, which render as their content.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // Behind the opening: in `{%}` the two share a character.
        let Some(len) = rest[start + 2..].find("%}").map(|end| end + 4) else { break };
        let tag = &rest[start..start + len];
        plain.push_str(&rest[..start]);
        match tag[2..len - 2].trim_matches(['-', '+']).trim() {
            "generation" => plain.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => plain.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => plain.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    plain + rest
}

/// A template's own word that it cannot render these messages.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(message: String) -> Result<(), minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

/// The local time, formatted as Python's `strftime` does.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

pub(super) fn compile_error(error: &minijinja::Error, origin: &Path) -> Error {
    Error::File {
        path: origin.to_owned(),
        what: format!("the chat template does not parse: {}", describe(error)),
        hint: String::new(),
    }
}

pub(super) fn render_error(error: &minijinja::Error) -> Error {
    if let Some(refusal) = find_refusal(error) {
        return Error::Template {
            what: format!("refuses these messages: {refusal}"),
            hint: "change the messages as the template asks".into(),
        };
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::Template {
            what: format!("did not come to an end within {MAX_INSTRUCTIONS} instructions"),
            hint: "the template has a loop that is too long; use a corrected one".into(),
        };
    }
    Error::Template { what: describe(error), hint: String::new() }
}

fn find_refusal(error: &minijinja::Error) -> Option<&Refusal> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(refusal) = error.downcast_ref() {
            return Some(refusal);
        }
        source = error.source();
    }
    None
}

fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_conditions_that_hold() {
        let source = "a{%- generation -%}b{% set x = '%' %}c{% endgeneration +%}d{% unclosed";
        assert_eq!(without_generation_tags(source), "a{%- if true -%}b{% set x = '%' %}c{% endif +%}d{% unclosed");
    }
}
