//! Methods of texts.

use std::{iter, ops::Range};

use minijinja::Value;

use super::{Arguments, Result, Type, as_index, as_text, error, is_true, items, required, tuple};

/// Python's white space: also the separators of ASCII.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// Without white space at both ends.
pub(super) fn stripped(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// A decimal digit of any script.
pub(super) fn is_decimal(character: char) -> bool {
    // All other numerals that Rust knows are in these ranges.
    character.is_ascii_digit() || character.is_numeric() && !is_other_numeral(character)
}

/// Numerals that are not decimal digits: fractions, superscripts, letters, circled numbers.
fn is_other_numeral(character: char) -> bool {
    static DECIMAL: std::sync::OnceLock<Option<regex::Regex>> = std::sync::OnceLock::new();
    let decimal = DECIMAL.get_or_init(|| regex::Regex::new(r"^\p{Nd}$").ok());
    let mut buffer = [0; 4];
    !decimal.as_ref().is_some_and(|decimal| decimal.is_match(character.encode_utf8(&mut buffer)))
}

/// Digits that are not decimal: superscripts and circled digits.
fn is_digit(character: char) -> bool {
    let is_special = matches!(u32::from(character),
        0xb2..=0xb3 | 0xb9 | 0x1369..=0x1371 | 0x19da | 0x2070 | 0x2074..=0x2079 | 0x2080..=0x2089 | 0x2460..=0x2468
        | 0x2474..=0x247c | 0x2488..=0x2490 | 0x24ea | 0x24f5..=0x24fd | 0x24ff | 0x2776..=0x277e | 0x2780..=0x2788
        | 0x278a..=0x2792 | 0x10a40..=0x10a43 | 0x10e60..=0x10e68 | 0x11052..=0x1105a | 0x1f100..=0x1f10a);
    is_special || is_decimal(character)
}

fn is_letter(character: char) -> bool {
    static LETTER: std::sync::OnceLock<Option<regex::Regex>> = std::sync::OnceLock::new();
    if character.is_ascii() {
        return character.is_ascii_alphabetic();
    }
    let letter = LETTER.get_or_init(|| regex::Regex::new(r"^\p{L}$").ok());
    let mut buffer = [0; 4];
    letter.as_ref().is_some_and(|letter| letter.is_match(character.encode_utf8(&mut buffer)))
}

pub(super) fn is_alphanumeric(character: char) -> bool {
    is_letter(character) || character.is_numeric()
}

fn is_title_case(character: char) -> bool {
    matches!(u32::from(character), 0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f | 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc)
}

fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase() || is_title_case(character)
}

pub(super) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|letter| letter.is_uppercase() || is_title_case(letter))
}

pub(super) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|letter| letter.is_lowercase() || is_title_case(letter))
}

/// A letter as at the start of a title.
fn title_letter(letter: char) -> String {
    match u32::from(letter) {
        0x1c4..=0x1c6 => "\u{1c5}".into(),
        0x1c7..=0x1c9 => "\u{1c8}".into(),
        0x1ca..=0x1cc => "\u{1cb}".into(),
        0x1f1..=0x1f3 => "\u{1f2}".into(),
        // Georgian has no titles.
        0x10d0..=0x10ff => letter.into(),
        _ => {
            let mut upper = letter.to_uppercase();
            let first = upper.next();
            first.into_iter().chain(upper.flat_map(char::to_lowercase)).collect()
        }
    }
}

pub(super) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| title_letter(first) + &characters.as_str().to_lowercase())
}

fn title(text: &str) -> String {
    let mut out = String::new();
    let mut is_inside = false;
    for character in text.chars() {
        match is_inside {
            true => out.extend(character.to_lowercase()),
            false => out.push_str(&title_letter(character)),
        }
        is_inside = is_cased(character);
    }
    out
}

fn is_title(text: &str) -> bool {
    let (mut is_inside, mut has_any) = (false, false);
    for character in text.chars() {
        let starts = character.is_uppercase() || is_title_case(character);
        if starts && is_inside || character.is_lowercase() && !is_inside {
            return false;
        }
        is_inside = is_cased(character);
        has_any |= is_inside;
    }
    has_any
}

fn swapped_case(text: &str) -> String {
    let swapped = |letter: char| -> String {
        if letter.is_uppercase() { letter.to_lowercase().collect() } else { letter.to_uppercase().collect() }
    };
    text.chars().map(swapped).collect()
}

/// The lines of a text, with their ends if `keeps_ends`.
pub(super) fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |character: char| {
        matches!(character, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = match rest.get(at..) {
            Some(end) if end.starts_with("\r\n") => 2,
            Some(end) => end.chars().next().map_or(1, char::len_utf8),
            None => 1,
        };
        let (line, after) = rest.split_at(at + end);
        lines.push(if keeps_ends { line } else { &line[..at] });
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

pub(super) fn centered(text: &str, width: i64, fill: char) -> String {
    let missing = missing(text, width);
    let left = missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1);
    padded(text, left, missing - left, fill)
}

/// The characters that a text lacks.
fn missing(text: &str, width: i64) -> usize {
    usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count())
}

fn padded(text: &str, left: usize, right: usize, fill: char) -> String {
    let fills = |n| iter::repeat_n(fill, n);
    fills(left).chain(text.chars()).chain(fills(right)).collect()
}

fn zero_filled(text: &str, width: i64) -> String {
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    format!("{sign}{}", padded(digits, missing(text, width), 0, '0'))
}

fn expanded_tabs(text: &str, size: i64) -> String {
    let size = usize::try_from(size).unwrap_or(0);
    let (mut out, mut column) = (String::new(), 0);
    for character in text.chars() {
        match character {
            '\t' => {
                let n = if size == 0 { 0 } else { size - column % size };
                out.extend(iter::repeat_n(' ', n));
                column += n;
            }
            _ => {
                out.push(character);
                column = if matches!(character, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

/// Splits at white space, at most `max` times, from the end if `from_end`.
fn split_spaces(text: &str, max: Option<usize>, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = if from_end { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let at = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = at.filter(|_| max.is_none_or(|max| parts.len() < max)) else {
            parts.push(rest);
            break;
        };
        let space = rest.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
        if from_end {
            parts.push(&rest[at + space..]);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            parts.push(&rest[..at]);
            rest = rest[at + space..].trim_start_matches(is_space);
        }
    }
    if from_end {
        parts.reverse();
    }
    parts
}

fn split(function: &str, text: &str, arguments: &Arguments) -> Result {
    let [separator, max] = arguments.bind(function, ["sep", "maxsplit"])?;
    let max = max.as_ref().map(as_index).transpose()?.and_then(|max| usize::try_from(max).ok());
    let from_end = function == "rsplit";
    let separator = separator.filter(|separator| !separator.is_none());
    let Some(separator) = separator else {
        return Ok(split_spaces(text, max, from_end).into_iter().map(Value::from).collect());
    };
    let separator = as_text(function, &separator)?;
    if separator.is_empty() {
        return Err(error(format!("`{function}` with an empty separator")));
    }
    let n = max.map_or(usize::MAX, |max| max.saturating_add(1));
    let parts: Vec<&str> = match from_end {
        false => text.splitn(n, separator).collect(),
        true => {
            let mut parts: Vec<&str> = text.rsplitn(n, separator).collect();
            parts.reverse();
            parts
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn partition(text: &str, separator: &str, from_end: bool) -> Result {
    if separator.is_empty() {
        return Err(error("`partition` with an empty separator"));
    }
    let found = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(tuple(parts.map(Value::from).to_vec()))
}

/// The bytes from character `start` to character `end`, and the character at which they begin. `None` if the text ends
/// before `start`.
fn part(text: &str, start: Option<Value>, end: Option<Value>) -> Result<Option<(Range<usize>, usize)>> {
    let len = text.chars().count() as i64;
    let place = |bound: Option<Value>, default: i64| match bound.filter(|bound| !bound.is_none()) {
        None => Ok(default),
        Some(bound) => as_index(&bound).map(|at| if at < 0 { (at + len).max(0) } else { at }),
    };
    let (start, end) = (place(start, 0)?, place(end, len)?.min(len));
    if start > len || end < start {
        return Ok(None);
    }
    let byte = |at: i64| {
        let at = usize::try_from(at).unwrap_or(0);
        text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte)
    };
    Ok(Some((byte(start)..byte(end), usize::try_from(start).unwrap_or(0))))
}

/// `find`, `rfind`, `index`, `rindex`: the character at which the text is found.
fn find(function: &str, text: &str, arguments: &Arguments) -> Result {
    let [sub, start, end] = arguments.bind(function, ["sub", "start", "end"])?;
    let sub = required(function, "sub", sub)?;
    let sub = as_text(function, &sub)?;
    let found = part(text, start, end)?.and_then(|(bytes, first)| {
        let part = text.get(bytes)?;
        let at = if function.starts_with('r') { part.rfind(sub) } else { part.find(sub) }?;
        Some(first + part.get(..at)?.chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if function.ends_with("find") => Ok((-1).into()),
        None => Err(error(format!("`{function}` does not find the text"))),
    }
}

fn count(text: &str, arguments: &Arguments) -> Result {
    let [sub, start, end] = arguments.bind("count", ["sub", "start", "end"])?;
    let sub = required("count", "sub", sub)?;
    let sub = as_text("count", &sub)?;
    let found = part(text, start, end)?.and_then(|(bytes, _)| Some(text.get(bytes)?.matches(sub).count()));
    Ok(found.unwrap_or(0).into())
}

fn starts_or_ends(function: &str, text: &str, arguments: &Arguments) -> Result {
    let [affix, start, end] = arguments.bind(function, ["prefix", "start", "end"])?;
    let affix = required(function, "prefix", affix)?;
    let affixes = if Type::of(&affix) == Type::Tuple { items(&affix)? } else { vec![affix] };
    let part = part(text, start, end)?.and_then(|(bytes, _)| text.get(bytes));
    let mut is_found = false;
    for affix in &affixes {
        let affix = as_text(function, affix)?;
        is_found |= part.is_some_and(|part| match function {
            "startswith" => part.starts_with(affix),
            _ => part.ends_with(affix),
        });
    }
    Ok(is_found.into())
}

fn strip(function: &str, text: &str, arguments: &Arguments) -> Result {
    let [characters] = arguments.bind(function, ["chars"])?;
    let characters = characters.filter(|characters| !characters.is_none());
    let set: Option<Vec<char>> = match &characters {
        Some(characters) => Some(as_text(function, characters)?.chars().collect()),
        None => None,
    };
    let is_removed = |character: char| set.as_ref().map_or_else(|| is_space(character), |set| set.contains(&character));
    let text = if function == "rstrip" { text } else { text.trim_start_matches(is_removed) };
    Ok(if function == "lstrip" { text } else { text.trim_end_matches(is_removed) }.into())
}

/// `text.replace(old, new, count)`; a negative count replaces all.
pub(super) fn replace(text: &str, old: &str, new: &str, count: i64) -> String {
    match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    }
}

/// Joins texts.
fn join(separator: &str, list: &Value) -> Result {
    let mut joined = String::new();
    for (index, item) in items(list)?.iter().enumerate() {
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(as_text("join", item)?);
    }
    Ok(joined.into())
}

fn justify(function: &str, text: &str, arguments: &Arguments) -> Result {
    let [width, fill] = arguments.bind(function, ["width", "fillchar"])?;
    let width = as_index(&required(function, "width", width)?)?;
    let fill = fill.map_or_else(|| Ok(" ".to_owned()), |fill| as_text(function, &fill).map(str::to_owned))?;
    let mut fills = fill.chars();
    let (Some(fill), None) = (fills.next(), fills.next()) else {
        return Err(error(format!("`{function}` fills with one character")));
    };
    Ok(match function {
        "center" => centered(text, width, fill),
        "ljust" => padded(text, 0, missing(text, width), fill),
        _ => padded(text, missing(text, width), 0, fill),
    }
    .into())
}

fn translate(text: &str, table: &Value) -> Result {
    let mut out = String::new();
    for character in text.chars() {
        let mapped = table.get_item(&u32::from(character).into())?;
        match Type::of(&mapped) {
            Type::Undefined => out.push(character),
            Type::None => {}
            Type::Str => out.push_str(mapped.as_str().unwrap_or_default()),
            _ => out.extend(u32::try_from(as_index(&mapped)?).ok().and_then(char::from_u32)),
        }
    }
    Ok(out.into())
}

/// Whether the text has characters and all of them are so.
fn all(text: &str, is_so: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is_so)
}

fn is_identifier(text: &str) -> bool {
    let starts = text.chars().next().is_some_and(|first| first == '_' || first.is_alphabetic());
    starts && text.chars().all(|character| character == '_' || character.is_alphanumeric())
}

/// Calls a method of a text.
pub(super) fn call(value: &Value, name: &str, arguments: &Arguments) -> Result {
    let text = value.as_str().unwrap_or_default();
    let one = |parameter: &'static str| arguments.bind(name, [parameter]).map(|[value]| value);
    let needed = |parameter: &'static str| one(parameter).and_then(|value| required(name, parameter, value));
    let result: Value = match name {
        "split" | "rsplit" => return split(name, text, arguments),
        "find" | "rfind" | "index" | "rindex" => return find(name, text, arguments),
        "count" => return count(text, arguments),
        "startswith" | "endswith" => return starts_or_ends(name, text, arguments),
        "strip" | "lstrip" | "rstrip" => strip(name, text, arguments)?,
        "center" | "ljust" | "rjust" => justify(name, text, arguments)?,
        "format" => super::brace_format(text, arguments)?.into(),
        "partition" | "rpartition" => {
            let separator = needed("sep")?;
            return partition(text, as_text(name, &separator)?, name == "rpartition");
        }
        "join" => join(text, &needed("iterable")?)?,
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(name, "old", old)?, required(name, "new", new)?);
            let count = count.as_ref().map_or(Ok(-1), as_index)?;
            replace(text, as_text(name, &old)?, as_text(name, &new)?, count).into()
        }
        "splitlines" => {
            let keeps_ends = is_true(one("keepends")?.as_ref());
            return Ok(lines(text, keeps_ends).into_iter().map(Value::from).collect());
        }
        "removeprefix" => {
            let prefix = needed("prefix")?;
            text.strip_prefix(as_text(name, &prefix)?).unwrap_or(text).into()
        }
        "removesuffix" => {
            let suffix = needed("suffix")?;
            text.strip_suffix(as_text(name, &suffix)?).unwrap_or(text).into()
        }
        "zfill" => zero_filled(text, as_index(&needed("width")?)?).into(),
        "expandtabs" => expanded_tabs(text, one("tabsize")?.as_ref().map_or(Ok(8), as_index)?).into(),
        "translate" => translate(text, &needed("table")?)?,
        _ => {
            arguments.none(name)?;
            match name {
                "upper" => text.to_uppercase().into(),
                "lower" => text.to_lowercase().into(),
                "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ").into(),
                "capitalize" => capitalized(text).into(),
                "title" => title(text).into(),
                "swapcase" => swapped_case(text).into(),
                "isalpha" => all(text, is_letter).into(),
                "isalnum" => all(text, is_alphanumeric).into(),
                "isdigit" => all(text, is_digit).into(),
                "isdecimal" => all(text, is_decimal).into(),
                "isnumeric" => all(text, char::is_numeric).into(),
                "isspace" => all(text, is_space).into(),
                "islower" => is_lower(text).into(),
                "isupper" => is_upper(text).into(),
                "istitle" => is_title(text).into(),
                "isascii" => text.is_ascii().into(),
                "isidentifier" => is_identifier(text).into(),
                "isprintable" => text.chars().all(super::is_printable).into(),
                _ => return Err(error(format!("the method `{name}` of a str is not supported"))),
            }
        }
    };
    Ok(match result.as_str() {
        Some(text) if value.is_safe() => Value::from_safe_string(text.to_owned()),
        _ => result,
    })
}
