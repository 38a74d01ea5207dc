//! Characters as JSON writes them within a string, as regular expressions over the JSON text.
//!
//! A character has these spellings: printable ASCII and DEL are written as they are, except `"` and `\`, which have a
//! backslash; the control characters that have a short escape such as `\n` have only that; other control characters, DEL
//! and everything that is not ASCII may be written as `\uXXXX`. These are the spellings that JSON libraries write.

use std::{collections::BTreeMap, fmt::Write, sync::LazyLock};

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// Ranges of numbers, both ends included.
type Ranges = Vec<(u32, u32)>;

/// Characters with an escape of two characters, and its second one.
const SHORT_ESCAPES: [(char, char); 7] =
    [('"', '"'), ('\\', '\\'), ('\u{8}', 'b'), ('\u{c}', 'f'), ('\n', 'n'), ('\r', 'r'), ('\t', 't')];

/// Any character.
pub(super) static ANY: LazyLock<String> =
    LazyLock::new(|| one_of(&complement(&ClassUnicode::empty())).unwrap_or_default());

/// The set of these ranges, both ends included.
pub(super) fn set(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|&(first, last)| ClassUnicodeRange::new(first, last)))
}

pub(super) fn complement(set: &ClassUnicode) -> ClassUnicode {
    let mut others = set.clone();
    others.negate();
    others
}

fn without(set: &ClassUnicode, others: &ClassUnicode) -> ClassUnicode {
    let mut rest = set.clone();
    rest.difference(others);
    rest
}

/// The spellings of a text, without quotes.
pub(super) fn literal(text: &str) -> String {
    text.chars().filter_map(|character| one_of(&set(&[(character, character)]))).collect()
}

/// All spellings of the characters of a set, as a group; `None` if it is empty.
pub(super) fn one_of(characters: &ClassUnicode) -> Option<String> {
    let short = set(&SHORT_ESCAPES.map(|(character, _)| (character, character)));
    let control = set(&[('\0', '\x1f')]);
    let raw = without(&without(characters, &short), &control);
    let hex = without(&without(characters, &short), &set(&[(' ', '~')]));
    let mut spellings = Vec::new();
    if !raw.ranges().is_empty() {
        spellings.push(bracketed(&raw));
    }
    let escapes: String = SHORT_ESCAPES
        .iter()
        .filter(|(character, _)| characters.iter().any(|range| (range.start()..=range.end()).contains(character)))
        .map(|(_, escape)| if escape.is_alphabetic() { escape.to_string() } else { format!("\\{escape}") })
        .collect();
    if !escapes.is_empty() {
        spellings.push(format!("\\\\[{escapes}]"));
    }
    spellings.extend(hex_escapes(&hex));
    match spellings.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        _ => Some(format!("(?:{})", spellings.join("|"))),
    }
}

fn bracketed(set: &ClassUnicode) -> String {
    if let [range] = set.ranges()
        && range.start() == range.end()
        && range.start().is_ascii_alphanumeric()
    {
        return range.start().to_string();
    }
    let mut class = String::from("[");
    for range in set.iter() {
        let _ = write!(class, "\\x{{{:X}}}", u32::from(range.start()));
        if range.end() > range.start() {
            let _ = write!(class, "-\\x{{{:X}}}", u32::from(range.end()));
        }
    }
    class + "]"
}

/// Escapes `\uXXXX`, two of them for characters beyond U+FFFF.
fn hex_escapes(set: &ClassUnicode) -> Option<String> {
    let ranges: Ranges = set.iter().map(|range| (range.start().into(), range.end().into())).collect();
    let single = [clipped(&ranges, 0, 0xd7ff), clipped(&ranges, 0xe000, 0xffff)].concat();
    let mut alternatives: Vec<String> =
        four_digits(&single).into_iter().map(|digits| format!("\\\\u{digits}")).collect();
    // Second units by first units that have them.
    let mut pairs: BTreeMap<Ranges, Ranges> = BTreeMap::new();
    for block in 0..0x400 {
        let first = 0x10000 + block * 0x400;
        let seconds: Ranges = clipped(&ranges, first, first + 0x3ff)
            .into_iter()
            .map(|(from, to)| (from - first + 0xdc00, to - first + 0xdc00))
            .collect();
        if !seconds.is_empty() {
            pairs.entry(seconds).or_default().push((0xd800 + block, 0xd800 + block));
        }
    }
    for (seconds, firsts) in pairs {
        let (firsts, seconds) = (four_digits(&firsts)?, four_digits(&seconds)?);
        alternatives.push(format!("\\\\u{firsts}\\\\u{seconds}"));
    }
    match alternatives.len() {
        0 => None,
        1 => alternatives.pop(),
        _ => Some(format!("(?:{})", alternatives.join("|"))),
    }
}

fn clipped(ranges: &[(u32, u32)], least: u32, most: u32) -> Ranges {
    let clip = |&(from, to): &(u32, u32)| (from.max(least), to.min(most));
    ranges.iter().map(clip).filter(|(from, to)| from <= to).collect()
}

fn four_digits(ranges: &[(u32, u32)]) -> Option<String> {
    digits(ranges, 4)
}

/// The numbers of some ranges with `n` hexadecimal digits; `None` without ranges.
fn digits(ranges: &[(u32, u32)], n: u32) -> Option<String> {
    let all = 16u32.pow(n);
    match ranges {
        [] => return None,
        _ if n == 0 => return Some(String::new()),
        [(0, last)] if *last == all - 1 => return Some(format!("[0-9a-fA-F]{{{n}}}")),
        _ => {}
    }
    // First digits by what follows them.
    let mut first_digits: Vec<(String, Vec<u32>)> = Vec::new();
    for digit in 0..16 {
        let unit = all / 16;
        let rest: Ranges = clipped(ranges, digit * unit, digit * unit + unit - 1)
            .into_iter()
            .map(|(from, to)| (from - digit * unit, to - digit * unit))
            .collect();
        let Some(rest) = digits(&joined(rest), n - 1) else { continue };
        match first_digits.iter_mut().find(|(other, _)| *other == rest) {
            Some((_, digits)) => digits.push(digit),
            None => first_digits.push((rest, vec![digit])),
        }
    }
    let alternatives: Vec<String> = first_digits
        .into_iter()
        .map(|(rest, digits)| {
            let class: String = digits
                .into_iter()
                .filter_map(|digit| char::from_digit(digit, 16))
                .flat_map(
                    |digit| if digit.is_alphabetic() { vec![digit, digit.to_ascii_uppercase()] } else { vec![digit] },
                )
                .collect();
            format!("[{class}]{rest}")
        })
        .collect();
    Some(if alternatives.len() == 1 { alternatives.concat() } else { format!("(?:{})", alternatives.join("|")) })
}

/// Sorted ranges, with adjacent ones joined.
fn joined(ranges: Ranges) -> Ranges {
    let mut result: Ranges = Vec::new();
    for (from, to) in ranges {
        match result.last_mut() {
            Some(last) if last.1 + 1 == from => last.1 = to,
            _ => result.push((from, to)),
        }
    }
    result
}
