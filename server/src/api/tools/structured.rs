//! Structured output: OpenAI's `response_format`, vLLM's `structured_outputs`, and the older names of vLLM's fields.

use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    decode::constraint::{
        Constraint, Grammar, GrammarError, MAX_SCHEMA_VALUES, Watch, WatchRules, check_schema, in_lark,
    },
};
use serde_json::{Value, json};

use crate::api::{
    error::ApiError,
    guard::bounded_json::{BadJson, MAX_DEPTH, join, parse_text, problem},
    wire::{
        fields::{Fields, missing, must_be, repeated, string_list},
        schema,
    },
};

/// The structure of an answer, and the parameter that requests it.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    grammar: Grammar,
    /// The parameter.
    param: &'static str,
    /// The path of the grammar in the request.
    path: &'static str,
    /// Schemas inside the grammar, with their paths.
    schemas: Vec<(String, Value)>,
    /// Special tokens that the grammar refers to.
    special_tokens: Vec<TokenId>,
    /// Set if the structure applies only to parts of the answer.
    in_text: Option<InText>,
}

/// A structure of parts of an answer, which the model begins itself.
#[derive(Clone, Debug)]
struct InText {
    rules: WatchRules,
    /// Used instead if the grammar is too large. `None`: that is an error.
    looser: Option<Grammar>,
}

/// The grammar of tool calls.
#[derive(Clone, Debug)]
pub(crate) struct CallGrammar {
    /// Rules in Lark: `calls` is a whole answer, `after_mark` the text after the mark before a call.
    pub(crate) rules: String,
    /// The rules with any arguments, if the schemas need not be enforced.
    pub(crate) looser_rules: Option<String>,
    /// The schemas in the rules, with their paths.
    pub(crate) schemas: Vec<(String, Value)>,
    /// Special tokens that the rules refer to.
    pub(crate) special_tokens: Vec<TokenId>,
}

/// The members of `structured_outputs`, their older names, and their paths.
const MEMBERS: [(&str, &str, &str); 5] = [
    ("json", "guided_json", "structured_outputs.json"),
    ("regex", "guided_regex", "structured_outputs.regex"),
    ("choice", "guided_choice", "structured_outputs.choice"),
    ("grammar", "guided_grammar", "structured_outputs.grammar"),
    ("json_object", "guided_json_object", "structured_outputs.json_object"),
];

/// Members that vLLM's clients may send with their default, `false`.
const OFF_BY_DEFAULT: [&str; 4] =
    ["disable_fallback", "disable_any_whitespace", "disable_additional_properties", "_backend_was_auto"];

impl Structure {
    /// JSON that conforms to `schema`, which the parameter `param` has at `path`. `None`: any object.
    pub(crate) fn json(schema: Option<Value>, param: &'static str, path: &'static str) -> Self {
        let grammar = Grammar::Json(schema.unwrap_or_else(any_object));
        Self { grammar, param, path, schemas: Vec::new(), special_tokens: Vec::new(), in_text: None }
    }

    /// The grammar of a tool's input.
    pub(crate) fn of_tool(grammar: Grammar) -> Self {
        Self { grammar, param: "tools", path: "tools", schemas: Vec::new(), special_tokens: Vec::new(), in_text: None }
    }

    /// Only tool calls.
    pub(crate) fn calls(calls: CallGrammar) -> Self {
        const PARAM: &str = "tool_choice";
        let CallGrammar { rules, schemas, special_tokens, .. } = calls;
        let grammar = Grammar::Lark(format!("start: calls\n{rules}"));
        Self { grammar, param: PARAM, path: PARAM, schemas, special_tokens, in_text: None }
    }

    /// Text in which calls may begin.
    pub(crate) fn calls_in_text(calls: CallGrammar, rules: WatchRules) -> Self {
        const PARAM: &str = "tools";
        let lark = |rules: String| Grammar::Lark(format!("start: after_mark\n{rules}"));
        let in_text = Some(InText { rules, looser: calls.looser_rules.map(lark) });
        let (schemas, special_tokens) = (calls.schemas, calls.special_tokens);
        Self { grammar: lark(calls.rules), param: PARAM, path: PARAM, schemas, special_tokens, in_text }
    }

    /// Whether it holds only in parts of the answer.
    pub(crate) fn is_in_text(&self) -> bool {
        self.in_text.is_some()
    }

    /// An answer that follows either this structure or the grammar of tool calls. `None` if this structure is not JSON.
    pub(crate) fn or_calls(&self, calls: CallGrammar) -> Option<Self> {
        let Grammar::Json(schema) = &self.grammar else { return None };
        let CallGrammar { rules, mut schemas, special_tokens, .. } = calls;
        let grammar = Grammar::Lark(format!("start: answer | calls\nanswer: {}\n{rules}", in_lark(schema)));
        schemas.push((self.path.to_owned(), schema.clone()));
        Some(Self { grammar, schemas, special_tokens, in_text: None, ..*self })
    }

    /// Reads the fields, of which at most one may be set.
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
            for member in OFF_BY_DEFAULT {
                if members.get(member) == Some(&Value::Bool(false)) {
                    members.take(member);
                }
            }
            if let Some(unknown) = members.names().find(|name| !name.is_empty() && members.has(name)) {
                let names = MEMBERS.map(|(name, ..)| format!("`{name}`")).join(", ");
                let message = format!("`structured_outputs` may only have one of the members {names}, got `{unknown}`");
                return Err(ApiError::invalid("structured_outputs", message));
            }
            if found.len() == before {
                let message = "`structured_outputs` must have one of the members `json`, `regex`, `choice`, `grammar` and `json_object`, got none";
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
        Ok(Some(Self { grammar, param, path, schemas: Vec::new(), special_tokens: Vec::new(), in_text: None }))
    }

    /// The name for error messages: the path if the parameter has several members.
    fn name(&self) -> &'static str {
        if self.param == "structured_outputs" { self.path } else { self.param }
    }

    /// Whether it has tool calls.
    pub(crate) fn has_calls(&self) -> bool {
        !self.schemas.is_empty()
    }

    /// The parameter that requests it.
    pub(crate) fn param(&self) -> &'static str {
        self.param
    }

    /// Compiles a grammar of parts of the answer. `shows_special`: whether special tokens are part of the answer's
    /// text. Returns `None` if the structure covers the whole answer, or cannot be enforced, which is logged.
    pub(crate) fn compile_in_text(&self, model: &ServedModel, shows_special: bool) -> Result<Option<Watch>, ApiError> {
        let Some(in_text) = &self.in_text else { return Ok(None) };
        let rules = || WatchRules { shows_special, ..in_text.rules.clone() };
        let Some(looser) = &in_text.looser else {
            return self.compile(model).map(|grammar| Some(Watch::new(grammar, rules())));
        };
        let compiled =
            self.check_schemas().and_then(|()| self.compile_grammar(&self.grammar, model)?.map_err(Self::unnamed));
        let compiled = compiled.or_else(|error| {
            tracing::warn!("the schemas of tools are not enforced: {}", error.message());
            self.compile_grammar(looser, model)?.map_err(Self::unnamed)
        });
        match compiled {
            Ok(grammar) => Ok(Some(Watch::new(grammar, rules()))),
            Err(error) => {
                tracing::warn!("calls of tools are not bound to their form: {}", error.message());
                Ok(None)
            }
        }
    }

    /// Compiles the grammar for the model's vocabulary. Takes some milliseconds.
    pub(crate) fn compile(&self, model: &ServedModel) -> Result<Constraint, ApiError> {
        self.check_schemas()?;
        self.compile_grammar(&self.grammar, model)?.map_err(|error| {
            // If one of the schemas is the cause, the error has the path of that schema.
            let mut failures = self.schemas.iter().filter_map(|(path, schema)| {
                let compiled = self.compile_grammar(&Grammar::Json(schema.clone()), model);
                Some(refusal(path, &compiled.ok()?.err()?))
            });
            failures.next().unwrap_or_else(|| refusal(self.path, &error))
        })
    }

    fn check_schemas(&self) -> Result<(), ApiError> {
        let mut checked = self.schemas.iter().map(|(path, schema)| (path, check_schema(schema)));
        checked.try_for_each(|(path, checked)| checked.map_err(|error| refusal(path, &error)))
    }

    fn compile_grammar(
        &self,
        grammar: &Grammar,
        model: &ServedModel,
    ) -> Result<Result<Constraint, GrammarError>, ApiError> {
        let compiler = model.grammars().map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(compiler.compile_with_tokens(grammar, &self.special_tokens, self.param))
    }

    /// The error of a grammar, without naming the part.
    fn unnamed(error: GrammarError) -> ApiError {
        refusal("tools", &error)
    }
}

/// An error for two parameters that both set the structure.
pub(crate) fn one_only(first: &'static str, second: &'static str) -> ApiError {
    let message = format!(
        "`{first}` cannot be combined with `{second}`: an answer can follow only one format\nhint: remove one of them"
    );
    ApiError::invalid(second, message)
}

/// The error for an invalid grammar. The location is `path` and the location in the grammar.
pub(crate) fn refusal(path: &str, error: &GrammarError) -> ApiError {
    let place = if error.at.is_empty() { path.to_owned() } else { format!("{path}.{}", error.at) };
    let message = format!("`{place}` {}", error.what);
    ApiError::invalid(place, message)
}

/// The schema of a member.
fn member_schema(member: &str) -> Value {
    match member {
        "json" => json!({ "type": ["object", "boolean", "string"] }),
        "choice" => schema::array(schema::string(), 0),
        "json_object" => schema::flag(),
        _ => schema::string(),
    }
}

/// The schema for `json_object`: any object.
fn any_object() -> Value {
    json!({ "type": "object" })
}

/// A schema as JSON, or as text, which vLLM's clients also send.
fn schema(path: &'static str, value: Value) -> Result<Value, ApiError> {
    const ALLOWED: &str = "a JSON Schema: an object, or its text";
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value),
        // Limited when it is parsed, because it stays in memory while the request waits for its turn to compile it.
        Value::String(text) => match parse_text(&text, MAX_SCHEMA_VALUES) {
            Ok(parsed @ (Value::Object(_) | Value::Bool(_))) => Ok(parsed),
            Ok(other) => Err(must_be(path, ALLOWED, &other)),
            Err(BadJson::Malformed(error)) => {
                Err(ApiError::invalid(path, format!("`{path}` must be {ALLOWED}: {}", problem(&error))))
            }
            Err(BadJson::Repeated(within)) => Err(repeated(join(path, &within))),
            Err(BadJson::TooDeep(depth)) => {
                let message = format!("`{path}` must nest lists and objects at most {MAX_DEPTH} deep, got {depth}");
                Err(ApiError::invalid(path, message))
            }
            Err(BadJson::TooManyValues(_)) => {
                let message = format!("`{path}` must have at most {MAX_SCHEMA_VALUES} values, got more");
                Err(ApiError::invalid(path, message))
            }
        },
        other => Err(must_be(path, ALLOWED, &other)),
    }
}

#[derive(Clone, Copy)]
enum Format {
    Text,
    Object,
    Schema,
}

/// The error for a member that belongs to another type of format.
fn only_with(path: &'static str, kind: &str) -> ApiError {
    ApiError::invalid(path, format!("`{path}` is only allowed with the `type` `{kind}`"))
}

/// Reads OpenAI's `response_format`.
fn response_format(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    const PARAM: &str = "response_format";
    const SCHEMA: &str = "response_format.json_schema.schema";
    const OWN_SCHEMA: &str = "response_format.schema";
    let Some(mut format) = fields.object(PARAM)? else { return Ok(None) };
    let kinds = [("text", Format::Text), ("json_object", Format::Object), ("json_schema", Format::Schema)];
    let kind = format.require("type", |format, name| format.one_of(name, &kinds))?;
    let own_schema = format.take_as("schema", || json!({ "type": ["object", "boolean"] }));
    if own_schema.is_some() && !matches!(kind, Format::Object) {
        return Err(only_with(OWN_SCHEMA, "json_object"));
    }
    if !matches!(kind, Format::Schema) && format.take("json_schema").is_some() {
        return Err(only_with("response_format.json_schema", "json_schema"));
    }
    let (grammar, path) = match kind {
        Format::Text => return Ok(None),
        // As at Together and Fireworks.
        Format::Object => match own_schema {
            None => (any_object(), PARAM),
            Some(value @ (Value::Object(_) | Value::Bool(_))) => (value, OWN_SCHEMA),
            Some(other) => return Err(must_be(OWN_SCHEMA, "a JSON Schema: an object", &other)),
        },
        Format::Schema => {
            let Some(mut described) = format.object("json_schema")? else {
                return Err(missing("response_format.json_schema"));
            };
            // The schema is always enforced, `strict` or not.
            described.string("description")?;
            described.flag("strict")?;
            described.require("name", Fields::name)?;
            match described.take_as("schema", || json!({ "type": ["object", "boolean"] })) {
                Some(value @ (Value::Object(_) | Value::Bool(_))) => (value, SCHEMA),
                Some(other) => return Err(must_be(SCHEMA, "a JSON Schema: an object", &other)),
                None => return Err(missing(SCHEMA)),
            }
        }
    };
    let (grammar, schemas, special_tokens) = (Grammar::Json(grammar), Vec::new(), Vec::new());
    Ok(Some(Structure { grammar, param: PARAM, path, schemas, special_tokens, in_text: None }))
}
