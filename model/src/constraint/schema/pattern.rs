//! Patterns of JSON Schema (regular expressions of ECMA-262) as regular expressions over the JSON text of a string.
//!
//! A pattern matches anywhere in a string unless it has anchors. The libraries that check answers often use their
//! language's own expressions, in which `\w`, `\s`, `.` and `$` mean something else than in ECMA-262. So each expression is
//! translated twice: into the strings that all of them match, and into those that any of them matches.

use regex_syntax::hir::{Class, ClassUnicode, HirKind};

use super::characters::{ANY, complement, one_of, set};

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 50;

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
    /// What is wrong or not supported.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        let mut parser =
            Parser { rest: source.chars().collect(), at: 0, depth: 0, ignores_case: false, dot_is_all: false };
        parser.flags_of_all()?;
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

    /// A format: the pattern has only some of its strings, so none is surely not of the format.
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

#[derive(Clone, Debug)]
enum Node {
    /// Characters: in every dialect, and in some.
    Set(ClassUnicode, ClassUnicode),
    Concat(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
    Start,
    End,
}

struct Parser {
    rest: Vec<char>,
    at: usize,
    depth: usize,
    ignores_case: bool,
    dot_is_all: bool,
}

/// The least and the most of a count, as far as it says them.
type Count = (Option<u32>, Option<u32>);

/// A member of a class: one character, or a set, which is larger in some languages than in others.
enum Member {
    Char(char),
    Set { least: ClassUnicode, most: ClassUnicode },
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek();
        self.at += usize::from(character.is_some());
        character
    }

    fn follows(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, character)| self.rest.get(self.at + offset) == Some(&character))
    }

    fn expect(&mut self, character: char) -> Result<(), String> {
        match self.next() {
            Some(found) if found == character => Ok(()),
            _ => Err(format!("lacks a `{character}`")),
        }
    }

    /// Flags for the whole, as in `(?i)`.
    fn flags_of_all(&mut self) -> Result<(), String> {
        let Some(end) = self.rest.iter().position(|&character| character == ')') else { return Ok(()) };
        let is_flags = self.follows("(?") && end > 2 && self.rest[2..end].iter().all(char::is_ascii_alphabetic);
        if !is_flags {
            return Ok(());
        }
        for flag in &self.rest[2..end] {
            match *flag {
                'i' => self.ignores_case = true,
                's' => self.dot_is_all = true,
                'u' => {}
                other => return Err(format!("has the flag `{other}`, which is not supported")),
            }
        }
        self.at = end + 1;
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("must nest groups at most {MAX_DEPTH} deep"));
        }
        let mut alternatives = vec![self.sequence()?];
        while self.peek() == Some('|') {
            self.at += 1;
            alternatives.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(match alternatives.len() {
            1 => alternatives.remove(0),
            _ => Node::Either(alternatives),
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut parts = Vec::new();
        while let Some(character) = self.peek() {
            if matches!(character, '|' | ')') {
                break;
            }
            let part = self.part()?;
            parts.push(self.repeated(part)?);
        }
        Ok(Node::Concat(parts))
    }

    fn part(&mut self) -> Result<Node, String> {
        let character = self.next().unwrap_or_default();
        Ok(match character {
            '^' => Node::Start,
            '$' => Node::End,
            '.' => {
                let all = complement(&ClassUnicode::empty());
                let ends = [('\n', '\n'), ('\r', '\r'), ('\u{2028}', '\u{2029}')];
                if self.dot_is_all {
                    Node::Set(all.clone(), all)
                } else {
                    Node::Set(complement(&set(&ends)), complement(&set(&ends[..1])))
                }
            }
            '(' => self.group()?,
            '[' => {
                let (least, most) = self.class()?;
                Node::Set(least, most)
            }
            '*' | '+' | '?' => return Err(format!("has a `{character}` with nothing to repeat")),
            '{' if self.count_at(self.at - 1).is_some() => return Err("has a `{` with nothing to repeat".into()),
            '\\' => match self.peek() {
                Some('A') => self.taken(Node::Start),
                Some('Z' | 'z') => self.taken(Node::End),
                Some('b' | 'B') => return Err(r"has a word boundary (`\b`, `\B`), which is not supported".into()),
                _ => match self.escape()? {
                    Member::Char(character) => self.character(character),
                    Member::Set { least, most } => Node::Set(least, most),
                },
            },
            other => self.character(other),
        })
    }

    fn taken(&mut self, node: Node) -> Node {
        self.at += 1;
        node
    }

    fn character(&self, character: char) -> Node {
        let set = self.folded(set(&[(character, character)]));
        Node::Set(set.clone(), set)
    }

    /// The set, with all cases of its letters if case is ignored.
    fn folded(&self, mut set: ClassUnicode) -> ClassUnicode {
        if self.ignores_case {
            // Without tables for case folding, which the workspace has, the set stays as it is.
            let _ = set.try_case_fold_simple();
        }
        set
    }

    fn group(&mut self) -> Result<Node, String> {
        if self.peek() == Some('?') {
            self.at += 1;
            let kind: String = self.rest[self.at..].iter().take(2).collect();
            let lookaround = match kind.as_bytes() {
                [b'=' | b'!', ..] => Some("lookahead"),
                b"<=" | b"<!" => Some("lookbehind"),
                _ => None,
            };
            if let Some(name) = lookaround {
                return Err(format!("has a {name}, which is supported only as a lookahead directly after `^`"));
            }
            match kind.as_bytes() {
                [b':', ..] => self.at += 1,
                [b'<', ..] | b"P<" => while self.next().is_some_and(|character| character != '>') {},
                _ => return Err(format!("has a group `(?{kind}`, which is not supported")),
            }
        }
        let inside = self.alternatives()?;
        self.expect(')')?;
        Ok(inside)
    }

    /// The count that begins at a `{`, and where it ends.
    fn count_at(&self, at: usize) -> Option<(Count, usize)> {
        let length = self.rest.get(at + 1..)?.iter().position(|&character| character == '}')?;
        let end = at + 1 + length;
        let text: String = self.rest[at + 1..end].iter().collect();
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok());
        let (least, most) = text.split_once(',').unwrap_or((&text, &text));
        let (least, most) = (number(least)?, number(most)?);
        (least.is_some() || most.is_some()).then_some(((least, most), end + 1))
    }

    fn repeated(&mut self, part: Node) -> Result<Node, String> {
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.count_at(self.at) {
                Some(((Some(least), most), end)) => {
                    self.at = end - 1;
                    (least, most)
                }
                Some(((None, _), _)) => return Err("has a count without a least number, such as `{,3}`".into()),
                None => return Ok(part),
            },
            _ => return Ok(part),
        };
        self.at += 1;
        match self.peek() {
            // Lazy repetition finds the same texts.
            Some('?') => self.at += 1,
            Some('+' | '*') => return Err("has a repetition of a repetition, such as `a++`".into()),
            _ => {}
        }
        if most.is_some_and(|most| most < least) {
            return Err(format!("has a count whose maximum is less than its minimum {least}"));
        }
        if matches!(part, Node::Start | Node::End) {
            return Err("repeats an anchor".into());
        }
        Ok(Node::Repeat(Box::new(part), least, most))
    }

    /// The characters of a class, after its `[`: in every dialect, and in some.
    fn class(&mut self) -> Result<(ClassUnicode, ClassUnicode), String> {
        let is_negated = self.peek() == Some('^');
        self.at += usize::from(is_negated);
        if self.peek() == Some(']') {
            return Err("has an empty class (`[]`, `[^]`), which means different things to different libraries".into());
        }
        let (mut all_least, mut all_most) = (ClassUnicode::empty(), ClassUnicode::empty());
        while self.peek() != Some(']') {
            let member = self.member()?;
            let is_range = self.peek() == Some('-') && !matches!(self.rest.get(self.at + 1), None | Some(']'));
            let mut add = |member: Member| {
                let (least, most) = match member {
                    Member::Char(character) => (set(&[(character, character)]), set(&[(character, character)])),
                    Member::Set { least, most } => (least, most),
                };
                all_least.union(&least);
                all_most.union(&most);
            };
            if !is_range {
                add(member);
                continue;
            }
            self.at += 1;
            match (member, self.member()?) {
                (Member::Char(first), Member::Char(last)) if first <= last => {
                    let range = set(&[(first, last)]);
                    add(Member::Set { least: range.clone(), most: range });
                }
                (Member::Char(first), Member::Char(last)) => {
                    return Err(format!("has a range whose ends are in the wrong order: `{first}-{last}`"));
                }
                (first, second) => [first, Member::Char('-'), second].into_iter().for_each(add),
            }
        }
        self.at += 1;
        let (least, most) = (self.folded(all_least), self.folded(all_most));
        Ok(if is_negated { (complement(&most), complement(&least)) } else { (least, most) })
    }

    fn member(&mut self) -> Result<Member, String> {
        match self.next() {
            None => Err("lacks a `]`".into()),
            Some('\\') if self.peek() == Some('b') => {
                self.at += 1;
                Ok(Member::Char('\u{8}'))
            }
            Some('\\') => self.escape(),
            Some(character) => Ok(Member::Char(character)),
        }
    }

    /// What an escape stands for, after its backslash.
    fn escape(&mut self) -> Result<Member, String> {
        let Some(character) = self.next() else { return Err(r"ends with a `\`".into()) };
        let named = |least: ClassUnicode, most: ClassUnicode| {
            if character.is_ascii_lowercase() {
                Member::Set { least, most }
            } else {
                Member::Set { least: complement(&most), most: complement(&least) }
            }
        };
        Ok(match character {
            'd' | 'D' => named(set(&[('0', '9')]), property("Nd")?),
            'w' | 'W' => {
                let ascii = set(&[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')]);
                let mut all = ascii.clone();
                for name in ["L", "M", "N", "Pc", "Alphabetic", "Join_Control"] {
                    all.union(&property(name)?);
                }
                named(ascii, all)
            }
            's' | 'S' => {
                let spaces = [
                    ('\t', '\r'),
                    (' ', ' '),
                    ('\u{a0}', '\u{a0}'),
                    ('\u{1680}', '\u{1680}'),
                    ('\u{2000}', '\u{200a}'),
                    ('\u{2028}', '\u{2029}'),
                    ('\u{202f}', '\u{202f}'),
                    ('\u{205f}', '\u{205f}'),
                    ('\u{3000}', '\u{3000}'),
                ];
                let mut all = set(&[('\x1c', '\x1f'), ('\u{85}', '\u{85}'), ('\u{feff}', '\u{feff}')]);
                all.union(&set(&spaces));
                named(set(&spaces), all)
            }
            'n' => Member::Char('\n'),
            'r' => Member::Char('\r'),
            't' => Member::Char('\t'),
            'f' => Member::Char('\u{c}'),
            'v' => Member::Char('\u{b}'),
            '0' if !self.peek().is_some_and(|next| next.is_ascii_digit()) => Member::Char('\0'),
            '0'..='9' | 'k' => return Err("has a reference to a group, which is not supported".into()),
            'x' => Member::Char(char::from_u32(self.hex(2)?).unwrap_or_default()),
            'u' => Member::Char(self.unicode()?),
            'c' => match self.next() {
                Some(letter) if letter.is_ascii_alphabetic() => Member::Char(char::from(letter as u8 & 0x1f)),
                _ => return Err(r"has `\c` without a letter".into()),
            },
            'p' | 'P' => {
                let name = self.property_name()?;
                let set = property(&name)?;
                let set = if character == 'P' { complement(&set) } else { set };
                Member::Set { least: set.clone(), most: set }
            }
            other if other.is_ascii_alphabetic() => {
                return Err(format!(r"has `\{other}`, which is not supported"));
            }
            other => Member::Char(other),
        })
    }

    fn hex(&mut self, n: usize) -> Result<u32, String> {
        let digits: String = self.rest[self.at..].iter().take(n).collect();
        self.at += digits.chars().count();
        let is_hex = digits.len() == n && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex
            .then(|| u32::from_str_radix(&digits, 16).ok())
            .flatten()
            .ok_or_else(|| format!("has `{digits}` in place of {n} hexadecimal digits"))
    }

    /// A character by its number, after `\u`: `{1F600}`, four digits, or two surrogates.
    fn unicode(&mut self) -> Result<char, String> {
        let bad = || "has an escape that is no Unicode character".to_owned();
        if self.peek() == Some('{') {
            let length = self.rest[self.at..].iter().position(|&character| character == '}').ok_or_else(bad)?;
            let digits: String = self.rest[self.at + 1..self.at + length].iter().collect();
            self.at += length + 1;
            return u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32).ok_or_else(bad);
        }
        let first = self.hex(4)?;
        if (0xd800..0xdc00).contains(&first) && self.follows("\\u") {
            self.at += 2;
            let second = self.hex(4)?;
            let pair = char::decode_utf16([first as u16, second as u16]).next();
            return pair.and_then(Result::ok).ok_or_else(bad);
        }
        char::from_u32(first).ok_or_else(bad)
    }

    /// The name in `{Letter}`, or a single letter.
    fn property_name(&mut self) -> Result<String, String> {
        match self.next() {
            Some('{') => {
                let mut name = String::new();
                loop {
                    match self.next() {
                        Some('}') => return Ok(name),
                        Some(character) => name.push(character),
                        None => return Err(r"lacks the `}` of `\p{`".into()),
                    }
                }
            }
            Some(letter) => Ok(letter.to_string()),
            None => Err(r"ends with `\p`".into()),
        }
    }
}

/// The characters with a Unicode property.
fn property(name: &str) -> Result<ClassUnicode, String> {
    let unknown = || format!(r"has the unknown Unicode property `{name}`");
    if !name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | '=' | '-')) {
        return Err(unknown());
    }
    let parsed = regex_syntax::parse(&format!(r"\p{{{name}}}")).map_err(|_| unknown())?;
    match parsed.into_kind() {
        HirKind::Class(Class::Unicode(set)) => Ok(set),
        _ => Err(unknown()),
    }
}

/// The translation of a node by what it asserts: whether its match begins at the start of the text (1), and whether it
/// ends at the end of the text (2). Empty matches are apart, because anchors are asserted at both of their ends.
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
                    // In some, `$` matches before a line break at the end.
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

/// The strings in which a node matches; `None` if there are none.
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
