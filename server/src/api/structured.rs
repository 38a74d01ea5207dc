//! Structured output: what an answer must look like, from OpenAI's `response_format`, vLLM's `structured_outputs` and the
//! names that vLLM had for it before.

use hearth_model::constraint::{Constraint, Grammar, GrammarError, check_schema, in_lark};
use serde_json::{Value, json};

use super::{
    error::ApiError,
    fields::{Fields, must_be, shown, string_list},
    schema,
};
use crate::engine::ServedModel;

/// What an answer must look like, and which parameter says so.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    grammar: Grammar,
    /// The parameter.
    param: &'static str,
    /// The place of the grammar within the request.
    path: &'static str,
    /// Schemas within the grammar, with their places.
    schemas: Vec<(String, Value)>,
}

/// The members of `structured_outputs`, their older names, and their places.
const MEMBERS: [(&str, &str, &str); 5] = [
    ("json", "guided_json", "structured_outputs.json"),
    ("regex", "guided_regex", "structured_outputs.regex"),
    ("choice", "guided_choice", "structured_outputs.choice"),
    ("grammar", "guided_grammar", "structured_outputs.grammar"),
    ("json_object", "guided_json_object", "structured_outputs.json_object"),
];

impl Structure {
    /// Calls of tools and nothing else: a grammar in Lark's syntax, and the schemas in it with their places.
    pub(crate) fn calls(lark: String, schemas: Vec<(String, Value)>) -> Self {
        const PARAM: &str = "tool_choice";
        Self { grammar: Grammar::Lark(lark), param: PARAM, path: PARAM, schemas }
    }

    /// This form or calls of tools, which are the rule `calls` of `lark`. `None` if this is no JSON.
    pub(crate) fn or_calls(&self, lark: &str, mut schemas: Vec<(String, Value)>) -> Option<Self> {
        let Grammar::Json(schema) = &self.grammar else { return None };
        let lark = format!("start: answer | calls\nanswer: {}\n{lark}", in_lark(schema));
        schemas.push((self.path.to_owned(), schema.clone()));
        Some(Self { grammar: Grammar::Lark(lark), schemas, ..*self })
    }

    /// Reads the fields, of which one may ask for something.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let mut found: Vec<Self> = Vec::new();
        found.extend(response_format(fields)?);
        if let Some(mut members) = fields.object("structured_outputs")? {
            let before = found.len();
            for (member, _, path) in MEMBERS {
                if let Some(value) = members.take_as(member, || member_schema(member)) {
                    found.extend(Self::from_member(member, "structured_outputs", path, value)?);
                }
            }
            if let Some(unknown) = members.names().find(|name| !name.is_empty() && members.has(name)) {
                let names = MEMBERS.map(|(name, ..)| format!("`{name}`")).join(", ");
                let message = format!("`structured_outputs` has the members {names}, got `{unknown}`");
                return Err(ApiError::invalid("structured_outputs", message));
            }
            if found.len() == before {
                let message = "`structured_outputs` must hold one of `json`, `regex`, `choice`, `grammar`, got none";
                return Err(ApiError::invalid("structured_outputs", message));
            }
        }
        for (member, older, _) in MEMBERS {
            if let Some(value) = fields.take_as(older, || member_schema(member)) {
                found.extend(Self::from_member(member, older, older, value)?);
            }
        }
        if let [first, second, ..] = found.as_slice() {
            return Err(one_only(first.name(), second.name()));
        }
        Ok(found.pop())
    }

    fn from_member(
        member: &str,
        param: &'static str,
        path: &'static str,
        value: Value,
    ) -> Result<Option<Self>, ApiError> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| must_be(path, "a string", value));
        let grammar = match member {
            "json" => Grammar::Json(schema(path, value)?),
            "regex" => Grammar::Regex(text(&value)?),
            "grammar" => Grammar::Lark(text(&value)?),
            "choice" => {
                Grammar::Choice(string_list(&value).ok_or_else(|| must_be(path, "an array of strings", &value))?)
            }
            _ => match value.as_bool() {
                Some(true) => Grammar::Json(any_object()),
                Some(false) => return Ok(None),
                None => return Err(must_be(path, "true or false", &value)),
            },
        };
        Ok(Some(Self { grammar, param, path, schemas: Vec::new() }))
    }

    /// The member, where several would be of one parameter.
    fn name(&self) -> &'static str {
        if self.param == "structured_outputs" { self.path } else { self.param }
    }

    /// The parameter that asks for it.
    pub(crate) fn param(&self) -> &'static str {
        self.param
    }

    /// The grammar, ready for the model's vocabulary. Takes some milliseconds.
    pub(crate) fn compile(&self, model: &ServedModel) -> Result<Constraint, ApiError> {
        let compiler = model.grammars().map_err(|error| ApiError::internal(error.to_string()))?;
        for (path, schema) in &self.schemas {
            check_schema(schema).map_err(|error| refusal(path, &error))?;
        }
        compiler.compile(&self.grammar, self.param).map_err(|error| {
            // A mistake in a schema has its place there.
            let mut failures = self.schemas.iter().filter_map(|(path, schema)| {
                let error = compiler.compile(&Grammar::Json(schema.clone()), self.param).err()?;
                Some(refusal(path, &error))
            });
            failures.next().unwrap_or_else(|| refusal(self.path, &error))
        })
    }
}

/// Two parameters that both say what the answer must look like.
pub(crate) fn one_only(first: &'static str, second: &'static str) -> ApiError {
    let message = format!(
        "`{first}` cannot be combined with `{second}`: an answer can have one form only\nhint: leave one of them out"
    );
    ApiError::invalid(second, message)
}

/// What is wrong with a grammar, with its place: `path` and the place within.
pub(crate) fn refusal(path: &str, error: &GrammarError) -> ApiError {
    let place = if error.at.is_empty() { path.to_owned() } else { format!("{path}.{}", error.at) };
    let message = format!("`{place}` {}", error.what);
    ApiError::invalid(place, message)
}

/// What a member may be.
fn member_schema(member: &str) -> Value {
    match member {
        "json" => json!({ "type": ["object", "boolean", "string"] }),
        "choice" => schema::array(schema::string(), 0),
        "json_object" => schema::flag(),
        _ => schema::string(),
    }
}

/// The schema of `json_object`: any object.
fn any_object() -> Value {
    json!({ "type": "object" })
}

/// A schema as it is, or as vLLM's clients also send it, as text.
fn schema(path: &'static str, value: Value) -> Result<Value, ApiError> {
    const ALLOWED: &str = "a JSON Schema: an object, or its text";
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(parsed @ (Value::Object(_) | Value::Bool(_))) => Ok(parsed),
            Ok(other) => Err(must_be(path, ALLOWED, &other)),
            Err(error) => Err(ApiError::invalid(path, format!("`{path}` must be {ALLOWED}: {error}"))),
        },
        other => Err(must_be(path, ALLOWED, &other)),
    }
}

/// OpenAI's field.
fn response_format(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    const PARAM: &str = "response_format";
    const SCHEMA: &str = "response_format.json_schema.schema";
    let Some(mut format) = fields.object(PARAM)? else { return Ok(None) };
    let kinds = || json!({ "type": "string", "enum": ["text", "json_object", "json_schema"] });
    let kind = format.take_as("type", kinds).unwrap_or_default();
    let (grammar, path) = match kind.as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => (any_object(), PARAM),
        Some("json_schema") => {
            let Some(mut described) = format.object("json_schema").map_err(|error| error.within(PARAM))? else {
                return Err(missing("response_format.json_schema"));
            };
            read_description(&mut described)?;
            match described.take_as("schema", || json!({ "type": ["object", "boolean"] })) {
                Some(value @ (Value::Object(_) | Value::Bool(_))) => (value, SCHEMA),
                Some(other) => return Err(must_be(SCHEMA, "a JSON Schema: an object", &other)),
                None => return Err(missing(SCHEMA)),
            }
        }
        _ => {
            let allowed = "`text`, `json_object` or `json_schema`";
            let message = format!("`response_format.type` must be {allowed}, got {}", shown(&kind));
            return Err(ApiError::invalid("response_format.type", message));
        }
    };
    Ok(Some(Structure { grammar: Grammar::Json(grammar), param: PARAM, path, schemas: Vec::new() }))
}

/// What stands beside a schema. The schema is kept to in any case, `strict` or not.
fn read_description(described: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "response_format.json_schema.name";
    let within = |error: ApiError| error.within("response_format.json_schema");
    described.string("description").map_err(within)?;
    described.flag("strict").map_err(within)?;
    match described.string("name").map_err(within)? {
        None => Err(missing(NAME)),
        Some(name) => check_name(NAME, &name),
    }
}

/// A name as OpenAI allows them.
pub(crate) fn check_name(path: &str, name: &str) -> Result<(), ApiError> {
    const MAX_CHARS: usize = 64;
    let n_chars = name.chars().count();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let message = if name.is_empty() {
        format!("Invalid `{path}`: empty string. Expected a string with minimum length 1, but got an empty string.")
    } else if n_chars > MAX_CHARS {
        format!(
            "Invalid `{path}`: string too long. Expected a string with maximum length {MAX_CHARS}, but got a string with \
             length {n_chars} instead."
        )
    } else if !name.bytes().all(is_plain) {
        format!(
            "Invalid `{path}`: string does not match pattern. Expected a string that matches the pattern \
             `^[a-zA-Z0-9_-]+$`, got {}.",
            shown(&Value::from(name))
        )
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(path.to_owned(), message))
}

/// A parameter that must be there.
pub(crate) fn missing(path: impl Into<String>) -> ApiError {
    let path = path.into();
    let message = format!("Missing required parameter: `{path}`.");
    ApiError::invalid(path, message)
}
