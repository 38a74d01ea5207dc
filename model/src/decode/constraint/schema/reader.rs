//! Reads schemas as sets of values.

mod combined;
mod keywords;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    rc::Rc,
};

use serde_json::{Map, Value};

use self::keywords::OWN;
use super::{
    GrammarError,
    document::Document,
    join,
    pattern::Pattern,
    terminal::{Matcher, Matches},
    values::{Arrays, Atom, Goal, Items, Members, NodeId, Numbers, Objects, Texts, Values, anything},
};

/// Maximum number of sets of values that one schema may expand to.
const MAX_SETS: usize = 5_000;

/// Maximum nesting of schemas for the same value.
const MAX_NESTING: usize = 2_000;

type Sets = Rc<Vec<Values>>;

/// Reads the schemas of one document.
pub(super) struct Reader<'a> {
    document: Document<'a>,
    nodes: Vec<&'a Value>,
    ids: HashMap<*const Value, NodeId>,
    known: HashMap<Goal, Sets>,
    /// Goals that are being read: a goal that depends on itself is undefined.
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

    /// The path of a schema in the goal.
    pub(super) fn path(&self, goal: &Goal) -> String {
        self.at(goal.node(), "")
    }

    fn at(&self, node: NodeId, keyword: &str) -> String {
        let path = self.nodes.get(node).map(|schema| self.document.path(schema)).unwrap_or_default();
        if keyword.is_empty() { path } else { join(&path, keyword) }
    }

    fn wrong(&self, node: NodeId, keyword: &str, what: impl Into<String>) -> GrammarError {
        GrammarError { at: self.at(node, keyword), what: what.into() }
    }

    /// Ignores a keyword that cannot be enforced, or rejects it.
    ///
    /// # Errors
    /// The schema must be enforced as a whole.
    pub(super) fn cannot(&mut self, node: NodeId, keyword: &str, why: &str) -> Result<(), GrammarError> {
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
        Err(GrammarError { at, what })
    }

    /// The sets of the values that satisfy a goal.
    pub(super) fn sets(&mut self, goal: &Goal) -> Result<Sets, GrammarError> {
        if let Some(sets) = self.known.get(goal) {
            return Ok(Rc::clone(sets));
        }
        if self.active.len() > MAX_NESTING || !self.active.insert(goal.clone()) {
            let what = "refers to itself without anything between, or nests too deep";
            return Err(self.wrong(goal.node(), "", what));
        }
        let sets = self.sets_of_atoms(goal);
        self.active.remove(goal);
        let sets = Rc::new(sets?);
        self.known.insert(goal.clone(), Rc::clone(&sets));
        Ok(sets)
    }

    fn sets_of_atoms(&mut self, goal: &Goal) -> Result<Vec<Values>, GrammarError> {
        let mut all: Option<Vec<Values>> = None;
        for atom in &goal.0 {
            let sets = match atom {
                Atom::Is(node) if goal.0.len() == 1 => Rc::new(self.sets_of_schema(*node)?),
                Atom::Is(_) => self.sets(&Goal(vec![atom.clone()]))?,
                Atom::Equals(node) => Rc::new(vec![self.constant(*node)]),
                Atom::Not(inner) => {
                    let Some(others) = others(&self.sets(inner)?) else {
                        self.cannot(inner.node(), "", "its opposite cannot be described as a grammar")?;
                        continue;
                    };
                    Rc::new(others)
                }
            };
            all = Some(match all {
                None => sets.to_vec(),
                Some(before) => self.product(&before, &sets, goal.node(), "")?,
            });
        }
        Ok(all.unwrap_or_else(anything))
    }

    /// The pairwise intersections of two lists of sets.
    fn product(
        &self,
        left: &[Values],
        right: &[Values],
        node: NodeId,
        keyword: &str,
    ) -> Result<Vec<Values>, GrammarError> {
        let mut both = Vec::new();
        for left in left {
            both.extend(right.iter().filter_map(|right| left.and(right)));
            self.check_number(&both, node, keyword)?;
        }
        Ok(both)
    }

    fn check_number(&self, sets: &[Values], node: NodeId, keyword: &str) -> Result<(), GrammarError> {
        if sets.len() <= MAX_SETS {
            return Ok(());
        }
        Err(self.wrong(node, keyword, format!("combines schemas in more than {MAX_SETS} ways")))
    }

    /// The set of one constant.
    fn constant(&mut self, node: NodeId) -> Values {
        match self.nodes[node] {
            Value::Null => Values::Null,
            Value::Bool(value) => Values::Bool(*value),
            Value::Number(number) => Values::Number(Numbers::only(number.clone())),
            Value::String(text) => Values::Text(Texts::only(vec![text.as_str().into()])),
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

    fn sets_of_schema(&mut self, node: NodeId) -> Result<Vec<Values>, GrammarError> {
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
                    // Once, at the position of `properties`: members have the order in which schemas list them.
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

    /// The values that a keyword allows which applies other schemas or lists values. `None` if it does not restrict the
    /// value.
    fn applied(
        &mut self,
        node: NodeId,
        members: &'a Map<String, Value>,
        keyword: &str,
        value: &'a Value,
    ) -> Result<Option<Vec<Values>>, GrammarError> {
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
                let Some(others) = others(&self.sets(&goal)?) else {
                    let why = "values that do not match this schema cannot be described as a grammar";
                    self.cannot(node, keyword, why)?;
                    return Ok(None);
                };
                others
            }
            "if" => return self.conditional(node, members, value),
            "dependentRequired" | "dependentSchemas" | "dependencies" => self.dependent(node, keyword, value)?,
            _ => return Ok(None),
        }))
    }

    fn list(&self, node: NodeId, keyword: &str, value: &'a Value) -> Result<&'a Vec<Value>, GrammarError> {
        value.as_array().ok_or_else(|| self.wrong(node, keyword, format!("must be an array, got {value}")))
    }

    fn enumerated(&mut self, node: NodeId, value: &'a Value) -> Result<Vec<Values>, GrammarError> {
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
            sets.push(Values::Text(Texts::only(texts)));
        }
        Ok(sets)
    }

    /// The goal of the member with a name.
    pub(super) fn member(&mut self, objects: &Objects, name: &str) -> Result<Goal, GrammarError> {
        let mut goal = Goal::default();
        for layer in &objects.layers {
            let named = layer.named.iter().filter(|(other, _)| **other == *name).map(|(_, goal)| goal);
            let mut goals: Vec<&Goal> = named.collect();
            // A name that matches in only some dialects must satisfy the goals for both cases.
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
    pub(super) fn matches(&mut self, pattern: &Rc<Pattern>, text: &str) -> Result<Matches, GrammarError> {
        if !self.matchers.contains_key(&**pattern) {
            let matcher = Matcher::new(pattern).map_err(GrammarError::whole)?;
            self.matchers.insert((**pattern).clone(), matcher);
        }
        Ok(self.matchers.get_mut(&**pattern).map_or(Matches::No, |matcher| matcher.matches(text)))
    }

    /// Whether a text is in one of the sets.
    pub(super) fn contains_text(&mut self, sets: &[Values], text: &str) -> Result<bool, GrammarError> {
        let only = Texts::only(vec![text.into()]);
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
