//! Rules of a grammar, and how they are written in Lark.

use serde_json::json;

pub(super) type RuleId = usize;

#[derive(Clone, Debug)]
pub(super) enum Symbol {
    /// JSON text.
    Text(String),
    Terminal(usize),
    Rule(RuleId),
    /// A rule with a value of its parameter.
    With(RuleId, String),
    /// A rule several times.
    Repeated(RuleId, u64, Option<u64>),
    /// A grammar of its own.
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

/// Removes alternatives that never come to an end, such as a member whose value nothing matches.
pub(super) fn remove_endless(rules: &mut [Rule]) {
    let mut ends = vec![false; rules.len()];
    let symbol_ends = |symbol: &Symbol, ends: &[bool]| match symbol {
        Symbol::Rule(rule) | Symbol::With(rule, _) => ends[*rule],
        Symbol::Repeated(rule, min, _) => *min == 0 || ends[*rule],
        Symbol::Text(_) | Symbol::Terminal(_) | Symbol::Nested(_) => true,
    };
    // Rules that use a rule are looked at again when it turns out to end.
    let mut users: Vec<Vec<RuleId>> = vec![Vec::new(); rules.len()];
    for (id, rule) in rules.iter().enumerate() {
        for symbol in rule.alternatives.iter().flat_map(|alternative| &alternative.symbols) {
            if let Symbol::Rule(used) | Symbol::With(used, _) | Symbol::Repeated(used, ..) = symbol {
                users[*used].push(id);
            }
        }
    }
    let mut unchecked: Vec<RuleId> = (0..rules.len()).collect();
    while let Some(id) = unchecked.pop() {
        let mut alternatives = rules[id].alternatives.iter();
        if !ends[id]
            && alternatives.any(|alternative| alternative.symbols.iter().all(|symbol| symbol_ends(symbol, &ends)))
        {
            ends[id] = true;
            unchecked.extend(&users[id]);
        }
    }
    for rule in rules {
        rule.alternatives.retain(|alternative| alternative.symbols.iter().all(|symbol| symbol_ends(symbol, &ends)));
        for alternative in &mut rule.alternatives {
            alternative.symbols.retain(|symbol| !matches!(symbol, Symbol::Repeated(rule, ..) if !ends[*rule]));
        }
    }
}

impl Alternative {
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

/// A rule several times, or nothing if that is at most zero times.
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
