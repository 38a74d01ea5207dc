//! Formats values as Python does: in a template's output, and by the filter `tojson` as `transformers` defines it
//! (Python's `json.dumps`, without Jinja's HTML escapes).

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, Output, State, Value, escape_formatter,
    value::{Kwargs, ValueKind},
};

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

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let style = Style::new(&arguments)?;
    arguments.assert_all_used()?;
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    Ok(out)
}

impl Style {
    fn new(arguments: &Kwargs) -> Result<Self, Error> {
        let indent = match arguments.get::<Option<Value>>("indent")? {
            None => None,
            Some(indent) if indent.is_none() => None,
            Some(indent) => Some(match indent.as_str() {
                Some(text) => text.to_owned(),
                None => match usize::try_from(indent)? {
                    width if width <= MAX_INDENT => " ".repeat(width),
                    width => {
                        let what = format!("`indent` must be at most {MAX_INDENT}, got {width}");
                        return Err(Error::new(ErrorKind::InvalidOperation, what));
                    }
                },
            }),
        };
        let (item_separator, key_separator) = match arguments.get::<Option<Vec<String>>>("separators")?.as_deref() {
            Some([item, key]) => (item.clone(), key.clone()),
            Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "`separators` must be two strings")),
            None if indent.is_some() => (",".into(), ": ".into()),
            None => (", ".into(), ": ".into()),
        };
        Ok(Self {
            is_ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            is_sorted: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            indent,
            item_separator,
            key_separator,
        })
    }
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_container(out, ('[', ']'), &items, style, depth, |out, item| {
                write_value(out, item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.is_sorted {
                keys.sort();
            }
            write_container(out, ('{', '}'), &keys, style, depth, |out, key| {
                write_key(out, key, style)?;
                out.push_str(&style.key_separator);
                write_value(out, &value.get_item(key)?, style, depth + 1)
            })?;
        }
        kind => {
            let what = format!("a value of type {kind} cannot be written as JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
    }
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

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone())?));
    }
    Ok(())
}

/// Writes the value of `{{ ... }}` as Python does. The engine already does so, except for floats.
pub(super) fn write_output(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match finite_float(value) {
        Some(float) => out.write_str(&float).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

/// Python's text of a value that is a finite float.
pub(super) fn finite_float(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    let float = is_float.then(|| f64::try_from(value.clone()).ok())?;
    float.filter(|float| float.is_finite()).map(python_float)
}

/// Formats a float as Python does: the shortest digits that read back the same, an exponent below 1e-4 and from 1e16.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..16 => format!("{value:?}"),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_float_formats_floats_like_python() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
        ];
        for (value, python) in cases {
            assert_eq!(python_float(value), python);
        }
    }
}
