//! Writes a schema as a grammar in Lark, without any rule that can never be completed: otherwise a text could begin
//! something that cannot end.

mod arrays;
mod impossible;
mod numbers;
mod objects;
mod range;
mod rules;

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write,
};

use serde_json::{Value, json};

use self::rules::{Alternative, Rule, RuleId, Symbol, ending, in_lark, remove_endless, text};
use super::{
    GrammarError, WHITESPACE,
    characters::literal,
    lenient_name, log_passed_over,
    pattern::Pattern,
    reader::Reader,
    terminal::{self, Terminal},
    values::{Goal, Numbers, Texts, Values},
};

/// Maximum number of rules; the library has room for 65,000 symbols.
const MAX_RULES: usize = 15_000;

/// Maximum number of rules that count the items of one array or the members of one object.
const MAX_COUNTED: u64 = 5_000;

/// Maximum number of alternatives of one value, other than constants.
const MAX_ALTERNATIVES: usize = 500;

/// The grammar, in Lark, of the JSON texts that follow a schema. Keywords of a lenient schema that cannot be enforced
/// are ignored and logged.
///
/// # Errors
/// The schema is invalid, or cannot be enforced.
pub(in crate::decode::constraint) fn written(schema: &Value) -> Result<String, GrammarError> {
    let name = lenient_name(schema);
    let reader = Reader::new(schema, name.is_some());
    let mut writer = Writer {
        reader,
        rules: Vec::new(),
        ids: HashMap::new(),
        unwritten: VecDeque::new(),
        terminals: Vec::new(),
        terminal_ids: HashMap::new(),
        forbidden: HashMap::new(),
    };
    let root = match schema {
        Value::Bool(true) => Goal::default(),
        _ => Goal::is(writer.reader.node(schema)),
    };
    writer.rule_of(&root);
    while let Some((id, goal)) = writer.unwritten.pop_front() {
        writer.write_goal(id, &goal)?;
        if writer.rules.len() > MAX_RULES {
            let what = format!("is too large: its grammar may have at most {MAX_RULES} rules, got more");
            return Err(GrammarError::whole(what));
        }
    }
    let ends = ending(&writer.rules);
    if !ends[0] {
        return Err(writer.impossible(&ends));
    }
    remove_endless(&mut writer.rules, &ends);
    if let Some(name) = name.filter(|_| !writer.reader.passed_over.is_empty()) {
        log_passed_over(name, &writer.reader.passed_over);
    }
    Ok(writer.lark())
}

struct Writer<'a> {
    reader: Reader<'a>,
    rules: Vec<Rule>,
    ids: HashMap<Goal, RuleId>,
    unwritten: VecDeque<(RuleId, Goal)>,
    /// Definitions in Lark.
    terminals: Vec<String>,
    terminal_ids: HashMap<String, usize>,
    /// Rules of objects that require a member which they do not allow, with that member: there is no such object.
    forbidden: HashMap<RuleId, String>,
}

impl Writer<'_> {
    fn new_rule(&mut self, rule: Rule) -> RuleId {
        self.rules.push(rule);
        self.rules.len() - 1
    }

    /// The rule of a goal, which is written later.
    fn rule_of(&mut self, goal: &Goal) -> RuleId {
        if let Some(id) = self.ids.get(goal) {
            return *id;
        }
        let id = self.new_rule(Rule::default());
        self.ids.insert(goal.clone(), id);
        self.unwritten.push_back((id, goal.clone()));
        id
    }

    fn defined(&mut self, definition: String) -> Symbol {
        let next = self.terminals.len();
        let id = *self.terminal_ids.entry(definition.clone()).or_insert(next);
        if id == next {
            self.terminals.push(definition);
        }
        Symbol::Terminal(id)
    }

    /// The symbol of a terminal; `None` if it matches nothing.
    fn terminal(&mut self, terminal: &Terminal) -> Result<Option<Symbol>, GrammarError> {
        if terminal::is_empty(terminal).map_err(GrammarError::whole)? {
            return Ok(None);
        }
        Ok(Some(self.defined(terminal.in_lark())))
    }

    fn write_goal(&mut self, id: RuleId, goal: &Goal) -> Result<(), GrammarError> {
        let sets = self.reader.sets(goal)?;
        let mut rule = Rule::default();
        let mut literals: Vec<String> = Vec::new();
        for values in sets.iter() {
            match values {
                Values::Null => literals.push("null".into()),
                Values::Bool(value) => literals.push(value.to_string()),
                Values::Number(Numbers { value: Some(value), .. }) => literals.push(value.to_string()),
                Values::Number(numbers) => {
                    self.numbers(numbers)?.into_iter().for_each(|symbol| rule.add(vec![symbol]));
                }
                Values::Text(Texts { only: Some(only), patterns, .. })
                    if *patterns == Pattern::default() && only.iter().all(|text| is_plain(text)) =>
                {
                    literals.extend(only.iter().map(|text| json!(**text).to_string()));
                }
                Values::Text(texts) => {
                    if let Some(grammar) = terminal::long_texts(texts) {
                        rule.add(vec![Symbol::Nested(grammar)]);
                    } else if let Some(symbol) = self.terminal(&terminal::of_texts(texts))? {
                        rule.add(vec![symbol]);
                    }
                }
                Values::Array(arrays) => {
                    if let Some(symbols) = self.array(arrays)? {
                        rule.add([vec![text("[")], symbols, vec![text("]")]].concat());
                    }
                }
                Values::Object(objects) => match self.object(objects)? {
                    Ok(symbols) => rule.add([vec![text("{")], symbols, vec![text("}")]].concat()),
                    Err(name) => drop(self.forbidden.insert(id, name.as_ref().to_owned())),
                },
            }
        }
        if rule.alternatives.len() > MAX_ALTERNATIVES {
            let n = rule.alternatives.len();
            let what = format!("must have at most {MAX_ALTERNATIVES} alternatives for one value, got {n}");
            return Err(GrammarError::whole(what));
        }
        if !literals.is_empty() {
            literals.sort();
            literals.dedup();
            let literals: Vec<String> = literals.iter().map(|text| in_lark(text)).collect();
            let symbol = self.defined(literals.join(" | "));
            rule.add(vec![symbol]);
        }
        self.rules[id] = rule;
        Ok(())
    }

    /// A JSON constant, in all of its spellings.
    fn json(&mut self, value: &str) -> Symbol {
        match serde_json::from_str(value) {
            Ok(Value::String(text)) => self.quoted(&text),
            _ => text(value),
        }
    }

    /// A text in all of its spellings.
    fn quoted(&mut self, inner: &str) -> Symbol {
        if is_plain(inner) {
            return Symbol::Text(json!(inner).to_string());
        }
        self.defined(format!("/\"{}\"/", literal(inner)))
    }

    fn lark(&self) -> String {
        // One piece of white space between two tokens; more could repeat without end.
        let mut lark = format!("%llguidance {{\"ignore_once\": true}}\n%ignore /{WHITESPACE}/\nstart: r0\n");
        for (id, rule) in self.rules.iter().enumerate().filter(|(_, rule)| !rule.alternatives.is_empty()) {
            let alternatives: Vec<String> = rule.alternatives.iter().map(Alternative::in_lark).collect();
            let parameter = if rule.has_parameter { "::_" } else { "" };
            let _ = writeln!(lark, "r{id}{parameter}: {}", alternatives.join(" | "));
        }
        for (id, terminal) in self.terminals.iter().enumerate() {
            let _ = writeln!(lark, "T{id}: {terminal}");
        }
        lark
    }
}

/// Whether a text has only one spelling.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}
