//! Methods of texts.

use std::{iter, ops::Range, sync::LazyLock};

use minijinja::Value;
use regex::Regex;

use super::{
    Result, Type, as_index,
    calls::{ANY, Call, Row},
    error, is_printable, items, tuple,
};

/// The methods of texts. A text that they return is safe if the original is safe.
pub(super) const METHODS: &[Row] = &[
    ("capitalize", &[], |_, call| call.markup(capitalized(call.str()))),
    ("casefold", &[], |_, call| call.markup(call.str().to_lowercase().replace('ß', "ss").replace('ς', "σ"))),
    ("center", &["width", "fillchar"], |_, call| justify(call, centered)),
    ("count", &["sub", "start", "end"], |_, call| count(call)),
    ("encode", &[], |_, call| super::unsupported_method(call)),
    ("endswith", &["prefix", "start", "end"], |_, call| has_affix(call, |part, affix| part.ends_with(affix))),
    ("expandtabs", &["tabsize"], |_, call| call.markup(expanded_tabs(call.str(), call.index_or(0, 8)?))),
    ("find", &["sub", "start", "end"], |_, call| find(call)),
    ("format", ANY, |_, call| call.markup(super::brace_format(call.str(), call.arguments)?)),
    ("format_map", &[], |_, call| super::unsupported_method(call)),
    ("index", &["sub", "start", "end"], |_, call| find(call)),
    ("isalnum", &[], |_, call| all(call, is_alphanumeric)),
    ("isalpha", &[], |_, call| all(call, is_letter)),
    ("isascii", &[], |_, call| Ok(call.str().is_ascii().into())),
    ("isdecimal", &[], |_, call| all(call, is_decimal)),
    ("isdigit", &[], |_, call| all(call, is_digit)),
    ("isidentifier", &[], |_, call| Ok(is_identifier(call.str()).into())),
    ("islower", &[], |_, call| Ok(is_lower(call.str()).into())),
    ("isnumeric", &[], |_, call| all(call, char::is_numeric)),
    ("isprintable", &[], |_, call| Ok(call.str().chars().all(is_printable).into())),
    ("isspace", &[], |_, call| all(call, is_space)),
    ("istitle", &[], |_, call| Ok(is_title(call.str()).into())),
    ("isupper", &[], |_, call| Ok(is_upper(call.str()).into())),
    ("join", &["iterable"], |_, call| join(call)),
    ("ljust", &["width", "fillchar"], |_, call| {
        justify(call, |text, width, fill| padded(text, 0, missing(text, width), fill))
    }),
    ("lower", &[], |_, call| call.markup(call.str().to_lowercase())),
    ("lstrip", &["chars"], |_, call| strip(call)),
    ("maketrans", &[], |_, call| super::unsupported_method(call)),
    ("partition", &["sep"], |_, call| partition(call)),
    ("removeprefix", &["prefix"], |_, call| call.markup(call.str().strip_prefix(call.text(0)?).unwrap_or(call.str()))),
    ("removesuffix", &["suffix"], |_, call| call.markup(call.str().strip_suffix(call.text(0)?).unwrap_or(call.str()))),
    ("replace", &["old", "new", "count"], |_, call| {
        call.markup(replace(call.str(), call.text(0)?, call.text(1)?, call.index_or(2, -1)?))
    }),
    ("rfind", &["sub", "start", "end"], |_, call| find(call)),
    ("rindex", &["sub", "start", "end"], |_, call| find(call)),
    ("rjust", &["width", "fillchar"], |_, call| {
        justify(call, |text, width, fill| padded(text, missing(text, width), 0, fill))
    }),
    ("rpartition", &["sep"], |_, call| partition(call)),
    ("rsplit", &["sep", "maxsplit"], |_, call| split(call)),
    ("rstrip", &["chars"], |_, call| strip(call)),
    ("split", &["sep", "maxsplit"], |_, call| split(call)),
    ("splitlines", &["keepends"], |_, call| {
        Ok(lines(call.str(), call.is_true(0)).into_iter().map(Value::from).collect())
    }),
    ("startswith", &["prefix", "start", "end"], |_, call| has_affix(call, |part, affix| part.starts_with(affix))),
    ("strip", &["chars"], |_, call| strip(call)),
    ("swapcase", &[], |_, call| call.markup(swapped_case(call.str()))),
    ("title", &[], |_, call| call.markup(title(call.str()))),
    ("translate", &["table"], |_, call| translate(call)),
    ("upper", &[], |_, call| call.markup(call.str().to_uppercase())),
    ("zfill", &["width"], |_, call| call.markup(zero_filled(call.str(), call.index(0)?))),
];

/// Python's white space: also the separators of ASCII.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// Without white space at both ends.
pub(super) fn stripped(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Whether a character is in the Unicode category of `pattern`.
fn is_in(pattern: &Option<Regex>, character: char) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(character.encode_utf8(&mut [0; 4])))
}

/// A decimal digit of any script.
pub(super) fn is_decimal(character: char) -> bool {
    static DECIMAL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Nd}$").ok());
    character.is_ascii_digit() || character.is_numeric() && is_in(&DECIMAL, character)
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
    static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{L}$").ok());
    if character.is_ascii() { character.is_ascii_alphabetic() } else { is_in(&LETTER, character) }
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
        // Georgian has no title case.
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

/// The number of characters that a text is shorter than `width`.
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

fn split(call: &Call<'_>) -> Result {
    let max = call.get(1).map(as_index).transpose()?.and_then(|max| usize::try_from(max).ok());
    let from_end = call.name == "rsplit";
    let parts = match call.given(0).map(|separator| call.as_text(separator)).transpose()? {
        None => split_spaces(call.str(), max, from_end),
        Some("") => return Err(error(format!("`{}` with an empty separator", call.name))),
        Some(separator) => {
            let n = max.map_or(usize::MAX, |max| max.saturating_add(1));
            match from_end {
                false => call.str().splitn(n, separator).collect(),
                true => {
                    let mut parts: Vec<&str> = call.str().rsplitn(n, separator).collect();
                    parts.reverse();
                    parts
                }
            }
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn partition(call: &Call<'_>) -> Result {
    let (text, separator, from_end) = (call.str(), call.text(0)?, call.name == "rpartition");
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

/// The part of the text between the second and the third argument, and the index of its first character. `None` if the
/// text ends before that.
fn part<'a>(call: &'a Call<'_>) -> Result<Option<(&'a str, usize)>> {
    let text = call.str();
    let len = text.chars().count() as i64;
    let place = |bound: Option<&Value>, default: i64| match bound {
        None => Ok(default),
        Some(bound) => as_index(bound).map(|at| if at < 0 { (at + len).max(0) } else { at }),
    };
    let Range { start, end } = place(call.given(1), 0)?..place(call.given(2), len)?.min(len);
    if start > len || end < start {
        return Ok(None);
    }
    let byte = |at: i64| {
        let at = usize::try_from(at).unwrap_or(0);
        text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte)
    };
    Ok(text.get(byte(start)..byte(end)).map(|part| (part, usize::try_from(start).unwrap_or(0))))
}

/// `find`, `rfind`, `index`, `rindex`: the character at which the text is found.
fn find(call: &Call<'_>) -> Result {
    let sub = call.text(0)?;
    let found = part(call)?.and_then(|(part, first)| {
        let at = if call.name.starts_with('r') { part.rfind(sub) } else { part.find(sub) }?;
        Some(first + part.get(..at)?.chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if call.name.ends_with("find") => Ok((-1).into()),
        None => Err(error(format!("`{}` does not find the text", call.name))),
    }
}

fn count(call: &Call<'_>) -> Result {
    let sub = call.text(0)?;
    Ok(part(call)?.map_or(0, |(part, _)| part.matches(sub).count()).into())
}

/// `startswith` and `endswith`, with one text or a tuple of several.
fn has_affix(call: &Call<'_>, has: fn(&str, &str) -> bool) -> Result {
    let affix = call.needed(0)?;
    let affixes = if Type::of(affix) == Type::Tuple { items(affix)? } else { vec![affix.clone()] };
    let part = part(call)?;
    let mut is_found = false;
    for affix in &affixes {
        let affix = call.as_text(affix)?;
        is_found |= part.is_some_and(|(part, _)| has(part, affix));
    }
    Ok(is_found.into())
}

fn strip(call: &Call<'_>) -> Result {
    let set = call.given(0).map(|characters| call.as_text(characters)).transpose()?;
    let is_removed = |character: char| set.map_or_else(|| is_space(character), |set| set.contains(character));
    let text = if call.name == "rstrip" { call.str() } else { call.str().trim_start_matches(is_removed) };
    call.markup(if call.name == "lstrip" { text } else { text.trim_end_matches(is_removed) })
}

/// `text.replace(old, new, count)`; a negative count replaces all.
pub(super) fn replace(text: &str, old: &str, new: &str, count: i64) -> String {
    match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    }
}

fn join(call: &Call<'_>) -> Result {
    let list = items(call.needed(0)?)?;
    let texts = list.iter().map(|item| call.as_text(item)).collect::<Result<Vec<_>>>()?;
    call.markup(texts.join(call.str()))
}

fn justify(call: &Call<'_>, justified: fn(&str, i64, char) -> String) -> Result {
    let width = call.index(0)?;
    let mut fills = call.text_or(1, " ")?.chars();
    let (Some(fill), None) = (fills.next(), fills.next()) else {
        return Err(error(format!("`{}` fills with one character", call.name)));
    };
    call.markup(justified(call.str(), width, fill))
}

fn translate(call: &Call<'_>) -> Result {
    let table = call.needed(0)?;
    let mut out = String::new();
    for character in call.str().chars() {
        let mapped = table.get_item(&u32::from(character).into())?;
        match Type::of(&mapped) {
            Type::Undefined => out.push(character),
            Type::None => {}
            Type::Str => out.push_str(mapped.as_str().unwrap_or_default()),
            _ => out.extend(u32::try_from(as_index(&mapped)?).ok().and_then(char::from_u32)),
        }
    }
    call.markup(out)
}

/// Whether the text is not empty and `is_so` holds for all characters.
fn all(call: &Call<'_>, is_so: fn(char) -> bool) -> Result {
    Ok((!call.str().is_empty() && call.str().chars().all(is_so)).into())
}

fn is_identifier(text: &str) -> bool {
    let starts = text.chars().next().is_some_and(|first| first == '_' || first.is_alphabetic());
    starts && text.chars().all(|character| character == '_' || character.is_alphanumeric())
}
