//! The JSON Schema of requests. It is recorded while the endpoint's parser reads an example: each field that is read,
//! with its type, range and default. So parser and schema cannot differ.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hearth_model::files::decimal;
use serde_json::{Map, Value, json};

/// The `format` of token ids in schemas, whose maximum is set once the vocabulary is known.
const TOKEN_ID: &str = "token-id";

/// The fields that a parser has read; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape(Arc<Mutex<Vec<Property>>>);

#[derive(Debug)]
struct Property {
    name: &'static str,
    kind: Kind,
    default: Option<Value>,
    is_required: bool,
}

#[derive(Debug)]
enum Kind {
    Schema(Value),
    Object(Shape),
    Objects(Shape),
}

impl Shape {
    /// Records a field with this schema.
    pub(crate) fn note(&self, name: &'static str, schema: Value) {
        self.add(name, Kind::Schema(schema));
    }

    /// Records a field that is an object; returns the shape for its fields.
    pub(crate) fn note_object(&self, name: &'static str) -> Self {
        self.note_nested(name, Kind::Object)
    }

    /// As [`note_object`](Self::note_object), for an array of objects.
    pub(crate) fn note_objects(&self, name: &'static str) -> Self {
        self.note_nested(name, Kind::Objects)
    }

    fn note_nested(&self, name: &'static str, kind: fn(Self) -> Kind) -> Self {
        let known = self.properties().iter().find_map(|property| match &property.kind {
            Kind::Object(inner) | Kind::Objects(inner) if property.name == name => Some(inner.clone()),
            _ => None,
        });
        known.unwrap_or_else(|| {
            let inner = Self::default();
            self.add(name, kind(inner.clone()));
            inner
        })
    }

    /// Records the default of a field.
    pub(crate) fn note_default(&self, name: &str, default: Value) {
        // If several examples record a default, the first one is kept.
        self.change(name, |property| _ = property.default.get_or_insert(default));
    }

    /// Records that a field is required.
    pub(crate) fn note_required(&self, name: &str) {
        self.change(name, |property| property.is_required = true);
    }

    /// Records that a field is optional after all.
    pub(crate) fn note_optional(&self, name: &str) {
        self.change(name, |property| property.is_required = false);
    }

    /// The schema of the object. Other fields are allowed, because they are ignored.
    pub(crate) fn schema(&self) -> Value {
        let properties = self.properties();
        let required: Vec<&str> =
            properties.iter().filter(|property| property.is_required).map(|property| property.name).collect();
        let entries = properties.iter().map(|property| (property.name.to_owned(), property.schema()));
        let mut schema = json!({ "type": "object", "properties": entries.collect::<Map<_, _>>() });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    fn add(&self, name: &'static str, kind: Kind) {
        let mut properties = self.properties();
        // The examples of an endpoint have most fields in common; each is recorded once.
        if properties.iter().all(|property| property.name != name) {
            properties.push(Property { name, kind, default: None, is_required: false });
        }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Property)) {
        if let Some(property) = self.properties().iter_mut().find(|property| property.name == name) {
            change(property);
        }
    }

    fn properties(&self) -> MutexGuard<'_, Vec<Property>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Property {
    fn schema(&self) -> Value {
        let schema = match &self.kind {
            Kind::Schema(schema) => schema.clone(),
            Kind::Object(inner) => inner.schema(),
            Kind::Objects(inner) => array(inner.schema(), 0),
        };
        let mut schema = if self.is_required { schema } else { nullable(schema) };
        if let Some(default) = &self.default
            && let Some(object) = schema.as_object_mut()
        {
            object.insert("default".into(), default.clone());
        }
        schema
    }
}

/// The range of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberRange {
    start: f32,
    start_belongs: bool,
    /// Infinity: the largest finite `f32`.
    end: f32,
}

impl NumberRange {
    /// Above `start`, up to `end`.
    pub(crate) fn above(start: f32, end: f32) -> Self {
        Self { start, start_belongs: false, end }
    }

    /// Compares in double precision, so that numbers that round to a bound in `f32` are still outside.
    pub(crate) fn contains(self, number: f64) -> bool {
        let start = f64::from(self.start);
        let is_above = number > start || (self.start_belongs && number == start);
        // A number too small for `f32` would become 0.
        is_above && number <= f64::from(self.end.min(f32::MAX)) && (number == 0.0 || number as f32 != 0.0)
    }
}

impl From<RangeInclusive<f32>> for NumberRange {
    fn from(range: RangeInclusive<f32>) -> Self {
        Self { start: *range.start(), start_belongs: true, end: *range.end() }
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.start_belongs, self.end.is_finite()) {
            (true, true) => write!(f, "a number from {} to {}", self.start, self.end),
            (true, false) => write!(f, "a number from {} up", self.start),
            (false, true) => write!(f, "a number above {}, {} at most", self.start, self.end),
            (false, false) => write!(f, "a number above {}", self.start),
        }
    }
}

/// A number.
pub(crate) fn number(range: NumberRange) -> Value {
    let start = if range.start_belongs { "minimum" } else { "exclusiveMinimum" };
    let [least, most] = [range.start, range.end.min(f32::MAX)].map(decimal::to_f64);
    json!({ "type": "number", start: least, "maximum": most })
}

/// A whole number.
pub(crate) fn integer(range: &RangeInclusive<i64>) -> Value {
    json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
}

/// The id of a token.
pub(crate) fn token_id() -> Value {
    json!({ "type": "integer", "format": TOKEN_ID, "minimum": 0, "maximum": u32::MAX })
}

/// `true` or `false`.
pub(crate) fn flag() -> Value {
    json!({ "type": "boolean" })
}

/// Any string.
pub(crate) fn string() -> Value {
    json!({ "type": "string" })
}

/// An array of at least `n` items.
pub(crate) fn array(items: Value, n: usize) -> Value {
    let mut schema = json!({ "type": "array", "items": items });
    if n > 0 {
        schema["minItems"] = json!(n);
    }
    schema
}

/// A value of one of several schemas.
pub(crate) fn any_of(kinds: impl IntoIterator<Item = Value>) -> Value {
    json!({ "anyOf": kinds.into_iter().collect::<Vec<_>>() })
}

/// `schema`, with `null` allowed too.
pub(crate) fn nullable(mut schema: Value) -> Value {
    if let Some(kinds) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        kinds.push(json!({ "type": "null" }));
        return schema;
    }
    if let Some(kind) = schema.get("type").cloned() {
        schema["type"] = match kind {
            Value::Array(kinds) => json!([kinds, vec![json!("null")]].concat()),
            kind => json!([kind, "null"]),
        };
    }
    if let Some(choices) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        choices.push(Value::Null);
    }
    schema
}

/// Sets the maximum of all token ids.
pub(crate) fn resolve_token_ids(schema: &mut Value, vocab_size: usize) {
    match schema {
        Value::Object(object) => {
            if object.get("format").is_some_and(|format| format == TOKEN_ID) {
                object.insert("maximum".into(), json!(vocab_size.saturating_sub(1)));
            }
            object.values_mut().for_each(|value| resolve_token_ids(value, vocab_size));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| resolve_token_ids(item, vocab_size)),
        _ => {}
    }
}
