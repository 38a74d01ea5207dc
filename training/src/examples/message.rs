//! Messages of conversations, in the forms that data sets have.

use hearth_model::chat::Message;
use serde_json::{Map, Value};

/// The role of the messages that are trained.
pub(super) const ASSISTANT: &str = "assistant";

/// The role of messages that ask.
pub(super) const USER: &str = "user";

/// What is wrong with a record, and a hint.
pub(super) type Problem = (String, &'static str);

const MESSAGES_HINT: &str =
    "it must be a list of objects with `role` and `content`, such as [{\"role\": \"user\", \"content\": \"Hi\"}]";

/// The messages of a member: a list, or a list as JSON in a string, as in columns of tables.
pub(super) fn messages(name: &str, value: &Value) -> Result<Vec<Message>, Problem> {
    let parsed = parsed_list(value);
    let Some(list) = parsed.as_ref().or(value.as_array()) else {
        return Err((format!("`{name}` is not a list of messages"), MESSAGES_HINT));
    };
    if list.is_empty() {
        return Err((format!("`{name}` has no messages"), "remove the line, or add messages"));
    }
    list.iter().enumerate().map(|(index, value)| message(&format!("{name}[{index}]"), value)).collect()
}

/// The list that is written in a string.
pub(super) fn parsed_list(value: &Value) -> Option<Vec<Value>> {
    value.as_str().and_then(|text| serde_json::from_str(text).ok())
}

fn message(at: &str, value: &Value) -> Result<Message, Problem> {
    let Value::Object(members) = value else {
        return Err((format!("`{at}` is not an object"), MESSAGES_HINT));
    };
    // Tables have every member in every row.
    let mut extra: Map<String, Value> = members
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let Some(Value::String(role)) = extra.shift_remove("role") else {
        return Err((format!("`{at}` has no `role`"), MESSAGES_HINT));
    };
    let content = match extra.shift_remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => text_of(at, &parts)?,
        // A message that only calls tools may have no content.
        None if role == ASSISTANT && extra.contains_key("tool_calls") => String::new(),
        None => return Err((format!("`{at}` has no `content`"), MESSAGES_HINT)),
        Some(_) => return Err((format!("`{at}`: `content` is not a string"), MESSAGES_HINT)),
    };
    Ok(Message { role, content, extra })
}

/// The text parts, joined by newlines, as the server does it.
fn text_of(at: &str, parts: &[Value]) -> Result<String, Problem> {
    let text = |part: &Value| match (part.get("type").and_then(Value::as_str), part.get("text")) {
        (Some("text"), Some(Value::String(text))) => Ok(text.clone()),
        _ => Err((
            format!("`{at}`: `content` has a part that is not text"),
            "only parts with `type` \"text\" and `text` are supported",
        )),
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Parses the arguments of tool calls that are JSON objects in strings, as OpenAI writes them; most templates expect
/// objects.
pub(super) fn with_parsed_arguments(messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|message| message.extra.get_mut("tool_calls")?.as_array_mut()).flatten();
    for arguments in calls.filter_map(|call| call.pointer_mut("/function/arguments")) {
        if let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str::<Map<_, _>>(text).ok()) {
            *arguments = Value::Object(parsed);
        }
    }
    messages
}
