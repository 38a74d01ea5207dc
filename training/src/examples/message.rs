//! Messages of conversations, in the forms that data sets have, and which of them are trained.

use hearth_model::chat::{Message, MessageError};
use serde_json::Value;

use crate::corpus::parsed_list;

/// The role of the messages that are trained.
pub(super) const ASSISTANT: &str = "assistant";

/// The role of messages that ask.
pub(super) const USER: &str = "user";

/// What is wrong with a record, and a hint.
pub(super) type Problem = (String, &'static str);

/// axolotl's member for a message that is not trained: `false`.
const TRAIN: &str = "train";

/// The same in OpenAI's and Mistral's format: 0.
const WEIGHT: &str = "weight";

const TRAIN_HINT: &str = "leave it out, or write `\"train\": false` in an assistant's message that is not trained";

const WEIGHT_HINT: &str = "leave it out, or write `\"weight\": 0` in an assistant's message that is not trained";

/// A message of an example.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    /// The message, without the members that say whether it is trained.
    pub(super) message: Message,
    /// Whether it is trained if it is the assistant's.
    pub(super) is_trained: bool,
}

impl Turn {
    /// Whether the assistant writes it.
    pub(super) fn is_assistant(&self) -> bool {
        self.message.role == ASSISTANT
    }
}

const MESSAGES_HINT: &str =
    "it must be a list of objects with `role` and `content`, such as [{\"role\": \"user\", \"content\": \"Hi\"}]";

/// The messages of a member: a list, or a list as JSON in a string, as in columns of tables.
pub(super) fn turns(name: &str, value: &Value) -> Result<Vec<Turn>, Problem> {
    let parsed = parsed_list(value);
    let Some(list) = parsed.as_ref().or(value.as_array()) else {
        return Err((format!("`{name}` is not a list of messages"), MESSAGES_HINT));
    };
    if list.is_empty() {
        return Err((format!("`{name}` has no messages"), "remove the line, or add messages"));
    }
    list.iter().enumerate().map(|(index, value)| turn(&format!("{name}[{index}]"), value)).collect()
}

fn turn(at: &str, value: &Value) -> Result<Turn, Problem> {
    let Value::Object(members) = value else {
        return Err((format!("`{at}` is not an object"), MESSAGES_HINT));
    };
    let has_content = members.get("content").is_some_and(|content| !content.is_null());
    let mut message = Message::try_from(members.clone()).map_err(|error| match error {
        MessageError::Missing(name) => (format!("`{at}` has no `{name}`"), MESSAGES_HINT),
        error => (format!("`{at}`: {error}"), MESSAGES_HINT),
    })?;
    // Else an empty answer would be trained.
    if !has_content && !message.extra.contains_key("tool_calls") {
        return Err((format!("`{at}` has no `content`"), MESSAGES_HINT));
    }
    let is_trained = take_is_trained(at, &mut message)?;
    Ok(Turn { message, is_trained })
}

/// Removes the members that say whether a message is trained, and returns what they say. Only the assistant's messages can be
/// trained; without these members they are.
fn take_is_trained(at: &str, message: &mut Message) -> Result<bool, Problem> {
    let is_assistant = message.role == ASSISTANT;
    let train = match message.extra.shift_remove(TRAIN) {
        None => None,
        Some(Value::Bool(train)) => Some(train),
        Some(other) => return Err((format!("`{at}.{TRAIN}` must be `true` or `false`, got {other}"), TRAIN_HINT)),
    };
    let weight = match message.extra.shift_remove(WEIGHT) {
        None => None,
        Some(weight) => match weight.as_f64() {
            Some(number) if [0.0, 1.0].contains(&number) => Some(number == 1.0),
            _ => return Err((format!("`{at}.{WEIGHT}` must be 0 or 1, got {weight}"), WEIGHT_HINT)),
        },
    };
    if train == Some(true) && !is_assistant {
        let role = &message.role;
        return Err((
            format!("`{at}.{TRAIN}` must be `false` for the role `{role}`: only what the assistant writes is trained"),
            TRAIN_HINT,
        ));
    }
    Ok(train != Some(false) && weight != Some(false))
}
