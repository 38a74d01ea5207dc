//! Rules of a Lark grammar for calls.

use std::collections::{BTreeMap, BTreeSet};

use hearth_model::TokenId;
use serde_json::Value;

/// Placeholder in a format's texts for a number of one to three digits.
pub(crate) const NUMBER: char = '\0';

/// Rules, and the keywords that they cannot enforce.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    lines: Vec<String>,
    /// Marks that are special tokens.
    marks: Vec<(&'static str, TokenId)>,
    /// The rules for texts that end with a certain one.
    texts: BTreeMap<&'static str, String>,
    /// Keywords of the current function that the rules do not hold, with their paths.
    unheld: BTreeSet<String>,
}

impl Rules {
    pub(crate) fn new(marks: Vec<(&'static str, TokenId)>) -> Self {
        Self { marks, ..Self::default() }
    }

    /// The grammar.
    pub(crate) fn into_lark(self) -> String {
        self.lines.join("\n")
    }

    pub(crate) fn special_tokens(&self) -> Vec<TokenId> {
        self.marks.iter().map(|&(_, id)| id).collect()
    }

    /// Adds the rule `name`.
    pub(crate) fn add(&mut self, name: &str, right: &str) {
        self.lines.push(format!("{name}: {right}"));
    }

    pub(crate) fn note_unheld(&mut self, keyword: String) {
        self.unheld.insert(keyword);
    }

    /// The keywords that were noted since the last call.
    pub(crate) fn take_unheld(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.unheld)
    }

    /// A text in Lark: strings, the ids of the marks in it, and numbers for [`NUMBER`].
    pub(crate) fn text(&self, text: &str) -> String {
        if let Some((before, after)) = text.split_once(NUMBER) {
            return format!("{} /[0-9]{{1,3}}/ {}", self.text(before), self.text(after));
        }
        text_in_lark(text, &self.marks)
    }

    /// Any text that `end` ends, which no text has within it. The first character of `end` must occur in it only there.
    pub(crate) fn text_until(&mut self, end: &'static str) -> String {
        if let Some(known) = self.texts.get(end) {
            return known.clone();
        }
        let name = format!("TEXT_{}", self.texts.len());
        let regex = without(end);
        let used = if self.marks.iter().any(|(mark, _)| *mark == end) {
            self.add(&name, &format!("/{regex}/"));
            format!("{name}? {}", self.text(end))
        } else {
            self.add(&name, &format!("/({regex})?/ {}", plain(end)));
            name
        };
        self.texts.insert(end, used.clone());
        used
    }

    /// Members with separators between them, in order; some are optional. `name` is the prefix of the names of its
    /// rules.
    pub(crate) fn separated(&mut self, name: &str, members: &[(String, bool)], separator: &str) -> String {
        let after = |index: usize| if index < members.len() { format!("{name}_after_{index}") } else { String::new() };
        for (index, (member, is_required)) in members.iter().enumerate().skip(1) {
            let suffix = if *is_required { "" } else { "?" };
            let right = format!("({} {member}){suffix} {}", self.text(separator), after(index + 1));
            self.add(&after(index), &right);
        }
        let n_first = members.iter().position(|(_, is_required)| *is_required).map_or(members.len(), |at| at + 1);
        let firsts = members.iter().enumerate().take(n_first);
        let firsts: Vec<String> = firsts.map(|(index, (member, _))| format!("{member} {}", after(index + 1))).collect();
        match firsts.is_empty() {
            true => String::new(),
            false if members.iter().any(|(_, is_required)| *is_required) => format!("({})", firsts.join(" | ")),
            false => format!("({})?", firsts.join(" | ")),
        }
    }
}

/// A text in Lark: strings, and the ids of the marks in it.
pub(crate) fn text_in_lark(text: &str, marks: &[(&str, TokenId)]) -> String {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((at, mark, id)) = marks.iter().filter_map(|&(mark, id)| Some((rest.find(mark)?, mark, id))).min() {
        let (before, after) = (&rest[..at], &rest[at + mark.len()..]);
        parts.extend((!before.is_empty()).then(|| plain(before)));
        parts.push(format!("<[{id}]>"));
        rest = after;
    }
    parts.extend((!rest.is_empty()).then(|| plain(rest)));
    parts.join(" ")
}

/// A string in Lark.
pub(crate) fn plain(text: &str) -> String {
    Value::from(text).to_string()
}

/// The regular expression of non-empty texts that do not contain `literal`, whose first character occurs only at its
/// start.
fn without(literal: &str) -> String {
    let characters: Vec<char> = literal.chars().collect();
    let [first, rest @ ..] = characters.as_slice() else { return "(?s:.+)".into() };
    let escaped = |character: &char| match character {
        '/' | '\\' | '.' | '|' | '(' | ')' | '[' | ']' | '{' | '}' | '?' | '*' | '+' | '^' | '$' | '"' => {
            format!("\\{character}")
        }
        other => other.to_string(),
    };
    let first = escaped(first);
    let rest: Vec<String> = rest.iter().map(escaped).collect();
    // After the first character: a part of the rest followed by something else, or the first character again.
    let prefix = |n: usize| rest[..n].concat();
    let others: Vec<String> = (0..rest.len()).map(|n| format!("{}[^{}{first}]", prefix(n), rest[n])).collect();
    let prefixes: Vec<String> = (1..rest.len()).map(prefix).collect();
    let others = others.join("|");
    let part = if prefixes.is_empty() { String::new() } else { format!("({})?", prefixes.join("|")) };
    let whole = format!("([^{first}]|{first}({part}{first})*({others}))");
    let open = format!("{first}({part}{first})*{part}");
    format!("{whole}+({open})?|{open}")
}
