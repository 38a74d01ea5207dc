//! Reading `config.json` field by field, with messages that name the field.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// An object of a JSON file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// For messages.
    path: &'a Path,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, path: &'a Path) -> Self {
        Self { map, path }
    }

    /// The value of `key`; `null` counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The object under `key`, if it is there.
    pub(super) fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object", value))?;
        Ok(Some(Fields { map, path: self.path }))
    }

    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.size_opt(key)?.unwrap_or(default))
    }

    fn size_opt(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.wrong(key, "a whole number that is not negative", value))
    }

    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_f64().ok_or_else(|| self.wrong(key, "a number", value))
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub(super) fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_str().ok_or_else(|| self.wrong(key, "a string", value))
    }

    /// Refuses a field that would change the maths, unless it has the one value (or is absent) that Hearth computes.
    pub(super) fn only(&self, key: &str, allowed: &Value) -> Result<()> {
        match self.get(key) {
            Some(value) if value != allowed => Err(self.unsupported(key, value, &allowed.to_string())),
            _ => Ok(()),
        }
    }

    /// The field asks for something that Hearth does not compute.
    pub(super) fn unsupported(&self, key: &str, found: &Value, supported: &str) -> Error {
        let what = format!("field `{key}` is {found}, which is not supported; supported: {supported}");
        self.error(what, "the model would compute something else than it was trained for, so it is not opened")
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        self.error(format!("field `{key}` must be {expected}, got {found}"), "")
    }

    fn error(&self, what: String, hint: &str) -> Error {
        Error::File { path: self.path.to_owned(), what, hint: hint.to_owned() }
    }
}
