//! Reads the tools of a request and the choice among them.

use std::collections::{BTreeMap, BTreeSet};

use hearth_model::decode::constraint::Grammar;
use serde_json::{Map, Value, json};

use crate::api::{
    error::ApiError,
    tools::{
        Tool, ToolChoice, Tools, check_number, check_unique, hosted_tools, structured::Structure, tool_parser::Calls,
    },
    wire::{
        fields::{Fields, missing, must_be, shown},
        schema,
    },
};

/// The tools of a request.
#[derive(Debug)]
pub(super) struct RequestTools {
    /// Tools for the prompt and the answer; `None` if no tool may be called.
    pub(super) tools: Option<Tools>,
    /// The names of custom tools, whose calls have a text instead of arguments.
    pub(super) custom: BTreeSet<String>,
    /// The tools of namespaces, by the names under which the model sees them.
    pub(super) namespaced: BTreeMap<String, Namespaced>,
    /// The custom tool whose call the whole answer is: its text is bound by the tool's grammar, and written as it is.
    pub(super) only_input_of: Option<(String, Structure)>,
    /// The tools as the client sent them, except hosted tools that this server does not run.
    pub(super) echo: Vec<Value>,
    pub(super) choice_echo: Value,
    pub(super) is_parallel: bool,
}

const CHOICE: &str = "tool_choice";
const CHOICES: &str =
    "`none`, `auto`, `required`, or an object with the `type` `function`, `custom` or `allowed_tools`";

/// A tool, and the grammar that binds the text of a custom one.
struct Declared {
    tool: Tool,
    kind: &'static str,
    grammar: Option<Structure>,
    /// If it is in a namespace.
    namespaced: Option<Namespaced>,
}

/// The namespace of a tool, and the tool's name in it.
#[derive(Clone, Debug)]
pub(super) struct Namespaced {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Namespaced {
    /// The name under which the model sees the tool. Some clients end the names of namespaces with the separator.
    pub(super) fn joined(&self) -> String {
        let separator = if self.namespace.ends_with("__") { "" } else { "__" };
        format!("{}{separator}{}", self.namespace, self.name)
    }
}

impl RequestTools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(super) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let items = fields.objects("tools")?.unwrap_or_default();
        check_number(items.len())?;
        let (mut declared, mut echo, mut hosted) = (Vec::<Declared>::new(), Vec::new(), Vec::new());
        for item in items {
            let json = item.to_value();
            match declare(item, &mut declared)? {
                None => echo.push(json),
                Some(kind) => hosted.push(kind),
            }
        }
        check_number(declared.len())?;
        let choice = fields.take_as(CHOICE, choice_schema);
        let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let n_calls = if is_parallel { Calls::Several } else { Calls::One };
        let choice_echo = choice.clone().unwrap_or_else(|| "auto".into());
        let custom =
            declared.iter().filter(|tool| tool.kind == CUSTOM).map(|tool| tool.tool.name().to_owned()).collect();
        let in_namespace = |tool: &Declared| Some((tool.tool.name().to_owned(), tool.namespaced.clone()?));
        let namespaced = declared.iter().filter_map(in_namespace).collect();
        let chosen = Choice::read(choice, &declared, &hosted)?;
        let only_input_of = chosen.only_input(&declared);
        let tools = chosen.apply(declared, n_calls, only_input_of.is_some());
        Ok(Self { tools, custom, namespaced, only_input_of, echo, choice_echo, is_parallel })
    }
}

const FUNCTION: &str = "function";
const CUSTOM: &str = "custom";

const NAMESPACE: &str = "namespace";

/// Maximum number of characters in the name of a tool or a namespace.
const MAX_NAME_CHARS: usize = 128;

/// Adds the tool, or all tools of the namespace, to `declared`. Returns the kind of a tool that this server does not run.
fn declare(mut item: Fields, declared: &mut Vec<Declared>) -> Result<Option<String>, ApiError> {
    let kind = item.require("type", Fields::string)?;
    match kind.as_str() {
        FUNCTION => declare_one(item, FUNCTION, None, declared)?,
        CUSTOM => declare_one(item, CUSTOM, None, declared)?,
        NAMESPACE => declare_namespace(item, declared)?,
        hosted if hosted_tools::is_hosted(hosted) => {
            hosted_tools::log_left_out(hosted);
            item.ignore_rest();
            return Ok(Some(kind));
        }
        _ => {
            let allowed = "`function`, `custom`, `namespace`, or the type of a tool that OpenAI runs";
            return Err(must_be(item.path("type"), allowed, &kind.into()));
        }
    }
    Ok(None)
}

/// Adds the tools of a namespace. The model reads its description with that of the first.
fn declare_namespace(mut item: Fields, declared: &mut Vec<Declared>) -> Result<(), ApiError> {
    let namespace = item.require("name", |item, name| item.name_up_to(MAX_NAME_CHARS, name))?;
    let mut about = item.string("description")?.filter(|text| !text.is_empty());
    for mut tool in item.require("tools", Fields::objects)? {
        let kinds = [FUNCTION, CUSTOM].map(|kind| (kind, kind));
        let kind = tool.require("type", |tool, name| tool.one_of(name, &kinds))?;
        declare_one(tool, kind, Some((&namespace, about.take())), declared)?;
    }
    item.ignore_rest();
    Ok(())
}

/// Adds a function or a custom tool, of a namespace if there is one. `about`: what is said of the namespace.
fn declare_one(
    mut item: Fields,
    kind: &'static str,
    namespace: Option<(&str, Option<String>)>,
    declared: &mut Vec<Declared>,
) -> Result<(), ApiError> {
    let name_path = item.path("name").into_owned();
    let own_name = item.require("name", |item, name| item.name_up_to(MAX_NAME_CHARS, name))?;
    let own_description = item.string("description")?;
    let (namespaced, about) = match namespace {
        Some((namespace, about)) => {
            (Some(Namespaced { namespace: namespace.to_owned(), name: own_name.clone() }), about)
        }
        None => (None, None),
    };
    let name = namespaced.as_ref().map_or(own_name, Namespaced::joined);
    let taken = declared.iter().map(|other| other.tool.clone()).collect::<Vec<_>>();
    check_unique(&taken, &name, name_path)?;
    let description = match (about, own_description) {
        (Some(about), Some(own)) => Some(format!("{about}\n{own}")),
        (about, own) => about.or(own),
    };
    let tool = if kind == FUNCTION {
        let (schema, path) = (item.any_object("parameters")?, item.path("parameters").into_owned());
        let is_strict = item.flag("strict")?.unwrap_or(false);
        let json = Tool::json(&name, description.as_deref(), schema.as_ref());
        Declared { tool: Tool::new(name, schema, is_strict, path, json)?, kind, grammar: None, namespaced }
    } else {
        Declared { namespaced, ..custom(&mut item, name, description)? }
    };
    declared.push(tool);
    // Such as `defer_loading`.
    item.ignore_rest();
    Ok(())
}

/// A custom tool: for the model, a function with one argument, its input.
fn custom(item: &mut Fields, name: String, description: Option<String>) -> Result<Declared, ApiError> {
    let mut input = json!({ "type": "string", "description": "The input of the tool, as text." });
    let mut description = description.unwrap_or_default();
    let (mut grammar, format_path) = (None, item.path("format").into_owned());
    if let Some(mut format) = item.object("format")? {
        let is_grammar =
            format.require("type", |format, name| format.one_of(name, &[("text", false), ("grammar", true)]))?;
        // Read for a text, too: they must be as described.
        let syntax = format.one_of("syntax", &[("lark", "lark"), ("regex", "regex")])?;
        let definition = format.string("definition")?;
        if is_grammar {
            let syntax = syntax.ok_or_else(|| missing(format.path("syntax")))?;
            let definition = definition.ok_or_else(|| missing(format.path("definition")))?;
            description.push_str(&format!("\nThe input must follow this grammar ({syntax}):\n{definition}"));
            grammar = Some(Structure::of_tool(match syntax {
                "lark" => Grammar::Lark(definition),
                _ => {
                    input["pattern"] = format!("^(?:{definition})$").into();
                    Grammar::Regex(definition)
                }
            }));
        }
        format.ignore_rest();
    }
    let schema = json!({
        "type": "object", "properties": { INPUT: input }, "required": [INPUT], "additionalProperties": false,
    });
    let Value::Object(schema) = schema else { return Err(missing(format_path)) };
    let json = Tool::json(&name, Some(&description), Some(&schema));
    Ok(Declared {
        tool: Tool::new(name, Some(schema), false, format_path, json)?,
        kind: CUSTOM,
        grammar,
        namespaced: None,
    })
}

/// The argument of a custom tool.
const INPUT: &str = "input";

/// The arguments of a call of a custom tool with this input.
pub(super) fn arguments_of_input(input: &str) -> String {
    json!({ INPUT: input }).to_string()
}

/// The input in the arguments of a call of a custom tool; the arguments themselves if they were cut off.
pub(super) fn input_of_arguments(arguments: &str) -> String {
    let parsed: Option<Map<String, Value>> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|arguments| arguments.get(INPUT)?.as_str());
    input.unwrap_or(arguments).to_owned()
}

fn choice_schema() -> Value {
    let named = |kinds: &[&str]| {
        let properties = json!({ "type": { "enum": kinds }, "name": schema::string() });
        json!({ "type": "object", "properties": properties, "required": ["type", "name"] })
    };
    let allowed = json!({
        "type": "object",
        "properties": {
            "type": { "enum": ["allowed_tools"] },
            "mode": { "enum": ["auto", "required"] },
            "tools": schema::array(named(&[FUNCTION, CUSTOM]), 0),
        },
        "required": ["type", "mode", "tools"],
    });
    schema::any_of([
        json!({ "type": "string", "enum": ["none", "auto", "required"] }),
        named(&[FUNCTION, CUSTOM]),
        allowed,
    ])
}

/// The choice among tools.
enum Choice {
    Nothing,
    Of(ToolChoice),
    /// Only these names; at least one must be called if the choice is `Required`.
    Among(BTreeSet<String>, ToolChoice),
}

impl Choice {
    fn read(given: Option<Value>, declared: &[Declared], hosted: &[String]) -> Result<Self, ApiError> {
        let Some(given) = given else { return Ok(Self::Of(ToolChoice::Auto)) };
        let choice = match &given {
            Value::String(word) => match word.as_str() {
                "none" => return Ok(Self::Nothing),
                "auto" => Self::Of(ToolChoice::Auto),
                "required" => Self::Of(ToolChoice::Required),
                _ => return Err(must_be(CHOICE, CHOICES, &given)),
            },
            Value::Object(members) => match members.get("type").and_then(Value::as_str) {
                Some(FUNCTION | CUSTOM) => Self::Of(ToolChoice::Named(named(&given, declared, hosted, CHOICE)?)),
                Some("allowed_tools") => allowed(&given, declared, hosted)?,
                Some(kind) if hosted_tools::is_hosted(kind) => return Err(not_run(kind)),
                _ => return Err(must_be(CHOICE, CHOICES, &given)),
            },
            _ => return Err(must_be(CHOICE, CHOICES, &given)),
        };
        let must_call = matches!(choice, Self::Of(ToolChoice::Required) | Self::Among(_, ToolChoice::Required));
        if declared.is_empty() && must_call {
            let message =
                "`tool_choice` `required` needs `tools`, and there is none that this server can offer to the model";
            return Err(ApiError::invalid(CHOICE, message));
        }
        Ok(choice)
    }

    /// The custom tool with a grammar that must be called, if no other may.
    fn only_input(&self, declared: &[Declared]) -> Option<(String, Structure)> {
        let only: &Declared = match self {
            Self::Of(ToolChoice::Named(name)) => declared.iter().find(|tool| tool.tool.name() == name)?,
            Self::Of(ToolChoice::Required) => match declared {
                [only] => only,
                _ => return None,
            },
            Self::Among(names, ToolChoice::Required) if names.len() == 1 => {
                declared.iter().find(|tool| names.contains(tool.tool.name()))?
            }
            _ => return None,
        };
        Some((only.tool.name().to_owned(), only.grammar.clone()?))
    }

    /// The tools for the prompt, with the callable ones marked. `describes_only`: none is callable.
    fn apply(self, declared: Vec<Declared>, n_calls: Calls, describes_only: bool) -> Option<Tools> {
        let tools = declared.into_iter().map(|declared| declared.tool);
        if describes_only {
            return Tools::new(tools.map(Tool::described_only).collect(), ToolChoice::Auto, n_calls);
        }
        match self {
            Self::Nothing => None,
            Self::Of(choice) => Tools::new(tools.collect(), choice, n_calls),
            Self::Among(names, choice) => {
                let limited = |tool: Tool| if names.contains(tool.name()) { tool } else { tool.described_only() };
                Tools::new(tools.map(limited).collect(), choice, n_calls)
            }
        }
    }
}

/// The name of a declared tool in `given`, which the request has at `path`.
fn named(given: &Value, declared: &[Declared], hosted: &[String], path: &str) -> Result<String, ApiError> {
    let kind = given.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some(name) = given.get("name").and_then(Value::as_str) else { return Err(missing(format!("{path}.name"))) };
    let has_name = |tool: &&Declared| {
        tool.tool.name() == name || tool.namespaced.as_ref().is_some_and(|namespaced| namespaced.name == name)
    };
    if let Some(found) = declared.iter().filter(|tool| tool.kind == kind).find(has_name) {
        return Ok(found.tool.name().to_owned());
    }
    if hosted.iter().any(|hosted| hosted == name) {
        return Err(not_run(name));
    }
    let message = format!("Tool choice {} not found in `tools` parameter.", shown(&name.into()));
    Err(ApiError::invalid(path.to_owned(), message))
}

fn allowed(given: &Value, declared: &[Declared], hosted: &[String]) -> Result<Choice, ApiError> {
    let choice = match given.get("mode").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => {
            let mode = given.get("mode").unwrap_or(&Value::Null);
            return Err(must_be("tool_choice.mode", "`auto` or `required`", mode));
        }
    };
    let Some(items) = given.get("tools").and_then(Value::as_array) else {
        return Err(must_be("tool_choice.tools", "an array of tools", given.get("tools").unwrap_or(&Value::Null)));
    };
    let mut names = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("tool_choice.tools[{index}]");
        match item.get("type").and_then(Value::as_str) {
            Some(FUNCTION | CUSTOM) => _ = names.insert(named(item, declared, hosted, &path)?),
            // Allowing more tools than there are has no effect.
            Some(kind) if hosted_tools::is_hosted(kind) => hosted_tools::log_left_out(kind),
            _ => return Err(must_be(path, "a tool with the `type` `function` or `custom`", item)),
        }
    }
    if names.is_empty() {
        if choice == ToolChoice::Required {
            let message = "`tool_choice.tools` must name a tool that this server can offer to the model, got none";
            return Err(ApiError::invalid("tool_choice.tools", message));
        }
        return Ok(Choice::Among(names, ToolChoice::Auto));
    }
    Ok(Choice::Among(names, choice))
}

/// The error for the choice of a tool that OpenAI runs.
fn not_run(kind: &str) -> ApiError {
    let message =
        format!("`{CHOICE}` names `{kind}`, a tool that this server does not run\nhint: offer a function instead");
    ApiError::invalid(CHOICE, message)
}
