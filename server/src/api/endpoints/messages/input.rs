//! Reads the messages of a request, and makes them the messages of a chat template.

use std::collections::BTreeMap;

use hearth_model::text::chat::Message;
use serde_json::{Value, json};

use crate::api::{
    error::ApiError,
    exchange::thoughts,
    wire::{
        fields::{Fields, must_be},
        schema,
    },
};

pub(super) const ASSISTANT: &str = "assistant";
const USER: &str = "user";
const SYSTEM: &str = "system";
const TOOL: &str = "tool";

/// Between texts that become one.
const BETWEEN_TEXTS: &str = "\n";

/// The member in which chat templates find the thought of a message.
const REASONING: &str = "reasoning_content";

/// Reads `system` and `messages`.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let mut conversation = Input::default();
    if let Some(system) = content(fields, "system", &[text_schema()])? {
        conversation.add_texts(SYSTEM, system)?;
    }
    let items = fields.require("messages", Fields::objects)?;
    if items.is_empty() {
        return Err(must_be("messages", "an array of at least one message", &json!([])));
    }
    for mut item in items {
        let roles = [USER, ASSISTANT, SYSTEM].map(|role| (role, role));
        let role = item.require("role", |item, name| item.one_of(name, &roles))?;
        let blocks = content(&mut item, "content", &block_schemas())?;
        let blocks = blocks.ok_or_else(|| crate::api::wire::fields::missing(item.path("content")))?;
        match role {
            ASSISTANT => conversation.add_assistant(blocks)?,
            USER => conversation.add_user(blocks)?,
            role => conversation.add_texts(role, blocks)?,
        }
    }
    Ok(conversation.messages)
}

/// A content as its blocks.
enum Content {
    Text(String),
    Blocks(Vec<Fields>),
}

fn content(fields: &mut Fields, name: &'static str, blocks: &[Value]) -> Result<Option<Content>, ApiError> {
    match fields.take_as(name, || content_schema(blocks)) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(Content::Text(text))),
        Some(Value::Array(items)) => Ok(Some(Content::Blocks(fields.objects_of(name, items)?))),
        Some(other) => Err(must_be(fields.path(name), "a string or an array of content blocks", &other)),
    }
}

/// The schema of a content: a string, or an array of blocks.
fn content_schema(blocks: &[Value]) -> Value {
    schema::any_of([schema::string(), schema::array(schema::any_of(blocks.iter().cloned()), 0)])
}

fn text_schema() -> Value {
    let properties = json!({ "type": { "enum": ["text"] }, "text": schema::string() });
    json!({ "type": "object", "properties": properties, "required": ["type", "text"] })
}

fn block_schemas() -> Vec<Value> {
    let block = |kind: &str, properties: Value, required: &[&str]| {
        let mut properties = properties;
        properties["type"] = json!({ "enum": [kind] });
        let required: Vec<&str> = [&["type"], required].concat();
        json!({ "type": "object", "properties": properties, "required": required })
    };
    let string = schema::string;
    vec![
        text_schema(),
        block(
            "tool_use",
            json!({ "id": string(), "name": string(), "input": { "type": "object" } }),
            &["id", "name", "input"],
        ),
        block(
            "tool_result",
            json!({ "tool_use_id": string(), "content": content_schema(&[text_schema()]) }),
            &["tool_use_id"],
        ),
        block("thinking", json!({ "thinking": string(), "signature": string() }), &["thinking"]),
        block("redacted_thinking", json!({ "data": string() }), &["data"]),
    ]
}

/// The kind of a block, one of `allowed`.
fn kind(block: &mut Fields, allowed: &[&'static str]) -> Result<&'static str, ApiError> {
    let kinds: Vec<_> = allowed.iter().map(|&kind| (kind, kind)).collect();
    block.require("type", |block, name| block.one_of(name, &kinds))
}

/// The conversation so far.
#[derive(Default)]
struct Input {
    messages: Vec<Message>,
    /// The names of the functions that have been called, by the calls' ids.
    calls: BTreeMap<String, String>,
}

impl Input {
    /// A message of text only.
    fn add_texts(&mut self, role: &str, content: Content) -> Result<(), ApiError> {
        self.messages.push(Message::new(role, text_of(content)?));
        Ok(())
    }

    /// A message of the user: texts, and results of calls, which become separate messages.
    fn add_user(&mut self, content: Content) -> Result<(), ApiError> {
        let blocks = match content {
            Content::Text(_) => return self.add_texts(USER, content),
            Content::Blocks(blocks) => blocks,
        };
        let mut texts: Vec<String> = Vec::new();
        let is_empty = blocks.is_empty();
        for mut block in blocks {
            match kind(&mut block, &["text", "tool_result"])? {
                "text" => texts.push(block.require("text", Fields::string)?),
                _ => {
                    self.add_user_text(&mut texts);
                    self.add_result(&mut block)?;
                }
            }
            // Such as `cache_control`.
            block.ignore_rest();
        }
        if is_empty {
            texts.push(String::new());
        }
        self.add_user_text(&mut texts);
        Ok(())
    }

    fn add_user_text(&mut self, texts: &mut Vec<String>) {
        if !texts.is_empty() {
            self.messages.push(Message::new(USER, std::mem::take(texts).join(BETWEEN_TEXTS)));
        }
    }

    fn add_result(&mut self, block: &mut Fields) -> Result<(), ApiError> {
        let id = block.require("tool_use_id", Fields::string)?;
        let Some(name) = self.calls.get(&id).cloned() else {
            let path = block.path("tool_use_id");
            let message =
                format!("`{path}` must be the `id` of a `tool_use` block in an earlier message, got `{}`", shown(&id));
            return Err(ApiError::invalid(path, message));
        };
        let text = match content(block, "content", &[text_schema()])? {
            Some(content) => text_of(content)?,
            None => String::new(),
        };
        let text = if block.flag("is_error")? == Some(true) { as_error(text) } else { text };
        let mut message = Message::new(TOOL, text);
        message.extra.insert("tool_call_id".into(), id.into());
        message.extra.insert("name".into(), name.into());
        self.messages.push(message);
        Ok(())
    }

    fn add_assistant(&mut self, content: Content) -> Result<(), ApiError> {
        let blocks = match content {
            Content::Text(_) => return self.add_texts(ASSISTANT, content),
            Content::Blocks(blocks) => blocks,
        };
        let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for mut block in blocks {
            match kind(&mut block, &["text", "tool_use", "thinking", "redacted_thinking"])? {
                "text" => texts.push(block.require("text", Fields::string)?),
                "tool_use" => calls.push(self.call(&mut block)?),
                "thinking" => {
                    let text = block.require("thinking", Fields::string)?;
                    let signature = block.string("signature")?;
                    let signed = || signature.as_deref().and_then(thoughts::decode);
                    thoughts.extend(if text.is_empty() { signed() } else { Some(text) });
                }
                _ => thoughts.extend(thoughts::decode(&block.require("data", Fields::string)?)),
            }
            block.ignore_rest();
        }
        let mut message = Message::new(ASSISTANT, texts.join(BETWEEN_TEXTS));
        if !thoughts.is_empty() {
            message.extra.insert(REASONING.into(), thoughts.join(BETWEEN_TEXTS).into());
        }
        if !calls.is_empty() {
            message.extra.insert("tool_calls".into(), calls.into());
        }
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, block: &mut Fields) -> Result<Value, ApiError> {
        let id = block.require("id", Fields::string)?;
        let name = block.require("name", Fields::string)?;
        let input = Value::Object(block.require("input", Fields::any_object)?).to_string();
        self.calls.insert(id.clone(), name.clone());
        Ok(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input } }))
    }
}

/// The text of a result that the client marks as an error. Chat templates have no such mark, so the text must say it.
fn as_error(text: String) -> String {
    const ERROR: &str = "Error";
    let says_it = text.get(..ERROR.len()).is_some_and(|start| start.eq_ignore_ascii_case(ERROR));
    match text.is_empty() {
        _ if says_it => text,
        true => ERROR.to_owned(),
        false => format!("{ERROR}: {text}"),
    }
}

fn text_of(content: Content) -> Result<String, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(text),
        Content::Blocks(blocks) => blocks,
    };
    let texts = blocks.into_iter().map(|mut block| {
        kind(&mut block, &["text"])?;
        let text = block.require("text", Fields::string);
        block.ignore_rest();
        text
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(BETWEEN_TEXTS))
}

/// A client's string for error messages, truncated.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}
