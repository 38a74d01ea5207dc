//! Arguments as in Python: `name=value`, with Python's literals.

use hearth_model::decode::constraint::in_lark;
use serde_json::Value;

use super::{
    Mismatch,
    cursor::Cursor,
    object,
    parameters::{Parameters, Types},
    rules::Rules,
};

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 64;

/// Parameters in a call, if the function does not name them.
const MAX_OTHERS: usize = 16;

pub(super) fn rule(name: &str, parameters: &Parameters, rules: &mut Rules) -> String {
    let mut members = Vec::new();
    for (index, own) in parameters.named.iter().enumerate() {
        let value_name = format!("{name}_{index}");
        let right = format!("{} ({})", rules.text(&format!("{}=", own.name)), literal(&own.schema));
        rules.add(&value_name, &right);
        members.push((value_name, own.is_required));
    }
    if let Some(schema) = &parameters.others {
        rules.add(name, &format!("/[A-Za-z_][A-Za-z0-9_]*/ \"=\" ({})", literal(schema)));
        return format!("({name} (\", \" {name}){{0,{}}})?", MAX_OTHERS - 1);
    }
    rules.separated(name, &members, ", ")
}

/// The literals of a schema. Within lists and dictionaries, they are JSON.
fn literal(schema: &Value) -> String {
    let types = Types::of_schema(schema);
    let is_only = |kind: &str| schema.get("type").is_some_and(|own| own == kind) && schema.get("enum").is_none();
    let is_plain = schema.get("const").is_none();
    if is_plain && is_only("boolean") {
        return "\"True\" | \"False\"".into();
    }
    if is_plain && is_only("null") {
        return "\"None\"".into();
    }
    // An optional parameter: a schema or null.
    if let Some(parts) = schema.get("anyOf").and_then(Value::as_array)
        && types.has(Types::NULL)
        && schema.as_object().is_some_and(|members| members.keys().all(|keyword| NAMING.contains(&keyword.as_str())))
    {
        let (nulls, others): (Vec<&Value>, Vec<&Value>) =
            parts.iter().partition(|part| part.get("type").is_some_and(|kind| kind == "null"));
        if !nulls.is_empty() && !others.is_empty() {
            let mut without = schema.clone();
            without["anyOf"] = others.into_iter().cloned().collect();
            return format!("{} | \"None\"", in_lark(&without));
        }
    }
    in_lark(schema)
}

/// Keywords that may accompany `anyOf` when its parts are written separately.
const NAMING: [&str; 7] = ["anyOf", "title", "description", "default", "$defs", "definitions", "x-guidance"];

pub(super) fn read(cursor: &mut Cursor<'_>, parameters: &Parameters) -> Result<String, Mismatch> {
    let mut members = Vec::new();
    loop {
        cursor.skip_blanks();
        if cursor.rest.is_empty() {
            return Err(Mismatch::Until(")"));
        }
        if cursor.rest.starts_with(')') {
            return Ok(object(members));
        }
        if !members.is_empty() {
            cursor.expect(",").map_err(until_end)?;
            cursor.skip_blanks();
            if cursor.rest.starts_with(')') {
                continue;
            }
        }
        let mut ahead = *cursor;
        let name = ahead.take_while(|character| character.is_alphanumeric() || character == '_');
        let is_named = !name.is_empty() && ahead.accepts("=").map_err(until_end)?;
        let name = match parameters.named.get(members.len()) {
            _ if is_named => {
                *cursor = ahead;
                name
            }
            // By its place.
            Some(own) => &own.name,
            None => return Err(Mismatch::Other),
        };
        let json = value(cursor, 0).map_err(until_end)?;
        members.push((name.to_owned(), json));
    }
}

/// A call that is incomplete is so until it is closed.
fn until_end(mismatch: Mismatch) -> Mismatch {
    match mismatch {
        Mismatch::Cut { .. } => Mismatch::Until(")"),
        other => other,
    }
}

/// The literal that a text starts with, as JSON.
pub(super) fn value(cursor: &mut Cursor<'_>, depth: usize) -> Result<String, Mismatch> {
    if depth > MAX_DEPTH {
        return Err(Mismatch::Other);
    }
    cursor.skip_blanks();
    match cursor.peek()? {
        '"' | '\'' => string(cursor).map(|text| Value::from(text).to_string()),
        '[' => items(cursor, ']', depth),
        '(' => items(cursor, ')', depth),
        '{' => dictionary(cursor, depth),
        character if character.is_alphabetic() => word(cursor),
        _ => number(cursor),
    }
}

fn word(cursor: &mut Cursor<'_>) -> Result<String, Mismatch> {
    let word = cursor.take_while(|character| character.is_alphanumeric() || character == '_');
    if cursor.rest.is_empty() {
        return Err(Mismatch::Cut { n_json: 0 });
    }
    Ok(json_word(word)?.to_owned())
}

fn json_word(word: &str) -> Result<&'static str, Mismatch> {
    Ok(match word {
        "True" | "true" => "true",
        "False" | "false" => "false",
        "None" | "null" => "null",
        _ => return Err(Mismatch::Other),
    })
}

fn number(cursor: &mut Cursor<'_>) -> Result<String, Mismatch> {
    let text = cursor.take_while(|character| character.is_ascii_digit() || "+-.eE_".contains(character));
    if text.is_empty() {
        return Err(Mismatch::Other);
    }
    if cursor.rest.is_empty() {
        return Err(Mismatch::Cut { n_json: 0 });
    }
    let is_json = |text: &str| serde_json::from_str::<serde_json::Number>(text).is_ok();
    if is_json(text) {
        return Ok(text.to_owned());
    }
    // `1_000`, `+1`, `.5` and `1.`
    let plain = text.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    match plain.parse::<f64>() {
        Ok(_) if is_json(plain) => Ok(plain.to_owned()),
        Ok(number) if number.is_finite() => Ok(Value::from(number).to_string()),
        _ => Err(Mismatch::Other),
    }
}

fn string(cursor: &mut Cursor<'_>) -> Result<String, Mismatch> {
    let quote = cursor.next()?;
    let mut text = String::new();
    let mut units: Vec<u16> = Vec::new();
    loop {
        let character = cursor.next()?;
        let unit = match character {
            '\\' => escape(cursor, &mut text, &mut units)?,
            _ => false,
        };
        if unit {
            continue;
        }
        if character != '\\' {
            flush(&mut units, &mut text);
            if character == quote {
                return Ok(text);
            }
            text.push(character);
        }
    }
}

/// Adds the character of an escape sequence. Returns whether it is an escape of four digits, two of which may form one
/// character.
fn escape(cursor: &mut Cursor<'_>, text: &mut String, units: &mut Vec<u16>) -> Result<bool, Mismatch> {
    let kind = cursor.next()?;
    if kind == 'u' {
        units.push(hexadecimal(cursor, 4)? as u16);
        return Ok(true);
    }
    flush(units, text);
    let character = match kind {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '0' => '\0',
        '\n' => return Ok(false),
        'x' => char::from_u32(hexadecimal(cursor, 2)?).ok_or(Mismatch::Other)?,
        'U' => char::from_u32(hexadecimal(cursor, 8)?).ok_or(Mismatch::Other)?,
        '\\' | '\'' | '"' | '/' => kind,
        other => {
            text.push('\\');
            other
        }
    };
    text.push(character);
    Ok(false)
}

fn flush(units: &mut Vec<u16>, text: &mut String) {
    if !units.is_empty() {
        text.push_str(&String::from_utf16_lossy(units));
        units.clear();
    }
}

fn hexadecimal(cursor: &mut Cursor<'_>, n_digits: usize) -> Result<u32, Mismatch> {
    (0..n_digits).try_fold(0u32, |number, _| {
        let digit = cursor.next()?.to_digit(16).ok_or(Mismatch::Other)?;
        number.checked_mul(16).map(|number| number + digit).ok_or(Mismatch::Other)
    })
}

fn items(cursor: &mut Cursor<'_>, end: char, depth: usize) -> Result<String, Mismatch> {
    cursor.next()?;
    let mut found: Vec<String> = Vec::new();
    loop {
        cursor.skip_blanks();
        if cursor.peek()? == end {
            cursor.next()?;
            return Ok(format!("[{}]", found.join(", ")));
        }
        if !found.is_empty() {
            cursor.expect(",")?;
            cursor.skip_blanks();
            if cursor.peek()? == end {
                continue;
            }
        }
        found.push(value(cursor, depth + 1)?);
    }
}

fn dictionary(cursor: &mut Cursor<'_>, depth: usize) -> Result<String, Mismatch> {
    cursor.next()?;
    let mut members = Vec::new();
    loop {
        cursor.skip_blanks();
        if cursor.peek()? == '}' {
            cursor.next()?;
            return Ok(object(members));
        }
        if !members.is_empty() {
            cursor.expect(",")?;
            cursor.skip_blanks();
            if cursor.peek()? == '}' {
                continue;
            }
        }
        cursor.skip_blanks();
        if !matches!(cursor.peek()?, '"' | '\'') {
            return Err(Mismatch::Other);
        }
        let name = string(cursor)?;
        cursor.expect(":")?;
        members.push((name, value(cursor, depth + 1)?));
    }
}
