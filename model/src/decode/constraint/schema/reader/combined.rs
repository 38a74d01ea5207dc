//! Keywords that combine schemas and need disjoint branches, or that depend on what other keywords have named.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::{
    super::{
        GrammarError,
        pattern::Pattern,
        terminal,
        values::{Goal, Items, Members, NodeId, Objects, Values, anything},
    },
    MAX_NESTING, Reader, others,
};

/// Maximum number of sets of the branches of `oneOf`, which are compared with each other.
const MAX_BRANCH_SETS: usize = 500;

impl<'a> Reader<'a> {
    pub(super) fn exactly_one(&mut self, node: NodeId, value: &'a Value) -> Result<Vec<Values>, GrammarError> {
        let (mut branches, mut n_sets) = (Vec::new(), 0);
        for schema in self.list(node, "oneOf", value)? {
            let goal = self.goal(schema);
            branches.push(self.sets(&goal)?);
            n_sets += branches.last().map_or(0, |sets| sets.len());
        }
        if n_sets > MAX_BRANCH_SETS {
            let what = format!("must have branches with at most {MAX_BRANCH_SETS} alternatives together, got {n_sets}");
            return Err(self.wrong(node, "oneOf", what));
        }
        let mut found = Vec::new();
        for (index, branch) in branches.iter().enumerate() {
            let mut only = branch.to_vec();
            for (other_index, other) in branches.iter().enumerate() {
                if index != other_index {
                    only = self.without(node, only, other)?;
                }
            }
            found.extend(only);
            self.check_number(&found, node, "oneOf")?;
        }
        Ok(found)
    }

    /// The values of some sets that are not in other sets.
    fn without(
        &mut self,
        node: NodeId,
        sets: Vec<Values>,
        others_sets: &[Values],
    ) -> Result<Vec<Values>, GrammarError> {
        let mut rest = Vec::new();
        for values in sets {
            let mut apart = Some(values.clone());
            for other in others_sets {
                let Some(left) = apart.take() else { break };
                apart = if self.overlap(std::slice::from_ref(&left), std::slice::from_ref(other))? {
                    self.told_apart(left, other)?
                } else {
                    Some(left)
                };
            }
            match (apart, others(others_sets)) {
                (Some(apart), _) => rest.push(apart),
                (None, Some(others)) => rest.extend(self.product(&[values], &others, node, "oneOf")?),
                (None, None) => {
                    self.cannot(node, "oneOf", "its branches overlap, so a value could match more than one")?;
                    rest.push(values);
                }
            }
        }
        Ok(rest)
    }

    /// Objects with a member that distinguishes them from others, such as a kind or a tag. `None` if there is none.
    fn told_apart(&mut self, values: Values, other: &Values) -> Result<Option<Values>, GrammarError> {
        let (Values::Object(mut objects), Values::Object(other)) = (values, other) else { return Ok(None) };
        let named: Vec<Rc<str>> =
            objects.layers.iter().flat_map(|layer| layer.named.iter().map(|(name, _)| Rc::clone(name))).collect();
        for name in named {
            if !other.layers.iter().any(|layer| layer.named.iter().any(|(other, _)| *other == name)) {
                continue;
            }
            let goal = self.member(&objects, &name)?.and(&self.member(other, &name)?);
            if self.active.contains(&goal) {
                continue;
            }
            let both = self.sets(&goal)?;
            let mut is_empty = true;
            for values in both.iter() {
                is_empty = is_empty && self.is_empty(values, 1)?;
            }
            if is_empty {
                if !objects.required.contains(&name) {
                    objects.required.push(name);
                }
                return Ok(Some(Values::Object(objects)));
            }
        }
        Ok(None)
    }

    /// Whether two lists of sets may have a value in common.
    fn overlap(&mut self, left: &[Values], right: &[Values]) -> Result<bool, GrammarError> {
        for left in left {
            for both in right.iter().filter_map(|right| left.and(right)) {
                if !self.is_empty(&both, 3)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether a set certainly has no values, looking at most `depth` levels into objects and arrays.
    fn is_empty(&mut self, values: &Values, depth: usize) -> Result<bool, GrammarError> {
        let goals: Vec<Goal> = match values {
            Values::Text(texts) => return Ok(terminal::is_empty(&terminal::of_texts(texts)).unwrap_or(false)),
            Values::Object(objects) => {
                objects.required.iter().map(|name| self.member(objects, name)).collect::<Result<_, _>>()?
            }
            Values::Array(arrays) => {
                let n_first = (arrays.n_first() as u64).min(arrays.min);
                let mut goals: Vec<Goal> = (0..n_first).map(|index| arrays.item(index as usize)).collect();
                goals.extend((arrays.min > n_first).then(|| arrays.rest()));
                goals
            }
            _ => return Ok(false),
        };
        for goal in goals.into_iter().filter(|_| depth > 0) {
            // A goal that is being read is a recursion; it may have values.
            if self.active.contains(&goal) || self.active.len() + 20 > MAX_NESTING {
                continue;
            }
            let sets = self.sets(&goal)?;
            let mut all_empty = true;
            for set in sets.iter() {
                all_empty = all_empty && self.is_empty(set, depth - 1)?;
            }
            if all_empty {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn conditional(
        &mut self,
        node: NodeId,
        members: &'a Map<String, Value>,
        value: &'a Value,
    ) -> Result<Option<Vec<Values>>, GrammarError> {
        let (then, otherwise) = (members.get("then"), members.get("else"));
        if then.is_none() && otherwise.is_none() {
            return Ok(None);
        }
        let goal = self.goal(value);
        let condition = self.sets(&goal)?;
        let Some(mut opposite) = others(&condition) else {
            self.cannot(node, "if", "values that do not match this schema cannot be described as a grammar")?;
            return Ok(None);
        };
        let mut condition = condition.to_vec();
        for (schema, sets) in [(then, &mut condition), (otherwise, &mut opposite)] {
            if let Some(schema) = schema {
                let goal = self.goal(schema);
                let applied = self.sets(&goal)?;
                *sets = self.product(sets, &applied, node, "if")?;
            }
        }
        condition.extend(opposite);
        Ok(Some(condition))
    }

    /// Members that need others, or a schema.
    pub(super) fn dependent(
        &mut self,
        node: NodeId,
        keyword: &str,
        value: &'a Value,
    ) -> Result<Vec<Values>, GrammarError> {
        let Some(members) = value.as_object() else {
            return Err(self.wrong(node, keyword, format!("must be an object, got {value}")));
        };
        let mut all = anything();
        for (name, needed) in members {
            let name: Rc<str> = name.as_str().into();
            let with = |goal: Goal, required: Vec<Rc<str>>| {
                let layers = vec![Members { named: vec![(Rc::clone(&name), goal)], ..Members::default() }];
                Values::Object(Objects { layers, required, ..Objects::default() })
            };
            let mut sets: Vec<Values> = anything();
            sets.pop();
            sets.push(with(Goal::never(), Vec::new()));
            match needed {
                Value::Array(names) => {
                    let mut required = vec![Rc::clone(&name)];
                    required.extend(names.iter().filter_map(Value::as_str).map(Rc::from));
                    sets.push(Values::Object(Objects::requiring(required)));
                }
                schema => {
                    let goal = self.goal(schema);
                    let present = [Values::Object(Objects::requiring(vec![Rc::clone(&name)]))];
                    let applied = self.sets(&goal)?;
                    sets.extend(self.product(&present, &applied, node, keyword)?);
                }
            }
            all = self.product(&all, &sets, node, keyword)?;
        }
        Ok(all)
    }

    /// Applies `unevaluatedProperties` and `unevaluatedItems` to everything that no other keyword of the schema has
    /// named.
    pub(super) fn unevaluated(
        &mut self,
        node: NodeId,
        members: &'a Map<String, Value>,
        sets: &mut [Values],
    ) -> Result<(), GrammarError> {
        if let Some(schema) = members.get("unevaluatedProperties") {
            let goal = self.goal(schema);
            for values in sets.iter_mut() {
                let Values::Object(objects) = values else { continue };
                if objects.layers.iter().any(|layer| layer.rest.is_some()) {
                    continue;
                }
                let free = |(name, _): &(Rc<str>, Goal)| (Rc::clone(name), Goal::default());
                let named = objects.layers.iter().flat_map(|layer| layer.named.iter().map(free)).collect();
                let free = |(pattern, _): &(Rc<Pattern>, Goal)| (Rc::clone(pattern), Goal::default());
                let patterns = objects.layers.iter().flat_map(|layer| layer.patterns.iter().map(free)).collect();
                objects.layers.push(Members { named, patterns, rest: Some(goal.clone()), lists_names: true });
            }
        }
        if let Some(schema) = members.get("unevaluatedItems") {
            let goal = self.goal(schema);
            let mut has_contains = false;
            for values in sets.iter_mut() {
                let Values::Array(arrays) = values else { continue };
                has_contains |= !arrays.contains.is_empty();
                if arrays.layers.iter().all(|layer| layer.rest.is_none()) && arrays.contains.is_empty() {
                    let first = vec![Goal::default(); arrays.n_first()];
                    arrays.layers.push(Items { first, rest: Some(goal.clone()) });
                }
            }
            if has_contains {
                self.cannot(node, "unevaluatedItems", "it depends on which items match `contains`")?;
            }
        }
        Ok(())
    }
}
