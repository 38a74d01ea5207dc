//! Filters of texts.

use minijinja::Value;

pub(super) use super::strings::capitalized;
use super::{
    Result, Type, as_index,
    calls::Call,
    error, escaped, format, items, numbers,
    objects::pairs,
    strings::{self, centered, is_alphanumeric, is_space, lines},
    text, tuple,
};

/// A filter that only changes a text.
pub(super) fn change(call: &Call<'_>, changed: impl Fn(&str) -> String) -> Result {
    call.markup(changed(&call.shown()?))
}

pub(super) fn string(call: &Call<'_>) -> Result {
    if call.value.as_str().is_some() { Ok(call.value.clone()) } else { Ok(call.shown()?.into()) }
}

pub(super) fn force_escape(call: &Call<'_>) -> Result {
    Ok(Value::from_safe_string(escaped(&call.shown()?)))
}

pub(super) fn escape(call: &Call<'_>) -> Result {
    if call.value.is_safe() { Ok(call.value.clone()) } else { force_escape(call) }
}

pub(super) fn format(call: &Call<'_>) -> Result {
    let values = match (&call.arguments.positional[..], &call.arguments.named[..]) {
        (positional, []) => tuple(positional.to_vec()),
        ([], named) => Value::from_pairs(named.iter().cloned()),
        _ => return Err(error("`format` takes values by position or by name, not both")),
    };
    format::percent(&string(call)?, &values)
}

pub(super) fn center(call: &Call<'_>) -> Result {
    call.markup(centered(&call.shown()?, call.index_or(0, 80)?, ' '))
}

pub(super) fn replace(call: &Call<'_>) -> Result {
    let (old, new) = (text(call.needed(0)?)?, text(call.needed(1)?)?);
    let count = call.given(2).map_or(Ok(-1), as_index)?;
    Ok(strings::replace(&call.shown()?, &old, &new, count).into())
}

pub(super) fn trim(call: &Call<'_>) -> Result {
    let whole = call.shown()?;
    call.markup(match call.given(0) {
        None => strings::stripped(&whole),
        Some(characters) => {
            let set = call.as_text(characters)?;
            whole.trim_matches(|character| set.contains(character))
        }
    })
}

pub(super) fn count(call: &Call<'_>) -> Result {
    let is_word = |character: char| character == '_' || is_alphanumeric(character);
    Ok(call.shown()?.split(|character| !is_word(character)).filter(|word| !word.is_empty()).count().into())
}

/// Words begin after white space, hyphens and opening brackets.
pub(super) fn title(text: &str) -> String {
    let mut out = String::new();
    let mut is_first = true;
    for character in text.chars() {
        if is_space(character) || "-({[<".contains(character) {
            out.push(character);
            is_first = true;
        } else if is_first {
            out.extend(character.to_uppercase());
            is_first = false;
        } else {
            out.extend(character.to_lowercase());
        }
    }
    out
}

/// A line break is added first, so that a line break at the end is followed by an empty line.
pub(super) fn indent(call: &Call<'_>) -> Result {
    let indentation = match call.get(0) {
        Some(width) if let Some(text) = width.as_str() => text.to_owned(),
        _ => " ".repeat(usize::try_from(call.index_or(0, 4)?).unwrap_or(0)),
    };
    let whole = if call.value.is_undefined() { "" } else { call.as_text(call.value)? };
    let with_end = format!("{whole}\n");
    let mut out = String::new();
    for (index, line) in lines(&with_end, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_indented = if index == 0 { call.is_true(1) } else { call.is_true(2) || !line.is_empty() };
        if is_indented {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    call.markup(out)
}

pub(super) fn truncate(call: &Call<'_>) -> Result {
    let (length, end) = (call.index_or(0, 255)?, call.text_or(2, "...")?);
    let leeway = call.given(3).map_or(Ok(5), as_index)?;
    let whole = call.shown()?;
    let (n_characters, n_end) = (whole.chars().count() as i64, end.chars().count() as i64);
    if length < n_end || leeway < 0 {
        return Err(error(format!("`truncate` needs a length of at least {n_end} and a leeway of at least 0")));
    }
    if n_characters <= length + leeway {
        return Ok(whole.into());
    }
    let kept: String = whole.chars().take(usize::try_from(length - n_end).unwrap_or(0)).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !call.is_true(1) => words,
        _ => &kept,
    };
    Ok((kept.to_owned() + end).into())
}

pub(super) fn wrap(call: &Call<'_>) -> Result {
    let width = usize::try_from(call.index_or(0, 79)?).unwrap_or(0);
    if width == 0 {
        return Err(error("`wordwrap` needs a width of at least 1"));
    }
    let separator = call.given(2).map_or_else(|| Ok("\n".to_owned()), text)?;
    let breaks_long = call.get(1).is_none_or(Value::is_true);
    let breaks_hyphens = call.get(3).is_none_or(Value::is_true);
    let wrapped: Vec<String> = lines(call.as_text(call.value)?, false)
        .into_iter()
        .map(|line| wrapped_line(chunks(line, breaks_hyphens), width, breaks_long, breaks_hyphens).join(&separator))
        .collect();
    Ok(wrapped.join(&separator).into())
}

/// White space at which `textwrap` breaks lines.
fn is_break(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\x0b' | '\x0c' | '\r' | ' ')
}

/// Words and the white space between them; words are cut after hyphens between letters, and around dashes.
fn chunks(line: &str, breaks_hyphens: bool) -> Vec<Vec<char>> {
    let all: Vec<char> = line.chars().collect();
    let mut chunks: Vec<Vec<char>> = Vec::new();
    let mut start = 0;
    for at in 1..=all.len() {
        let is_cut = at == all.len()
            || is_break(all[at - 1]) != is_break(all[at])
            || breaks_hyphens && is_hyphen_cut(&all, start, at);
        if is_cut {
            chunks.push(all[start..at].to_vec());
            start = at;
        }
    }
    chunks
}

/// Whether a word is cut before character `at`: after a hyphen between two letters, or at a dash.
fn is_hyphen_cut(all: &[char], start: usize, at: usize) -> bool {
    let is_letter = |at: Option<usize>| {
        at.and_then(|at| all.get(at)).is_some_and(|letter| *letter == '_' || letter.is_alphabetic())
    };
    let is_word = |at: usize| all.get(at).is_some_and(|letter| *letter == '_' || is_alphanumeric(*letter));
    let is_punctuated = |at: usize| is_word(at) || all.get(at).is_some_and(|letter| "!\"'&.,?".contains(*letter));
    let back = |n: usize| at.checked_sub(n).filter(|at| *at >= start);
    if all[at - 1] == '-' {
        let after = is_letter(Some(at))
            && (is_letter(Some(at + 1)) || all.get(at + 1) == Some(&'-') && is_letter(Some(at + 2)));
        let two = is_letter(at.checked_sub(2)) && is_letter(at.checked_sub(3));
        let alternating = is_letter(at.checked_sub(2))
            && at.checked_sub(3).is_some_and(|at| all[at] == '-')
            && is_letter(at.checked_sub(4));
        // The end of a dash.
        let is_dash = all[start..at].iter().all(|letter| *letter == '-')
            && at - start >= 2
            && start.checked_sub(1).is_some_and(is_punctuated)
            && is_word(at);
        return after && (two || alternating) || is_dash;
    }
    // The start of a dash.
    let n_dashes = all[at..].iter().take_while(|letter| **letter == '-').count();
    n_dashes >= 2 && back(1).is_some_and(is_punctuated) && is_word(at + n_dashes)
}

/// The lines of Python's `textwrap.wrap`.
fn wrapped_line(chunks: Vec<Vec<char>>, width: usize, breaks_long: bool, breaks_hyphens: bool) -> Vec<String> {
    let is_blank = |chunk: &Vec<char>| chunk.iter().all(|character| is_space(*character));
    let mut rest: Vec<Vec<char>> = chunks.into_iter().rev().collect();
    let mut lines: Vec<String> = Vec::new();
    while !rest.is_empty() {
        if !lines.is_empty() && rest.last().is_some_and(is_blank) {
            rest.pop();
        }
        let mut line: Vec<Vec<char>> = Vec::new();
        let mut len = 0;
        while let Some(chunk) = rest.pop_if(|chunk| len + chunk.len() <= width) {
            len += chunk.len();
            line.push(chunk);
        }
        if rest.last().is_some_and(|chunk| chunk.len() > width) {
            let left = width - len;
            if breaks_long {
                if let Some(chunk) = rest.last_mut() {
                    let hyphen = chunk[..left.min(chunk.len())].iter().rposition(|letter| *letter == '-');
                    let hyphen = hyphen
                        .filter(|at| breaks_hyphens && *at > 0 && chunk[..*at].iter().any(|letter| *letter != '-'));
                    let at = hyphen.map_or(left, |at| at + 1);
                    line.push(chunk.drain(..at).collect());
                }
            } else if line.is_empty() {
                line.extend(rest.pop());
            }
        }
        if line.last().is_some_and(is_blank) {
            line.pop();
        }
        if !line.is_empty() {
            lines.push(line.concat().into_iter().collect());
        }
    }
    lines
}

/// Without comments and tags; white space becomes single spaces, and entities become characters.
pub(super) fn strip_tags(call: &Call<'_>) -> Result {
    let plain = without(&without(&call.shown()?, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = plain.split(is_space).filter(|word| !word.is_empty()).collect();
    Ok(unescaped(&words.join(" "))?.into())
}

/// Removes everything between `open` and `close`, including these.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(open) {
        let (before, from) = rest.split_at(start);
        let Some(end) = from.find(close) else { break };
        out.push_str(before);
        rest = &from[end + close.len()..];
    }
    out + rest
}

fn unescaped(text: &str) -> Result<String> {
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((entity, rest)) = part.split_once(';') else {
            out.push('&');
            out.push_str(part);
            continue;
        };
        let number = entity.strip_prefix('#').map(|number| match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => number.parse().ok(),
        });
        out.push(match (entity, number) {
            ("amp", _) => '&',
            ("lt", _) => '<',
            ("gt", _) => '>',
            ("quot", _) => '"',
            ("apos", _) => '\'',
            ("nbsp", _) => '\u{a0}',
            (_, Some(number)) => number.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER),
            _ => return Err(error(format!("`striptags` does not know the entity `&{entity};`"))),
        });
        out.push_str(rest);
    }
    Ok(out)
}

pub(super) fn url_encode(call: &Call<'_>) -> Result {
    let pairs = match Type::of(call.value) {
        Type::Dict => pairs(call.value)?,
        Type::List | Type::Tuple | Type::View | Type::Generator => items(call.value)?,
        _ => return Ok(percent_encoded(&call.shown()?, "/").into()),
    };
    let encode = |value: &Value| text(value).map(|text| percent_encoded(&text, "").replace("%20", "+"));
    let encoded = pairs.iter().map(|pair| match &items(pair)?[..] {
        [name, value] => Ok(format!("{}={}", encode(name)?, encode(value)?)),
        _ => Err(error("`urlencode` needs pairs")),
    });
    Ok(encoded.collect::<Result<Vec<_>>>()?.join("&").into())
}

fn percent_encoded(text: &str, safe: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        let character = char::from(byte);
        match character.is_ascii_alphanumeric() || "_.-~".contains(character) || safe.contains(character) {
            true => out.push(character),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub(super) fn attributes(call: &Call<'_>) -> Result {
    if Type::of(call.value) != Type::Dict {
        return Err(call.unsuitable());
    }
    let mut out = String::new();
    for key in call.value.try_iter()? {
        let item = call.value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let key = text(&key)?;
        if key.contains(|character: char| is_space(character) || "/>=".contains(character)) {
            return Err(error(format!("`xmlattr` with the invalid name `{key}`")));
        }
        if !out.is_empty() || call.get(0).is_none_or(Value::is_true) {
            out.push(' ');
        }
        let item = if item.is_safe() { text(&item)? } else { escaped(&text(&item)?) };
        out.push_str(&format!("{}=\"{item}\"", escaped(&key)));
    }
    Ok(out.into())
}

pub(super) fn file_size(call: &Call<'_>) -> Result {
    let bytes = numbers::number(call.value).ok_or_else(|| call.unsuitable())?;
    let (base, infix, prefixes) = if call.is_true(0) { (1024.0, "i", "KMGTPEZY") } else { (1000.0, "", "kMGTPEZY") };
    if bytes < base {
        return Ok(if bytes == 1.0 { "1 Byte".into() } else { format!("{} Bytes", bytes.trunc()).into() });
    }
    let (mut unit, mut n) = (base, 0);
    while n + 1 < prefixes.len() && bytes >= unit * base {
        unit *= base;
        n += 1;
    }
    Ok(format!("{:.1} {}{infix}B", bytes / unit, &prefixes[n..=n]).into())
}
