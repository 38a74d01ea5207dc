//! Writes a schema as a grammar in Lark, from which everything that cannot come to an end has been removed: otherwise a
//! text could begin something that nothing may follow.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt::Write,
    rc::Rc,
};

use serde_json::{Number, Value, json};

use super::{
    GrammarError, WHITESPACE,
    characters::literal,
    lenient_name, log_passed_over,
    pattern::Pattern,
    reader::Reader,
    terminal::{self, Matches, Terminal},
    values::{Arrays, Contains, Goal, Numbers, Objects, Texts, Values, decimal},
};

/// Maximum number of rules; the library has room for 65,000 symbols.
const MAX_RULES: usize = 15_000;

/// Maximum number of rules that count the items of one array or the members of one object.
const MAX_COUNTED: u64 = 5_000;

/// Maximum number of alternatives of one value, other than constants.
const MAX_ALTERNATIVES: usize = 500;

/// Maximum number of optional members of one object: the parser keeps some items for each that may come next, and has
/// room for 2,000.
const MAX_OPTIONAL_MEMBERS: usize = 600;

/// Maximum number of patterns for the names of one object: names may match any of them together.
const MAX_NAME_PATTERNS: usize = 4;

/// Maximum number of sets of names with the same goal in one object.
const MAX_NAME_TERMINALS: usize = 64;

/// Maximum number of values of which each may occur once: bits of the parameter of a rule.
const MAX_UNIQUE: usize = 63;

/// Numbers without bounds have at most this many digits on either side of the point, since some models never stop.
const WHOLE: &str = "-?(?:0|[1-9][0-9]{0,29})";

/// The grammar, in Lark, of the JSON texts that follow a schema. A lenient schema's keywords that cannot be enforced are
/// passed over, which the log says.
///
/// # Errors
/// The schema is wrong, or cannot be enforced.
pub(in crate::constraint) fn written(schema: &Value) -> Result<String, GrammarError> {
    let name = lenient_name(schema);
    let reader = Reader::new(schema, name.is_some());
    let mut writer = Writer {
        reader,
        rules: Vec::new(),
        ids: HashMap::new(),
        unwritten: VecDeque::new(),
        terminals: Vec::new(),
        terminal_ids: HashMap::new(),
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
    writer.remove_endless();
    if writer.rules.first().is_none_or(|rule| rule.alternatives.is_empty()) {
        return Err(GrammarError::whole("allows no value"));
    }
    if let Some(name) = name.filter(|_| !writer.reader.passed_over.is_empty()) {
        log_passed_over(name, &writer.reader.passed_over);
    }
    Ok(writer.lark())
}

type RuleId = usize;

#[derive(Clone, Debug)]
enum Symbol {
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
struct Alternative {
    symbols: Vec<Symbol>,
    /// The condition on the parameter of the rule.
    condition: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Rule {
    alternatives: Vec<Alternative>,
    has_parameter: bool,
}

impl Rule {
    fn add(&mut self, symbols: Vec<Symbol>) {
        self.alternatives.push(Alternative { symbols, condition: None });
    }

    fn add_if(&mut self, condition: String, symbols: Vec<Symbol>) {
        self.alternatives.push(Alternative { symbols, condition: Some(condition) });
    }
}

struct Writer<'a> {
    reader: Reader<'a>,
    rules: Vec<Rule>,
    ids: HashMap<Goal, RuleId>,
    unwritten: VecDeque<(RuleId, Goal)>,
    /// Definitions in Lark.
    terminals: Vec<String>,
    terminal_ids: HashMap<String, usize>,
}

fn text(text: &str) -> Symbol {
    Symbol::Text(text.to_owned())
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
                Values::Object(objects) => {
                    if let Some(symbols) = self.object(objects)? {
                        rule.add([vec![text("{")], symbols, vec![text("}")]].concat());
                    }
                }
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

    /// The numbers of a set, as alternatives.
    fn numbers(&mut self, numbers: &Numbers) -> Result<Vec<Symbol>, GrammarError> {
        let Numbers { is_integer, is_fraction, least, most, multiples, .. } = numbers;
        let is_plain = least.is_none() && most.is_none() && multiples.is_empty();
        if *is_fraction {
            if !is_plain {
                let what = "cannot be enforced: it asks for numbers that are not whole, within bounds";
                return Err(GrammarError::whole(what));
            }
            // So few digits that the number is not whole as an f64.
            let fraction = r"/-?(?:(?:0|[1-9][0-9]{0,8})\.[0-9]{0,5}|[0-9]{1,3}\.[0-9]{0,11})[1-9]/";
            return Ok(vec![self.defined(fraction.replace("[0-9]{1,3}", "(?:0|[1-9][0-9]{0,2})"))]);
        }
        if is_plain && *is_integer {
            return Ok(vec![self.defined(format!("/{WHOLE}/"))]);
        }
        if is_plain {
            let fraction = r"(?:\.[0-9]{1,30})?";
            // Larger exponents only where the number stays one of f64.
            return Ok(vec![self.defined(format!(
                "/{WHOLE}{fraction}(?:[eE][+-]?[0-9]{{1,2}})?|-?[0-9]{fraction}[eE][+-]?(?:[12][0-9]{{2}}|30[0-7])/"
            ))]);
        }
        let mut schema = json!({
            "type": if *is_integer { "integer" } else { "number" },
            "x-guidance": { "whitespace_pattern": WHITESPACE },
        });
        for (bound, inclusive, exclusive) in
            [(least, "minimum", "exclusiveMinimum"), (most, "maximum", "exclusiveMaximum")]
        {
            // Bounds beyond 64-bit integers, which schema generators write, are beyond what the library can compile.
            if let Some((bound, is_excluded)) = bound.filter(|(bound, _)| bound.abs() < 9.2e18) {
                let number = if bound.fract() == 0.0 { json!(bound as i64) } else { json!(bound) };
                schema[if is_excluded { exclusive } else { inclusive }] = number;
            }
        }
        if multiples.is_empty() {
            return Ok(vec![Symbol::Nested(format!("%json {schema}"))]);
        }
        let Some((factor, n_decimals)) =
            common_multiple(multiples).filter(|(factor, _)| *factor <= u128::from(u32::MAX))
        else {
            return Err(GrammarError::whole("must have values of `multipleOf` with a smaller common multiple"));
        };
        // The library matches numbers with exactly as many decimals as the factor has: those with fewer are apart.
        let mut symbols = Vec::new();
        for decimals in 0..=n_decimals {
            let factor = factor / greatest_divisor(factor, 10u128.pow(n_decimals - decimals));
            let mut schema = schema.clone();
            match decimals {
                0 => schema["type"] = json!("integer"),
                _ if *is_integer => break,
                _ => {}
            }
            schema["multipleOf"] = json!(factor as f64 / 10f64.powi(decimals as i32));
            symbols.push(Symbol::Nested(format!("%json {schema}")));
        }
        Ok(symbols)
    }

    fn array(&mut self, arrays: &Arrays) -> Result<Option<Vec<Symbol>>, GrammarError> {
        let mut contains: Vec<&Contains> =
            arrays.contains.iter().filter(|contains| contains.min > 0 || contains.max.is_some()).collect();
        if let Some(node) = arrays.unique.filter(|_| arrays.max.is_none_or(|max| max > 1)) {
            match self.unique_values(arrays)? {
                Some(values) if contains.is_empty() => return Ok(self.unique(arrays, values)),
                _ => {
                    let why = "items that are all different can be counted only if there are at most 63 possible ones, as \
                               with `enum`";
                    self.reader.cannot(node, "uniqueItems", why)?;
                }
            }
        }
        if let [first, ..] = contains.as_slice()
            && (contains.len() > 1 || arrays.n_first() > 0)
        {
            let why = "it can be counted only once per array, and not beside `prefixItems`";
            self.reader.cannot(first.node, "contains", why)?;
            contains.clear();
        }
        if let [contains] = contains.as_slice()
            && let Some(rule) = self.containing(arrays, contains)?
        {
            return Ok(Some(vec![Symbol::Rule(rule)]));
        }
        let n_first = (arrays.n_first() as u64).min(arrays.max.unwrap_or(u64::MAX));
        let rest = self.rule_of(&arrays.rest());
        let after = self.new_rule(Rule { alternatives: Vec::new(), has_parameter: false });
        self.rules[after].add(vec![text(","), Symbol::Rule(rest)]);
        // From the last item to the first: what may follow, once there are as many items.
        let (min, max) = (arrays.min.saturating_sub(n_first), arrays.max.map(|max| max - n_first));
        let mut rule = Rule::default();
        if n_first > 0 {
            rule.add(repeated(after, min, max));
        } else {
            if min == 0 {
                rule.add(Vec::new());
            }
            if max != Some(0) {
                let more = repeated(after, min.saturating_sub(1), max.map(|max| max - 1));
                rule.add([vec![Symbol::Rule(rest)], more].concat());
            }
        }
        let mut next = self.new_rule(rule);
        for index in (0..n_first).rev() {
            let item = self.rule_of(&arrays.item(index as usize));
            let comma = (index > 0).then(|| text(","));
            let mut rule = Rule::default();
            if index >= arrays.min {
                rule.add(Vec::new());
            }
            rule.add(comma.into_iter().chain([Symbol::Rule(item), Symbol::Rule(next)]).collect());
            next = self.new_rule(rule);
        }
        Ok(Some(vec![Symbol::Rule(next)]))
    }

    /// Arrays in which some items match a goal. `None` if the keyword was passed over.
    fn containing(&mut self, arrays: &Arrays, contains: &Contains) -> Result<Option<RuleId>, GrammarError> {
        let Contains { node, goal, min: min_matches, max: max_matches } = contains;
        let rest = arrays.rest();
        let matching = self.rule_of(&rest.and(goal));
        let other = if max_matches.is_some() { rest.and(&goal.opposite()) } else { rest };
        let other = self.rule_of(&other);
        // Counts up to these, and any higher ones as these.
        let top = arrays.max.unwrap_or_else(|| arrays.min.max(1));
        let top_matches = max_matches.unwrap_or(*min_matches);
        if (top + 1).saturating_mul(top_matches + 1) > MAX_COUNTED {
            self.reader.cannot(*node, "contains", "its counts, together with those of items, are too large")?;
            return Ok(None);
        }
        let width = top_matches as usize + 1;
        let first = self.rules.len();
        let id = |n: u64, matches: u64| first + n as usize * width + matches as usize;
        self.rules.resize(first + (top as usize + 1) * width, Rule::default());
        for n in 0..=top {
            for matches in 0..=top_matches {
                let mut rule = Rule::default();
                if n >= arrays.min && matches >= *min_matches {
                    rule.add(Vec::new());
                }
                if arrays.max != Some(n) {
                    let item = |item: RuleId, next: RuleId| {
                        let comma = (n > 0).then(|| text(","));
                        comma.into_iter().chain([Symbol::Rule(item), Symbol::Rule(next)]).collect::<Vec<_>>()
                    };
                    let next = (n + 1).min(top);
                    rule.add(item(other, id(next, matches)));
                    if matches < top_matches {
                        rule.add(item(matching, id(next, matches + 1)));
                    }
                }
                self.rules[id(n, matches)] = rule;
            }
        }
        Ok(Some(id(0, 0)))
    }

    /// All values of the items, as JSON text. `None` if there are too many.
    fn unique_values(&mut self, arrays: &Arrays) -> Result<Option<Vec<Symbol>>, GrammarError> {
        if arrays.n_first() > 0 {
            return Ok(None);
        }
        let mut values: BTreeSet<String> = BTreeSet::new();
        for set in self.reader.sets(&arrays.rest())?.iter() {
            match set {
                Values::Null => drop(values.insert("null".into())),
                Values::Bool(value) => drop(values.insert(value.to_string())),
                Values::Number(numbers) => match whole_numbers(numbers) {
                    Some(numbers) => values.extend(numbers),
                    None => return Ok(None),
                },
                Values::Text(Texts { only: Some(only), patterns, .. }) => {
                    let pattern = Rc::new(patterns.clone());
                    for text in only {
                        if self.reader.matches(&pattern, text)? == Matches::Yes {
                            values.insert(json!(**text).to_string());
                        }
                    }
                }
                _ => return Ok(None),
            }
            if values.len() > MAX_UNIQUE {
                return Ok(None);
            }
        }
        Ok(Some(values.into_iter().map(|value| self.json(&value)).collect()))
    }

    /// A constant of JSON in all of its spellings.
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

    /// Arrays of different values: the parameter of the rules has a bit for each value that has occurred.
    fn unique(&mut self, arrays: &Arrays, values: Vec<Symbol>) -> Option<Vec<Symbol>> {
        let (min, max) = (arrays.min, arrays.max.unwrap_or(u64::MAX).min(values.len() as u64));
        if min > max {
            return None;
        }
        let item = self.new_rule(Rule { has_parameter: true, ..Rule::default() });
        let more = self.new_rule(Rule { has_parameter: true, ..Rule::default() });
        for (bit, value) in values.into_iter().enumerate() {
            let next = Symbol::With(more, format!("set_bit({bit})"));
            self.rules[item].add_if(format!("bit_clear({bit})"), vec![value, next]);
        }
        self.rules[more].add_if(format!("bit_count_ge(_, {min})"), Vec::new());
        let next = vec![text(","), Symbol::With(item, "_".into())];
        self.rules[more].add_if(format!("bit_count_lt(_, {max})"), next);
        let mut rule = Rule::default();
        if min == 0 {
            rule.add(Vec::new());
        }
        if max > 0 {
            rule.add(vec![Symbol::With(item, "0".into())]);
        }
        Some(vec![Symbol::Rule(self.new_rule(rule))])
    }

    /// What is between the braces of an object; `None` if there is no such object.
    fn object(&mut self, objects: &Objects) -> Result<Option<Vec<Symbol>>, GrammarError> {
        let mut names: Vec<Rc<str>> = Vec::new();
        let mut known: HashSet<Rc<str>> = HashSet::new();
        let listed = objects.layers.iter().flat_map(|layer| layer.named.iter().map(|(name, _)| name));
        for name in listed {
            if known.insert(Rc::clone(name)) {
                names.push(Rc::clone(name));
            }
        }
        let lists_required = objects.required.iter().all(|name| known.contains(name));
        names.extend(objects.required.iter().filter(|name| known.insert(Rc::clone(name))).cloned());
        let allowed = match objects.names.0.is_empty() {
            true => None,
            false => Some(self.reader.sets(&objects.names)?),
        };
        let mut members: Vec<(Vec<Symbol>, bool)> = Vec::new();
        for name in &names {
            let is_required = objects.required.contains(name);
            let goal = self.reader.member(objects, name)?;
            let mut is_allowed = goal != Goal::never();
            if let Some(allowed) = &allowed {
                is_allowed = is_allowed && self.reader.contains_text(allowed, name)?;
            }
            if is_allowed {
                let quoted = self.quoted(name);
                let value = self.rule_of(&goal);
                members.push((vec![quoted, text(":"), Symbol::Rule(value)], is_required));
            } else if is_required {
                return Ok(None);
            }
        }
        let is_open = objects.layers.iter().any(|layer| layer.rest.is_some());
        let lists_names = objects.layers.iter().any(|layer| layer.lists_names);
        // Schemas that list members rarely intend more, and models might add members without end.
        let is_closed = !is_open && lists_names && lists_required && objects.min <= members.len() as u64;
        let free = self.free_members(objects, &names, allowed.as_deref(), is_closed)?;
        self.members(objects, members, free)
    }

    /// Members whose names are not listed.
    fn free_members(
        &mut self,
        objects: &Objects,
        names: &[Rc<str>],
        allowed: Option<&Vec<Values>>,
        is_closed: bool,
    ) -> Result<Option<RuleId>, GrammarError> {
        let mut patterns: Vec<Rc<Pattern>> = Vec::new();
        for (pattern, _) in objects.layers.iter().flat_map(|layer| &layer.patterns) {
            if !patterns.contains(pattern) {
                patterns.push(Rc::clone(pattern));
            }
        }
        if patterns.len() > MAX_NAME_PATTERNS {
            let what = format!(
                "must have at most {MAX_NAME_PATTERNS} patterns in `patternProperties` for one object, got {}",
                patterns.len()
            );
            return Err(GrammarError::whole(what));
        }
        let mut rule = Rule::default();
        // Names by the patterns that they match.
        for matched in 0..1usize << patterns.len() {
            let matches = |index: usize| matched >> index & 1 == 1;
            let does_match =
                |pattern: &Pattern| patterns.iter().position(|other| **other == *pattern).is_some_and(matches);
            let mut goal = Goal::default();
            for layer in &objects.layers {
                let mut goals: Vec<&Goal> =
                    layer.patterns.iter().filter(|(pattern, _)| does_match(pattern)).map(|(_, goal)| goal).collect();
                if goals.is_empty() {
                    goals.extend(layer.rest.as_ref());
                }
                goal = goals.into_iter().fold(goal, |all, goal| all.and(goal));
            }
            if goal == Goal::never() || matched == 0 && is_closed {
                continue;
            }
            // A pattern with a lookahead is several expressions; names that do not match one of them are apart.
            let mut terminals = vec![Terminal::default()];
            for (index, pattern) in patterns.iter().enumerate() {
                let choices = if matches(index) { vec![(**pattern).clone()] } else { pattern.others() };
                if terminals.len() * choices.len() > MAX_NAME_TERMINALS {
                    return Err(GrammarError::whole("has patterns for names that are too complex together"));
                }
                terminals = terminals
                    .into_iter()
                    .flat_map(|terminal| choices.iter().map(move |choice| terminal.clone().and(choice)))
                    .collect();
            }
            if let Some(allowed) = allowed {
                let texts = allowed
                    .iter()
                    .filter_map(|values| if let Values::Text(texts) = values { Some(texts) } else { None });
                let allowed: Vec<Terminal> = texts.map(terminal::of_texts).collect();
                let with = |terminal: &Terminal| {
                    let both = allowed.iter().map(|allowed| terminal.clone().and_terminal(allowed));
                    both.collect::<Vec<_>>()
                };
                terminals = terminals.iter().flat_map(with).collect();
            }
            if terminals.len() > MAX_NAME_TERMINALS {
                return Err(GrammarError::whole("has patterns for names that are too complex together"));
            }
            let value = self.rule_of(&goal);
            for mut terminal in terminals {
                if !names.is_empty() {
                    terminal.none.push(terminal::one_of(names.iter().map(AsRef::as_ref)));
                }
                if let Some(name) = self.terminal(&terminal)? {
                    rule.add(vec![name, text(":"), Symbol::Rule(value)]);
                }
            }
        }
        Ok((!rule.alternatives.is_empty()).then(|| self.new_rule(rule)))
    }

    /// Members in their order, each with whether it is required, then free ones.
    fn members(
        &mut self,
        objects: &Objects,
        members: Vec<(Vec<Symbol>, bool)>,
        free: Option<RuleId>,
    ) -> Result<Option<Vec<Symbol>>, GrammarError> {
        let n_required = members.iter().filter(|(_, is_required)| *is_required).count() as u64;
        let n_optional = members.len() - n_required as usize;
        if n_optional > MAX_OPTIONAL_MEMBERS {
            let what =
                format!("must have at most {MAX_OPTIONAL_MEMBERS} optional members in one object, got {n_optional}");
            return Err(GrammarError::whole(what));
        }
        let mut min = if objects.min > n_required { objects.min } else { 0 };
        if free.is_some() && min > n_required + 1 {
            let why = "the same name could be written twice, which would count as one member";
            self.reader.cannot(objects.min_node, "minProperties", why)?;
            min = 0;
        }
        let max = objects.max.filter(|max| free.is_some() || *max < members.len() as u64);
        // Counts up to this, and any higher ones as this; without limits, only whether there are any.
        let top = max.unwrap_or(min.max(1)).min(members.len() as u64 + 1);
        if (top + 1).saturating_mul(members.len() as u64 + 1) > MAX_COUNTED.max(2 * members.len() as u64 + 2) {
            self.reader.cannot(objects.min_node, "minProperties", "too many members to count")?;
            return self.members(&Objects { min: 0, max: None, ..objects.clone() }, members, free);
        }
        let more = free.map(|free| {
            let mut rule = Rule::default();
            rule.add(vec![text(","), Symbol::Rule(free)]);
            self.new_rule(rule)
        });
        // What may follow, by the number of members so far; first after the last listed one.
        let mut next: Vec<RuleId> = Vec::new();
        for n in 0..=top {
            let mut rule = Rule::default();
            if n >= min {
                rule.add(Vec::new());
            }
            let room = max.map(|max| max - n);
            if let (Some(free), Some(more)) = (free, more)
                && room != Some(0)
            {
                let needed = min.saturating_sub(n).max(1);
                if n == 0 {
                    let more = repeated(more, needed - 1, room.map(|room| room - 1));
                    rule.add([vec![Symbol::Rule(free)], more].concat());
                } else {
                    rule.add(repeated(more, needed, room));
                }
            }
            next.push(self.new_rule(rule));
        }
        for (member, is_required) in members.into_iter().rev() {
            let mut before = Vec::new();
            for n in 0..=top {
                let mut rule = Rule::default();
                if max != Some(n) {
                    let comma = (n > 0).then(|| text(","));
                    let rest = Symbol::Rule(next[(n + 1).min(top) as usize]);
                    rule.add(comma.into_iter().chain(member.iter().cloned()).chain([rest]).collect());
                }
                if !is_required {
                    rule.add(vec![Symbol::Rule(next[n as usize])]);
                }
                before.push(self.new_rule(rule));
            }
            next = before;
        }
        Ok(next.first().map(|first| vec![Symbol::Rule(*first)]))
    }

    /// Removes alternatives that never come to an end, such as a member whose value nothing matches.
    fn remove_endless(&mut self) {
        let mut ends = vec![false; self.rules.len()];
        let symbol_ends = |symbol: &Symbol, ends: &[bool]| match symbol {
            Symbol::Rule(rule) | Symbol::With(rule, _) => ends[*rule],
            Symbol::Repeated(rule, min, _) => *min == 0 || ends[*rule],
            Symbol::Text(_) | Symbol::Terminal(_) | Symbol::Nested(_) => true,
        };
        // Rules that use a rule are looked at again when it turns out to end.
        let mut users: Vec<Vec<RuleId>> = vec![Vec::new(); self.rules.len()];
        for (id, rule) in self.rules.iter().enumerate() {
            for symbol in rule.alternatives.iter().flat_map(|alternative| &alternative.symbols) {
                if let Symbol::Rule(used) | Symbol::With(used, _) | Symbol::Repeated(used, ..) = symbol {
                    users[*used].push(id);
                }
            }
        }
        let mut unchecked: Vec<RuleId> = (0..self.rules.len()).collect();
        while let Some(id) = unchecked.pop() {
            let mut alternatives = self.rules[id].alternatives.iter();
            if !ends[id]
                && alternatives.any(|alternative| alternative.symbols.iter().all(|symbol| symbol_ends(symbol, &ends)))
            {
                ends[id] = true;
                unchecked.extend(&users[id]);
            }
        }
        for rule in &mut self.rules {
            rule.alternatives.retain(|alternative| alternative.symbols.iter().all(|symbol| symbol_ends(symbol, &ends)));
            for alternative in &mut rule.alternatives {
                alternative.symbols.retain(|symbol| !matches!(symbol, Symbol::Repeated(rule, ..) if !ends[*rule]));
            }
        }
    }

    fn lark(&self) -> String {
        // One piece of white space between two tokens; more of it could go on for ever.
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

impl Alternative {
    fn in_lark(&self) -> String {
        let mut symbols: Vec<String> = self.symbols.iter().map(Symbol::in_lark).collect();
        if symbols.is_empty() {
            symbols.push("\"\"".into());
        }
        symbols.extend(self.condition.as_ref().map(|condition| format!("%if {condition}")));
        symbols.join(" ")
    }
}

impl Symbol {
    fn in_lark(&self) -> String {
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

/// Whether a text has only one spelling.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// A rule several times, or nothing if that is at most zero times.
fn repeated(rule: RuleId, min: u64, max: Option<u64>) -> Vec<Symbol> {
    const MOST: u64 = i32::MAX as u64 - 1;
    match max {
        Some(0) => Vec::new(),
        _ => vec![Symbol::Repeated(rule, min.min(MOST), max.filter(|max| *max <= MOST))],
    }
}

/// A text as a string in Lark.
fn in_lark(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

fn greatest_divisor(left: u128, right: u128) -> u128 {
    if right == 0 { left } else { greatest_divisor(right, left % right) }
}

/// The least number that is a multiple of all of these, as digits and how many of them are decimals.
fn common_multiple(numbers: &[Number]) -> Option<(u128, u32)> {
    let mut all = numbers.iter().map(decimal);
    all.next()?.and_then(|first| {
        all.try_fold(first, |(common, scale), number| {
            let (digits, decimals) = number?;
            let most = scale.max(decimals);
            let common = common.checked_mul(10u128.checked_pow(most - scale)?)?;
            let digits = digits.checked_mul(10u128.checked_pow(most - decimals)?)?;
            Some(((common / greatest_divisor(common, digits)).checked_mul(digits)?, most))
        })
    })
}

/// The whole numbers within bounds, if there are few.
fn whole_numbers(numbers: &Numbers) -> Option<Vec<String>> {
    if let Some(value) = &numbers.value {
        return Some(vec![value.to_string()]);
    }
    let (Some((least, _)), Some((most, _)), true) = (numbers.least, numbers.most, numbers.is_integer) else {
        return None;
    };
    if most - least > MAX_UNIQUE as f64 || least.abs().max(most.abs()) > 1e15 {
        return None;
    }
    let all = (least.ceil() as i64..=most.floor() as i64).map(|number| number.into());
    let within = all.filter(|number| numbers.and(&Numbers::only(serde_json::Number::clone(number))).is_some());
    Some(within.map(|number| number.to_string()).collect())
}
