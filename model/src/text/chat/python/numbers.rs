//! Numbers: as text, from text, rounded.

use super::{Result, Type, Value, as_float, as_int, calls::Call, error, int};

/// `repr` of a float: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..16 => format!("{value:?}"),
        exponent => format!("{digits}{}", exponent_text(exponent)),
    }
}

/// An exponent with a sign and at least two digits.
pub(super) fn exponent_text(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.abs())
}

/// The text of a number without underscores between digits and white space around it, and with ASCII digits.
fn plain_number(text: &str) -> Option<String> {
    let characters: Vec<char> = super::strings::stripped(text).chars().map(ascii_digit).collect();
    let is_digit = |at: usize| characters.get(at).is_some_and(char::is_ascii_alphanumeric);
    let mut plain = String::new();
    for (at, &character) in characters.iter().enumerate() {
        match character {
            '_' if at > 0 && is_digit(at - 1) && is_digit(at + 1) => {}
            '_' => return None,
            _ => plain.push(character),
        }
    }
    Some(plain)
}

/// A decimal digit of any script as an ASCII digit.
fn ascii_digit(character: char) -> char {
    if character.is_ascii() || !super::strings::is_decimal(character) {
        return character;
    }
    // The digits of a script are consecutive and start at 0 or 6 of a block of 16, or are mathematical digits.
    let code = u32::from(character);
    let is_digit = |code: u32| char::from_u32(code).is_some_and(super::strings::is_decimal);
    let digit = match code {
        0x1d7ce..=0x1d7ff => (code - 0x1d7ce) % 10,
        _ if is_digit(code & !0xf) => code & 0xf,
        _ => (code & 0xf).wrapping_sub(6),
    };
    char::from_digit(digit, 10).unwrap_or(character)
}

/// `int(text, base)`.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let plain = plain_number(text)?;
    let (is_negative, digits) = match plain.strip_prefix(['-', '+']) {
        Some(digits) => (plain.starts_with('-'), digits),
        None => (false, plain.as_str()),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let has_prefix = !prefix.is_empty() && digits.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let digits = if has_prefix { digits.get(2..)? } else { digits };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let number = i128::from_str_radix(digits, base).ok()?;
    Some(if is_negative { -number } else { number })
}

/// `float(text)`.
fn parse_float(text: &str) -> Option<f64> {
    plain_number(text)?.parse().ok()
}

/// A float without its fraction.
fn truncated(value: f64) -> Option<i128> {
    let whole = value.trunc();
    (whole.abs() < 1e38).then_some(whole as i128)
}

/// `value|int(default, base)`.
pub(super) fn to_int(call: &Call<'_>) -> Result {
    let base = call.index_or(1, 10)?;
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return Err(error(format!("`int` needs a base of 2 to 36, got {base}")));
    };
    let whole = |float: f64| {
        let what = "`int` of a number that is infinite or too large";
        truncated(float).map(int).ok_or_else(|| error(what))
    };
    let default = call.get(0).cloned().unwrap_or_else(|| 0.into());
    match Type::of(call.value) {
        Type::Undefined => Err(call.unsuitable()),
        Type::Bool | Type::Int => Ok(as_int(call.value).map_or_else(|| call.value.clone(), int)),
        Type::Float => whole(as_float(call.value).unwrap_or_default()),
        Type::Str => match (parse_int(call.str(), base), parse_float(call.str())) {
            (Some(number), _) => Ok(int(number)),
            (None, Some(number)) if number.is_finite() => whole(number),
            _ => Ok(default),
        },
        _ => Ok(default),
    }
}

/// `value|float(default)`.
pub(super) fn to_float(call: &Call<'_>) -> Result {
    let default = call.get(0).cloned().unwrap_or_else(|| 0.0.into());
    match Type::of(call.value) {
        Type::Undefined => Err(call.unsuitable()),
        _ => Ok(number(call.value).map_or(default, Value::from)),
    }
}

/// The number of a numeric value, or of a text that contains a number.
pub(super) fn number(value: &Value) -> Option<f64> {
    value.as_str().map_or_else(|| as_float(value), parse_float)
}

/// `value|round(precision, method)`.
pub(super) fn round(call: &Call<'_>) -> Result {
    let places = i32::try_from(call.index_or(0, 0)?.clamp(-400, 400)).unwrap_or_default();
    let method = call.text_or(1, "common")?;
    let round: fn(f64) -> f64 = match (method, as_int(call.value)) {
        ("common", Some(whole)) => return Ok(int(round_int(whole, places))),
        ("common", None) => {
            return as_float(call.value)
                .map(|float| round_float(float, places).into())
                .ok_or_else(|| call.unsuitable());
        }
        ("ceil", _) => f64::ceil,
        ("floor", _) => f64::floor,
        _ => return Err(error(format!("the method of `round` must be common, ceil or floor, got `{method}`"))),
    };
    let power = 10f64.powi(places);
    let float = as_float(call.value).ok_or_else(|| call.unsuitable())?;
    // Python's `ceil` and `floor` return integers, and `/` a float.
    Ok((round(float * power) / power).into())
}

fn round_int(value: i128, places: i32) -> i128 {
    let power = u32::try_from(-places).ok().and_then(|places| 10i128.checked_pow(places));
    match power {
        _ if places >= 0 => value,
        None => 0,
        Some(power) => {
            let (down, rest) = (value.div_euclid(power) * power, value.rem_euclid(power));
            let is_up = rest * 2 > power || rest * 2 == power && (down / power) % 2 != 0;
            if is_up { down + power } else { down }
        }
    }
}

fn round_float(value: f64, places: i32) -> f64 {
    if !value.is_finite() || places > 322 {
        return value;
    }
    match usize::try_from(places) {
        Ok(places) => format!("{value:.places$}").parse().unwrap_or(value),
        Err(_) => {
            let power = 10f64.powi(-places);
            (value / power).round_ties_even() * power
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_by_python() {
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
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, python) in cases {
            assert_eq!(float(value), python);
        }
    }
}
