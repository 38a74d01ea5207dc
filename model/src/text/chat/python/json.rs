//! The filter `tojson` as `transformers` defines it: Python's `json.dumps`, without Jinja's HTML escapes.

use std::fmt::Write;

use minijinja::{Error, Value};

use super::{Type, calls::Call};

/// Maximum indentation, so that it cannot be used to fill the memory.
const MAX_INDENT: usize = 100;

/// Arguments of Python's `json.dumps`.
struct Style {
    is_ascii: bool,
    is_sorted: bool,
    /// Indentation per level; `None` keeps everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

pub(super) const PARAMETERS: &[&str] = &["ensure_ascii", "indent", "separators", "sort_keys"];

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(call: &Call<'_>) -> Result<Value, Error> {
    let mut out = String::new();
    write_value(&mut out, call.value, &Style::new([0, 1, 2, 3].map(|place| call.given(place)))?, 0)?;
    Ok(out.into())
}

/// `value | tojson`.
pub(in super::super) fn to_json(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, &Style::new([None; 4])?, 0)?;
    Ok(out)
}

impl Style {
    /// Reads the arguments that are not `none`.
    fn new([is_ascii, indent, separators, is_sorted]: [Option<&Value>; 4]) -> Result<Self, Error> {
        let indent = indent.map(indentation).transpose()?;
        let (item_separator, key_separator) = match separators {
            Some(separators) => match &super::items(separators)?[..] {
                [item, key] => (super::text(item)?, super::text(key)?),
                _ => return Err(super::error("`separators` must be two strings")),
            },
            None if indent.is_some() => (",".into(), ": ".into()),
            None => (", ".into(), ": ".into()),
        };
        let is_true = |value: Option<&Value>| value.is_some_and(Value::is_true);
        Ok(Self { is_ascii: is_true(is_ascii), is_sorted: is_true(is_sorted), indent, item_separator, key_separator })
    }
}

/// A text, or a number of spaces.
fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let width = if indent.is_true() { i64::try_from(indent.clone()).unwrap_or(1) } else { 0 };
    match usize::try_from(width).unwrap_or(0) {
        width if width <= MAX_INDENT => Ok(" ".repeat(width)),
        width => Err(super::error(format!("`indent` must be at most {MAX_INDENT}, got {width}"))),
    }
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match Type::of(value) {
        Type::None => out.push_str("null"),
        Type::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        Type::Int => out.push_str(&value.to_string()),
        Type::Float => write_float(out, value)?,
        Type::Str => write_string(out, value.as_str().unwrap_or_default(), style),
        Type::List | Type::Tuple => {
            write_container(out, ('[', ']'), &super::items(value)?, style, depth, |out, item| {
                write_value(out, item, style, depth + 1)
            })?;
        }
        Type::Dict => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.is_sorted {
                sort_keys(&mut keys)?;
            }
            write_container(out, ('{', '}'), &keys, style, depth, |out, key| {
                write_key(out, key, style)?;
                out.push_str(&style.key_separator);
                write_value(out, &value.get_item(key)?, style, depth + 1)
            })?;
        }
        kind => return Err(super::error(format!("a {} cannot be written as JSON", kind.name()))),
    }
    Ok(())
}

fn sort_keys(keys: &mut [Value]) -> Result<(), Error> {
    let is_text = |key: &Value| key.as_str().is_some();
    if keys.iter().any(is_text) && !keys.iter().all(is_text) {
        return Err(super::error("keys of different types cannot be sorted"));
    }
    keys.sort();
    Ok(())
}

fn write_container(
    out: &mut String,
    (open, close): (char, char),
    items: &[Value],
    style: &Style,
    depth: usize,
    mut write_item: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        break_line(out, style, depth + 1);
        write_item(out, item)?;
    }
    if !items.is_empty() {
        break_line(out, style, depth);
    }
    out.push(close);
    Ok(())
}

fn break_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
}

/// Keys that are not strings are written as JSON in quotes.
fn write_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    if let Some(text) = key.as_str() {
        write_string(out, text, style);
        return Ok(());
    }
    if matches!(Type::of(key), Type::List | Type::Tuple | Type::Dict) {
        return Err(super::error(format!("a key of type {} cannot be written as JSON", Type::of(key).name())));
    }
    out.push('"');
    write_value(out, key, style, 0)?;
    out.push('"');
    Ok(())
}

fn write_string(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => write_escape(out, u16::try_from(u32::from(control)).unwrap_or_default()),
            wide if style.is_ascii && wide > '~' => {
                wide.encode_utf16(&mut [0; 2]).iter().for_each(|&unit| write_escape(out, unit));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

fn write_escape(out: &mut String, unit: u16) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\u{unit:04x}");
}

fn write_float(out: &mut String, value: &Value) -> Result<(), Error> {
    let float = f64::try_from(value.clone())?;
    match float.is_finite() {
        true => out.push_str(&super::float(float)),
        false if float.is_nan() => out.push_str("NaN"),
        false => out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" }),
    }
    Ok(())
}
