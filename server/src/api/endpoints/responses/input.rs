//! Reads `instructions` and `input`, and makes them the messages of a chat template.

use std::collections::BTreeMap;

use hearth_model::text::chat::Message;
use serde_json::{Value, json};

use super::tools::{Namespaced, arguments_of_input};
use crate::api::{
    error::ApiError,
    exchange::thoughts,
    wire::{
        fields::{Fields, missing, must_be, shown},
        schema,
    },
};

const INPUT: &str = "input";
const ASSISTANT: &str = "assistant";
const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];

/// Between texts that become one.
const BETWEEN_TEXTS: &str = "\n";

/// The member in which chat templates find the thought of a message.
const REASONING: &str = "reasoning_content";

/// The types of parts: text, and the type of [`Parts::TextAndJson`].
const KINDS: [&str; 7] = ["input_text", "output_text", "text", "summary_text", "reasoning_text", REFUSAL, JSON];
const REFUSAL: &str = "refusal";
const JSON: &str = "input_json";

/// The kinds of items.
const ITEMS: [&str; 6] =
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"];

/// The kind of an item that stands for a stored one.
const REFERENCE: &str = "item_reference";

/// Which parts a content may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Parts {
    #[default]
    Text,
    /// Also `input_json`, which becomes text.
    TextAndJson,
}

/// Reads `input`, with `instructions` in front.
pub(super) fn messages(
    fields: &mut Fields,
    instructions: Option<&str>,
    parts: Parts,
) -> Result<Vec<Message>, ApiError> {
    const ALLOWED: &str = "a string or an array of at least one item";
    let mut conversation = Input { parts, ..Input::default() };
    conversation.messages.extend(instructions.map(|text| Message::new("system", text)));
    match fields.require_as(INPUT, ALLOWED, || input_schema(parts))? {
        Value::String(text) => conversation.messages.push(Message::new("user", text)),
        Value::Array(items) if !items.is_empty() => {
            for item in fields.objects_of(INPUT, items)? {
                conversation.add(item)?;
            }
        }
        other => return Err(must_be(INPUT, ALLOWED, &other)),
    }
    Ok(conversation.messages)
}

fn input_schema(parts: Parts) -> Value {
    let string = schema::string;
    let object = |kinds: &[&str], mut properties: Value, required: &[&str]| {
        properties["type"] = json!({ "enum": kinds });
        let required = [&["type"], required].concat();
        json!({ "type": "object", "properties": properties, "required": required })
    };
    let part = || {
        let data = json!({ "data": { "type": ["object", "array"] } });
        let texts: Vec<&str> = KINDS.into_iter().filter(|kind| ![JSON, REFUSAL].contains(kind)).collect();
        let kinds = [
            object(&texts, json!({ "text": string() }), &["text"]),
            object(&[REFUSAL], json!({ "refusal": string() }), &["refusal"]),
            object(&[JSON], data, &["data"]),
        ];
        schema::any_of(kinds.into_iter().take(if parts == Parts::TextAndJson { 3 } else { 2 }))
    };
    let texts = || schema::any_of([string(), schema::array(part(), 0)]);
    let call = |kind, member: &str| {
        let properties = json!({ "call_id": string(), "name": string(), member: string() });
        object(&[kind], properties, &["call_id", "name", member])
    };
    let output = |kind| object(&[kind], json!({ "call_id": string(), "output": texts() }), &["call_id", "output"]);
    let message = json!({
        "type": "object",
        "properties": { "type": { "enum": ["message"] }, "role": { "enum": ROLES }, "content": texts() },
        "required": ["role", "content"],
    });
    let items = [
        message,
        object(&["reasoning"], json!({}), &[]),
        call("function_call", "arguments"),
        output("function_call_output"),
        call("custom_tool_call", "input"),
        output("custom_tool_call_output"),
    ];
    schema::any_of([string(), schema::array(schema::any_of(items), 1)])
}

/// The conversation so far.
#[derive(Default)]
struct Input {
    messages: Vec<Message>,
    /// The names of the tools that have been called, by the calls' ids.
    calls: BTreeMap<String, String>,
    parts: Parts,
}

impl Input {
    fn add(&mut self, mut item: Fields) -> Result<(), ApiError> {
        if item.get("type").is_some_and(|kind| kind == REFERENCE) {
            let path = item.path("type");
            let message = format!(
                "`{path}` `{REFERENCE}` is not supported: this server stores no responses\nhint: send the item itself, as \
                 clients do with `store: false`"
            );
            return Err(ApiError::invalid(path, message));
        }
        let kinds = ITEMS.map(|kind| (kind, kind));
        // A message may leave its type out.
        let kind = match item.has("type") || !item.has("role") {
            true => item.require("type", |item, name| item.one_of(name, &kinds))?,
            false => "message",
        };
        match kind {
            "message" => self.add_message(&mut item)?,
            "reasoning" => self.add_thought(&mut item)?,
            "function_call" => {
                let arguments = item.require("arguments", Fields::string)?;
                self.add_call(&mut item, arguments)?;
            }
            "custom_tool_call" => {
                let input = item.require("input", Fields::string)?;
                self.add_call(&mut item, arguments_of_input(&input))?;
            }
            _ => self.add_output(&mut item)?,
        }
        // Such as `id` and `status`.
        item.ignore_rest();
        Ok(())
    }

    fn add_message(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let role = item.require("role", |item, name| item.one_of(name, &ROLES.map(|role| (role, role))))?;
        let text = texts(item, "content", self.parts)?.ok_or_else(|| missing(item.path("content")))?;
        if role == ASSISTANT {
            let message =
                self.open_turn(|message| message.content.is_empty() && !message.extra.contains_key("tool_calls"));
            message.content = text;
        } else {
            self.messages.push(Message::new(role, text));
        }
        Ok(())
    }

    fn add_thought(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let (content, summary) = (texts(item, "content", Parts::Text)?, texts(item, "summary", Parts::Text)?);
        let encrypted = item.string("encrypted_content")?.and_then(|encoded| thoughts::decode(&encoded));
        let is_text = |text: &String| !text.is_empty();
        if let Some(thought) = content.filter(is_text).or(encrypted).or(summary.filter(is_text)) {
            let message = Message::new(ASSISTANT, "");
            self.messages.push(message);
            if let Some(message) = self.messages.last_mut() {
                message.extra.insert(REASONING.into(), thought.into());
            }
        }
        Ok(())
    }

    /// A call: part of the assistant's message in front of it.
    fn add_call(&mut self, item: &mut Fields, arguments: String) -> Result<(), ApiError> {
        let id = item.require("call_id", Fields::string)?;
        let name = item.require("name", Fields::string)?;
        let name = match item.string("namespace")?.filter(|namespace| !namespace.is_empty()) {
            Some(namespace) => Namespaced { namespace, name }.joined(),
            None => name,
        };
        self.calls.insert(id.clone(), name.clone());
        let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let message = self.open_turn(|_| true);
        match message.extra.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => _ = message.extra.insert("tool_calls".into(), json!([call])),
        }
        Ok(())
    }

    fn add_output(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let id = item.require("call_id", Fields::string)?;
        let Some(name) = self.calls.get(&id).cloned() else {
            let message = format!("No tool call found for function call output with call_id {}.", shown(&id.into()));
            return Err(ApiError::invalid(item.path("call_id"), message));
        };
        let text = texts(item, "output", self.parts)?.ok_or_else(|| missing(item.path("output")))?;
        let mut message = Message::new("tool", text);
        message.extra.insert("tool_call_id".into(), id.into());
        message.extra.insert("name".into(), name.into());
        self.messages.push(message);
        Ok(())
    }

    /// The assistant's message that a further item belongs to: the last message, if `takes` it, or a new one.
    fn open_turn(&mut self, takes: impl FnOnce(&Message) -> bool) -> &mut Message {
        if !self.messages.last().is_some_and(|last| last.role == ASSISTANT && takes(last)) {
            self.messages.push(Message::new(ASSISTANT, ""));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }
}

/// The text of a content: a string, or parts.
fn texts(item: &mut Fields, name: &'static str, allowed: Parts) -> Result<Option<String>, ApiError> {
    match item.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => joined(item.objects_of(name, parts)?, allowed).map(Some),
        Some(other) => Err(must_be(item.path(name), "a string or an array of parts", &other)),
    }
}

/// The text of parts.
pub(super) fn joined(parts: Vec<Fields>, allowed: Parts) -> Result<String, ApiError> {
    let texts = parts.into_iter().map(|mut part| {
        let n_kinds = if allowed == Parts::TextAndJson { KINDS.len() } else { KINDS.len() - 1 };
        let kinds = KINDS.map(|kind| (kind, kind));
        let kind = part.require("type", |part, name| part.one_of(name, &kinds[..n_kinds]))?;
        let text = match kind {
            REFUSAL => part.require("refusal", Fields::string),
            JSON => json_text(&mut part),
            _ => part.require("text", Fields::string),
        };
        // Such as `annotations` and `logprobs`.
        part.ignore_rest();
        text
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(BETWEEN_TEXTS))
}

fn json_text(part: &mut Fields) -> Result<String, ApiError> {
    const ALLOWED: &str = "an object or an array of objects";
    let is_data = |data: &Value| match data {
        Value::Array(items) => items.iter().all(Value::is_object),
        data => data.is_object(),
    };
    match part.take("data") {
        None => Err(missing(part.path("data"))),
        Some(data) if is_data(&data) => Ok(data.to_string()),
        Some(other) => Err(must_be(part.path("data"), ALLOWED, &other)),
    }
}
