//! Rules of a grammar, and how they are written in Lark.

use serde_json::json;

pub(super) type RuleId = usize;

#[derive(Clone, Debug)]
pub(super) enum Symbol {
    /// JSON text.
    Text(String),
    Terminal(usize),
    Rule(RuleId),
    /// A rule with an argument for its parameter.
    With(RuleId, String),
    /// A rule several times.
    Repeated(RuleId, u64, Option<u64>),
    /// A nested grammar.
    Nested(String),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Alternative {
    pub(super) symbols: Vec<Symbol>,
    /// The condition on the parameter of the rule.
    pub(super) condition: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rule {
    pub(super) alternatives: Vec<Alternative>,
    pub(super) has_parameter: bool,
}

impl Rule {
    pub(super) fn add(&mut self, symbols: Vec<Symbol>) {
        self.alternatives.push(Alternative { symbols, condition: None });
    }

    pub(super) fn add_if(&mut self, condition: String, symbols: Vec<Symbol>) {
        self.alternatives.push(Alternative { symbols, condition: Some(condition) });
    }
}

/// JSON text as a symbol.
pub(super) fn text(text: &str) -> Symbol {
    Symbol::Text(text.to_owned())
}

/// Whether each rule matches any text. A member whose value matches nothing, for example, does not.
pub(super) fn ending(rules: &[Rule]) -> Vec<bool> {
    let mut ends = vec![false; rules.len()];
    // The users of each rule: they are checked again when the rule turns out to match a text.
    let mut users: Vec<Vec<RuleId>> = vec![Vec::new(); rules.len()];
    for (id, rule) in rules.iter().enumerate() {
        let symbols = rule.alternatives.iter().flat_map(|alternative| &alternative.symbols);
        symbols.filter_map(Symbol::rule).for_each(|used| users[used].push(id));
    }
    let mut unchecked: Vec<RuleId> = (0..rules.len()).collect();
    while let Some(id) = unchecked.pop() {
        let mut alternatives = rules[id].alternatives.iter();
        if !ends[id] && alternatives.any(|alternative| alternative.blocked_by(&ends).next().is_none()) {
            ends[id] = true;
            unchecked.extend(&users[id]);
        }
    }
    ends
}

/// Removes alternatives that never come to an end, as [`ending`] found.
pub(super) fn remove_endless(rules: &mut [Rule], ends: &[bool]) {
    for rule in rules {
        rule.alternatives.retain(|alternative| alternative.blocked_by(ends).next().is_none());
        for alternative in &mut rule.alternatives {
            alternative.symbols.retain(|symbol| !matches!(symbol, Symbol::Repeated(rule, ..) if !ends[*rule]));
        }
    }
}

impl Alternative {
    /// Its required rules that match no text. `ends[rule]` is whether a rule matches any text.
    pub(super) fn blocked_by(&self, ends: &[bool]) -> impl Iterator<Item = RuleId> {
        self.symbols.iter().filter(|symbol| !symbol.ends(ends)).filter_map(Symbol::rule)
    }

    pub(super) fn in_lark(&self) -> String {
        let mut symbols: Vec<String> = self.symbols.iter().map(Symbol::in_lark).collect();
        if symbols.is_empty() {
            symbols.push("\"\"".into());
        }
        symbols.extend(self.condition.as_ref().map(|condition| format!("%if {condition}")));
        symbols.join(" ")
    }
}

impl Symbol {
    /// The rule in it.
    fn rule(&self) -> Option<RuleId> {
        match self {
            Self::Rule(rule) | Self::With(rule, _) | Self::Repeated(rule, ..) => Some(*rule),
            Self::Text(_) | Self::Terminal(_) | Self::Nested(_) => None,
        }
    }

    /// Whether the symbol matches any text, given whether each rule does.
    fn ends(&self, ends: &[bool]) -> bool {
        matches!(self, Self::Repeated(_, 0, _)) || self.rule().is_none_or(|rule| ends[rule])
    }

    pub(super) fn in_lark(&self) -> String {
        match self {
            Self::Text(text) => in_lark(text),
            Self::Terminal(id) => format!("T{id}"),
            Self::Rule(id) => format!("r{id}"),
            Self::With(id, value) => format!("r{id}::{value}"),
            Self::Repeated(id, 0, None) => format!("r{id}*"),
            Self::Repeated(id, 1, None) => format!("r{id}+"),
            Self::Repeated(id, min, None) => format!("r{id}{{{min},}}"),
            Self::Repeated(id, min, Some(max)) => format!("r{id}{{{min},{max}}}"),
            Self::Nested(grammar) => grammar.clone(),
        }
    }
}

/// A rule repeated; nothing if `max` is zero.
pub(super) fn repeated(rule: RuleId, min: u64, max: Option<u64>) -> Vec<Symbol> {
    const MOST: u64 = i32::MAX as u64 - 1;
    match max {
        Some(0) => Vec::new(),
        _ => vec![Symbol::Repeated(rule, min.min(MOST), max.filter(|max| *max <= MOST))],
    }
}

/// A text as a string in Lark.
pub(super) fn in_lark(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}
