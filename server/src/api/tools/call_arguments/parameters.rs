//! The parameters in a function's schema, for formats of calls that are not JSON.

use hearth_model::decode::constraint::lenient;
use serde_json::{Map, Value};

/// The schemas of a function's parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) named: Vec<Parameter>,
    /// The schema of parameters with other names, if no names are given and others are allowed.
    pub(crate) others: Option<Value>,
    /// Keywords about all parameters together.
    pub(crate) joint: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// A whole schema: definitions that it refers to are in it.
    pub(crate) schema: Value,
    pub(crate) is_required: bool,
}

/// Types of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const STRING: Self = Self(1);
    pub(crate) const NUMBER: Self = Self(2);
    pub(crate) const BOOLEAN: Self = Self(4);
    pub(crate) const NULL: Self = Self(8);
    pub(crate) const ARRAY: Self = Self(16);
    pub(crate) const OBJECT: Self = Self(32);
    const ALL: Self = Self(63);

    /// The types that a schema admits.
    pub(crate) fn of_schema(schema: &Value) -> Self {
        of_schema(schema, schema, 0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn named(name: &Value) -> Self {
        match name.as_str() {
            Some("string") => Self::STRING,
            Some("number" | "integer") => Self::NUMBER,
            Some("boolean") => Self::BOOLEAN,
            Some("null") => Self::NULL,
            Some("array") => Self::ARRAY,
            Some("object") => Self::OBJECT,
            _ => Self(0),
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn union(all: impl Iterator<Item = Self>) -> Self {
        Self(all.fold(0, |union, types| union | types.0))
    }
}

/// References are followed so far.
const MAX_DEPTH: usize = 16;

/// The keywords that a function's schema may have besides its parameters.
const ABOUT: [&str; 12] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "x-guidance",
];

impl Parameters {
    pub(crate) fn of(schema: &Value) -> Self {
        let member = |name: &str| schema.get(name);
        let required: Vec<&str> =
            member("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = member("properties").and_then(Value::as_object);
        let declared = properties.into_iter().flatten().map(|(name, own)| Parameter {
            name: name.clone(),
            schema: whole(own, schema),
            is_required: required.contains(&name.as_str()),
        });
        let mut named: Vec<Parameter> = declared.filter(|own| own.schema != Value::Bool(false)).collect();
        for name in required {
            if named.iter().all(|own| own.name != name) {
                named.push(Parameter { name: name.to_owned(), schema: Value::Bool(true), is_required: true });
            }
        }
        let others = match (member("additionalProperties"), properties) {
            _ if !named.is_empty() => None,
            (Some(Value::Bool(false)), _) | (None, Some(_)) => None,
            (Some(others), _) => Some(whole(others, schema)),
            (None, None) => Some(Value::Bool(true)),
        };
        let members = schema.as_object().into_iter().flatten();
        let joint = members.map(|(keyword, _)| keyword.clone()).filter(|keyword| !ABOUT.contains(&keyword.as_str()));
        Self { named, others, joint: joint.collect() }
    }

    /// The schema of the parameter `name`.
    pub(crate) fn schema(&self, name: &str) -> &Value {
        let own = self.named.iter().find(|own| own.name == name).map(|own| &own.schema);
        own.or(self.others.as_ref()).unwrap_or(&Value::Bool(true))
    }
}

/// A part of a schema with the definitions that it refers to, and as lenient as the whole.
fn whole(part: &Value, schema: &Value) -> Value {
    let mut part = part.clone();
    if part.to_string().contains("\"$ref\"")
        && let Value::Object(members) = &mut part
    {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = schema.get(name) {
                members.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    match schema.pointer("/x-guidance/lenient").and_then(Value::as_str) {
        Some(name) => lenient(part, name),
        None => part,
    }
}

/// The schema that a reference leads to.
pub(super) fn target<'a>(reference: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

fn of_schema(schema: &Value, root: &Value, depth: usize) -> Types {
    let Value::Object(members) = schema else { return Types(63 * u8::from(*schema != Value::Bool(false))) };
    if depth > MAX_DEPTH {
        return Types::ALL;
    }
    let list = |name: &str| members.get(name).and_then(Value::as_array);
    let within = |part: &Value| of_schema(part, root, depth + 1);
    let mut sets = vec![Types::ALL];
    sets.extend(members.get("type").map(|kind| match kind {
        Value::Array(kinds) => Types::union(kinds.iter().map(Types::named)),
        kind => Types::named(kind),
    }));
    sets.extend(list("enum").map(|values| Types::union(values.iter().map(Types::of_value))));
    sets.extend(members.get("const").map(Types::of_value));
    sets.extend(
        ["anyOf", "oneOf"].iter().filter_map(|name| list(name)).map(|any| Types::union(any.iter().map(within))),
    );
    sets.extend(list("allOf").into_iter().flatten().map(within));
    sets.extend(members.get("$ref").and_then(|reference| target(reference, root)).map(within));
    Types(sets.into_iter().fold(Types::ALL.0, |common, types| common & types.0))
}

/// Whether a value certainly satisfies a schema: every keyword is known and satisfied.
pub(crate) fn surely_fits(schema: &Value, value: &Value) -> bool {
    fits(schema, value, schema, 0)
}

fn fits(schema: &Value, value: &Value, root: &Value, depth: usize) -> bool {
    match schema {
        Value::Bool(is_any) => *is_any,
        Value::Object(members) if depth <= MAX_DEPTH => {
            members.iter().all(|(keyword, said)| keyword_fits((keyword, said), members, value, (root, depth)))
        }
        _ => false,
    }
}

fn keyword_fits(
    (keyword, said): (&str, &Value),
    members: &Map<String, Value>,
    value: &Value,
    (root, depth): (&Value, usize),
) -> bool {
    let within = |part: &Value, value: &Value| fits(part, value, root, depth + 1);
    let parts = || said.as_array().into_iter().flatten();
    let count = |n: usize| said.as_u64().is_some_and(|limit| n as u64 <= limit);
    let at_least = |n: usize| said.as_u64().is_some_and(|limit| n as u64 >= limit);
    match keyword {
        "title" | "description" | "default" | "examples" | "$comment" | "$defs" | "definitions" | "x-guidance" => true,
        "type" => {
            let is_kind = |kind: &Value| match kind.as_str() {
                Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                _ => Types::named(kind) == Types::of_value(value),
            };
            said.as_array().map_or_else(|| is_kind(said), |kinds| kinds.iter().any(is_kind))
        }
        "enum" => parts().any(|one| one == value),
        "const" => said == value,
        "anyOf" | "oneOf" => parts().any(|part| within(part, value)),
        "allOf" => parts().all(|part| within(part, value)),
        "$ref" => target(said, root).is_some_and(|part| within(part, value)),
        "minimum" => value.as_f64().is_none_or(|number| said.as_f64().is_some_and(|limit| number >= limit)),
        "maximum" => value.as_f64().is_none_or(|number| said.as_f64().is_some_and(|limit| number <= limit)),
        "minLength" => value.as_str().is_none_or(|text| at_least(text.chars().count())),
        "maxLength" => value.as_str().is_none_or(|text| count(text.chars().count())),
        "pattern" | "format" => !value.is_string(),
        "minItems" => value.as_array().is_none_or(|items| at_least(items.len())),
        "maxItems" => value.as_array().is_none_or(|items| count(items.len())),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| within(said, item))),
        "required" => value
            .as_object()
            .is_none_or(|object| parts().all(|name| name.as_str().is_some_and(|name| object.contains_key(name)))),
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(name, value)| said.get(name).is_none_or(|part| within(part, value)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let is_named = |name: &str| members.get("properties").and_then(|named| named.get(name)).is_some();
            object.iter().filter(|(name, _)| !is_named(name)).all(|(_, value)| within(said, value))
        }),
        _ => false,
    }
}
