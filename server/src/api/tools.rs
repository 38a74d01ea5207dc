//! Tools: the functions that a client offers, the choice among them, and the format of calls.
//!
//! A model writes calls in the format of its chat template. If the template does not support tools, they are given as text in
//! Hermes' format ([`hearth_model::text::chat::hermes`]).
//!
//! - `call_format`: how families of models write calls, a file each; `call_arguments`: the forms of their arguments;
//!   `call_grammar`: the grammar for calls, from both; `structured`: structured output
//! - `reasoning`: reads an answer's text into `piece`s, keeps thoughts apart; `tool_parser` and `framed_calls`: calls in it
//! - `json_scan` and `json_text`: find JSON in a text; `mismatch`: why a text is not as expected
//! - `tool_calls`: thoughts and calls on the wire; `hosted_tools`: tools that are left out

pub(crate) mod call_arguments;
pub(crate) mod call_format;
pub(crate) mod call_grammar;
pub(crate) mod framed_calls;
pub(crate) mod hosted_tools;
pub(crate) mod json_scan;
pub(crate) mod json_text;
pub(crate) mod mismatch;
pub(crate) mod piece;
pub(crate) mod reasoning;
pub(crate) mod structured;
pub(crate) mod tool_calls;
pub(crate) mod tool_parser;

use std::{borrow::Cow, collections::BTreeSet};

use hearth_model::{
    decode::constraint::{GrammarError, check_enforceable, lenient, log_passed_over},
    text::{chat::ChatTemplate, tokenizer::Tokenizer},
};
use serde_json::{Map, Value, json};

use super::{
    error::ApiError,
    tools::{
        call_arguments::Function,
        call_format::{CallFormat, HERMES},
        call_grammar::{call_rules, special_marks, watch_rules},
        structured::{CallGrammar, Structure, one_only, refusal},
        tool_parser::{Calls, ToolParser},
    },
    wire::{
        fields::{Fields, missing, must_be, shown},
        schema,
    },
};

/// Maximum number of tools per request, as at OpenAI.
const MAX_TOOLS: usize = 128;

/// The tools that an answer may or must call.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    list: Vec<Tool>,
    choice: ToolChoice,
    n_calls: Calls,
}

/// A function that a client offers.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    function: Function,
    /// Whether its schema must be held as a whole.
    is_strict: bool,
    /// The schema's path in the request.
    path: String,
    /// As the client sent it, for the template.
    json: Value,
    /// Whether the tool may be called in this answer.
    is_callable: bool,
}

/// The choice among tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    Auto,
    /// Any tool.
    Required,
    /// The tool with this name.
    Named(String),
}

/// How tools are described to a model and how it writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToolStyle {
    format: &'static CallFormat,
    /// Whether the template writes the tools itself.
    is_in_template: bool,
}

impl ToolStyle {
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let source = template.tools_source();
        let is_in_template = template.takes_tools();
        let format = if is_in_template { CallFormat::of_template(source) } else { &HERMES };
        Self { format, is_in_template }
    }

    /// Whether marks of calls are special tokens, which must be kept in the text.
    pub(crate) fn has_special_marks(self, tokenizer: &Tokenizer) -> bool {
        let is_special = |mark| tokenizer.token_id(mark).is_some_and(|id| tokenizer.is_special(id));
        self.format.marks().any(is_special)
    }

    /// The tools that the template receives.
    pub(crate) fn template_tools(self, tools: Option<&Tools>) -> Option<Value> {
        tools.filter(|_| self.is_in_template).map(|tools| tools.json().into())
    }
}

fn choice_schema() -> Value {
    let named = json!({
        "type": "object",
        "properties": {
            "type": { "enum": ["function"] },
            "function": { "type": "object", "properties": { "name": schema::string() }, "required": ["name"] },
        },
        "required": ["type", "function"],
    });
    let allowed = json!({
        "type": "object",
        "properties": {
            "mode": { "enum": ["auto", "required"] },
            "tools": schema::array(named.clone(), 0),
        },
        "required": ["mode", "tools"],
    });
    let among = json!({
        "type": "object",
        "properties": { "type": { "enum": [ALLOWED_TOOLS] }, ALLOWED_TOOLS: allowed },
        "required": ["type", ALLOWED_TOOLS],
    });
    schema::any_of([json!({ "type": "string", "enum": ["none", "auto", "required"] }), named, among])
}

/// The type of a choice that allows some of the tools.
const ALLOWED_TOOLS: &str = "allowed_tools";

/// Maximum number of tools per request of the other endpoints for conversations: agents bring those of many programs.
const MAX_AGENT_TOOLS: usize = 512;

/// Checks the number of `tools`.
pub(crate) fn check_number(n_tools: usize) -> Result<(), ApiError> {
    if n_tools <= MAX_AGENT_TOOLS {
        return Ok(());
    }
    let message = format!("`tools` must have at most {MAX_AGENT_TOOLS} entries, got {n_tools}");
    Err(ApiError::invalid("tools", message))
}

/// Checks that the name of another tool, which the request has at `path`, is new.
pub(crate) fn check_unique(tools: &[Tool], name: &str, path: String) -> Result<(), ApiError> {
    if tools.iter().all(|tool| tool.function.name != name) {
        return Ok(());
    }
    let message = format!("Invalid `{path}`: function names must be unique, but `{name}` is used twice.");
    Err(ApiError::invalid(path, message))
}

impl Tool {
    /// A function whose arguments follow `schema`, which is at `path` in the request. It is an error if the schema is
    /// not of an object, or if `is_strict` and it cannot be enforced. `json`: the tool for the template, in the form of
    /// chat completions.
    pub(crate) fn new(
        name: String,
        schema: Option<Map<String, Value>>,
        is_strict: bool,
        path: String,
        json: Value,
    ) -> Result<Self, ApiError> {
        let parameters = match schema {
            None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            Some(schema) => object_schema(schema, &name, || path.clone().into())?,
        };
        let parameters = if is_strict {
            check_enforceable(&parameters).map_err(|error| refusal(&path, &error))?;
            parameters
        } else {
            lenient(parameters, &name)
        };
        Ok(Self { function: Function { name, parameters }, is_strict, path, json, is_callable: true })
    }

    /// The tool in the form of chat completions.
    pub(crate) fn json(name: &str, description: Option<&str>, parameters: Option<&Map<String, Value>>) -> Value {
        let mut function = json!({ "name": name });
        if let Some(description) = description {
            function["description"] = description.into();
        }
        if let Some(parameters) = parameters {
            function["parameters"] = Value::Object(parameters.clone());
        }
        json!({ "type": "function", "function": function })
    }

    pub(crate) fn name(&self) -> &str {
        &self.function.name
    }

    /// The same tool, described in the prompt but not to be called in this answer.
    pub(crate) fn described_only(self) -> Self {
        Self { is_callable: false, ..self }
    }
}

impl Tools {
    /// These tools; `None` if there are none.
    pub(crate) fn new(list: Vec<Tool>, choice: ToolChoice, n_calls: Calls) -> Option<Self> {
        (!list.is_empty()).then_some(Self { list, choice, n_calls })
    }

    /// The tools that may be called.
    fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.list.iter().filter(|tool| match &self.choice {
            ToolChoice::Named(name) => tool.function.name == *name,
            ToolChoice::Auto | ToolChoice::Required => tool.is_callable,
        })
    }

    /// The tools as the client sent them.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.list.iter().map(|tool| tool.json.clone()).collect()
    }

    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`. `None` if no tool may be called.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let is_given = fields.has("tools");
        let items = fields.objects("tools")?.unwrap_or_default();
        if items.len() > MAX_TOOLS {
            let message = format!(
                "Invalid `tools`: array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array with \
                 length {} instead.",
                items.len()
            );
            return Err(ApiError::invalid("tools", message));
        }
        let list = tools(items)?;
        let only_with_tools = |name: &'static str| {
            let message = format!("Invalid value for `{name}`: `{name}` is only allowed when `tools` are specified.");
            ApiError::invalid(name, message)
        };
        let (choice, among) = choice(fields.take_as("tool_choice", choice_schema), &list)?;
        let limited = |tool: Tool| match &among {
            Some(names) if !names.contains(tool.name()) => tool.described_only(),
            _ => tool,
        };
        let list: Vec<Tool> = list.into_iter().map(limited).collect();
        let parallel = fields.flag("parallel_tool_calls")?;
        if list.is_empty() {
            // An agent that has no tools at the moment may still set how it would use them.
            return match (choice, parallel) {
                (Some(Some(ToolChoice::Auto)) | Some(None) | None, _) if is_given => Ok(None),
                (Some(Some(_)), _) => Err(only_with_tools("tool_choice")),
                (_, Some(_)) => Err(only_with_tools("parallel_tool_calls")),
                _ => Ok(None),
            };
        }
        let n_calls = if parallel == Some(false) { Calls::One } else { Calls::Several };
        Ok(match choice {
            Some(None) => None,
            Some(Some(choice)) => Some(Self { list, choice, n_calls }),
            None => Some(Self { list, choice: ToolChoice::Auto, n_calls }),
        })
    }

    /// The structure of the answer: calls if the answer must call, else `form` or calls, or calls wherever they begin.
    ///
    /// # Errors
    /// The answer would have two structures, or a strict schema that the model's format of calls cannot hold.
    pub(crate) fn structure(
        &self,
        style: ToolStyle,
        tokenizer: &Tokenizer,
        form: Option<&Structure>,
    ) -> Result<Option<Structure>, ApiError> {
        if self.callable().next().is_none() {
            return Ok(None);
        }
        let calls = self.calls(style.format, tokenizer)?;
        let structure = match (&self.choice, form) {
            (ToolChoice::Auto, None) => {
                let rules = watch_rules(style.format, &self.functions(), self.n_calls);
                Structure::calls_in_text(calls, rules)
            }
            (ToolChoice::Auto, Some(form)) => form.or_calls(calls).ok_or_else(|| one_only("tools", form.param()))?,
            (_, None) => Structure::calls(calls),
            (_, Some(form)) => return Err(one_only("tool_choice", form.param())),
        };
        Ok(Some(structure))
    }

    /// The parser for the calls in the answer's text.
    pub(crate) fn parser(&self, style: ToolStyle) -> ToolParser {
        let format = style.format;
        let follows = self.choice != ToolChoice::Auto && format.streams_arguments();
        if follows {
            return ToolParser::following(format);
        }
        ToolParser::searching(format, self.functions().into(), self.n_calls)
    }

    /// The functions that may be called.
    fn functions(&self) -> Vec<Function> {
        self.callable().map(|tool| tool.function.clone()).collect()
    }

    /// Calls in the model's format, with arguments that follow the schema.
    fn calls(&self, format: &CallFormat, tokenizer: &Tokenizer) -> Result<CallGrammar, ApiError> {
        let marks = special_marks(format, tokenizer);
        let n_calls = if matches!(self.choice, ToolChoice::Named(_)) { Calls::One } else { self.n_calls };
        let functions = self.functions();
        let rules = call_rules(format, &functions, n_calls, marks.clone());
        for (tool, unheld) in self.callable().zip(&rules.unheld) {
            check_held(tool, unheld)?;
        }
        let any = |function: Function| Function { parameters: json!({ "type": "object" }), ..function };
        let loose: Vec<Function> = functions.into_iter().map(any).collect();
        let schemas = self.callable().map(|tool| (tool.path.clone(), tool.function.parameters.clone()));
        Ok(CallGrammar {
            rules: rules.lark,
            looser_rules: (!self.callable().any(|tool| tool.is_strict))
                .then(|| call_rules(format, &loose, n_calls, marks).lark),
            schemas: schemas.collect(),
            special_tokens: rules.special_tokens,
        })
    }
}

/// Rejects a strict function with keywords that the format's grammar does not enforce, and logs such keywords of other
/// functions.
fn check_held(tool: &Tool, unheld: &BTreeSet<String>) -> Result<(), ApiError> {
    let Some(keyword) = unheld.first() else { return Ok(()) };
    if !tool.is_strict {
        log_passed_over(tool.name(), unheld);
        return Ok(());
    }
    let what =
        "cannot be enforced in the form in which this model writes calls\nhint: leave out `strict`, or the keyword";
    let error = GrammarError { at: keyword.clone(), what: what.into() };
    Err(refusal(&tool.path, &error))
}

fn tools(items: Vec<Fields>) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let tool = tool(item)?;
        check_unique(&tools, tool.name(), format!("tools[{index}].function.name"))?;
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(mut item: Fields) -> Result<Tool, ApiError> {
    let json = item.to_value();
    item.require("type", |item, name| item.one_of(name, &[("function", ())]))?;
    let mut function = item.require("function", Fields::object)?;
    let name = function.require("name", Fields::name)?;
    function.string("description")?;
    let is_strict = function.flag("strict")?.unwrap_or(false);
    let (schema, path) = (function.any_object("parameters")?, function.path("parameters").into_owned());
    // The template receives all fields and may read them.
    item.ignore_rest();
    function.ignore_rest();
    Tool::new(name, schema, is_strict, path, json)
}

/// The schema of arguments, which must be an object.
fn object_schema(
    mut schema: Map<String, Value>,
    name: &str,
    path: impl Fn() -> Cow<'static, str>,
) -> Result<Value, ApiError> {
    match schema.get("type") {
        Some(kind) if kind == "object" => {}
        None => {
            schema.insert("type".into(), "object".into());
        }
        Some(kind) => {
            let message = format!(
                "Invalid schema for function `{name}`: schema must be a JSON Schema of `type: \"object\"`, got `type: \
                 {kind}`."
            );
            return Err(ApiError::invalid(path(), message));
        }
    }
    // A function whose schema has only these keywords has no parameters.
    const SAYS_NOTHING: [&str; 6] = ["type", "title", "description", "$schema", "$id", "$comment"];
    if schema.keys().all(|keyword| SAYS_NOTHING.contains(&keyword.as_str())) {
        schema.insert("properties".into(), json!({}));
    }
    Ok(Value::Object(schema))
}

/// The choice: `None` if absent, `Some(None)` for `none`; and the names of the tools that may be called, if it lists them.
type Chosen = (Option<Option<ToolChoice>>, Option<BTreeSet<String>>);

fn choice(value: Option<Value>, tools: &[Tool]) -> Result<Chosen, ApiError> {
    const NAME: &str = "tool_choice";
    const ALLOWED: &str = "`none`, `auto`, `required`, a function, \
                           {\"type\": \"function\", \"function\": {\"name\": \"...\"}}, or `allowed_tools`";
    let Some(value) = value else { return Ok((None, None)) };
    let choice = match &value {
        Value::String(word) => match word.as_str() {
            "none" => None,
            "auto" => Some(ToolChoice::Auto),
            "required" => Some(ToolChoice::Required),
            _ => return Err(must_be(NAME, ALLOWED, &value)),
        },
        Value::Object(members) => match members.get("type").and_then(Value::as_str) {
            Some("function") => Some(ToolChoice::Named(named(&value, tools, NAME)?)),
            Some(ALLOWED_TOOLS) => return among(&value, tools),
            _ => return Err(must_be(NAME, ALLOWED, &value)),
        },
        _ => return Err(must_be(NAME, ALLOWED, &value)),
    };
    Ok((Some(choice), None))
}

/// The name of the function that `given`, which the request has at `path`, chooses.
fn named(given: &Value, tools: &[Tool], path: &str) -> Result<String, ApiError> {
    let name = given.pointer("/function/name").and_then(Value::as_str);
    let Some(name) = name else { return Err(missing(format!("{path}.function.name"))) };
    if !tools.is_empty() && !tools.iter().any(|tool| tool.function.name == name) {
        let message = format!("Tool choice {} not found in `tools` parameter.", shown(&Value::from(name)));
        return Err(ApiError::invalid(path.to_owned(), message));
    }
    Ok(name.to_owned())
}

/// The choice among some of the tools.
fn among(given: &Value, tools: &[Tool]) -> Result<Chosen, ApiError> {
    const PATH: &str = "tool_choice.allowed_tools";
    let none = Value::Null;
    let allowed = given.get(ALLOWED_TOOLS).unwrap_or(&none);
    let choice = match allowed.get("mode").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => {
            let mode = allowed.get("mode").unwrap_or(&none);
            return Err(must_be(format!("{PATH}.mode"), "`auto` or `required`", mode));
        }
    };
    let Some(items) = allowed.get("tools").and_then(Value::as_array) else {
        return Err(must_be(format!("{PATH}.tools"), "an array of tools", allowed.get("tools").unwrap_or(&none)));
    };
    let of_item = |(index, item): (usize, &Value)| named(item, tools, &format!("{PATH}.tools[{index}]"));
    let names: BTreeSet<String> = items.iter().enumerate().map(of_item).collect::<Result<_, _>>()?;
    if names.is_empty() && choice == ToolChoice::Required {
        return Err(must_be(
            format!("{PATH}.tools"),
            "an array of at least one tool with the mode `required`",
            &json!([]),
        ));
    }
    Ok((Some(Some(choice)), Some(names)))
}

#[cfg(test)]
mod tests;
