//! Reads `config.json` field by field; errors name the field.

use std::{fmt, path::Path};

use serde_json::{Map, Value};

use super::passed_over::PassedOver;
use crate::error::{Error, Result};

/// The only value that a key may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fixed {
    /// This value.
    Flag(bool),
    /// This number, in any notation.
    Number(f64),
    /// This string.
    Text(&'static str),
    /// `null`, `false`, 0, or an empty string, list or object.
    Nothing,
}

impl Fixed {
    fn is(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Flag(flag), value) => flag_of(value) == Some(flag),
            (Self::Number(number), Value::Number(value)) => value.as_f64() == Some(number),
            (Self::Text(text), Value::String(value)) => text == value,
            (Self::Nothing, Value::Bool(value)) => !value,
            (Self::Nothing, Value::Number(value)) => value.as_f64() == Some(0.0),
            (Self::Nothing, Value::String(value)) => value.is_empty(),
            (Self::Nothing, Value::Array(value)) => value.is_empty(),
            (Self::Nothing, Value::Object(value)) => value.is_empty(),
            _ => false,
        }
    }
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Nothing => f.write_str("none"),
        }
    }
}

/// True or false, also as a one or a zero.
fn flag_of(value: &Value) -> Option<bool> {
    match value.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => value.as_bool(),
    }
}

/// An object of a JSON file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The file, for messages.
    path: &'a Path,
    /// The prefix of keys in the file, for messages.
    prefix: &'a str,
    /// Records ignored fields that cannot change the numbers, if the caller asked for it.
    passed_over: Option<&'a PassedOver>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, path: &'a Path) -> Self {
        Self { map, path, prefix: "", passed_over: None }
    }

    /// The same fields, which record ignored ones in `passed_over`.
    pub(super) fn noting(self, passed_over: &'a PassedOver) -> Self {
        Self { passed_over: Some(passed_over), ..self }
    }

    /// Records that something is ignored because it cannot change the numbers; `what` is a clause that names it.
    pub(super) fn pass_over(&self, what: impl FnOnce() -> String) {
        if let Some(passed_over) = self.passed_over {
            passed_over.note(what());
        }
    }

    /// The same fields, if their keys have `prefix` in the file.
    pub(super) fn with_prefix(self, prefix: &'a str) -> Self {
        Self { prefix, ..self }
    }

    /// The value of `key`; `null` counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The object under `key`, if present.
    pub(super) fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object", value))?;
        Ok(Some(Fields { map, prefix: "", ..*self }))
    }

    /// The object under `key`, if present. As in Python, `false`, 0 and empty values count as none.
    pub(super) fn object_if_true(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let is_nothing = self.get(key).is_some_and(|value| Fixed::Nothing.is(value));
        if is_nothing { Ok(None) } else { self.object(key) }
    }

    /// A copy of the object.
    pub(super) fn to_map(self) -> Map<String, Value> {
        self.map.clone()
    }

    /// Whether `key` exists, even if `null`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// Another object of the same file.
    pub(super) fn within<'b>(&'b self, map: &'b Map<String, Value>) -> Fields<'b> {
        Fields { map, prefix: "", ..*self }
    }

    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.size(key)?.unwrap_or(default))
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.wrong(key, "a whole number, 0 or more", value))
    }

    /// A single integer or a list of integers; empty if the key is absent.
    pub(super) fn whole_numbers(&self, key: &str) -> Result<Vec<i64>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let numbers = list.iter().map(Value::as_i64).collect::<Option<Vec<_>>>();
        numbers.ok_or_else(|| self.wrong(key, "a whole number or a list of them", value))
    }

    /// A required list of numbers.
    pub(super) fn numbers(&self, key: &'static str) -> Result<Vec<f64>> {
        let value = self.get(key).ok_or_else(|| self.missing(&[key]))?;
        let numbers = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        numbers.ok_or_else(|| self.wrong(key, "a list of numbers", value))
    }

    /// For each of at least `n_layers` layers, true or false (or a one or a zero), if present.
    pub(super) fn layer_flags(&self, key: &str, n_layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let flags = value.as_array().and_then(|list| list.iter().map(flag_of).collect::<Option<Vec<_>>>());
        flags.filter(|flags| flags.len() >= n_layers).map(Some).ok_or_else(|| {
            self.unsupported(key, value, &format!("a list with 0 or 1 for each of the {n_layers} layers"))
        })
    }

    /// A required number.
    pub(super) fn number(&self, key: &'static str) -> Result<f64> {
        if self.get(key).is_none() {
            return Err(self.missing(&[key]));
        }
        self.number_or(key, f64::NAN)
    }

    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.number_if_any(key)?.unwrap_or(default))
    }

    pub(super) fn number_if_any(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number", value))
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(default) };
        flag_of(value).ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub(super) fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_str().ok_or_else(|| self.wrong(key, "a string", value))
    }

    /// Rejects a field that would change the computation, unless it is absent or has the only supported value.
    pub(super) fn only(&self, key: &str, allowed: Fixed) -> Result<()> {
        match self.get(key) {
            Some(value) if !allowed.is(value) => Err(self.unsupported(key, value, &allowed.to_string())),
            _ => Ok(()),
        }
    }

    /// The error for an unsupported value.
    pub(super) fn unsupported(&self, key: &str, found: &Value, supported: &str) -> Error {
        self.invalid(key, format!("is {found}, which is not supported; supported: {supported}"))
            .with_hint("with another value the model would give wrong results, so it is rejected")
    }

    /// The error for a missing field, which has one of these names.
    pub(super) fn missing(&self, keys: &[&str]) -> Error {
        let keys: Vec<_> = keys.iter().map(|key| format!("`{}{key}`", self.prefix)).collect();
        Error::file(self.path, format!("field {} is missing", keys.join(" or ")))
    }

    /// The error for a value that is not `expected`.
    pub(super) fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        self.invalid(key, format!("must be {expected}, got {found}"))
    }

    /// An error about the file as a whole.
    pub(super) fn error(&self, what: impl Into<String>) -> Error {
        Error::file(self.path, what)
    }

    /// The error for an invalid value; `what` continues the sentence that begins with the field.
    pub(super) fn invalid(&self, key: &str, what: impl fmt::Display) -> Error {
        Error::file(self.path, format!("field `{}{key}` {what}", self.prefix))
    }
}
