//! Reads a JSON object field by field, so that every error names the field, the given and the allowed value. `null` is
//! the same as absent. Unknown fields are ignored: clients send new ones all the time.

use std::{
    borrow::Cow,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
};

use hearth_model::{TokenId, files::decimal};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    request_log::RequestLog,
    schema::{self, NumberRange, Shape},
};
use crate::api::{error::ApiError, guard::api_keys::Sender};

/// Maximum length of the name of a function or a schema, as at OpenAI.
const MAX_NAME_CHARS: usize = 64;
/// The characters of names, as in OpenAI's API.
const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]+$";

/// Maximum size in bytes of a list of strings that are searched for in every answer.
const MAX_LISTED_BYTES: usize = 1 << 16;

/// A maximum number of tokens that does not limit.
const NO_LIMIT: i64 = -1;

/// The fields of a request's body, or of an object in it.
#[derive(Debug)]
pub(crate) struct Fields {
    entries: Map<String, Value>,
    /// The object's path in the body, followed by a dot; empty for the body itself.
    place: String,
    /// Paths of the unread fields of nested objects.
    unread: Arc<Mutex<Vec<String>>>,
    log: RequestLog,
    /// Size of the whole body in bytes.
    n_bytes: usize,
    sender: Sender,
    /// Set while `/openapi.json` is generated: records each field that is read.
    shape: Option<Shape>,
}

impl Fields {
    /// Who sent the request.
    pub(crate) fn sender(&self) -> Sender {
        self.sender
    }

    /// The fields of an example request. Each field that is read is recorded in `shape`.
    pub(crate) fn describing(example: Value, shape: &Shape) -> Self {
        let Value::Object(entries) = example else { return Self::describing(json!({}), shape) };
        let mut fields = Self::of_body(entries, RequestLog::default(), 0, Sender::default());
        fields.shape = Some(shape.clone());
        fields
    }

    /// The fields of a body of `n_bytes`.
    pub(crate) fn of_body(entries: Map<String, Value>, log: RequestLog, n_bytes: usize, sender: Sender) -> Self {
        Self { entries, place: String::new(), unread: Arc::default(), log, n_bytes, sender, shape: None }
    }

    /// Takes a field unparsed. The caller must validate it against `schema`.
    pub(crate) fn take_as(&mut self, name: &'static str, schema: impl FnOnce() -> Value) -> Option<Value> {
        if let Some(shape) = &self.shape {
            shape.note(name, schema());
        }
        self.take(name)
    }

    /// As [`take_as`](Self::take_as), for a required field; `allowed` describes the allowed values for error messages.
    pub(crate) fn require_as(
        &mut self,
        name: &'static str,
        allowed: &str,
        schema: impl FnOnce() -> Value,
    ) -> Result<Value, ApiError> {
        let value = self.take_as(name, schema);
        if let Some(shape) = &self.shape {
            shape.note_required(name);
        }
        value.ok_or_else(|| ApiError::invalid(name, format!("`{name}` is required: {allowed}")))
    }

    /// Removes a field that has no effect.
    pub(crate) fn ignore(&mut self, name: &'static str) {
        self.take_as(name, || json!({}));
    }

    /// Replaces the value of a field.
    pub(crate) fn replace(&mut self, name: &str, value: Value) {
        self.entries.insert(name.into(), value);
    }

    /// Takes a field unparsed, without recording it in the schema.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.entries.remove(name).filter(|value| !value.is_null())
    }

    /// Records the default in the schema.
    pub(crate) fn note_default<T: Serialize>(&self, name: &str, default: &T) {
        if let Some(shape) = &self.shape {
            shape.note_default(name, json!(default));
        }
    }

    /// A number within `range`.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        range: impl Into<NumberRange>,
    ) -> Result<Option<f32>, ApiError> {
        let range = range.into();
        self.read(
            name,
            || schema::number(range),
            |value| {
                let given = value.as_f64();
                let number = given.filter(|number| range.contains(*number)).map(|number| number as f32);
                let fits = |given: f64| given == 0.0 || given as f32 != 0.0 && (given as f32).is_finite();
                number.ok_or_else(|| match given.is_none_or(fits) {
                    true => range.to_string(),
                    false => format!("{range} that a 32-bit float can hold"),
                })
            },
        )
    }

    /// A number within `range`; `default` if it is absent.
    pub(crate) fn number_or(
        &mut self,
        name: &'static str,
        range: impl Into<NumberRange>,
        default: f32,
    ) -> Result<f32, ApiError> {
        let number = self.number(name, range)?;
        self.note_default(name, &decimal::to_f64(default));
        Ok(number.unwrap_or(default))
    }

    /// A whole number within `range`.
    pub(crate) fn integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.read(
            name,
            || schema::integer(&range),
            |value| {
                let is_beyond = value.as_f64().is_some_and(|number| number >= i64::MAX as f64);
                let allowed = match (*range.start(), *range.end()) {
                    (start, i64::MAX) if !is_beyond => format!("a whole number from {start} up"),
                    (start, end) => format!("a whole number from {start} to {end}"),
                };
                whole(value).filter(|number| range.contains(number)).ok_or(allowed)
            },
        )
    }

    /// A whole number within `range`; `default` if it is absent.
    pub(crate) fn integer_or(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64, ApiError> {
        let number = self.integer(name, range)?;
        self.note_default(name, &default);
        Ok(number.unwrap_or(default))
    }

    /// A count within `range`.
    pub(crate) fn count(
        &mut self,
        name: &'static str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let bound = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let number = self.integer(name, bound(*range.start())..=bound(*range.end()))?;
        Ok(number.map(|number| usize::try_from(number).unwrap_or_default()))
    }

    /// A count within `range`; `default` if it is absent.
    pub(crate) fn count_or(
        &mut self,
        name: &'static str,
        range: RangeInclusive<usize>,
        default: usize,
    ) -> Result<usize, ApiError> {
        let count = self.count(name, range)?;
        self.note_default(name, &default);
        Ok(count.unwrap_or(default))
    }

    /// A maximum number of tokens, at least `least`. -1 is no limit, as in llama.cpp: `usize::MAX`.
    pub(crate) fn token_limit(&mut self, name: &'static str, least: i64) -> Result<Option<usize>, ApiError> {
        self.read(
            name,
            || schema::integer(&(NO_LIMIT..=i64::MAX)),
            |value| match whole(value) {
                Some(NO_LIMIT) => Ok(usize::MAX),
                Some(limit) if limit >= least => Ok(usize::try_from(limit).unwrap_or(usize::MAX)),
                _ => Err(format!("a whole number from {least} up, or {NO_LIMIT} for no limit")),
            },
        )
    }

    /// A random seed: any 64-bit number, with or without sign. -1 counts as absent, as in vLLM and llama.cpp.
    pub(crate) fn seed(&mut self, name: &'static str) -> Result<Option<u64>, ApiError> {
        let schema = || json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX });
        let seed = self.read(name, schema, |value| match whole(value) {
            Some(-1) => Ok(None),
            whole => {
                let seed = value.as_u64().or(whole.map(i64::cast_unsigned));
                seed.map(Some).ok_or_else(|| "a whole number of at most 64 bits".into())
            }
        })?;
        Ok(seed.flatten())
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.read(name, schema::flag, |value| value.as_bool().ok_or_else(|| "true or false".into()))
    }

    /// `true` or `false`; `default` if it is absent.
    pub(crate) fn flag_or(&mut self, name: &'static str, default: bool) -> Result<bool, ApiError> {
        let flag = self.flag(name)?;
        self.note_default(name, &default);
        Ok(flag.unwrap_or(default))
    }

    /// A string.
    pub(crate) fn string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.read(name, schema::string, |value| value.as_str().map(str::to_owned).ok_or_else(|| "a string".into()))
    }

    /// A name that OpenAI allows.
    pub(crate) fn name(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.name_up_to(MAX_NAME_CHARS, name)
    }

    /// A name with the same characters, and at most `max_chars` of them.
    pub(crate) fn name_up_to(&mut self, max_chars: usize, name: &'static str) -> Result<Option<String>, ApiError> {
        let schema = || json!({ "type": "string", "minLength": 1, "maxLength": max_chars, "pattern": NAME_PATTERN });
        let given =
            self.read(name, schema, |value| value.as_str().map(str::to_owned).ok_or_else(|| "a string".into()))?;
        given.map(|given| check_name(self.path(name), &given, max_chars).map(|()| given)).transpose()
    }

    /// An object with any members.
    pub(crate) fn any_object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, ApiError> {
        let schema = || json!({ "type": "object" });
        self.read(name, schema, |value| value.as_object().cloned().ok_or_else(|| "an object".into()))
    }

    /// A string or an array of strings. The caller must reject empty ones.
    pub(crate) fn strings(&mut self, name: &'static str) -> Result<Vec<String>, ApiError> {
        let one = || json!({ "type": "string", "minLength": 1 });
        let schema = || schema::any_of([one(), schema::array(one(), 0)]);
        let strings = self.read(name, schema, |value| {
            let strings = match value {
                Value::String(string) => Some(vec![string.clone()]),
                list => string_list(list),
            };
            strings.ok_or_else(|| "a string or an array of strings".into())
        })?;
        Ok(strings.unwrap_or_default())
    }

    /// An array of strings.
    pub(crate) fn string_list(&mut self, name: &'static str) -> Result<Option<Vec<String>>, ApiError> {
        let schema = || schema::array(schema::string(), 0);
        self.read(name, schema, |value| string_list(value).ok_or_else(|| "an array of strings".into()))
    }

    /// An array of whole numbers.
    pub(crate) fn counts(&mut self, name: &'static str) -> Result<Option<Vec<usize>>, ApiError> {
        let schema = || schema::array(schema::integer(&(0..=i64::MAX)), 0);
        self.read(name, schema, |value| {
            let count = |item: &Value| whole(item).and_then(|number| usize::try_from(number).ok());
            let counts = value.as_array().and_then(|items| items.iter().map(count).collect());
            counts.ok_or_else(|| "an array of whole numbers, each at least 0".into())
        })
    }

    /// The meaning of one of these strings; `default` if it is absent.
    pub(crate) fn one_of_or<T: Copy + PartialEq>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
        default: T,
    ) -> Result<T, ApiError> {
        let chosen = self.one_of(name, choices)?;
        if let Some((choice, _)) = choices.iter().find(|(_, meaning)| *meaning == default) {
            self.note_default(name, choice);
        }
        Ok(chosen.unwrap_or(default))
    }

    /// The meaning of one of these strings.
    pub(crate) fn one_of<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, ApiError> {
        let schema = || json!({ "type": "string", "enum": choices.iter().map(|(name, _)| name).collect::<Vec<_>>() });
        self.read(name, schema, |value| {
            let chosen = choices.iter().find(|(choice, _)| value.as_str() == Some(choice));
            let names = || choices.iter().map(|(choice, _)| format!("`{choice}`")).collect::<Vec<_>>().join(" or ");
            chosen.map(|(_, meaning)| *meaning).ok_or_else(names)
        })
    }

    /// An array of token ids.
    pub(crate) fn token_ids(&mut self, name: &'static str) -> Result<Option<Vec<TokenId>>, ApiError> {
        let schema = || schema::array(schema::token_id(), 0);
        self.read(name, schema, |value| token_ids(value).ok_or_else(|| "an array of token ids".into()))
    }

    /// Size of the whole body in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The request's log line.
    pub(crate) fn log(&self) -> &RequestLog {
        &self.log
    }

    /// The field, without reading it.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.entries.get(name).filter(|value| !value.is_null())
    }

    /// Whether the field is present and not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An object, as [`Fields`].
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Self>, ApiError> {
        let shape = self.shape.as_ref().map(|shape| shape.note_object(name));
        self.take(name).map(|value| self.within(self.path(name).into(), value, shape)).transpose()
    }

    /// An array of objects, as [`Fields`].
    pub(crate) fn objects(&mut self, name: &'static str) -> Result<Option<Vec<Self>>, ApiError> {
        let shape = self.shape.as_ref().map(|shape| shape.note_objects(name));
        let (path, items) = match self.take(name) {
            None => return Ok(None),
            Some(Value::Array(items)) => (self.path(name), items),
            Some(other) => return Err(must_be(self.path(name), "an array", &other)),
        };
        let items = items.into_iter().enumerate();
        items
            .map(|(index, item)| self.within(format!("{path}[{index}]"), item, shape.clone()))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// The objects of a list that was [taken](Self::take_as) as the field `name`.
    pub(crate) fn objects_of(&self, name: &'static str, items: Vec<Value>) -> Result<Vec<Self>, ApiError> {
        let path = self.path(name);
        let items = items.into_iter().enumerate();
        items.map(|(index, item)| self.within(format!("{path}[{index}]"), item, None)).collect()
    }

    fn within(&self, path: String, value: Value, shape: Option<Shape>) -> Result<Self, ApiError> {
        let Value::Object(entries) = value else { return Err(must_be(path, "an object", &value)) };
        Ok(Self {
            entries,
            place: format!("{path}."),
            unread: Arc::clone(&self.unread),
            log: self.log.clone(),
            n_bytes: self.n_bytes,
            sender: self.sender,
            shape,
        })
    }

    /// Reads a required field with `read`.
    pub(crate) fn require<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Result<Option<T>, ApiError>,
    ) -> Result<T, ApiError> {
        let value = read(self, name)?;
        if let Some(shape) = &self.shape {
            shape.note_required(name);
        }
        value.ok_or_else(|| missing(self.path(name)))
    }

    /// The path of a field in the body.
    pub(crate) fn path(&self, name: &'static str) -> Cow<'static, str> {
        if self.place.is_empty() { name.into() } else { format!("{}{name}", self.place).into() }
    }

    /// The unread fields as a JSON object.
    pub(crate) fn to_value(&self) -> Value {
        Value::Object(self.entries.clone())
    }

    /// Reads all remaining entries, in the order of the body.
    pub(crate) fn into_entries(mut self) -> impl Iterator<Item = (String, Value)> {
        std::mem::take(&mut self.entries).into_iter()
    }

    /// Removes all remaining fields, so that they are not reported as unread.
    pub(crate) fn ignore_rest(mut self) {
        self.entries.clear();
    }

    /// Records the path of an unread field within a value.
    pub(crate) fn note_unread(&self, path: String) {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    /// The paths of all unread fields: the object's own, and fields of nested objects whose [`Fields`] are dropped.
    pub(crate) fn all_unread(&self) -> Vec<String> {
        let within = self.unread.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.names().map(str::to_owned).chain(within).collect()
    }

    /// The names of the unread fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        schema: impl FnOnce() -> Value,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take_as(name, schema) else { return Ok(None) };
        parse(&value).map(Some).map_err(|allowed| must_be(self.path(name), &allowed, &value))
    }
}

impl Drop for Fields {
    /// Reports fields that nobody read, for `x-ignored-params`.
    fn drop(&mut self) {
        if !self.place.is_empty() {
            self.entries.keys().for_each(|name| self.note_unread(format!("{}{name}", self.place)));
        }
    }
}

/// The error for an invalid parameter: its name, the allowed and the given value.
pub(crate) fn must_be(name: impl Into<Cow<'static, str>>, allowed: &str, given: &Value) -> ApiError {
    let name = name.into();
    let message = format!("`{name}` must be {allowed}, got {}", shown(given));
    ApiError::invalid(name, message)
}

/// The error for a missing parameter.
pub(crate) fn missing(name: impl Into<Cow<'static, str>>) -> ApiError {
    let name = name.into();
    let message = format!("Missing required parameter: `{name}`.");
    ApiError::invalid(name, message)
}

/// The error for a name that an object has twice.
pub(crate) fn repeated(path: String) -> ApiError {
    let message = format!("`{path}` must be given only once, got it twice");
    ApiError::invalid(path, message)
}

fn check_name(path: Cow<'static, str>, name: &str, max_chars: usize) -> Result<(), ApiError> {
    let n_chars = name.chars().count();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let message = if name.is_empty() {
        format!("Invalid `{path}`: empty string. Expected a string with minimum length 1, but got an empty string.")
    } else if n_chars > max_chars {
        format!(
            "Invalid `{path}`: string too long. Expected a string with maximum length {max_chars}, but got a string \
             with length {n_chars} instead."
        )
    } else if !name.bytes().all(is_plain) {
        format!(
            "Invalid `{path}`: string does not match pattern. Expected a string that matches the pattern \
             `{NAME_PATTERN}`, got {}.",
            shown(&Value::from(name))
        )
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(path, message))
}

/// Limits a list of strings to `limit` entries and [`MAX_LISTED_BYTES`] in total.
pub(crate) fn at_most_strings(limit: usize, name: &'static str, list: Vec<String>) -> Result<Vec<String>, ApiError> {
    if list.len() > limit {
        let message = format!("`{name}` must hold at most {limit} entries, got {}", list.len());
        return Err(ApiError::invalid(name, message));
    }
    let n_bytes: usize = list.iter().map(String::len).sum();
    if n_bytes > MAX_LISTED_BYTES {
        let message = format!("`{name}` must hold at most {MAX_LISTED_BYTES} bytes of text in all, got {n_bytes}");
        return Err(ApiError::invalid(name, message));
    }
    Ok(list)
}

/// The strings of an array; `None` if it has other items.
pub(crate) fn string_list(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The token ids of an array; `None` if it has other items.
pub(crate) fn token_ids(value: &Value) -> Option<Vec<TokenId>> {
    let ids = value.as_array()?.iter().map(|id| TokenId::try_from(whole(id)?).ok());
    ids.collect()
}

fn whole(value: &Value) -> Option<i64> {
    // Some clients write integers as 16.0, or as 1e18.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < BEYOND;
    let from_float = || value.as_f64().filter(is_whole).map(|number| number as i64);
    value.as_i64().or_else(from_float)
}

/// A maximum number of tokens, as [`Fields::token_limit`] reads it.
pub(crate) fn shown_limit(limit: usize) -> String {
    if limit == usize::MAX { NO_LIMIT.to_string() } else { limit.to_string() }
}

/// The value as JSON for error messages, truncated.
pub(crate) fn shown(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("`{}...`", text.get(..end).unwrap_or_default()),
        None => format!("`{text}`"),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::guard::bounded_json;

    fn fields(json: &str) -> Fields {
        let (value, _) = bounded_json::parse(json.as_bytes(), 1 << 20).unwrap();
        Fields::of_body(value.as_object().unwrap().clone(), RequestLog::default(), json.len(), Sender::default())
    }

    #[test]
    fn null_field_counts_as_absent() {
        assert_eq!(fields(r#"{"n": null}"#).count("n", 1..=3).unwrap(), None);
    }

    #[test]
    fn field_errors_state_the_allowed_and_the_given_value() {
        let message =
            |error: ApiError| error.envelope().pointer("/error/message").unwrap().as_str().unwrap().to_owned();
        let error = fields(r#"{"temperature": "hot"}"#).number("temperature", 0.0..=2.0).unwrap_err();
        assert_eq!(message(error), r#"`temperature` must be a number from 0 to 2, got `"hot"`"#);
        for given in ["1e-300", "1e+300"] {
            let error =
                fields(&format!(r#"{{"dry_base": {given}}}"#)).number("dry_base", 0.0..=f32::INFINITY).unwrap_err();
            let expected = format!("`dry_base` must be a number from 0 up that a 32-bit float can hold, got `{given}`");
            assert_eq!(message(error), expected);
        }
        let error = fields(r#"{"n": 1.5}"#).count("n", 1..=128).unwrap_err();
        assert_eq!(message(error), "`n` must be a whole number from 1 to 128, got `1.5`");
        for given in ["9223372036854775808", "1e30"] {
            let error = fields(&format!(r#"{{"n": {given}}}"#)).count("n", 1..=usize::MAX).unwrap_err();
            let allowed = format!("`n` must be a whole number from 1 to {}, got", i64::MAX);
            assert!(message(error.clone()).starts_with(&allowed), "{}", message(error));
        }
        assert_eq!(fields(r#"{"n": 1e18}"#).count("n", 1..=usize::MAX).unwrap(), Some(1_000_000_000_000_000_000));
        let error = fields(r#"{"stop": [1]}"#).strings("stop").unwrap_err();
        assert_eq!(message(error), "`stop` must be a string or an array of strings, got `[1]`");
    }

    #[test]
    fn seed_accepts_negative_and_full_64_bit_values() {
        for none in ["-1", "-1.0", "null"] {
            assert_eq!(fields(&format!(r#"{{"seed": {none}}}"#)).seed("seed").unwrap(), None, "{none}");
        }
        assert_eq!(fields(r#"{"seed": -2}"#).seed("seed").unwrap(), Some(u64::MAX - 1));
        assert_eq!(fields(r#"{"seed": 18446744073709551615}"#).seed("seed").unwrap(), Some(u64::MAX));
        assert!(fields(r#"{"seed": 1.5}"#).seed("seed").is_err());
    }
}
