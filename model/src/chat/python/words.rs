//! Filters of texts.

use minijinja::Value;

use super::{
    Arguments, Result, Type, as_float, as_index, as_text, error, escaped, format, is_true, items, numbers, required,
    strings::{self, capitalized, centered, is_alphanumeric, is_space, lines},
    text, tuple,
};

/// Applies a filter of texts.
pub(super) fn apply(name: &str, value: &Value, arguments: &Arguments) -> Result {
    let markup = |text: String| if value.is_safe() { Value::from_safe_string(text) } else { text.into() };
    match name {
        "format" => {
            let values = match (&arguments.positional[..], &arguments.named[..]) {
                (positional, []) => tuple(positional.to_vec()),
                ([], named) => Value::from_pairs(named.iter().cloned()),
                _ => return Err(error("`format` takes values by position or by name, not both")),
            };
            return format::percent(
                &if value.as_str().is_some() { value.clone() } else { text(value)?.into() },
                &values,
            );
        }
        "center" => {
            let [width] = arguments.bind(name, ["width"])?;
            let width = width.as_ref().map_or(Ok(80), as_index)?;
            return Ok(markup(centered(&text(value)?, width, ' ')));
        }
        "indent" => return indent(value, arguments),
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(name, "old", old)?, required(name, "new", new)?);
            let count = count.filter(|count| !count.is_none()).as_ref().map_or(Ok(-1), as_index)?;
            return Ok(strings::replace(&text(value)?, &text(&old)?, &text(&new)?, count).into());
        }
        "trim" => {
            let [characters] = arguments.bind(name, ["chars"])?;
            let characters = characters.filter(|characters| !characters.is_none());
            let whole = text(value)?;
            return Ok(markup(match &characters {
                None => strings::stripped(&whole).to_owned(),
                Some(characters) => {
                    let set: Vec<char> = as_text(name, characters)?.chars().collect();
                    whole.trim_matches(&set[..]).to_owned()
                }
            }));
        }
        "truncate" => return truncate(value, arguments),
        "wordwrap" => return wrap(value, arguments),
        "xmlattr" => return attributes(value, arguments),
        "filesizeformat" => return file_size(value, arguments),
        _ => arguments.none(name)?,
    }
    Ok(match name {
        "capitalize" => markup(capitalized(&text(value)?)),
        "lower" => markup(text(value)?.to_lowercase()),
        "upper" => markup(text(value)?.to_uppercase()),
        "title" => markup(title(&text(value)?)),
        "string" if value.as_str().is_some() => value.clone(),
        "string" => text(value)?.into(),
        "safe" => Value::from_safe_string(text(value)?),
        "escape" | "e" if value.is_safe() => value.clone(),
        "striptags" => strip_tags(&text(value)?)?.into(),
        "wordcount" => {
            let whole = text(value)?;
            let is_word = |character: char| character == '_' || is_alphanumeric(character);
            whole.split(|character| !is_word(character)).filter(|word| !word.is_empty()).count().into()
        }
        "urlencode" => url_encoded(value)?.into(),
        _ => Value::from_safe_string(escaped(&text(value)?)),
    })
}

/// Words begin behind white space, hyphens and opening brackets.
fn title(text: &str) -> String {
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
fn indent(value: &Value, arguments: &Arguments) -> Result {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"])?;
    let indentation = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(as_index(width)?).unwrap_or(0)),
        },
    };
    let whole = match Type::of(value) {
        Type::Undefined => String::new(),
        _ => as_text("indent", value)?.to_owned(),
    };
    let with_end = whole + "\n";
    let mut out = String::new();
    for (index, line) in lines(&with_end, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_indented = match index {
            0 => is_true(first.as_ref()),
            _ => is_true(blank.as_ref()) || !line.is_empty(),
        };
        if is_indented {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(if value.is_safe() { Value::from_safe_string(out) } else { out.into() })
}

fn truncate(value: &Value, arguments: &Arguments) -> Result {
    let [length, kill_words, end, leeway] = arguments.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = length.as_ref().map_or(Ok(255), as_index)?;
    let leeway = leeway.filter(|leeway| !leeway.is_none()).as_ref().map_or(Ok(5), as_index)?;
    let end = end.map_or_else(|| Ok("...".to_owned()), |end| as_text("truncate", &end).map(str::to_owned))?;
    let whole = text(value)?;
    let (n_characters, n_end) = (whole.chars().count() as i64, end.chars().count() as i64);
    if length < n_end || leeway < 0 {
        return Err(error(format!("`truncate` needs a length of at least {n_end} and a leeway of at least 0")));
    }
    if n_characters <= length + leeway {
        return Ok(whole.into());
    }
    let kept: String = whole.chars().take(usize::try_from(length - n_end).unwrap_or(0)).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !is_true(kill_words.as_ref()) => words,
        _ => &kept,
    };
    Ok((kept.to_owned() + &end).into())
}

fn wrap(value: &Value, arguments: &Arguments) -> Result {
    let [width, break_long, separator, break_hyphens] =
        arguments.bind("wordwrap", ["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let width = usize::try_from(width.as_ref().map_or(Ok(79), as_index)?).unwrap_or(0);
    if width == 0 {
        return Err(error("`wordwrap` needs a width of at least 1"));
    }
    let separator = separator.filter(|separator| !separator.is_none());
    let separator = separator.map_or_else(|| Ok("\n".to_owned()), |separator| text(&separator))?;
    let breaks_long = break_long.is_none_or(|value| value.is_true());
    let breaks_hyphens = break_hyphens.is_none_or(|value| value.is_true());
    let whole = as_text("wordwrap", value)?;
    let wrapped: Vec<String> = lines(whole, false)
        .into_iter()
        .map(|line| wrapped_line(chunks(line, breaks_hyphens), width, breaks_long, breaks_hyphens).join(&separator))
        .collect();
    Ok(wrapped.join(&separator).into())
}

/// White space at which `textwrap` breaks lines.
fn is_break(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\x0b' | '\x0c' | '\r' | ' ')
}

/// Words and the white space between them; words are cut behind hyphens between letters, and around dashes.
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

/// Whether a word is cut in front of character `at`: behind a hyphen that two letters precede and follow, or at a dash.
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
fn strip_tags(text: &str) -> Result<String> {
    let plain = without(&without(text, "<!--", "-->"), "<", ">");
    unescaped(&plain.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

/// The text without what is between `open` and `close`, and these.
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

fn url_encoded(value: &Value) -> Result<String> {
    let pairs = match Type::of(value) {
        Type::Dict => super::objects::pairs(value)?,
        Type::List | Type::Tuple | Type::View | Type::Generator => items(value)?,
        _ => return Ok(percent_encoded(&text(value)?, "/")),
    };
    let encode = |value: &Value| text(value).map(|text| percent_encoded(&text, "").replace("%20", "+"));
    let mut encoded = Vec::new();
    for pair in &pairs {
        match &items(pair)?[..] {
            [name, value] => encoded.push(format!("{}={}", encode(name)?, encode(value)?)),
            _ => return Err(error("`urlencode` needs pairs")),
        }
    }
    Ok(encoded.join("&"))
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

fn attributes(value: &Value, arguments: &Arguments) -> Result {
    let [space] = arguments.bind("xmlattr", ["autospace"])?;
    if Type::of(value) != Type::Dict {
        return Err(error(format!("`xmlattr` of a {}", Type::of(value).name())));
    }
    let mut out = String::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let key = text(&key)?;
        if key.contains(|character: char| is_space(character) || "/>=".contains(character)) {
            return Err(error(format!("`xmlattr` with the invalid name `{key}`")));
        }
        if !out.is_empty() || space.as_ref().is_none_or(Value::is_true) {
            out.push(' ');
        }
        let item = if item.is_safe() { text(&item)? } else { escaped(&text(&item)?) };
        out.push_str(&format!("{}=\"{item}\"", escaped(&key)));
    }
    Ok(out.into())
}

fn file_size(value: &Value, arguments: &Arguments) -> Result {
    let [binary] = arguments.bind("filesizeformat", ["binary"])?;
    let is_binary = is_true(binary.as_ref());
    let bytes = as_float(&numbers::to_float(value, ().into())?)
        .ok_or_else(|| error(format!("`filesizeformat` of a {}", Type::of(value).name())))?;
    let (base, infix) = if is_binary { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()).into());
    }
    let prefixes = if is_binary { "KMGTPEZY" } else { "kMGTPEZY" };
    let mut unit = base;
    for (index, prefix) in prefixes.chars().enumerate() {
        if bytes < unit * base || index == 7 {
            return Ok(format!("{:.1} {prefix}{infix}B", bytes / unit).into());
        }
        unit *= base;
    }
    Err(error("`filesizeformat` of a number that is too large"))
}
