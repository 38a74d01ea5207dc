//! `'%s' % values`, and `'{}'.format(values)`.

use std::iter;

use minijinja::Value;

use super::{
    Result, Type, as_float, as_index, as_int, error, escaped, item, items, methods::attribute, numbers::exponent_text,
    repr, text,
};

/// How a field is written.
#[derive(Clone, Debug)]
struct Spec {
    fill: char,
    align: Option<char>,
    /// `+`, a space, or `-` for none.
    sign: char,
    is_alternate: bool,
    width: usize,
    /// Between thousands.
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: None,
            sign: '-',
            is_alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

/// Reads a format from its start.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    fn take(&mut self, wanted: &[char]) -> Option<char> {
        let next = self.rest.chars().next().filter(|next| wanted.contains(next))?;
        self.next();
        Some(next)
    }

    fn number(&mut self) -> Result<Option<usize>> {
        let end = self.rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| error("a width that is too large"))
    }
}

/// `format % values`: a tuple has a value for each field, a dict named values, anything else is the only value.
pub(super) fn percent(format: &Value, values: &Value) -> Result {
    let (is_tuple, is_mapping) = match Type::of(values) {
        Type::Tuple => (true, false),
        kind => (false, matches!(kind, Type::Dict | Type::List | Type::Range)),
    };
    let mut left = if is_tuple { items(values)? } else { vec![values.clone()] }.into_iter();
    let is_safe = format.is_safe();
    let mut reader = Reader { rest: format.as_str().unwrap_or_default() };
    let mut out = String::new();
    while let Some(at) = reader.rest.find('%') {
        let (before, rest) = reader.rest.split_at(at);
        out.push_str(before);
        reader.rest = rest.get(1..).unwrap_or_default();
        let name = match reader.take(&['(']) {
            None => None,
            Some(_) => {
                let (name, rest) = reader.rest.split_once(')').ok_or_else(|| error("a format without `)`"))?;
                reader.rest = rest;
                Some(name)
            }
        };
        let mut next = || left.next().ok_or_else(|| error("not enough values for the format"));
        let spec = percent_spec(&mut reader, &mut next)?;
        if spec.kind == Some('%') {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) if Type::of(values) == Type::Dict => {
                let value = values.get_attr(name)?;
                if value.is_undefined() {
                    return Err(error(format!("the format names `{name}`, which is missing")));
                }
                value
            }
            Some(_) => return Err(error("the format needs a dict")),
            None => next()?,
        };
        let value = match value.as_str() {
            Some(text) if is_safe && !value.is_safe() => escaped(text).into(),
            _ => value,
        };
        out.push_str(&percent_field(&value, &spec)?);
    }
    out.push_str(reader.rest);
    if left.next().is_some() && !is_mapping {
        return Err(error("the format has fewer fields than there are values"));
    }
    Ok(if is_safe { Value::from_safe_string(out) } else { out.into() })
}

fn percent_spec(reader: &mut Reader<'_>, next: &mut impl FnMut() -> Result) -> Result<Spec> {
    let mut spec = Spec::default();
    let (mut is_left, mut is_zero) = (false, false);
    while let Some(flag) = reader.take(&['-', '+', ' ', '0', '#']) {
        match flag {
            '-' => is_left = true,
            '+' => spec.sign = '+',
            ' ' if spec.sign != '+' => spec.sign = ' ',
            '0' => is_zero = true,
            '#' => spec.is_alternate = true,
            _ => {}
        }
    }
    let mut number = |reader: &mut Reader<'_>| match reader.take(&['*']) {
        Some(_) => next().and_then(|value| as_index(&value)),
        None => reader.number().map(|number| number.map_or(0, |number| number as i64)),
    };
    let width = number(reader)?;
    is_left |= width < 0;
    spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(0);
    if reader.take(&['.']).is_some() {
        spec.precision = Some(usize::try_from(number(reader)?).unwrap_or(0));
    }
    while reader.take(&['h', 'l', 'L']).is_some() {}
    spec.kind = reader.next();
    spec.align = Some(if is_left { '<' } else { '>' });
    if is_zero && !is_left {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    Ok(spec)
}

fn percent_field(value: &Value, spec: &Spec) -> Result<String> {
    let plain =
        Spec { fill: ' ', align: spec.align.map(|align| if align == '=' { '>' } else { align }), ..spec.clone() };
    match spec.kind {
        Some('s') => Ok(text_field(&text(value)?, &plain)),
        Some('r') => Ok(text_field(&repr(value)?, &plain)),
        Some('a') => Ok(text_field(&ascii(&repr(value)?), &plain)),
        Some('c') => match (value.as_str(), as_int(value)) {
            (Some(text), _) if text.chars().count() == 1 => Ok(text_field(text, &plain)),
            (None, Some(code)) => {
                let character = u32::try_from(code).ok().and_then(char::from_u32);
                let character = character.ok_or_else(|| error("`%c` of a number that is no character"))?;
                Ok(text_field(&character.to_string(), &plain))
            }
            _ => Err(error("`%c` needs a character")),
        },
        Some('d' | 'i' | 'u') => {
            let float = as_float(value).filter(|_| Type::of(value) == Type::Float);
            let whole = as_int(value).or_else(|| float.filter(|float| float.abs() < 1e38).map(|float| float as i128));
            let whole = whole.ok_or_else(|| error(format!("`%d` of a {}", Type::of(value).name())))?;
            int_field(whole, &Spec { kind: Some('d'), ..spec.clone() })
        }
        Some('o' | 'x' | 'X') => {
            let whole = as_int(value).ok_or_else(|| error("`%x` and `%o` need an integer"))?;
            int_field(whole, spec)
        }
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G') => {
            let float = as_float(value).ok_or_else(|| error(format!("`%f` of a {}", Type::of(value).name())))?;
            float_field(float, &Spec { precision: spec.precision.or(Some(6)), ..spec.clone() })
        }
        Some(other) => Err(error(format!("the format `%{other}` is unknown"))),
        None => Err(error("an incomplete format")),
    }
}

fn ascii(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character.is_ascii() {
            true => out.push(character),
            false => super::write_escape(&mut out, character),
        }
    }
    out
}

/// `text.format(values, name=value)`.
pub(super) fn braces(text: &str, values: &[Value], named: &[(String, Value)]) -> Result<String> {
    let mut next = 0;
    write_braces(text, values, named, &mut next, 0)
}

fn write_braces(
    text: &str,
    values: &[Value],
    named: &[(String, Value)],
    next: &mut usize,
    depth: usize,
) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let brace = &from[..1];
        rest = &from[1..];
        if rest.starts_with(brace) {
            out.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        if brace == "}" || depth > 1 {
            return Err(error("a format with a single `}`"));
        }
        let end = field_end(rest).ok_or_else(|| error("a format with a single `{`"))?;
        let (field, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        let (field, spec) = split_spec(field);
        let (name, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = field_value(name, values, named, next)?;
        let spec = write_braces(spec, values, named, next, depth + 1)?;
        out.push_str(&match conversion {
            "" => brace_field(&value, &spec)?,
            "s" => brace_field(&super::text(&value)?.into(), &spec)?,
            "r" => brace_field(&repr(&value)?.into(), &spec)?,
            "a" => brace_field(&ascii(&repr(&value)?).into(), &spec)?,
            other => return Err(error(format!("the conversion `!{other}` is unknown"))),
        });
    }
    out.push_str(rest);
    Ok(out)
}

/// The end of a field, which may contain nested fields.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The name and the format of a field: the first colon outside of brackets separates them.
fn split_spec(field: &str) -> (&str, &str) {
    let mut is_key = false;
    for (at, character) in field.char_indices() {
        match character {
            '[' => is_key = true,
            ']' => is_key = false,
            ':' if !is_key => return (&field[..at], &field[at + 1..]),
            _ => {}
        }
    }
    (field, "")
}

fn field_value(name: &str, values: &[Value], named: &[(String, Value)], next: &mut usize) -> Result {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let missing = || error(format!("the format needs a value for `{{{first}}}`"));
    let mut value = match first.parse::<usize>() {
        _ if first.is_empty() => {
            *next += 1;
            values.get(*next - 1).ok_or_else(missing)?.clone()
        }
        Ok(index) => values.get(index).ok_or_else(missing)?.clone(),
        Err(_) => named.iter().find(|(name, _)| name == first).ok_or_else(missing)?.1.clone(),
    };
    while !path.is_empty() {
        value = if let Some(rest) = path.strip_prefix('.') {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            path = &rest[end..];
            attribute(&value, &rest[..end])?
        } else {
            let inside = path.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let (key, rest) = inside.ok_or_else(|| error("a format with `[` without `]`"))?;
            path = rest;
            item(&value, &key.parse::<i64>().map_or_else(|_| key.into(), Value::from))?
        };
    }
    Ok(value)
}

fn brace_field(value: &Value, spec: &str) -> Result<String> {
    if spec.is_empty() {
        return text(value);
    }
    let spec = brace_spec(spec)?;
    match Type::of(value) {
        Type::Str if matches!(spec.kind, None | Some('s')) => {
            if spec.align == Some('=') && spec.fill != '0' || spec.sign != '-' || spec.grouping.is_some() {
                return Err(error("a format for numbers for a str"));
            }
            let align = spec.align.filter(|align| *align != '=');
            Ok(text_field(value.as_str().unwrap_or_default(), &Spec { align, ..spec }))
        }
        Type::Int | Type::Bool if matches!(spec.kind, None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X' | 'c')) => {
            int_field(as_int(value).unwrap_or_default(), &spec)
        }
        Type::Int | Type::Bool | Type::Float
            if matches!(spec.kind, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%')) =>
        {
            float_field(as_float(value).unwrap_or_default(), &spec)
        }
        kind => Err(error(format!("the format of a field does not suit a {}", kind.name()))),
    }
}

fn brace_spec(text: &str) -> Result<Spec> {
    const ALIGN: [char; 4] = ['<', '>', '^', '='];
    let mut spec = Spec::default();
    let mut reader = Reader { rest: text };
    let mut start = text.chars();
    if let (Some(fill), Some(align)) = (start.next(), start.next())
        && ALIGN.contains(&align)
    {
        (spec.fill, spec.align) = (fill, Some(align));
        reader.rest = start.as_str();
    } else {
        spec.align = reader.take(&ALIGN);
    }
    spec.sign = reader.take(&['+', '-', ' ']).unwrap_or('-');
    spec.is_alternate = reader.take(&['#']).is_some();
    if reader.take(&['0']).is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    spec.width = reader.number()?.unwrap_or(0);
    spec.grouping = reader.take(&[',', '_']);
    if reader.take(&['.']).is_some() {
        spec.precision = Some(reader.number()?.ok_or_else(|| error("a format without a precision after `.`"))?);
    }
    spec.kind = reader.next();
    if reader.rest.is_empty() { Ok(spec) } else { Err(error(format!("the format `{text}` is not valid"))) }
}

fn text_field(text: &str, spec: &Spec) -> String {
    let cut: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    padded("", &cut, &Spec { align: spec.align.or(Some('<')), ..spec.clone() })
}

fn int_field(value: i128, spec: &Spec) -> Result<String> {
    let size = value.unsigned_abs();
    let (digits, prefix) = match spec.kind {
        Some('b') => (format!("{size:b}"), "0b"),
        Some('o') => (format!("{size:o}"), "0o"),
        Some('x') => (format!("{size:x}"), "0x"),
        Some('X') => (format!("{size:X}"), "0X"),
        Some('c') => {
            let character = u32::try_from(value).ok().and_then(char::from_u32);
            let character = character.ok_or_else(|| error("a number that is no character"))?;
            return Ok(text_field(&character.to_string(), spec));
        }
        _ => (size.to_string(), ""),
    };
    let n_zeros = spec.precision.unwrap_or(0).saturating_sub(digits.len());
    let digits: String = iter::repeat_n('0', n_zeros).chain(digits.chars()).collect();
    let sign = sign_of(value < 0, spec) + if spec.is_alternate { prefix } else { "" };
    // Underscores group the digits of other bases by four.
    let n = if prefix.is_empty() { 3 } else { 4 };
    number_field(&sign, &grouped(&digits, spec, n), spec)
}

fn float_field(value: f64, spec: &Spec) -> Result<String> {
    let size = value.abs();
    let precision = spec.precision.unwrap_or(6);
    if precision > 1000 {
        return Err(error("a precision above 1000"));
    }
    let digits = if !size.is_finite() {
        if size.is_nan() { "nan".to_owned() } else { "inf".to_owned() }
    } else {
        match spec.kind.map(|kind| kind.to_ascii_lowercase()) {
            Some('e') => scientific(size, precision),
            Some('f') => format!("{size:.precision$}"),
            Some('%') => format!("{:.precision$}%", size * 100.0),
            Some(_) => general(size, precision, spec.is_alternate, false),
            None => match spec.precision {
                None => super::float(size),
                Some(precision) => general(size, precision, false, true),
            },
        }
    };
    let digits = match spec.kind {
        Some('E' | 'F' | 'G') => digits.to_uppercase(),
        _ => digits,
    };
    let sign = sign_of(value.is_sign_negative() && !value.is_nan(), spec);
    let spec = if size.is_finite() { spec.clone() } else { Spec { fill: ' ', ..spec.clone() } };
    number_field(&sign, &grouped(&digits, &spec, 3), &spec)
}

fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{digits}{}", exponent_text(exponent.parse().unwrap_or_default()))
}

/// As many digits as needed, at most `precision`.
fn general(value: f64, precision: usize, keeps_zeros: bool, has_point: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{value:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or_default();
    let limit = i32::try_from(precision).unwrap_or(i32::MAX) - i32::from(has_point);
    let trimmed = |digits: &str| match digits.contains('.') && !keeps_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if (-4..limit.max(i32::from(!has_point))).contains(&exponent) {
        let n_decimals = usize::try_from(i32::try_from(precision).unwrap_or(i32::MAX) - 1 - exponent).unwrap_or(0);
        let digits = trimmed(&format!("{value:.n_decimals$}"));
        return if has_point && !digits.contains('.') { digits + ".0" } else { digits };
    }
    let text = scientific(value, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, ""));
    format!("{}e{exponent}", trimmed(digits))
}

fn sign_of(is_negative: bool, spec: &Spec) -> String {
    match spec.sign {
        _ if is_negative => "-".into(),
        '-' => String::new(),
        sign => sign.into(),
    }
}

fn grouped(number: &str, spec: &Spec, n: usize) -> String {
    let Some(separator) = spec.grouping else { return number.to_owned() };
    let end = number.find(|digit: char| !digit.is_ascii_hexdigit()).unwrap_or(number.len());
    let (whole, rest) = number.split_at(end);
    let mut out = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(n) {
            out.push(separator);
        }
        out.push(digit);
    }
    out + rest
}

fn number_field(sign: &str, number: &str, spec: &Spec) -> Result<String> {
    let len = sign.len() + number.len();
    if spec.grouping.is_some() && spec.align == Some('=') && spec.fill == '0' && len < spec.width {
        return Err(error("a format that fills with zeros between thousands is not supported"));
    }
    Ok(padded(sign, number, &Spec { align: spec.align.or(Some('>')), ..spec.clone() }))
}

/// Pads to the width: before the sign, after it (`=`), or after the number.
fn padded(sign: &str, text: &str, spec: &Spec) -> String {
    let missing = spec.width.saturating_sub(sign.len() + text.chars().count());
    let fill = |n| iter::repeat_n(spec.fill, n).collect::<String>();
    match spec.align {
        Some('=') => format!("{sign}{}{text}", fill(missing)),
        Some('>') => format!("{}{sign}{text}", fill(missing)),
        Some('^') => format!("{}{sign}{text}{}", fill(missing / 2), fill(missing - missing / 2)),
        _ => format!("{sign}{text}{}", fill(missing)),
    }
}
