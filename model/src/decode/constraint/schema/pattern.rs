//! Patterns of JSON Schema (regular expressions of ECMA-262) as regular expressions over the JSON text of a string.
//!
//! A pattern matches anywhere in a string unless it has anchors. The libraries that check answers often use their
//! language's own expressions, in which `\w`, `\s`, `.` and `$` differ from ECMA-262. So each expression is translated
//! twice: to the strings that it matches in all of these dialects, and to the strings that it matches in any of them.

mod parser;

use self::parser::{Node, Parser};
use super::characters::{ANY, one_of, set};

/// Sets with more ranges of characters are simplified where that is right.
const MAX_RANGES: usize = 100;

/// Maximum length of the translation in bytes.
const MAX_BYTES: usize = 4 << 20;

/// An expression over JSON text, without quotes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Expression {
    /// The strings that it matches in every dialect.
    pub(super) surely: String,
    /// The strings that it matches in some dialect.
    pub(super) maybe: String,
}

/// The strings that match all of some expressions and none of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    pub(super) all: Vec<Expression>,
    pub(super) none: Vec<Expression>,
}

impl Pattern {
    /// Translates a pattern.
    ///
    /// # Errors
    /// The pattern is invalid or not supported; says what.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        let mut parser = Parser::new(source)?;
        let mut pattern = Self::default();
        if parser.follows("^(?=") || parser.follows("^(?!") {
            parser.at += 1;
            while parser.follows("(?=") || parser.follows("(?!") {
                let is_wanted = parser.follows("(?=");
                parser.at += 3;
                let ahead = parser.alternatives()?;
                parser.expect(')')?;
                if matches!(parser.peek(), Some('*' | '+' | '?' | '{')) {
                    return Err("repeats a lookahead".into());
                }
                let list = if is_wanted { &mut pattern.all } else { &mut pattern.none };
                list.push(Expression::new(&Node::Concat(vec![Node::Start, ahead]))?);
            }
            let rest = parser.sequence()?;
            if parser.peek() == Some('|') {
                return Err("has a lookahead in one of several alternatives".into());
            }
            pattern.all.push(Expression::new(&Node::Concat(vec![Node::Start, rest]))?);
        } else {
            pattern.all.push(Expression::new(&parser.alternatives()?)?);
        }
        match parser.peek() {
            None => Ok(pattern),
            Some(_) => Err("has a `)` without a `(`".into()),
        }
    }

    /// A format. Its pattern matches only some strings of the format, so no string is certain to be outside the format.
    pub(super) fn of_format(source: &str) -> Result<Self, String> {
        let mut pattern = Self::new(source)?;
        pattern.all.iter_mut().for_each(|expression| expression.maybe = format!("{}*", *ANY));
        Ok(pattern)
    }

    /// The strings that match both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let joined = |left: &[Expression], right: &[Expression]| {
            let mut all = [left, right].concat();
            all.sort();
            all.dedup();
            all
        };
        Self { all: joined(&self.all, &other.all), none: joined(&self.none, &other.none) }
    }

    /// The strings that do not match, as several patterns.
    pub(super) fn others(&self) -> Vec<Self> {
        let refused = self.all.iter().map(|regex| Self { all: Vec::new(), none: vec![regex.clone()] });
        let wanted = self.none.iter().map(|regex| Self { all: vec![regex.clone()], none: Vec::new() });
        refused.chain(wanted).collect()
    }
}

/// The translation of a node by its anchors: whether its match begins at the start of the text (1), and whether it ends
/// at the end of the text (2). Empty matches are separate, because their anchors apply at both ends.
#[derive(Clone, Debug, Default)]
struct Parts {
    empty: [bool; 4],
    full: [Option<String>; 4],
}

const START: usize = 1;
const END: usize = 2;

fn either(regexes: Vec<String>) -> Option<String> {
    match regexes.len() {
        0 | 1 => regexes.into_iter().next(),
        _ => Some(format!("(?:{})", regexes.join("|"))),
    }
}

impl Parts {
    fn of(node: &Node, dialects: Dialects) -> Result<Self, String> {
        let mut parts = Self::default();
        match node {
            Node::Start => parts.empty[START] = true,
            Node::End => {
                parts.empty[END] = true;
                if dialects == Dialects::Some {
                    // In some dialects, `$` matches before a line break at the end.
                    parts.full[END] = one_of(&set(&[('\n', '\n')]));
                }
            }
            Node::Set(least, _) if dialects == Dialects::All => parts.full[0] = one_of(least),
            Node::Set(_, most) => {
                let mut most = most.clone();
                if most.ranges().len() > MAX_RANGES {
                    // A larger set is as good here, and far less work for the lexer.
                    most.union(&set(&[('\u{80}', char::MAX)]));
                }
                parts.full[0] = one_of(&most);
            }
            Node::Concat(nodes) => {
                parts.empty[0] = true;
                for node in nodes {
                    parts = parts.then(&Self::of(node, dialects)?);
                    parts.check_size()?;
                }
            }
            Node::Either(nodes) => {
                let all = nodes.iter().map(|node| Self::of(node, dialects)).collect::<Result<Vec<_>, _>>()?;
                for flags in 0..4 {
                    parts.empty[flags] = all.iter().any(|part| part.empty[flags]);
                    parts.full[flags] = either(all.iter().filter_map(|part| part.full[flags].clone()).collect());
                }
            }
            Node::Repeat(node, least, most) => return Self::of(node, dialects)?.repeated(*least, *most),
        }
        parts.check_size()?;
        Ok(parts)
    }

    fn check_size(&self) -> Result<(), String> {
        let size: usize = self.full.iter().flatten().map(String::len).sum();
        if size > MAX_BYTES { Err("is too long".into()) } else { Ok(()) }
    }

    fn then(&self, next: &Self) -> Self {
        let mut both = Self::default();
        let mut found: [Vec<String>; 4] = Default::default();
        for first in 0..4 {
            for second in 0..4 {
                let flags = first | second;
                both.empty[flags] |= self.empty[first] && next.empty[second];
                if self.empty[first]
                    && first & END == 0
                    && let Some(full) = &next.full[second]
                {
                    found[flags].push(full.clone());
                }
                if let Some(full) = &self.full[first]
                    && next.empty[second]
                    && second & START == 0
                {
                    found[flags].push(full.clone());
                }
                if let (Some(left), Some(right)) = (&self.full[first], &next.full[second])
                    && first & END == 0
                    && second & START == 0
                {
                    found[flags].push(format!("{left}{right}"));
                }
            }
        }
        both.full = found.map(|mut regexes| {
            regexes.dedup();
            either(regexes)
        });
        both
    }

    fn repeated(&self, least: u32, most: Option<u32>) -> Result<Self, String> {
        let has_anchors = (1..4).any(|flags| self.empty[flags] || self.full[flags].is_some());
        let mut parts = Self::default();
        if !has_anchors {
            parts.empty[0] = least == 0 || self.empty[0];
            let least = if self.empty[0] { 0 } else { least };
            let count = match most {
                Some(most) => format!("{{{},{most}}}", least.max(1)),
                None if least <= 1 => "+".into(),
                None => format!("{{{least},}}"),
            };
            if most != Some(0) {
                parts.full[0] = self.full[0].as_ref().map(|full| format!("(?:{full}){count}"));
            }
            return Ok(parts);
        }
        if least > 1 || most.is_some_and(|most| most > 1) {
            return Err("repeats a group with anchors".into());
        }
        parts = self.clone();
        parts.empty[0] |= least == 0;
        if most.is_none() {
            // Anchored parts only first or last, others any number of times between them.
            let middle = self.full[0].as_ref().map_or(String::new(), |full| format!("(?:{full})*"));
            for flags in 0..4 {
                let mut regexes: Vec<String> = self.full[flags].clone().into_iter().collect();
                let (first, last) = (&self.full[flags & START], &self.full[flags & END]);
                if let (Some(first), Some(last)) = (first, last) {
                    regexes.push(format!("{first}{middle}{last}"));
                }
                parts.full[flags] = either(regexes);
            }
        }
        Ok(parts)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialects {
    All,
    Some,
}

impl Expression {
    /// # Errors
    /// No string matches, or the translation is too long.
    fn new(node: &Node) -> Result<Self, String> {
        let translated = |dialects| translation(node, dialects)?.ok_or_else(|| "matches no text".to_owned());
        Ok(Self { surely: translated(Dialects::All)?, maybe: translated(Dialects::Some)? })
    }
}

/// The strings in which a node matches; `None` if it matches none.
fn translation(node: &Node, dialects: Dialects) -> Result<Option<String>, String> {
    let parts = Parts::of(node, dialects)?;
    let anything = format!("{}*", *ANY);
    if parts.empty[0] || parts.empty[START] || parts.empty[END] {
        return Ok(Some(anything));
    }
    let mut regexes: Vec<String> = Vec::new();
    if parts.empty[START | END] {
        regexes.push(String::new());
    }
    for (flags, full) in parts.full.iter().enumerate() {
        let Some(full) = full else { continue };
        let before = if flags & START == 0 { &anything } else { "" };
        let after = if flags & END == 0 { &anything } else { "" };
        regexes.push(format!("{before}{full}{after}"));
    }
    Ok(either(regexes))
}
