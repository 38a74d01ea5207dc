//! Keywords that restrict a value itself, one type of values at a time.

use std::{collections::HashSet, rc::Rc};

use serde_json::{Map, Value, json};

use super::{
    super::{
        GrammarError, formats,
        pattern::Pattern,
        values::{Arrays, Contains, Goal, Items, Members, NodeId, Numbers, Objects, Texts, Values},
    },
    Reader,
};

/// Keywords that restrict the value itself, as opposed to applying further schemas to it.
pub(super) const OWN: [&str; 24] = [
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

/// The largest number of characters, items or members that is counted. No text has more.
const MAX_SIZE: u64 = 1_000_000_000;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl<'a> Reader<'a> {
    /// The sets of values that the keywords allow which need no other schema for the same value.
    pub(super) fn own_sets(
        &mut self,
        node: NodeId,
        members: &'a Map<String, Value>,
    ) -> Result<Vec<Values>, GrammarError> {
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

    /// The value of a keyword as the expected type, if the keyword is present.
    fn typed<'m, T>(
        &self,
        (node, members): (NodeId, &'m Map<String, Value>),
        keyword: &str,
        wanted: &str,
        read: impl FnOnce(&'m Value) -> Option<T>,
    ) -> Result<Option<T>, GrammarError> {
        let Some(value) = members.get(keyword) else { return Ok(None) };
        let wrong = || self.wrong(node, keyword, format!("must be {wanted}, got {}", shown(value)));
        read(value).ok_or_else(wrong).map(Some)
    }

    fn number(&self, node: NodeId, members: &Map<String, Value>, keyword: &str) -> Result<Option<f64>, GrammarError> {
        // Until draft 4, a flag of the other bound.
        if keyword.starts_with("exclusive") && members.get(keyword).is_some_and(Value::is_boolean) {
            return Ok(None);
        }
        self.typed((node, members), keyword, "a number", Value::as_f64)
    }

    fn count(&self, node: NodeId, members: &Map<String, Value>, keyword: &str) -> Result<Option<u64>, GrammarError> {
        self.typed((node, members), keyword, "a whole number from 0", |value| {
            let whole = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e18).contains(number));
            value.as_u64().or(whole.map(|number| number as u64))
        })
    }

    /// The least and the largest number of characters, items or members. A maximum that no text reaches is none.
    fn sizes(
        &mut self,
        node: NodeId,
        members: &Map<String, Value>,
        [least, most]: [&str; 2],
    ) -> Result<(u64, Option<u64>), GrammarError> {
        let (min, max) = (self.count(node, members, least)?, self.count(node, members, most)?);
        let min = match min {
            Some(min) if min > MAX_SIZE => {
                self.cannot(node, least, &format!("no text can have so many, at most {MAX_SIZE}, got {min}"))?;
                0
            }
            min => min.unwrap_or_default(),
        };
        Ok((min, max.filter(|max| *max <= MAX_SIZE)))
    }

    fn numbers(
        &mut self,
        node: NodeId,
        members: &Map<String, Value>,
        is_integer: bool,
    ) -> Result<Option<Values>, GrammarError> {
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
        let multiple = self.typed((node, members), "multipleOf", "a number above 0", |value| match value {
            Value::Number(factor) if factor.as_f64().is_some_and(|factor| factor > 0.0) => Some(factor.clone()),
            _ => None,
        })?;
        let exclusive = Numbers {
            least: above.map(|above| (above, true)),
            most: below.map(|below| (below, true)),
            multiples: multiple.into_iter().collect(),
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

    fn texts(&mut self, node: NodeId, members: &Map<String, Value>) -> Result<Option<Values>, GrammarError> {
        let (min_length, max_length) = self.sizes(node, members, ["minLength", "maxLength"])?;
        let mut patterns = Pattern::default();
        let [source, format] =
            ["pattern", "format"].map(|keyword| self.typed((node, members), keyword, "a string", Value::as_str));
        if let Some(source) = source? {
            match self.pattern(source) {
                Ok(pattern) => patterns = patterns.and(&pattern),
                Err(what) => self.cannot_match(node, "pattern", &what)?,
            }
        }
        if let Some(format) = format? {
            match formats::pattern(format).and_then(|source| source.as_deref().map(Pattern::of_format).transpose()) {
                Ok(pattern) => patterns = patterns.and(&pattern.unwrap_or_default()),
                Err(what) => self.cannot(node, "format", &what)?,
            }
        }
        let texts = Texts { min_length, max_length, patterns, ..Texts::default() };
        Ok(texts.and(&Texts::default()).map(Values::Text))
    }

    fn cannot_match(&mut self, node: NodeId, keyword: &str, what: &str) -> Result<(), GrammarError> {
        if what == "matches no text" {
            return Err(self.wrong(node, keyword, what));
        }
        self.cannot(node, keyword, &format!("the pattern {what}"))
    }

    fn arrays(&mut self, node: NodeId, members: &'a Map<String, Value>) -> Result<Option<Values>, GrammarError> {
        let (min, max) = self.sizes(node, members, ["minItems", "maxItems"])?;
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
            min,
            max,
            unique: members.get("uniqueItems").is_some_and(|unique| *unique == json!(true)).then_some(node),
            contains,
        };
        Ok(max.is_none_or(|max| max >= arrays.min).then_some(Values::Array(arrays)))
    }

    fn objects(&mut self, node: NodeId, members: &'a Map<String, Value>) -> Result<Option<Values>, GrammarError> {
        let (min, max) = self.sizes(node, members, ["minProperties", "maxProperties"])?;
        let [properties, pattern_properties] = ["properties", "patternProperties"]
            .map(|keyword| self.typed((node, members), keyword, "an object", Value::as_object));
        let (properties, pattern_properties) = (properties?, pattern_properties?);
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
        let names = self.typed((node, members), "required", "an array of names", |value| match value {
            // Until draft 4, a flag of the member.
            Value::Bool(_) => Some(Vec::new()),
            names => names.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>(),
        })?;
        let mut known = HashSet::new();
        let required = names.into_iter().flatten().filter(|name| known.insert(*name)).map(Rc::from).collect();
        let names = match members.get("propertyNames") {
            None => Goal::default(),
            Some(Value::Object(schema)) if *schema == Map::from_iter([("type".to_owned(), json!("string"))]) => {
                Goal::default()
            }
            Some(schema) => self.goal(schema),
        };
        let objects = Objects { layers: vec![layer], required, min, min_node: node, max, names };
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
