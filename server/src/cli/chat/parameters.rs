//! The server's parameters, from its own description, so that `/set` can check names and values immediately.

use anyhow::bail;
use serde_json::{Map, Value};

use super::conversation::OWN;

/// The parameters of `/v1/chat/completions`, by name, with their schemas.
#[derive(Debug)]
pub(super) struct Parameters(Map<String, Value>);

impl Parameters {
    /// The parameters in the description of an API (`/openapi.json`). `None` if it is not Hearth's: other servers
    /// accept more parameters than they describe.
    pub(super) fn in_description(description: &Value) -> Option<Self> {
        let operation = &description["paths"]["/v1/chat/completions"]["post"];
        let properties = &operation["requestBody"]["content"]["application/json"]["schema"]["properties"];
        properties.as_object().cloned().map(Self)
    }

    /// The value in the form that the server accepts: a number or `true` for a text parameter becomes a text.
    ///
    /// # Errors
    /// There is no such parameter, or its value is not allowed.
    pub(super) fn check(&self, name: &str, value: Value) -> anyhow::Result<Value> {
        let Some(schema) = self.0.get(name) else {
            let mut names: Vec<&str> = self.0.keys().map(String::as_str).filter(|name| !OWN.contains(name)).collect();
            names.sort_unstable();
            let meant = nearest(name, names.iter().copied());
            let meant = meant.map(|meant| format!("did you mean `{meant}`? ")).unwrap_or_default();
            bail!("the server has no parameter `{name}`\nhint: {meant}Its parameters are {}", names.join(", "));
        };
        // `null` is the default.
        if value.is_null() || accepts(schema, &value) {
            return Ok(value);
        }
        let text = Value::String(value.to_string());
        if (value.is_number() || value.is_boolean()) && accepts(schema, &text) {
            return Ok(text);
        }
        let value = if let Value::String(text) = value { text } else { value.to_string() };
        bail!("`{name}` must be {}, got `{value}`", allowed(schema));
    }
}

/// The known name with the smallest edit distance to the given one, if at most half of the letters differ.
pub(super) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.into_iter().map(|name| (strsim::damerau_levenshtein(given, name), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (2 * distance <= given.chars().count()).then_some(name)
}

/// The schemas that a value may follow, except the one that only allows leaving the parameter out.
fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        Some(kinds) => kinds.iter().filter(|kind| kind["type"] != "null").collect(),
        None => vec![schema],
    }
}

/// The types that a schema names, without `null`; empty if it has no type.
fn types(schema: &Value) -> Vec<&str> {
    let given = &schema["type"];
    let all = given.as_array().map_or_else(|| vec![given], |types| types.iter().collect());
    all.into_iter().filter_map(Value::as_str).filter(|name| *name != "null").collect()
}

/// Whether the schema admits the value, by types, ranges, lists of values and elements. The server checks the rest.
fn accepts(schema: &Value, value: &Value) -> bool {
    let admits = |schema: &Value| {
        if let Some(values) = schema["enum"].as_array() {
            return values.contains(value);
        }
        let types = types(schema);
        types.is_empty() || types.iter().any(|name| has_type(schema, name, value))
    };
    alternatives(schema).into_iter().any(admits)
}

fn has_type(schema: &Value, name: &str, value: &Value) -> bool {
    let bound = |key: &str| schema[key].as_f64();
    let is_in_range = |number: f64| {
        bound("minimum").is_none_or(|least| number >= least)
            && bound("exclusiveMinimum").is_none_or(|below| number > below)
            && bound("maximum").is_none_or(|most| number <= most)
    };
    let is_long_enough = |key: &str, length: usize| {
        schema[key].as_u64().is_none_or(|least| u64::try_from(length).is_ok_and(|n| n >= least))
    };
    match (name, value) {
        ("boolean", Value::Bool(_)) | ("object", Value::Object(_)) => true,
        ("string", Value::String(text)) => is_long_enough("minLength", text.chars().count()),
        ("number", Value::Number(number)) => number.as_f64().is_some_and(is_in_range),
        ("integer", Value::Number(number)) => {
            (number.is_i64() || number.is_u64()) && number.as_f64().is_some_and(is_in_range)
        }
        ("array", Value::Array(items)) => {
            is_long_enough("minItems", items.len()) && items.iter().all(|item| accepts(&schema["items"], item))
        }
        _ => false,
    }
}

/// The values that a schema admits, in words.
fn allowed(schema: &Value) -> String {
    let kinds: Vec<String> = alternatives(schema).into_iter().map(allowed_kind).collect();
    kinds.join(" or ")
}

fn allowed_kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let shown = values.iter().filter(|value| !value.is_null()).map(ToString::to_string);
        return format!("one of {}", shown.collect::<Vec<_>>().join(", "));
    }
    let words = types(schema).into_iter().map(|name| match name {
        "boolean" => "true or false".to_owned(),
        "string" if schema["minLength"].as_u64().is_some_and(|least| least > 0) => {
            "a text that is not empty".to_owned()
        }
        "string" => "a text".to_owned(),
        "integer" => format!("a whole number{}", range(schema)),
        "number" => format!("a number{}", range(schema)),
        "array" if schema["items"].is_object() => format!("a list, each element {}", allowed(&schema["items"])),
        "array" => "a list".to_owned(),
        _ => "a JSON object".to_owned(),
    });
    words.collect::<Vec<_>>().join(" or ")
}

/// The range of a number; limits of the number's format are left out.
fn range(schema: &Value) -> String {
    const UNLIMITED: f64 = 1e18;
    let shown = |key: &str| Some(&schema[key]).filter(|bound| bound.as_f64().is_some_and(|n| n.abs() < UNLIMITED));
    let from = shown("minimum").map(|least| format!(" from {}", plain(least)));
    let above = shown("exclusiveMinimum").map(|below| format!(" above {}", plain(below)));
    let to = shown("maximum").map(|most| format!(" {} {}", if from.is_some() { "to" } else { "up to" }, plain(most)));
    [from, above, to].into_iter().flatten().collect()
}

/// `2.0` as `2`.
fn plain(number: &Value) -> String {
    let shown = number.to_string();
    shown.strip_suffix(".0").map_or(shown.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn parameters() -> Parameters {
        let number = json!({ "type": ["number", "null"], "minimum": 0.0, "maximum": 2.0 });
        let properties = json!({
            "messages": {}, "temperature": number, "typical_p": { "type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0 },
            "max_tokens": { "type": ["integer", "null"], "minimum": 1, "maximum": i64::MAX },
            "early_stopping": { "enum": [true, false, "never", null] }, "ignore_eos": { "type": ["boolean", "null"] },
            "stop": { "anyOf": [
                { "type": "string", "minLength": 1 }, { "type": "array", "items": { "type": "string" } }, { "type": "null" },
            ] },
            "cache_salt": { "type": ["string", "null"] }, "user": {}, "logit_bias": { "type": "object" },
        });
        let schema = json!({ "properties": properties });
        let body = json!({ "content": { "application/json": { "schema": schema } } });
        let description = json!({ "paths": { "/v1/chat/completions": { "post": { "requestBody": body } } } });
        Parameters::in_description(&description).unwrap()
    }

    #[test]
    fn allowed_parameters_pass_and_numbers_become_texts_where_texts_are_wanted() {
        for (name, value) in [
            ("temperature", json!(2)),
            ("max_tokens", json!(7)),
            ("stop", json!("END")),
            ("stop", json!(["a", "b"])),
            ("early_stopping", json!("never")),
            ("user", json!([1])),
            ("logit_bias", json!({ "5": 1 })),
        ] {
            assert_eq!(parameters().check(name, value.clone()).unwrap(), value, "{name}");
        }
        assert_eq!(parameters().check("cache_salt", json!(5)).unwrap(), "5");
    }

    #[test]
    fn unknown_names_name_the_nearest_and_all_and_bad_values_what_is_allowed() {
        let error = |name: &str, value: Value| parameters().check(name, value).unwrap_err().to_string();
        assert_eq!(
            error("temprature", json!(1)),
            "the server has no parameter `temprature`\nhint: did you mean `temperature`? Its parameters are cache_salt, \
             early_stopping, ignore_eos, logit_bias, max_tokens, stop, temperature, typical_p, user"
        );
        assert!(error("zzz", json!(1)).contains("`zzz`\nhint: Its parameters are cache_salt, "));
        for (name, value, message) in [
            ("temperature", json!("hot"), "`temperature` must be a number from 0 to 2, got `hot`"),
            ("temperature", json!(9), "`temperature` must be a number from 0 to 2, got `9`"),
            ("typical_p", json!(0), "`typical_p` must be a number above 0 up to 1, got `0`"),
            ("max_tokens", json!(1.5), "`max_tokens` must be a whole number from 1, got `1.5`"),
            ("max_tokens", json!(0), "`max_tokens` must be a whole number from 1, got `0`"),
            ("ignore_eos", json!("yes"), "`ignore_eos` must be true or false, got `yes`"),
            ("early_stopping", json!(2), "`early_stopping` must be one of true, false, \"never\", got `2`"),
            ("stop", json!([1]), "`stop` must be a text that is not empty or a list, each element a text, got `[1]`"),
            ("logit_bias", json!(1), "`logit_bias` must be a JSON object, got `1`"),
        ] {
            assert_eq!(error(name, value), message);
        }
    }

    #[test]
    fn descriptions_of_other_servers_do_not_limit_what_can_be_set() {
        for other in
            [json!({}), json!({ "paths": { "/v1/chat/completions": { "post": { "requestBody": { "$ref": "x" } } } } })]
        {
            assert!(Parameters::in_description(&other).is_none());
        }
    }

    #[test]
    fn nearest_is_within_half_of_the_letters() {
        let known = ["temperature", "top_p", "top_k"];
        assert_eq!(nearest("top-p", known), Some("top_p"));
        assert_eq!(nearest("temperatur", known), Some("temperature"));
        assert_eq!(nearest("seed", known), None);
    }
}
