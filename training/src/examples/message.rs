//! Messages of conversations, in the forms that data sets have.

use hearth_model::chat::{Message, MessageError};
use serde_json::Value;

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

/// Refuses what OpenAI's format has for answers that are not trained, which would be ignored.
pub(super) fn require_equal_weights(name: &str, messages: &[Message]) -> Result<(), Problem> {
    let is_other = |weight: &&Value| weight.as_f64().is_some_and(|weight| weight != 1.0);
    for (index, message) in messages.iter().enumerate().filter(|(_, message)| message.role == ASSISTANT) {
        if let Some(weight) = message.extra.get("weight").filter(is_other) {
            return Err((
                format!(
                    "`{name}[{index}].weight` must be 1, got {weight}: all that the assistant writes is trained alike"
                ),
                "leave `weight` out, or give the messages before the trained ones as `prompt` and the others as `completion`",
            ));
        }
    }
    Ok(())
}

/// The list that is written in a string.
pub(super) fn parsed_list(value: &Value) -> Option<Vec<Value>> {
    value.as_str().and_then(|text| serde_json::from_str(text).ok())
}

fn message(at: &str, value: &Value) -> Result<Message, Problem> {
    let Value::Object(members) = value else {
        return Err((format!("`{at}` is not an object"), MESSAGES_HINT));
    };
    let has_content = members.get("content").is_some_and(|content| !content.is_null());
    let message = Message::try_from(members.clone()).map_err(|error| match error {
        MessageError::Missing(name) => (format!("`{at}` has no `{name}`"), MESSAGES_HINT),
        error => (format!("`{at}`: {error}"), MESSAGES_HINT),
    })?;
    // Else an empty answer would be trained.
    if !has_content && !message.extra.contains_key("tool_calls") {
        return Err((format!("`{at}` has no `content`"), MESSAGES_HINT));
    }
    Ok(message)
}
