//! Reads a request: everything but the messages.

use hearth_model::{decode::sampling::SamplingParams, text::chat::Ending};
use serde_json::{Value, json};

use super::input;
use crate::api::{
    error::ApiError,
    exchange::{
        conversation::Conversation,
        generation::{GenerateParams, OneAnswer},
        reply::ReplyRequest,
        thinking::{Effort, Thinking},
    },
    tools::{
        Tool, ToolChoice, Tools, check_number, check_unique, hosted_tools, structured::Structure, tool_parser::Calls,
    },
    wire::fields::{Fields, must_be},
};

/// Maximum length of a tool's name, as at Anthropic.
const MAX_NAME_CHARS: usize = 128;

/// Fields without effect on the answer of this server.
const WITHOUT_EFFECT: [&str; 8] = [
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "speed",
    "user_profile_id",
    "workspace_id",
];

/// A parsed request; types and ranges are checked.
#[derive(Debug)]
pub(super) struct MessagesRequest {
    pub(super) reply: ReplyRequest,
    pub(super) display: Display,
}

/// Whether the client gets the text of thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Display {
    #[default]
    Shown,
    /// Only their signatures.
    Omitted,
}

/// The field `thinking`.
#[derive(Clone, Copy, Debug, Default)]
struct ThinkingField {
    /// `None`: the template's default.
    is_enabled: Option<bool>,
    /// Maximum number of tokens of thoughts.
    budget: Option<usize>,
    display: Display,
}

impl ThinkingField {
    fn with_effort(self, effort: Option<Effort>) -> Thinking {
        let budget = self.budget.map(|n_tokens| (n_tokens, "thinking.budget_tokens"));
        Thinking { is_enabled: self.is_enabled, budget, effort, ..Thinking::default() }
    }
}

#[derive(Clone, Copy)]
enum ThinkingKind {
    Enabled,
    Adaptive,
    Disabled,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChoiceKind {
    Auto,
    Any,
    Tool,
    None,
}

impl MessagesRequest {
    pub(super) fn from_fields(mut fields: Fields, defaults: SamplingParams) -> Result<Self, ApiError> {
        let max_tokens = fields.require("max_tokens", |fields, name| fields.count(name, 1..=usize::MAX))?;
        let (conversation, thinking) = conversation(&mut fields)?;
        if let Some(budget) = thinking.budget.filter(|budget| *budget >= max_tokens) {
            let message = format!(
                "`max_tokens` must be greater than `thinking.budget_tokens`, got {max_tokens} and {budget}: thoughts count \
                 towards it"
            );
            return Err(ApiError::invalid("max_tokens", message));
        }
        let (structure, effort) = output_config(&mut fields)?;
        let stop_strings = fields.string_list("stop_sequences")?.unwrap_or_default();
        if stop_strings.iter().any(String::is_empty) {
            return Err(ApiError::invalid("stop_sequences", "`stop_sequences` must not contain an empty string"));
        }
        let answer = OneAnswer {
            streams: fields.flag_or("stream", false)?,
            structure,
            stop_strings: ("stop_sequences", stop_strings),
            prompt_param: "messages",
        };
        let generation = GenerateParams::of_one_answer(fields, max_tokens, defaults, answer)?;
        let generation = generation.with_thinking(thinking.with_effort(effort));
        Ok(Self { reply: ReplyRequest { conversation, generation }, display: thinking.display })
    }
}

/// Reads the fields that make the prompt, and returns the conversation, for counting its tokens.
pub(super) fn counted(fields: &mut Fields) -> Result<(Conversation, Thinking), ApiError> {
    let (conversation, thinking) = conversation(fields)?;
    let (_, effort) = output_config(fields)?;
    Ok((conversation, thinking.with_effort(effort)))
}

fn conversation(fields: &mut Fields) -> Result<(Conversation, ThinkingField), ApiError> {
    let tools = tools(fields)?;
    let messages = input::messages(fields)?;
    let thinking = thinking(fields)?;
    WITHOUT_EFFECT.into_iter().for_each(|name| fields.ignore(name));
    // The answer continues a last message of the assistant.
    let ending = match messages.last() {
        Some(last) if last.role == input::ASSISTANT => Ending::OpenMessage,
        _ => Ending::GenerationPrompt,
    };
    Ok((Conversation::new("messages", messages, tools, ending), thinking))
}

/// Reads `tools` and `tool_choice`. `None` if no tool may be called.
fn tools(fields: &mut Fields) -> Result<Option<Tools>, ApiError> {
    let mut list: Vec<Tool> = Vec::new();
    let mut hosted: Vec<String> = Vec::new();
    let items = fields.objects("tools")?.unwrap_or_default();
    check_number(items.len())?;
    for mut item in items {
        let kind = item.string("type")?.filter(|kind| kind != "custom");
        if let Some(kind) = kind {
            if !hosted_tools::is_hosted(&kind) {
                let allowed = "`custom`, or the type of a tool that Anthropic defines";
                return Err(must_be(item.path("type"), allowed, &kind.into()));
            }
            hosted_tools::log_left_out(&kind);
            hosted.extend(item.string("name")?);
            item.ignore_rest();
            continue;
        }
        let (name_path, path) = (item.path("name").into_owned(), item.path("input_schema").into_owned());
        let name = item.require("name", |item, name| item.name_up_to(MAX_NAME_CHARS, name))?;
        check_unique(&list, &name, name_path)?;
        let description = item.string("description")?;
        let schema = item.require("input_schema", Fields::any_object)?;
        let is_strict = item.flag("strict")?.unwrap_or(false);
        let json = Tool::json(&name, description.as_deref(), Some(&schema));
        // Such as `cache_control`.
        item.ignore_rest();
        list.push(Tool::new(name, Some(schema), is_strict, path, json)?);
    }
    choice(fields, list, &hosted)
}

fn choice(fields: &mut Fields, list: Vec<Tool>, hosted: &[String]) -> Result<Option<Tools>, ApiError> {
    const NAME: &str = "tool_choice";
    let Some(mut given) = fields.object(NAME)? else { return Ok(Tools::new(list, ToolChoice::Auto, Calls::Several)) };
    let kinds =
        [("auto", ChoiceKind::Auto), ("any", ChoiceKind::Any), ("tool", ChoiceKind::Tool), ("none", ChoiceKind::None)];
    let kind = given.require("type", |given, name| given.one_of(name, &kinds))?;
    let n_calls = if given.flag("disable_parallel_tool_use")? == Some(true) { Calls::One } else { Calls::Several };
    let name = given.string("name")?;
    if list.is_empty() && matches!(kind, ChoiceKind::Any) {
        let message = "`tool_choice` `any` requires `tools`, and there is none that this server can offer to the model";
        return Err(ApiError::invalid(NAME, message));
    }
    let choice = match (kind, name) {
        (ChoiceKind::None, _) => return Ok(None),
        (ChoiceKind::Auto, _) => ToolChoice::Auto,
        (ChoiceKind::Any, _) => ToolChoice::Required,
        (ChoiceKind::Tool, None) => return Err(crate::api::wire::fields::missing(given.path("name"))),
        (ChoiceKind::Tool, Some(name)) => {
            if hosted.contains(&name) {
                let message = format!("`tool_choice` names `{name}`, a tool that this server does not run");
                return Err(ApiError::invalid(NAME, message));
            }
            if !list.iter().any(|tool| tool.name() == name) {
                let message = format!("`tool_choice` must name one of `tools`, got `{name}`");
                return Err(ApiError::invalid(NAME, message));
            }
            ToolChoice::Named(name)
        }
    };
    Ok(Tools::new(list, choice, n_calls))
}

fn thinking(fields: &mut Fields) -> Result<ThinkingField, ApiError> {
    let Some(mut given) = fields.object("thinking")? else { return Ok(ThinkingField::default()) };
    let kinds = [
        ("enabled", ThinkingKind::Enabled),
        ("adaptive", ThinkingKind::Adaptive),
        ("between_tools", ThinkingKind::Adaptive),
        ("disabled", ThinkingKind::Disabled),
    ];
    let kind = given.require("type", |given, name| given.one_of(name, &kinds))?;
    let display =
        given.one_of("display", &[("summarized", Display::Shown), ("omitted", Display::Omitted)])?.unwrap_or_default();
    let budget = given.count("budget_tokens", 1..=usize::MAX)?;
    let is_enabled = Some(!matches!(kind, ThinkingKind::Disabled));
    match (kind, budget) {
        (ThinkingKind::Enabled, None) => Err(crate::api::wire::fields::missing(given.path("budget_tokens"))),
        (ThinkingKind::Enabled, budget) => Ok(ThinkingField { is_enabled, budget, display }),
        (ThinkingKind::Adaptive | ThinkingKind::Disabled, _) => Ok(ThinkingField { is_enabled, budget: None, display }),
    }
}

/// Reads `output_config`: the structure of the answer, and how much the model thinks.
fn output_config(fields: &mut Fields) -> Result<(Option<Structure>, Option<Effort>), ApiError> {
    const PARAM: &str = "output_config.format";
    const SCHEMA: &str = "output_config.format.schema";
    let Some(mut config) = fields.object("output_config")? else { return Ok((None, None)) };
    let effort = Thinking::effort_of(&mut config, "effort")?.map(|(_, effort)| effort);
    let Some(mut format) = config.object("format")? else { return Ok((None, effort)) };
    format.require("type", |format, name| format.one_of(name, &[("json_schema", ())]))?;
    let schema = || json!({ "type": ["object", "boolean"] });
    match format.require_as("schema", "a JSON Schema", schema)? {
        value @ (Value::Object(_) | Value::Bool(_)) => Ok((Some(Structure::json(Some(value), PARAM, SCHEMA)), effort)),
        other => Err(must_be(SCHEMA, "a JSON Schema: an object", &other)),
    }
}

/// Example requests for the schema: the smallest one, and ones with each nested object.
pub(super) fn examples() -> Vec<Value> {
    let mut examples: Vec<Value> = [
        ("thinking", json!({ "type": "disabled" })),
        ("tool_choice", json!({ "type": "auto" })),
        ("tools", json!([{ "name": "x", "input_schema": {} }])),
        ("output_config", json!({ "format": { "type": "json_schema", "schema": {} } })),
    ]
    .into_iter()
    .map(|(name, value)| json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "x" }], name: value }))
    .collect();
    examples.insert(0, json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "x" }] }));
    examples
}
