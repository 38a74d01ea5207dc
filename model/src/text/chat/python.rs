//! Python's values, operators and methods, with which chat templates compute.
//!
//! The template engine has its own, which differ in many details: how a float or a list is written, how values compare,
//! which methods exist, which operations fail. Templates are tested with Python's Jinja only, so every operation of a
//! template is computed here instead ([`instructions`](super::instructions) redirects them). What Python rejects is an
//! error; an unsupported feature is an error that names it.

mod calls;
mod filters;
mod format;
mod json;
mod keys;
mod lists;
mod methods;
mod numbers;
mod objects;
mod operators;
mod strings;
mod tests;
mod words;

use std::{borrow::Cow, fmt::Write};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Tuple, ValueKind},
};

use self::{
    calls::{Arguments, Call},
    objects::{Group, Range, View},
};
pub(super) use self::{
    json::to_json,
    methods::{attribute, is_attribute, item},
    numbers::float,
    objects::{DictType, Generator, check_member, contents, cycler, function, joiner, namespace, range},
    operators::{compute, slice},
    tests::perform as perform_test,
};

pub(super) type Result<T = Value> = std::result::Result<T, Error>;

// Values of different types depend on each other: texts format values of any type, and methods of some values call
// methods of others. Such calls go through here.

/// Applies the filter `name`.
pub(super) fn apply_filter(state: &mut State<'_, '_>, name: &str, value: &Value, arguments: &[Value]) -> Result {
    filters::apply(state, name, value, arguments)
}

/// Calls the method `name` of `value`.
pub(super) fn call_method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result {
    methods::call(state, value, name, arguments)
}

/// `dict.fromkeys(...)`.
fn dict_from_keys(keys: Option<&Value>, value: Option<&Value>) -> Result {
    methods::from_keys(keys, value)
}

/// A method that Python has, and that is not supported.
fn unsupported_method(call: &Call<'_>) -> Result {
    methods::unsupported(call)
}

/// `text % values`.
fn percent_format(text: &Value, values: &Value) -> Result {
    format::percent(text, values)
}

/// `text.format(...)`.
fn brace_format(text: &str, arguments: &Arguments) -> Result<String> {
    format::braces(text, &arguments.positional, &arguments.named)
}

pub(super) fn error(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The Python type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Str,
    List,
    Tuple,
    Dict,
    Range,
    View,
    Generator,
    /// Functions, macros, namespaces, loops.
    Other,
}

impl Type {
    pub(super) fn of(value: &Value) -> Self {
        match value.kind() {
            ValueKind::Undefined => Self::Undefined,
            ValueKind::None => Self::None,
            ValueKind::Bool => Self::Bool,
            ValueKind::Number if value.is_integer() => Self::Int,
            ValueKind::Number => Self::Float,
            ValueKind::String => Self::Str,
            ValueKind::Seq if value.is_tuple() || value.downcast_object_ref::<Group>().is_some() => Self::Tuple,
            ValueKind::Seq => Self::List,
            ValueKind::Map if engine_type(value).is_none() => Self::Dict,
            ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => Self::Generator,
            ValueKind::Iterable if value.downcast_object_ref::<View>().is_some() => Self::View,
            ValueKind::Iterable if value.downcast_object_ref::<Range>().is_some() => Self::Range,
            // The engine's sums and products of constant lists.
            ValueKind::Iterable => Self::List,
            _ => Self::Other,
        }
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Bool | Self::Int | Self::Float)
    }

    /// Its name in Python.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Undefined => "undefined value",
            Self::None => "none",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Float => "float",
            Self::Str => "str",
            Self::List => "list",
            Self::Tuple => "tuple",
            Self::Dict => "dict",
            Self::Range => "range",
            Self::View => "view of a dict",
            Self::Generator => "generator",
            Self::Other => "function or object",
        }
    }
}

/// The name of an object of the engine that looks like a dict: a namespace, a loop, a macro.
fn engine_type(value: &Value) -> Option<&'static str> {
    let name = value.as_object()?.type_name();
    ["Namespace", "Loop", "Macro", "Module"].into_iter().find(|known| name.rsplit("::").next() == Some(known))
}

/// Whether a value can be called.
fn is_callable(value: &Value) -> bool {
    value.is_undefined() || value.kind() == ValueKind::Plain || engine_type(value) == Some("Macro")
}

/// The items of a loop over a value.
pub(super) fn items(value: &Value) -> Result<Vec<Value>> {
    match Type::of(value) {
        Type::None | Type::Bool | Type::Int | Type::Float | Type::Other => {
            Err(error(format!("a {} has no items to loop over", Type::of(value).name())))
        }
        Type::Generator => Ok(value.downcast_object_ref::<Generator>().map(Generator::take).unwrap_or_default()),
        _ => Ok(value.try_iter()?.collect()),
    }
}

/// The number of items; `None` if the value has no length.
fn length(value: &Value) -> Option<usize> {
    match Type::of(value) {
        Type::Undefined => Some(0),
        Type::Str => Some(value.as_str()?.chars().count()),
        Type::List | Type::Tuple | Type::Dict | Type::Range | Type::View => {
            value.len().or_else(|| Some(value.try_iter().ok()?.count()))
        }
        _ => None,
    }
}

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<String> {
    match Type::of(value) {
        Type::Undefined => Ok(String::new()),
        Type::Str => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> Result<String> {
    let mut out = String::new();
    write_repr(&mut out, value)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value) -> Result<()> {
    match Type::of(value) {
        Type::Undefined => out.push_str("Undefined"),
        Type::None | Type::Bool | Type::Int => out.push_str(&value.to_string()),
        Type::Float => out.push_str(&float(as_float(value).unwrap_or_default())),
        Type::Str if value.is_safe() => {
            out.push_str("Markup(");
            write_quoted(out, value.as_str().unwrap_or_default());
            out.push(')');
        }
        Type::Str => write_quoted(out, value.as_str().unwrap_or_default()),
        Type::List => write_items(out, '[', &items(value)?, ']')?,
        Type::Tuple => match &items(value)?[..] {
            [only] => {
                out.push('(');
                write_repr(out, only)?;
                out.push_str(",)");
            }
            items => write_items(out, '(', items, ')')?,
        },
        Type::Dict => write_pairs(out, value)?,
        Type::Range | Type::View => out.push_str(&objects::repr(value)?),
        Type::Generator | Type::Other => {
            let what = Type::of(value).name();
            return Err(error(format!("a {what} is written as text, which is different each time in Python")));
        }
    }
    Ok(())
}

fn write_items(out: &mut String, open: char, items: &[Value], close: char) -> Result<()> {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_repr(out, item)?;
    }
    out.push(close);
    Ok(())
}

fn write_pairs(out: &mut String, dict: &Value) -> Result<()> {
    out.push('{');
    for (index, key) in dict.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_repr(out, &key)?;
        out.push_str(": ");
        write_repr(out, &dict.get_item(&key)?)?;
    }
    out.push('}');
    Ok(())
}

/// A text in quotes, with escapes for characters that cannot be printed.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if is_printable(character) => out.push(character),
            _ => write_escape(out, character),
        }
    }
    out.push(quote);
}

fn write_escape(out: &mut String, character: char) {
    let code = u32::from(character);
    // Writing to a string cannot fail.
    let _ = match code {
        ..=0xff => write!(out, "\\x{code:02x}"),
        0x100..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

fn is_printable(character: char) -> bool {
    // Behind another character, since Rust also escapes a combining mark at the start of a text.
    let text = String::from_iter(['a', character]);
    matches!(character, '\\' | '\'' | '"') || text.escape_debug().nth(1) == Some(character)
}

/// A number as a float.
fn as_float(value: &Value) -> Option<f64> {
    match Type::of(value) {
        Type::Bool => Some(f64::from(value.is_true())),
        Type::Int => i128::try_from(value.clone()).ok().map(|int| int as f64),
        Type::Float => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// An integer, or a truth value as 0 or 1.
fn as_int(value: &Value) -> Option<i128> {
    match Type::of(value) {
        Type::Bool => Some(i128::from(value.is_true())),
        Type::Int => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// An integer for a width, a count or a position, which is never that large.
fn as_index(value: &Value) -> Result<i64> {
    let int = as_int(value).ok_or_else(|| error(format!("expected an integer, got a {}", Type::of(value).name())))?;
    Ok(i64::try_from(int)
        .unwrap_or(if int < 0 { i64::MIN / 4 } else { i64::MAX / 4 })
        .clamp(i64::MIN / 4, i64::MAX / 4))
}

fn int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| value.into(), Value::from)
}

fn tuple(items: Vec<Value>) -> Value {
    Tuple::from(items).into()
}

/// The special characters of HTML as entities.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    out
}
