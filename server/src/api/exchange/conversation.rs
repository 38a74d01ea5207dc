//! Converts messages to a prompt with the chat template, for `/v1/chat/completions` and `/tokenize`.

use std::path::Path;

use hearth_engine::{ServedModel, request::ValidationError};
use hearth_model::{
    Error, TokenId,
    text::chat::{
        ChatTemplate, Ending, Message, MessageError, REASONING, RenderContext,
        thought::{self, ThoughtForm},
    },
};
use serde_json::{Map, Value, json};

use super::thinking::{self, Thinking};
use crate::api::{
    error::ApiError,
    guard::{options::RequestTemplates, preparation::WorkClass},
    tools::{ToolStyle, Tools},
    wire::{
        fields::{Fields, missing, must_be, shown},
        schema,
    },
};

/// The request field with a chat template.
const TEMPLATE: &str = "chat_template";

/// The allowed roles, as at OpenAI.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The role whose `content` may be missing.
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
    /// The parameter that has the messages, for error messages.
    param: &'static str,
}

/// Members of OpenAI's messages. They are not reported as ignored, even if the template does not use them.
const MEMBERS: [&str; 4] = ["name", "tool_calls", "tool_call_id", "refusal"];

/// Whether the tokenizer adds special tokens besides the template's.
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
            param: "messages",
        })
    }

    /// A conversation that the parameter `param` has in another form.
    pub(crate) fn new(param: &'static str, messages: Vec<Message>, tools: Option<Tools>, ending: Ending) -> Self {
        let (kwargs, special_tokens) = (Map::new(), AddedTokens::None);
        Self { messages, tools, template: None, ending, kwargs, special_tokens, param }
    }

    /// The cost class of compiling and running the template, for a body of `n_bytes`.
    pub(crate) fn preparation(&self, n_bytes: usize) -> WorkClass {
        match self.template {
            Some(_) => WorkClass::Template,
            None => WorkClass::of_body(n_bytes),
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
            // Another template would not help these.
            if model.limits.is_encoder {
                return ValidationError::Encoder.into();
            }
            if model.config.is_encoder_decoder() {
                return ValidationError::NoSource.into();
            }
            let param = self.param;
            let message = format!(
                "`{param}` needs a chat template, but the model has none\n\
                 hint: use `POST /v1/completions`, or start the server with `--trust-request-chat-template` and send one as \
                 `chat_template` to `POST /v1/chat/completions`"
            );
            ApiError::invalid(param, message)
        })
    }

    /// Passes the request's thinking options to the template. Returns the parameters that the template does not read.
    pub(crate) fn add_thinking(&mut self, thinking: Thinking, template: &ChatTemplate) -> Vec<&'static str> {
        thinking.add_to(&mut self.kwargs, template)
    }

    /// Whether the model should think, if the request sets it.
    pub(crate) fn thinks(&self) -> Option<bool> {
        thinking::SWITCHES.into_iter().find_map(|name| self.kwargs.get(name)?.as_bool())
    }

    /// Whether the answer continues the last message.
    pub(crate) fn is_continued(&self) -> bool {
        self.ending == Ending::OpenMessage
    }

    /// The tools, and how a model with this template calls them.
    pub(crate) fn tools(&self, template: &ChatTemplate) -> Option<(&Tools, ToolStyle)> {
        self.tools.as_ref().map(|tools| (tools, ToolStyle::of(template)))
    }

    /// The marks that can close the thought within which the answer continues the last message.
    pub(crate) fn continued_thought(&self, template: &ChatTemplate) -> Option<&'static [&'static str]> {
        let last = self.messages.last().filter(|_| self.ending == Ending::OpenMessage)?;
        let has_only_thought = last.content.is_empty() && REASONING.iter().any(|name| last.extra.contains_key(*name));
        match ThoughtForm::of_template(template.source()) {
            Some(form) if has_only_thought => form.marks.first().map(|marks| marks.closes),
            _ => thought::open_at_end(&last.content),
        }
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

    fn context(&self, style: ToolStyle, model: &ServedModel) -> RenderContext {
        RenderContext {
            ending: self.ending,
            kwargs: self.kwargs.clone(),
            tools: style.template_tools(self.tools.as_ref()),
            add_special_tokens: self.special_tokens == AddedTokens::TheTokenizers,
            ..RenderContext::new(&model.tokenizer)
        }
    }

    /// Renders and tokenizes the prompt. Strings in messages that look like special tokens stay plain text.
    /// `check_length` gets the length in bytes of the rendered text. It is called before tokenizing, which takes far
    /// longer than rendering.
    pub(crate) fn encode(
        self,
        template: &ChatTemplate,
        model: &ServedModel,
        check_length: impl FnOnce(usize) -> Result<(), ApiError>,
    ) -> Result<Vec<TokenId>, ApiError> {
        let style = ToolStyle::of(template);
        let (context, param) = (self.context(style, model), self.param);
        let tools = self.tools.as_ref();
        let messages = template.with_tools_as_text(self.messages, tools.map(Tools::json).as_deref());
        let text = template.prompt_text(&model.tokenizer, &messages, &context);
        let refusal = |error: Error| match error {
            Error::Param { name, .. } => ApiError::invalid(name, error.to_string()),
            error => ApiError::invalid(param, format!("`{param}` cannot be encoded: {error}")),
        };
        let text = text.map_err(refusal)?;
        check_length(text.n_bytes())?;
        text.encode(&model.tokenizer).map_err(refusal)
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
    let part = |kind: &str| {
        let properties = json!({ "type": { "enum": [kind] }, kind: schema::string() });
        json!({ "type": "object", "properties": properties, "required": ["type", kind] })
    };
    let content = |part: Value| schema::any_of([schema::string(), schema::array(part, 0)]);
    let assistants_part = schema::any_of([part("text"), part("refusal"), part("thinking")]);
    let for_roles = |roles: &[&str], content: Value, required: &[&str]| json!({ "type": "object", "properties": { "role": { "enum": roles }, "content": content }, "required": required });
    let (assistant, others): (Vec<&str>, Vec<&str>) = ROLES.into_iter().partition(|role| *role == ASSISTANT);
    schema::any_of([
        for_roles(&others, content(part("text")), &["role", "content"]),
        for_roles(&assistant, schema::nullable(content(assistants_part)), &["role"]),
    ])
}

fn message(index: usize, item: Value, fields: &Fields) -> Result<Message, ApiError> {
    let at = format!("`messages[{index}]`");
    let Value::Object(members) = item else {
        return Err(invalid(format!("{at} must be an object with `role` and `content`, got {}", shown(&item))));
    };
    let role = members.get("role").unwrap_or(&Value::Null);
    if !role.as_str().is_some_and(|role| ROLES.contains(&role)) {
        let roles = ROLES.map(|role| format!("`{role}`")).join(", ");
        return Err(invalid(format!("{at} must have a `role`, one of {roles}, got {}", shown(role))));
    }
    for (at, part) in members.get("content").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let names = part.as_object().into_iter().flat_map(Map::keys);
        let unread = names.filter(|name| !["type", "text", "refusal", "thinking", "closed"].contains(&name.as_str()));
        unread.for_each(|name| fields.note_unread(format!("messages[{index}].content[{at}].{name}")));
    }
    let message = Message::try_from(members).map_err(|error| {
        invalid(match &error {
            MessageError::Missing(name) => format!("{at} must have a `{name}`"),
            MessageError::Invalid { given, .. } => format!("{at}: {error}, got {}", shown(given)),
        })
    })?;
    let path = |name: &str| format!("messages[{index}].{name}");
    if message.role == "tool" && !message.extra.get("tool_call_id").is_some_and(Value::is_string) {
        return Err(missing(path("tool_call_id")));
    }
    match message.extra.get("tool_calls") {
        None => {}
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
    Ok(message)
}

fn invalid(message: String) -> ApiError {
    ApiError::invalid("messages", message)
}
