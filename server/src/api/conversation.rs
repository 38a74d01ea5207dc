//! Converts messages to a prompt with the chat template, for `/v1/chat/completions` and `/tokenize`.

use std::path::Path;

use hearth_model::{
    Error, TokenId,
    chat::{ChatTemplate, Ending, Message, RenderContext},
};
use serde_json::{Map, Value, json};

use super::{
    error::ApiError,
    fields::{Fields, missing, must_be, shown},
    options::RequestTemplates,
    schema,
    state::Preparation,
    tools::{ToolStyle, Tools, ToolsIn},
};
use crate::engine::ServedModel;

/// The request field with a chat template.
const TEMPLATE: &str = "chat_template";

/// The allowed roles, as at OpenAI.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The role whose `content` may be empty.
const ASSISTANT: &str = "assistant";

/// A conversation, and the settings for converting it to a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// The tools that the model may call.
    tools: Option<Tools>,
    /// The source of a template that replaces the model's own.
    template: Option<String>,
    ending: Ending,
    kwargs: Map<String, Value>,
    special_tokens: AddedTokens,
}

/// Members of OpenAI's messages. They are not reported as ignored, even if the template does not use them.
const MEMBERS: [&str; 4] = ["name", "tool_calls", "tool_call_id", "refusal"];

/// The form of tool-call arguments. OpenAI sends JSON in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    /// Parsed JSON, as most templates expect.
    Objects,
    AsSent,
}

/// Whether the tokenizer adds special tokens to those of the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddedTokens {
    None,
    TheTokenizers,
}

impl Conversation {
    /// Reads `messages` and the template fields.
    pub(crate) fn from_fields(fields: &mut Fields, templates: RequestTemplates) -> Result<Self, ApiError> {
        let tools = Tools::from_fields(fields)?;
        let template = fields.string(TEMPLATE)?;
        if template.is_some() && templates == RequestTemplates::Refused {
            let message = "`chat_template` is not accepted from requests by this server, which uses the model's own\n\
                           hint: leave it out, or start the server with `--trust-request-chat-template`";
            return Err(ApiError::invalid(TEMPLATE, message));
        }
        let adds = fields.flag_or("add_special_tokens", false)?;
        Ok(Self {
            messages: messages(fields)?,
            tools,
            template,
            ending: ending(fields)?,
            kwargs: match fields.object("chat_template_kwargs")? {
                Some(kwargs) => kwargs.into_entries().collect(),
                None => Map::new(),
            },
            special_tokens: if adds { AddedTokens::TheTokenizers } else { AddedTokens::None },
        })
    }

    /// The cost class of compiling and running the template, for a body of `n_bytes`.
    pub(crate) fn preparation(&self, n_bytes: usize) -> Preparation {
        match self.template {
            Some(_) => Preparation::Template,
            None => Preparation::of_body(n_bytes),
        }
    }

    /// Compiles the template of the request, or returns the model's own.
    ///
    /// # Errors
    /// 400 if the template is invalid or there is none.
    pub(crate) fn template(&self, model: &ServedModel) -> Result<ChatTemplate, ApiError> {
        if let Some(source) = &self.template {
            let compiled = ChatTemplate::new(source, Path::new(TEMPLATE));
            return compiled.map_err(|error| ApiError::invalid(TEMPLATE, error.to_string()));
        }
        model.chat_template.clone().ok_or_else(|| {
            let message = "`messages` needs a chat template, but the model has none\n\
                           hint: use `POST /v1/completions`, or start the server with `--trust-request-chat-template` and \
                           send one as `chat_template`";
            ApiError::invalid("messages", message)
        })
    }

    /// The tools, and how a model with this template calls them.
    pub(crate) fn tools(&self, template: &ChatTemplate) -> Option<(&Tools, ToolStyle)> {
        self.tools.as_ref().map(|tools| (tools, ToolStyle::of(template)))
    }

    /// The members of messages that the template does not use, by their paths.
    pub(crate) fn unread(&self, template: &ChatTemplate) -> Vec<String> {
        let source = template.source();
        let unread = self.messages.iter().enumerate().flat_map(|(index, message)| {
            let names =
                message.extra.keys().filter(|name| !MEMBERS.contains(&name.as_str()) && !source.contains(*name));
            names.map(move |name| format!("messages[{index}].{name}"))
        });
        unread.collect()
    }

    /// Renders and tokenizes the prompt. Strings in messages that look like special tokens stay plain text.
    pub(crate) fn encode(self, template: &ChatTemplate, model: &ServedModel) -> Result<Vec<TokenId>, ApiError> {
        let style = ToolStyle::of(template);
        let knows_developer = template.source().contains("developer");
        let told = |place, arguments| {
            let mut messages = self.messages.clone();
            if arguments == Arguments::Objects {
                messages.iter_mut().for_each(parse_arguments);
            }
            let messages = style.messages(messages, self.tools.as_ref(), place);
            let messages = messages.into_iter().map(|message| match message.role.as_str() {
                // OpenAI's newer name for `system`.
                "developer" if !knows_developer => Message { role: "system".into(), ..message },
                _ => message,
            });
            messages.collect::<Vec<_>>()
        };
        let context = RenderContext {
            ending: self.ending,
            kwargs: self.kwargs.clone(),
            tools: style.template_tools(self.tools.as_ref()),
            add_special_tokens: self.special_tokens == AddedTokens::TheTokenizers,
            ..RenderContext::new(&model.tokenizer)
        };
        let encode = |place, arguments| template.encode(&model.tokenizer, &told(place, arguments), &context);
        let is_told_by_messages = self.tools.is_some() && style.is_by_messages();
        let calls = self.messages.iter().any(|message| message.extra.contains_key("tool_calls"));
        // Tries the form that most templates support first. If all forms fail, the error of the first is returned.
        let others =
            [(ToolsIn::First, Arguments::Objects, is_told_by_messages), (ToolsIn::System, Arguments::AsSent, calls)];
        let mut ids = encode(ToolsIn::System, Arguments::Objects);
        for (place, arguments, _) in others.into_iter().filter(|(_, _, is_other)| *is_other) {
            if !matches!(ids, Err(Error::Template { .. })) {
                break;
            }
            ids = encode(place, arguments).or(ids);
        }
        ids.map_err(|error| match error {
            Error::Param { name, .. } => ApiError::invalid(name, error.to_string()),
            error => ApiError::invalid("messages", format!("`messages` cannot be encoded: {error}")),
        })
    }
}

fn ending(fields: &mut Fields) -> Result<Ending, ApiError> {
    let continues = fields.flag_or("continue_final_message", false)?;
    match (fields.flag("add_generation_prompt")?, continues) {
        (Some(true), true) => {
            let message = "`continue_final_message` cannot be combined with `add_generation_prompt`: the answer either \
                           continues the last message or starts a new one";
            Err(ApiError::invalid("continue_final_message", message))
        }
        (_, true) => Ok(Ending::OpenMessage),
        (Some(false), false) => Ok(Ending::Closed),
        (_, false) => Ok(Ending::GenerationPrompt),
    }
}

fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    const ALLOWED: &str = "an array of at least one message";
    match fields.require_as("messages", ALLOWED, || schema::array(message_schema(), 1))? {
        Value::Array(items) if !items.is_empty() => {
            items.into_iter().enumerate().map(|(index, item)| message(index, item, fields)).collect()
        }
        other => Err(must_be("messages", ALLOWED, &other)),
    }
}

fn message_schema() -> Value {
    let part = json!({
        "type": "object",
        "properties": { "type": { "enum": ["text"] }, "text": schema::string() },
        "required": ["type", "text"],
    });
    let content = schema::any_of([schema::string(), schema::array(part, 0)]);
    let said = |roles: &[&str], content: Value, required: &[&str]| json!({ "type": "object", "properties": { "role": { "enum": roles }, "content": content }, "required": required });
    let (silent, others): (Vec<&str>, Vec<&str>) = ROLES.into_iter().partition(|role| *role == ASSISTANT);
    schema::any_of([
        said(&others, content.clone(), &["role", "content"]),
        said(&silent, schema::nullable(content), &["role"]),
    ])
}

fn message(index: usize, item: Value, fields: &Fields) -> Result<Message, ApiError> {
    let at = format!("`messages[{index}]`");
    let Value::Object(mut extra) = item else {
        return Err(invalid(format!("{at} must be an object with `role` and `content`, got {}", shown(&item))));
    };
    let role = match extra.shift_remove("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role,
        other => {
            let roles = ROLES.map(|role| format!("`{role}`")).join(", ");
            let given = shown(&other.unwrap_or_default());
            return Err(invalid(format!("{at} must have a `role`, one of {roles}, got {given}")));
        }
    };
    let content = match extra.shift_remove("content").unwrap_or_default() {
        Value::String(text) => text,
        Value::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                let names = part.as_object().into_iter().flat_map(Map::keys);
                let unread = names.filter(|name| !["type", "text"].contains(&name.as_str()));
                unread.for_each(|name| fields.note_unread(format!("messages[{index}].content[{at}].{name}")));
            }
            text_of(&parts, &at)?
        }
        // A message that only calls tools may have no content.
        Value::Null if role == ASSISTANT => String::new(),
        other => {
            let given = shown(&other);
            return Err(invalid(format!("{at} must have a `content`: a string or an array of parts, got {given}")));
        }
    };
    let path = |name: &str| format!("messages[{index}].{name}");
    if role == "tool" && !extra.get("tool_call_id").is_some_and(Value::is_string) {
        return Err(missing(path("tool_call_id")));
    }
    match extra.get("tool_calls") {
        None => {}
        Some(Value::Null) => {
            extra.shift_remove("tool_calls");
        }
        Some(Value::Array(calls)) => {
            let is_named = |call: &Value| call.pointer("/function/name").is_some_and(Value::is_string);
            if let Some(at) = calls.iter().position(|call| !is_named(call)) {
                return Err(missing(path(&format!("tool_calls[{at}].function.name"))));
            }
        }
        Some(other) => {
            let path = path("tool_calls");
            let message = format!("Invalid type for `{path}`: expected an array, but got {} instead.", shown(other));
            return Err(ApiError::invalid(path, message));
        }
    }
    Ok(Message { role, content, extra })
}

/// The text parts, joined by newlines.
fn text_of(parts: &[Value], at: &str) -> Result<String, ApiError> {
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let field = |name: &str| part.get(name).unwrap_or(&Value::Null);
        let at = format!("{at}: `content[{index}]`");
        match (field("type"), field("text")) {
            (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.as_str()),
            (Value::String(kind), _) if kind != "text" => {
                Err(invalid(format!("{at} has the type `{kind}`, but only `text` is supported")))
            }
            _ => Err(invalid(format!("{at} must be an object with `type` and `text`, got {}", shown(part)))),
        }
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Parses the arguments of tool calls that are JSON objects in strings.
fn parse_arguments(message: &mut Message) {
    let calls = message.extra.get_mut("tool_calls").and_then(Value::as_array_mut);
    for arguments in calls.into_iter().flatten().filter_map(|call| call.pointer_mut("/function/arguments")) {
        if let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str::<Map<_, _>>(text).ok()) {
            *arguments = Value::Object(parsed);
        }
    }
}

fn invalid(message: String) -> ApiError {
    ApiError::invalid("messages", message)
}
