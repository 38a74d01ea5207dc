//! Objects: the members that a schema lists, in their order, and others by their names.

use std::{collections::HashSet, rc::Rc};

use super::{
    super::{
        GrammarError,
        pattern::Pattern,
        terminal::{self, Terminal},
        values::{Goal, Objects, Values},
    },
    MAX_COUNTED, Writer,
    rules::{Rule, RuleId, Symbol, repeated, text},
};

/// Maximum number of optional members of one object: the parser keeps some items for each that may come next, and has
/// room for 2,000.
const MAX_OPTIONAL_MEMBERS: usize = 600;

/// Maximum number of patterns for the names of one object: a name may match any combination of them.
const MAX_NAME_PATTERNS: usize = 4;

/// Maximum number of sets of names with the same goal in one object.
const MAX_NAME_TERMINALS: usize = 64;

impl Writer<'_> {
    /// The contents of an object between its braces; or a required member that the object may not have, so that there
    /// is no such object.
    pub(super) fn object(&mut self, objects: &Objects) -> Result<Result<Vec<Symbol>, Rc<str>>, GrammarError> {
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
                return Ok(Err(Rc::clone(name)));
            }
        }
        let is_open = objects.layers.iter().any(|layer| layer.rest.is_some());
        let lists_names = objects.layers.iter().any(|layer| layer.lists_names);
        // Schemas that list members rarely intend more, and models might add members without end.
        let is_closed = !is_open && lists_names && lists_required && objects.min <= members.len() as u64;
        let free = self.free_members(objects, &names, allowed.as_deref(), is_closed)?;
        Ok(Ok(self.members(objects, members, free)?))
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
            // A pattern with a lookahead is several expressions; names that do not match one of them are separate.
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

    /// Members in their order, each with whether it is required, followed by free members.
    fn members(
        &mut self,
        objects: &Objects,
        members: Vec<(Vec<Symbol>, bool)>,
        free: Option<RuleId>,
    ) -> Result<Vec<Symbol>, GrammarError> {
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
        // Counters stop at this value; higher counts are treated as equal. Without limits, only whether there are any
        // members is tracked.
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
        // What may follow, by the number of members so far; built from the last listed member to the first.
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
        Ok(vec![Symbol::Rule(next[0])])
    }
}
