//! The Jinja environment that templates of `transformers` expect, and its errors in our words.

use std::{error::Error as _, fmt, path::Path, thread};

use minijinja::{
    Environment, ErrorKind, Output, State, UndefinedBehavior, Value, escape_formatter,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
    value::{ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use super::{budget::Exceeded, json};
use crate::error::{Error, Result};

/// Longest source of a template; the longest that models come with are a tenth of it.
const MAX_SOURCE_BYTES: usize = 256 << 10;

/// Tokens between `{{` and `}}`, or `{%` and `%}`: expressions are compiled recursively.
const MAX_TAG_TOKENS: usize = 2000;

/// Stack for it; chains of `elif` are what goes deepest.
const STACK_BYTES: usize = 128 << 20;

/// Bytes of a text or a list that a template may write down as a product, which is computed when it is compiled.
const MAX_PRODUCT: f64 = 1e6;

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
    environment.add_test("iterable", is_iterable);
    environment.add_filter("string", string);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

/// Compiles a template and adds it to the environment. Gives whether it reads the variable `tools`.
pub(super) fn add_template(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
    origin: &Path,
) -> Result<bool> {
    let source = without_generation_tags(source);
    let refuse = |what: String| Error::File { path: origin.to_owned(), what, hint: String::new() };
    if source.len() > MAX_SOURCE_BYTES {
        let n = source.len();
        return Err(refuse(format!("the chat template must be at most {MAX_SOURCE_BYTES} bytes, got {n}")));
    }
    let syntax = environment.syntax().clone();
    check_tags(&source, syntax).map_err(|what| refuse(format!("the chat template {what}")))?;
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        let compiler = builder.spawn_scoped(scope, || {
            environment.add_template_owned(name, source)?;
            Ok(environment.get_template(name)?.undeclared_variables(false).contains("tools"))
        });
        let compiler =
            compiler.map_err(|error| refuse(format!("the chat template cannot be compiled now: {error}")))?;
        let compiled = compiler.join().unwrap_or_else(|_| Err(ErrorKind::SyntaxError.into()));
        compiled.map_err(|error: minijinja::Error| compile_error(&error, origin))
    })
}

/// Whether a template asks if a message's content is none: `message['content'] is none`, `message.content is not none`.
pub(super) fn asks_for_none(source: &str) -> bool {
    let behind = source.split("content").skip(1).map(|behind| behind.trim_start_matches(['\'', '"', ']']));
    behind.filter_map(|behind| behind.split_once("none")).any(|(between, _)| {
        let words: Vec<&str> = between.split_ascii_whitespace().collect();
        matches!(words[..], ["is"] | ["is", "not"])
    })
}

/// Refuses tags whose compilation would take what no template is worth. What does not parse is left to the compiler.
fn check_tags(source: &str, syntax: SyntaxConfig) -> Result<(), String> {
    // Of the tag so far: its tokens, the bytes of its texts, its brackets, and what its numbers come to at most.
    let (mut n_tokens, mut n_bytes, mut product, mut multiplies) = (0, 0, 1f64, false);
    for token in tokenize(source, false, syntax) {
        let Ok((token, span)) = token else { return Ok(()) };
        n_tokens += 1;
        match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => {
                (n_tokens, n_bytes, product, multiplies) = (0, 0, 1.0, false);
            }
            Token::Str(text) => n_bytes += text.len(),
            Token::String(text) => n_bytes += text.len(),
            Token::BracketOpen | Token::ParenOpen => n_bytes += 32,
            Token::Int(number) => product *= number as f64 + 2.0,
            Token::Int128(number) => product *= *number as f64 + 2.0,
            Token::Float(number) => product *= number.abs() + 2.0,
            Token::Mul => multiplies = true,
            Token::Pow => product = f64::INFINITY,
            _ => {}
        }
        if n_tokens > MAX_TAG_TOKENS {
            return Err(format!("has more than {MAX_TAG_TOKENS} tokens in one tag, in line {}", span.start_line));
        }
        if multiplies && n_bytes as f64 * product > MAX_PRODUCT {
            return Err(format!("multiplies a text or a list by too much, in line {}", span.start_line));
        }
    }
    Ok(())
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

/// As in Python's Jinja: not what is none, though loops pass over it here.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Writes what stands between `{{` and `}}` as Python does: but for floats, the engine does so by itself.
pub(super) fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), minijinja::Error> {
    match json::finite_float(value) {
        Some(float) => out.write_str(&float).map_err(minijinja::Error::from),
        None => escape_formatter(out, state, value),
    }
}

fn string(value: &Value) -> Value {
    match json::finite_float(value) {
        Some(float) => float.into(),
        None if value.kind() == ValueKind::String => value.clone(),
        None => value.to_string().into(),
    }
}

/// Training marks what the assistant says with `{% generation %}` blocks, which render as their content.
fn without_generation_tags(source: &str) -> String {
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
    if let Some(refusal) = find::<Refusal>(error) {
        return Error::Template {
            what: format!("refuses these messages: {refusal}"),
            hint: "change the messages as the template asks".into(),
        };
    }
    if let Some(exceeded) = find::<Exceeded>(error) {
        return Error::Template { what: exceeded.to_string(), hint: "use a template that makes less".into() };
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::Template {
            what: format!("did not come to an end within {MAX_INSTRUCTIONS} instructions"),
            hint: "the template has a loop that is too long; use a corrected one".into(),
        };
    }
    Error::Template { what: describe(error), hint: String::new() }
}

/// What is behind an error, if it is of this type.
fn find<T: std::error::Error + 'static>(error: &minijinja::Error) -> Option<&T> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
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
