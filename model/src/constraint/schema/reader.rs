//! Reads schemas as sets of values.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    rc::Rc,
};

use serde_json::{Map, Value, json};

use super::{
    GrammarError,
    document::Document,
    formats, join,
    pattern::Pattern,
    terminal::{self, Matcher, Matches},
    values::{Arrays, Atom, Contains, Goal, Items, Members, NodeId, Numbers, Objects, Texts, Values, anything},
};

/// Maximum number of sets that one schema may be.
const MAX_SETS: usize = 5_000;

/// The same for the branches of `oneOf`, which are compared with each other.
const MAX_BRANCH_SETS: usize = 500;

/// Maximum nesting of schemas for the same value.
const MAX_NESTING: usize = 2_000;

/// Keywords that say something about the value itself, other than those that apply further schemas to it.
const OWN: [&str; 24] = [
    "type",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "prefixItems",
    "items",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Why a schema cannot be read.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The schema says something that cannot be enforced.
    Unenforceable(GrammarError),
    /// The schema is wrong.
    Wrong(GrammarError),
}

impl From<Fault> for GrammarError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unenforceable(error) | Fault::Wrong(error) => error,
        }
    }
}

type Sets = Rc<Vec<Values>>;

/// Reads the schemas of one document.
pub(super) struct Reader<'a> {
    document: Document<'a>,
    nodes: Vec<&'a Value>,
    ids: HashMap<*const Value, NodeId>,
    known: HashMap<Goal, Sets>,
    /// Goals that are being read: one that needs itself has no meaning.
    active: HashSet<Goal>,
    /// Patterns by their source.
    patterns: HashMap<String, Rc<Pattern>>,
    matchers: HashMap<Pattern, Matcher>,
    /// Whether to pass over keywords that cannot be enforced.
    is_lenient: bool,
    /// The paths of the keywords that were passed over.
    pub(super) passed_over: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Value, is_lenient: bool) -> Self {
        Self {
            document: Document::new(root),
            nodes: Vec::new(),
            ids: HashMap::new(),
            known: HashMap::new(),
            active: HashSet::new(),
            patterns: HashMap::new(),
            matchers: HashMap::new(),
            is_lenient,
            passed_over: BTreeSet::new(),
        }
    }

    /// The index of a schema or a constant.
    pub(super) fn node(&mut self, value: &'a Value) -> NodeId {
        let next = self.nodes.len();
        let id = *self.ids.entry(value).or_insert(next);
        if id == next {
            self.nodes.push(value);
        }
        id
    }

    fn goal(&mut self, schema: &'a Value) -> Goal {
        match schema {
            Value::Bool(true) => Goal::default(),
            Value::Bool(false) => Goal::never(),
            Value::Object(members) if members.is_empty() => Goal::default(),
            _ => Goal::is(self.node(schema)),
        }
    }

    fn at(&self, node: NodeId, keyword: &str) -> String {
        let path = self.nodes.get(node).map(|schema| self.document.path(schema)).unwrap_or_default();
        if keyword.is_empty() { path } else { join(&path, keyword) }
    }

    fn wrong(&self, node: NodeId, keyword: &str, what: impl Into<String>) -> Fault {
        Fault::Wrong(GrammarError { at: self.at(node, keyword), what: what.into() })
    }

    /// Passes over a keyword that cannot be enforced, or refuses it.
    ///
    /// # Errors
    /// The schema must be enforced as a whole.
    pub(super) fn cannot(&mut self, node: NodeId, keyword: &str, why: &str) -> Result<(), Fault> {
        let at = self.at(node, keyword);
        if self.is_lenient {
            self.passed_over.insert(at);
            return Ok(());
        }
        let hint = match keyword {
            "" => String::new(),
            _ => format!("\nhint: leave out `{keyword}`, and check the answer yourself"),
        };
        let what = format!("cannot be enforced: {why}{hint}");
        Err(Fault::Unenforceable(GrammarError { at, what }))
    }

    /// The sets of the values that satisfy a goal.
    pub(super) fn sets(&mut self, goal: &Goal) -> Result<Sets, Fault> {
        if let Some(sets) = self.known.get(goal) {
            return Ok(Rc::clone(sets));
        }
        if self.active.len() > MAX_NESTING || !self.active.insert(goal.clone()) {
            let node = goal.0.iter().find_map(|atom| match atom {
                Atom::Is(node) | Atom::Equals(node) => Some(*node),
                Atom::Not(_) => None,
            });
            let what = "refers to itself without anything between, or nests too deep";
            return Err(self.wrong(node.unwrap_or_default(), "", what));
        }
        let sets = self.sets_of_atoms(goal);
        self.active.remove(goal);
        let sets = Rc::new(sets?);
        self.known.insert(goal.clone(), Rc::clone(&sets));
        Ok(sets)
    }

    fn sets_of_atoms(&mut self, goal: &Goal) -> Result<Vec<Values>, Fault> {
        let mut all: Option<Vec<Values>> = None;
        for atom in &goal.0 {
            let sets = match atom {
                Atom::Is(node) if goal.0.len() == 1 => Rc::new(self.sets_of_schema(*node)?),
                Atom::Is(_) => self.sets(&Goal(vec![atom.clone()]))?,
                Atom::Equals(node) => Rc::new(vec![self.constant(*node)]),
                Atom::Not(inner) => {
                    let inner_sets = self.sets(inner)?;
                    let node =
                        inner.0.iter().find_map(|atom| if let Atom::Is(node) = atom { Some(*node) } else { None });
                    match others(&inner_sets) {
                        Some(sets) => Rc::new(sets),
                        None => {
                            let why = "its opposite cannot be described as a grammar";
                            self.cannot(node.unwrap_or_default(), "", why)?;
                            continue;
                        }
                    }
                }
            };
            all = Some(match all {
                None => sets.to_vec(),
                Some(before) => self.both(&before, &sets, goal)?,
            });
        }
        Ok(all.unwrap_or_else(anything))
    }

    /// What two lists of sets have in common.
    fn both(&self, left: &[Values], right: &[Values], goal: &Goal) -> Result<Vec<Values>, Fault> {
        let node = goal.0.iter().find_map(|atom| if let Atom::Is(node) = atom { Some(*node) } else { None });
        self.product(left, right, node.unwrap_or_default(), "")
    }

    fn product(&self, left: &[Values], right: &[Values], node: NodeId, keyword: &str) -> Result<Vec<Values>, Fault> {
        let mut both = Vec::new();
        for left in left {
            both.extend(right.iter().filter_map(|right| left.and(right)));
            self.check_number(&both, node, keyword)?;
        }
        Ok(both)
    }

    fn check_number(&self, sets: &[Values], node: NodeId, keyword: &str) -> Result<(), Fault> {
        if sets.len() <= MAX_SETS {
            return Ok(());
        }
        let what = format!("combines schemas in more than {MAX_SETS} ways");
        Err(Fault::Unenforceable(GrammarError { at: self.at(node, keyword), what }))
    }

    /// The set of one constant.
    fn constant(&mut self, node: NodeId) -> Values {
        match self.nodes[node] {
            Value::Null => Values::Null,
            Value::Bool(value) => Values::Bool(*value),
            Value::Number(number) => Values::Number(Numbers::only(number.clone())),
            Value::String(text) => Values::Text(Texts { only: Some(vec![text.as_str().into()]), ..Texts::default() }),
            Value::Array(items) => {
                let first: Vec<Goal> = items.iter().map(|item| Goal(vec![Atom::Equals(self.node(item))])).collect();
                let n = first.len() as u64;
                let layers = vec![Items { first, rest: Some(Goal::never()) }];
                Values::Array(Arrays { layers, min: n, max: Some(n), ..Arrays::default() })
            }
            Value::Object(members) => {
                let named: Vec<(Rc<str>, Goal)> = members
                    .iter()
                    .map(|(name, value)| (name.as_str().into(), Goal(vec![Atom::Equals(self.node(value))])))
                    .collect();
                let required = named.iter().map(|(name, _)| Rc::clone(name)).collect();
                let layers = vec![Members { named, rest: Some(Goal::never()), ..Members::default() }];
                Values::Object(Objects { layers, required, ..Objects::default() })
            }
        }
    }

    fn sets_of_schema(&mut self, node: NodeId) -> Result<Vec<Values>, Fault> {
        let members = match self.nodes[node] {
            Value::Bool(true) => return Ok(anything()),
            Value::Bool(false) => return Ok(Vec::new()),
            Value::Object(members) => members,
            other => {
                return Err(self.wrong(node, "", format!("must be a schema: an object, true or false, got {other}")));
            }
        };
        let mut sets: Option<Vec<Values>> = None;
        let mut reads_own = false;
        for (keyword, value) in members {
            let found = match keyword.as_str() {
                own if OWN.contains(&own) => {
                    // Once, and where `properties` stands: members have the order in which schemas list them.
                    let is_place = own == "properties" || !members.contains_key("properties");
                    if reads_own || !is_place {
                        continue;
                    }
                    reads_own = true;
                    Some(self.own_sets(node, members)?)
                }
                _ => self.applied(node, members, keyword, value)?,
            };
            let Some(found) = found else { continue };
            sets = Some(match sets {
                None => found,
                Some(before) => self.product(&before, &found, node, keyword)?,
            });
        }
        let mut sets = sets.unwrap_or_else(anything);
        self.unevaluated(node, members, &mut sets)?;
        Ok(sets)
    }

    /// What a keyword that applies other schemas, or that lists values, allows. `None` if it says nothing.
    fn applied(
        &mut self,
        node: NodeId,
        members: &'a Map<String, Value>,
        keyword: &str,
        value: &'a Value,
    ) -> Result<Option<Vec<Values>>, Fault> {
        Ok(Some(match keyword {
            "const" => {
                let constant = self.node(value);
                vec![self.constant(constant)]
            }
            "enum" => self.enumerated(node, value)?,
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let Some(reference) = value.as_str() else {
                    return Err(self.wrong(node, keyword, format!("must be a string, got {value}")));
                };
                let from = self.nodes[node];
                let found = self.document.lookup(from, reference).map_err(|what| self.wrong(node, "", what))?;
                let goal = self.goal(found);
                self.sets(&goal)?.to_vec()
            }
            "allOf" => {
                let mut all = anything();
                for schema in self.list(node, keyword, value)? {
                    let goal = self.goal(schema);
                    let sets = self.sets(&goal)?;
                    all = self.product(&all, &sets, node, keyword)?;
                }
                all
            }
            "anyOf" => {
                let mut any = Vec::new();
                for schema in self.list(node, keyword, value)? {
                    let goal = self.goal(schema);
                    any.extend(self.sets(&goal)?.iter().cloned());
                    self.check_number(&any, node, keyword)?;
                }
                any
            }
            "oneOf" => self.exactly_one(node, value)?,
            "not" => {
                let goal = self.goal(value);
                match others(&self.sets(&goal)?) {
                    Some(others) => others,
                    None => {
                        self.cannot(
                            node,
                            keyword,
                            "values that do not match this schema cannot be described as a grammar",
                        )?;
                        return Ok(None);
                    }
                }
            }
            "if" => return self.conditional(node, members, value),
            "dependentRequired" | "dependentSchemas" | "dependencies" => self.dependent(node, keyword, value)?,
            _ => return Ok(None),
        }))
    }

    fn list(&self, node: NodeId, keyword: &str, value: &'a Value) -> Result<&'a Vec<Value>, Fault> {
        value.as_array().ok_or_else(|| self.wrong(node, keyword, format!("must be an array, got {value}")))
    }

    fn enumerated(&mut self, node: NodeId, value: &'a Value) -> Result<Vec<Values>, Fault> {
        let (mut texts, mut sets): (Vec<Rc<str>>, Vec<Values>) = Default::default();
        for item in self.list(node, "enum", value)? {
            match item {
                Value::String(text) => texts.push(text.as_str().into()),
                other => {
                    let constant = self.node(other);
                    sets.push(self.constant(constant));
                }
            }
        }
        if !texts.is_empty() {
            sets.push(Values::Text(Texts { only: Some(texts), ..Texts::default() }));
        }
        Ok(sets)
    }

    fn exactly_one(&mut self, node: NodeId, value: &'a Value) -> Result<Vec<Values>, Fault> {
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

    /// The values of some sets that are not in other ones.
    fn without(&mut self, node: NodeId, sets: Vec<Values>, others_sets: &[Values]) -> Result<Vec<Values>, Fault> {
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

    /// Objects with the member by which they differ from others, as a kind or a tag does. `None` if there is none.
    fn told_apart(&mut self, values: Values, other: &Values) -> Result<Option<Values>, Fault> {
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
    fn overlap(&mut self, left: &[Values], right: &[Values]) -> Result<bool, Fault> {
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
    fn is_empty(&mut self, values: &Values, depth: usize) -> Result<bool, Fault> {
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

    /// The goal of the member with a name.
    pub(super) fn member(&mut self, objects: &Objects, name: &str) -> Result<Goal, Fault> {
        let mut goal = Goal::default();
        for layer in &objects.layers {
            let named = layer.named.iter().filter(|(other, _)| **other == *name).map(|(_, goal)| goal);
            let mut goals: Vec<&Goal> = named.collect();
            // A name that matches in some dialects must satisfy what holds in either case.
            let mut is_sure = !goals.is_empty();
            for (pattern, goal) in &layer.patterns {
                let matches = self.matches(pattern, name)?;
                is_sure |= matches == Matches::Yes;
                if matches != Matches::No {
                    goals.push(goal);
                }
            }
            if !is_sure {
                goals.extend(layer.rest.as_ref());
            }
            goal = goals.into_iter().fold(goal, |all, goal| all.and(goal));
        }
        Ok(goal)
    }

    /// Whether a pattern matches a text.
    pub(super) fn matches(&mut self, pattern: &Rc<Pattern>, text: &str) -> Result<Matches, Fault> {
        if !self.matchers.contains_key(&**pattern) {
            let matcher = Matcher::new(pattern).map_err(|what| Fault::Wrong(GrammarError::whole(what)))?;
            self.matchers.insert((**pattern).clone(), matcher);
        }
        Ok(self.matchers.get_mut(&**pattern).map_or(Matches::No, |matcher| matcher.matches(text)))
    }

    /// Whether a text is in one of the sets.
    pub(super) fn contains_text(&mut self, sets: &[Values], text: &str) -> Result<bool, Fault> {
        let only = Texts { only: Some(vec![text.into()]), ..Texts::default() };
        for values in sets {
            if let Values::Text(texts) = values
                && let Some(both) = texts.and(&only)
                && self.matches(&Rc::new(both.patterns), text)? == Matches::Yes
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn conditional(
        &mut self,
        node: NodeId,
        members: &'a Map<String, Value>,
        value: &'a Value,
    ) -> Result<Option<Vec<Values>>, Fault> {
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
    fn dependent(&mut self, node: NodeId, keyword: &str, value: &'a Value) -> Result<Vec<Values>, Fault> {
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
                    sets.push(Values::Object(Objects { required, ..Objects::default() }));
                }
                schema => {
                    let goal = self.goal(schema);
                    let present = [Values::Object(Objects { required: vec![Rc::clone(&name)], ..Objects::default() })];
                    let applied = self.sets(&goal)?;
                    sets.extend(self.product(&present, &applied, node, keyword)?);
                }
            }
            all = self.product(&all, &sets, node, keyword)?;
        }
        Ok(all)
    }

    /// Applies `unevaluatedProperties` and `unevaluatedItems`: to what no other keyword of the schema has named.
    fn unevaluated(&mut self, node: NodeId, members: &'a Map<String, Value>, sets: &mut [Values]) -> Result<(), Fault> {
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

    /// What the keywords say that need no other schema for the same value.
    fn own_sets(&mut self, node: NodeId, members: &'a Map<String, Value>) -> Result<Vec<Values>, Fault> {
        let types: Vec<&str> = match members.get("type") {
            None => TYPES.to_vec(),
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) if kinds.iter().all(Value::is_string) => {
                kinds.iter().filter_map(Value::as_str).collect()
            }
            Some(other) => return Err(self.wrong(node, "", format!("has the unknown `type` {other}"))),
        };
        let mut sets = Vec::new();
        for kind in types {
            match kind {
                "null" => sets.push(Values::Null),
                "boolean" => sets.extend([Values::Bool(true), Values::Bool(false)]),
                "number" | "integer" => sets.extend(self.numbers(node, members, kind == "integer")?),
                "string" => sets.extend(self.texts(node, members)?),
                "array" => sets.extend(self.arrays(node, members)?),
                "object" => sets.extend(self.objects(node, members)?),
                other => {
                    let what = format!(
                        "has the unknown `type` {}; known are {}",
                        json!(other),
                        ["null", "boolean", "integer", "number", "string", "array", "object"].join(", ")
                    );
                    return Err(self.wrong(node, "", what));
                }
            }
        }
        Ok(sets)
    }

    fn number(&self, node: NodeId, members: &Map<String, Value>, keyword: &str) -> Result<Option<f64>, Fault> {
        match members.get(keyword) {
            None => Ok(None),
            Some(Value::Bool(_)) if keyword.starts_with("exclusive") => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(node, keyword, format!("must be a number, got {}", shown(value)))),
            },
        }
    }

    fn count(&self, node: NodeId, members: &Map<String, Value>, keyword: &str) -> Result<Option<u64>, Fault> {
        let Some(value) = members.get(keyword) else { return Ok(None) };
        let whole = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e18).contains(number));
        match value.as_u64().or(whole.map(|number| number as u64)) {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(node, keyword, format!("must be a whole number from 0, got {}", shown(value)))),
        }
    }

    fn numbers(
        &mut self,
        node: NodeId,
        members: &Map<String, Value>,
        is_integer: bool,
    ) -> Result<Option<Values>, Fault> {
        let is_excluded = |keyword: &str| members.get(keyword) == Some(&Value::Bool(true));
        let (minimum, maximum) = (self.number(node, members, "minimum")?, self.number(node, members, "maximum")?);
        let above = self.number(node, members, "exclusiveMinimum")?;
        let below = self.number(node, members, "exclusiveMaximum")?;
        let bounds = Numbers {
            is_integer,
            least: minimum.map(|minimum| (minimum, is_excluded("exclusiveMinimum"))),
            most: maximum.map(|maximum| (maximum, is_excluded("exclusiveMaximum"))),
            ..Numbers::default()
        };
        let multiples = match members.get("multipleOf") {
            None => Vec::new(),
            Some(Value::Number(factor)) if factor.as_f64().is_some_and(|factor| factor > 0.0) => vec![factor.clone()],
            Some(other) => {
                return Err(self.wrong(node, "multipleOf", format!("must be a number above 0, got {}", shown(other))));
            }
        };
        let exclusive = Numbers {
            least: above.map(|above| (above, true)),
            most: below.map(|below| (below, true)),
            multiples,
            ..Numbers::default()
        };
        Ok(bounds.and(&exclusive).map(Values::Number))
    }

    /// A pattern, from its source.
    fn pattern(&mut self, source: &str) -> Result<Rc<Pattern>, String> {
        if let Some(pattern) = self.patterns.get(source) {
            return Ok(Rc::clone(pattern));
        }
        let pattern = Rc::new(Pattern::new(source)?);
        self.patterns.insert(source.to_owned(), Rc::clone(&pattern));
        Ok(pattern)
    }

    fn texts(&mut self, node: NodeId, members: &Map<String, Value>) -> Result<Option<Values>, Fault> {
        let (min, max) = (self.count(node, members, "minLength")?, self.count(node, members, "maxLength")?);
        let mut patterns = Pattern::default();
        match members.get("pattern") {
            None => {}
            Some(Value::String(source)) => match self.pattern(source) {
                Ok(pattern) => patterns = patterns.and(&pattern),
                Err(what) => self.cannot_match(node, "pattern", &what)?,
            },
            Some(other) => return Err(self.wrong(node, "pattern", format!("must be a string, got {}", shown(other)))),
        }
        match members.get("format") {
            None => {}
            Some(Value::String(format)) => match formats::pattern(format) {
                Err(why) => self.cannot(node, "format", why)?,
                Ok(None) => {}
                Ok(Some(source)) => match Pattern::of_format(&source) {
                    Ok(pattern) => patterns = patterns.and(&pattern),
                    Err(what) => self.cannot(node, "format", &what)?,
                },
            },
            Some(other) => return Err(self.wrong(node, "format", format!("must be a string, got {}", shown(other)))),
        }
        let texts = Texts { min_length: min.unwrap_or_default(), max_length: max, patterns, ..Texts::default() };
        Ok(texts.and(&Texts::default()).map(Values::Text))
    }

    fn cannot_match(&mut self, node: NodeId, keyword: &str, what: &str) -> Result<(), Fault> {
        if what == "matches no text" {
            return Err(self.wrong(node, keyword, what));
        }
        self.cannot(node, keyword, &format!("the pattern {what}"))
    }

    fn arrays(&mut self, node: NodeId, members: &'a Map<String, Value>) -> Result<Option<Values>, Fault> {
        let (min, max) = (self.count(node, members, "minItems")?, self.count(node, members, "maxItems")?);
        let (first, rest) = match (members.get("prefixItems"), members.get("items")) {
            // Until draft 2019-09.
            (None, Some(Value::Array(first))) => (Some(first), members.get("additionalItems")),
            (None, rest) => (None, rest),
            (Some(first), rest) => (Some(self.list(node, "prefixItems", first)?), rest),
        };
        let first = first.into_iter().flatten().map(|schema| self.goal(schema)).collect();
        let rest = rest.map(|schema| self.goal(schema));
        let contains = match members.get("contains") {
            None => Vec::new(),
            Some(schema) => {
                let min = self.count(node, members, "minContains")?.unwrap_or(1);
                let max = self.count(node, members, "maxContains")?;
                vec![Contains { node, goal: self.goal(schema), min, max }]
            }
        };
        let arrays = Arrays {
            layers: vec![Items { first, rest }],
            min: min.unwrap_or_default(),
            max,
            unique: members.get("uniqueItems").is_some_and(|unique| *unique == json!(true)).then_some(node),
            contains,
        };
        Ok(max.is_none_or(|max| max >= arrays.min).then_some(Values::Array(arrays)))
    }

    fn objects(&mut self, node: NodeId, members: &'a Map<String, Value>) -> Result<Option<Values>, Fault> {
        let (min, max) = (self.count(node, members, "minProperties")?, self.count(node, members, "maxProperties")?);
        let object = |reader: &Self, keyword: &str| match members.get(keyword) {
            None => Ok(None),
            Some(Value::Object(named)) => Ok(Some(named)),
            Some(other) => Err(reader.wrong(node, keyword, format!("must be an object, got {}", shown(other)))),
        };
        let (properties, pattern_properties) = (object(self, "properties")?, object(self, "patternProperties")?);
        let mut layer = Members { lists_names: properties.is_some(), ..Members::default() };
        for (name, schema) in properties.into_iter().flatten() {
            layer.named.push((name.as_str().into(), self.goal(schema)));
        }
        for (source, schema) in pattern_properties.into_iter().flatten() {
            match self.pattern(source) {
                Ok(pattern) => layer.patterns.push((pattern, self.goal(schema))),
                Err(what) => self.cannot_match(node, &format!("patternProperties.{source}"), &what)?,
            }
        }
        layer.rest = members.get("additionalProperties").map(|schema| self.goal(schema));
        let required: Vec<Rc<str>> = match members.get("required") {
            // Until draft 4, a flag of the member.
            None | Some(Value::Bool(_)) => Vec::new(),
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                let mut known = HashSet::new();
                names.iter().filter_map(Value::as_str).filter(|name| known.insert(*name)).map(Rc::from).collect()
            }
            Some(other) => {
                return Err(self.wrong(node, "required", format!("must be an array of names, got {}", shown(other))));
            }
        };
        let names = match members.get("propertyNames") {
            None => Goal::default(),
            Some(Value::Object(schema)) if *schema == Map::from_iter([("type".to_owned(), json!("string"))]) => {
                Goal::default()
            }
            Some(schema) => self.goal(schema),
        };
        let objects =
            Objects { layers: vec![layer], required, min: min.unwrap_or_default(), min_node: node, max, names };
        Ok(max.is_none_or(|max| max >= objects.min).then_some(Values::Object(objects)))
    }
}

/// A value for an error message.
fn shown(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The values that are in none of the sets. `None` if they cannot be described.
fn others(sets: &[Values]) -> Option<Vec<Values>> {
    let mut all = anything();
    for set in sets {
        let mut others: Vec<Values> = anything();
        others.retain(|other| std::mem::discriminant(other) != std::mem::discriminant(set));
        others.extend(match set {
            Values::Null => Vec::new(),
            Values::Bool(value) => vec![Values::Bool(!value)],
            Values::Number(numbers) => numbers.others()?,
            Values::Text(texts) => texts.others(),
            Values::Array(arrays) => arrays.others()?,
            Values::Object(objects) => objects.others()?,
        });
        let mut rest = Vec::new();
        for left in &all {
            rest.extend(others.iter().filter_map(|right| left.and(right)));
        }
        if rest.len() > MAX_SETS {
            return None;
        }
        all = rest;
    }
    Some(all)
}
