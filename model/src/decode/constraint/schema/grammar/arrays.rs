//! Arrays: items in their order, items that match `contains`, and items that are all different.

use std::{collections::BTreeSet, rc::Rc};

use serde_json::json;

use super::{
    super::{
        GrammarError,
        terminal::Matches,
        values::{Arrays, Contains, Numbers, Texts, Values},
    },
    MAX_COUNTED, Writer,
    rules::{Rule, RuleId, Symbol, repeated, text},
};

/// Maximum number of different values in an array with `uniqueItems`: bits of the parameter of a rule.
const MAX_UNIQUE: usize = 63;

impl Writer<'_> {
    /// The contents of an array between its brackets; `None` if there is no such array.
    pub(super) fn array(&mut self, arrays: &Arrays) -> Result<Option<Vec<Symbol>>, GrammarError> {
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
        // From the last item to the first: what may follow after this many items.
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

    /// Arrays in which some items match a goal. `None` if the keyword was ignored.
    fn containing(&mut self, arrays: &Arrays, contains: &Contains) -> Result<Option<RuleId>, GrammarError> {
        let Contains { node, goal, min: min_matches, max: max_matches } = contains;
        let rest = arrays.rest();
        let matching = self.rule_of(&rest.and(goal));
        let other = if max_matches.is_some() { rest.and(&goal.opposite()) } else { rest };
        let other = self.rule_of(&other);
        // Counters stop at these values; higher counts are treated as equal.
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
