//! Reads regular expressions of ECMA-262.

use regex_syntax::hir::{Class, ClassUnicode, HirKind};

use super::super::characters::{complement, set};

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 50;

/// A part of an expression.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Characters: in every dialect, and in some.
    Set(ClassUnicode, ClassUnicode),
    Concat(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
    Start,
    End,
}

/// Reads an expression from its start.
pub(super) struct Parser {
    rest: Vec<char>,
    pub(super) at: usize,
    depth: usize,
    ignores_case: bool,
    dot_is_all: bool,
}

/// The minimum and the maximum of a repetition, if given.
type Count = (Option<u32>, Option<u32>);

/// A member of a class: one character, or a set, which is larger in some languages than in others.
enum Member {
    Char(char),
    Set { least: ClassUnicode, most: ClassUnicode },
}

impl Parser {
    /// # Errors
    /// A flag is not supported.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        let rest = source.chars().collect();
        let mut parser = Self { rest, at: 0, depth: 0, ignores_case: false, dot_is_all: false };
        parser.flags_of_all()?;
        Ok(parser)
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek();
        self.at += usize::from(character.is_some());
        character
    }

    pub(super) fn follows(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, character)| self.rest.get(self.at + offset) == Some(&character))
    }

    pub(super) fn expect(&mut self, character: char) -> Result<(), String> {
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

    pub(super) fn alternatives(&mut self) -> Result<Node, String> {
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

    pub(super) fn sequence(&mut self) -> Result<Node, String> {
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

    /// The set; if case is ignored, with all cases of its letters.
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

    /// The meaning of an escape, after its backslash.
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
