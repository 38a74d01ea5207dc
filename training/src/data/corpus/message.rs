//! Messages of conversations, in the forms of various data sets, and which of them are trained.

use hearth_model::text::chat::{Message, MessageError};
use serde_json::{Map, Value};

use super::notes::Note;

/// The role of the messages that are trained.
pub(crate) const ASSISTANT: &str = "assistant";

/// The role of messages that ask.
pub(crate) const USER: &str = "user";

/// The role of instructions at the beginning.
pub(super) const SYSTEM: &str = "system";

/// Roles that other layouts use with `value`, and their names with `content`. Templates write any role, so the model
/// would learn a role that never occurs again.
const FOREIGN_ROLES: [(&str, &str); 5] =
    [("human", USER), ("gpt", ASSISTANT), ("bot", ASSISTANT), ("chatgpt", ASSISTANT), ("observation", "tool")];

/// The roles that templates know.
const ROLES: [&str; 5] = ["system", "developer", USER, ASSISTANT, "tool"];

/// An error in a record, and a hint.
pub(crate) type Problem = (String, &'static str);

/// Members that mark a message as trained or not, by the programs that use them: axolotl; OpenAI and Mistral; ms-swift;
/// and others.
pub(super) const FLAGS: [(&str, Flag); 6] = [
    ("train", Flag::Boolean),
    ("weight", Flag::ZeroOrOne),
    ("loss", Flag::Either),
    ("loss_mask", Flag::Either),
    ("trainable", Flag::Either),
    ("training", Flag::Either),
];

/// Parts of other member names that may mark trained messages: their meaning differs between programs.
const LIKE_FLAGS: [&str; 7] = ["train", "loss", "weight", "mask", "learn", "ignore", "skip"];

/// The list that is written in a string, as in columns of tables.
pub(crate) fn parsed_list(value: &Value) -> Option<Vec<Value>> {
    value.as_str().and_then(|text| serde_json::from_str(text).ok())
}

/// How a flag is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flag {
    /// `true` or `false`.
    Boolean,
    /// 0 or 1.
    ZeroOrOne,
    /// One of both.
    Either,
}

impl Flag {
    /// Whether `value` marks something as trained; `None` if it does not say.
    pub(super) fn read(self, value: &Value) -> Option<bool> {
        match (self, value) {
            (Flag::Boolean | Flag::Either, Value::Bool(flag)) => Some(*flag),
            (Flag::ZeroOrOne | Flag::Either, Value::Number(number)) => {
                let number = number.as_f64().filter(|number| [0.0, 1.0].contains(number))?;
                Some(number == 1.0)
            }
            _ => None,
        }
    }

    fn allowed(self) -> &'static str {
        match self {
            Flag::Boolean => "`true` or `false`",
            Flag::ZeroOrOne => "0 or 1",
            Flag::Either => "`true`, `false`, 0 or 1",
        }
    }
}

const FLAG_HINT: &str = "leave it out, or write `\"train\": false` in an assistant's message that is not trained";

/// A message of an example.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    /// The message, without the members that mark it as trained or not.
    pub(crate) message: Message,
    /// Whether it is trained if it is the assistant's.
    pub(crate) is_trained: bool,
}

impl Turn {
    /// A message that is trained if it is the assistant's.
    pub(super) fn new(role: &str, content: &str) -> Turn {
        Turn { message: Message::new(role, content), is_trained: true }
    }

    /// Whether the assistant writes it.
    pub(crate) fn is_assistant(&self) -> bool {
        self.message.role == ASSISTANT
    }
}

const MESSAGES_HINT: &str =
    "it must be a list of objects with `role` and `content`, such as [{\"role\": \"user\", \"content\": \"Hi\"}]";

/// The messages of a member: a list, or a list as JSON in a string, as in columns of tables. Notes about them are added
/// to `notes`.
pub(super) fn turns(name: &str, value: &Value, notes: &mut Vec<Note>) -> Result<Vec<Turn>, Problem> {
    let parsed = parsed_list(value);
    let Some(list) = parsed.as_ref().or(value.as_array()) else {
        return Err((format!("`{name}` is not a list of messages"), MESSAGES_HINT));
    };
    if list.is_empty() {
        return Err((format!("`{name}` has no messages"), "remove the line, or add messages"));
    }
    list.iter().enumerate().map(|(index, value)| turn(&format!("{name}[{index}]"), value, notes)).collect()
}

fn turn(at: &str, value: &Value, notes: &mut Vec<Note>) -> Result<Turn, Problem> {
    let Value::Object(members) = value else {
        return Err((format!("`{at}` is not an object"), MESSAGES_HINT));
    };
    let members = with_role(at, members)?;
    let has_content = members.get("content").is_some_and(|content| !content.is_null());
    let mut message = Message::try_from(members).map_err(|error| match error {
        MessageError::Missing(name) => (format!("`{at}` has no `{name}`"), MESSAGES_HINT),
        error => (format!("`{at}`: {error}"), MESSAGES_HINT),
    })?;
    // Else an empty answer would be trained.
    if !has_content && !message.extra.contains_key("tool_calls") {
        let also = if message.extra.contains_key("function_call") { ", only `function_call`" } else { "" };
        let hint = if also.is_empty() { MESSAGES_HINT } else { FUNCTION_CALL_HINT };
        return Err((format!("`{at}` has no `content`{also}"), hint));
    }
    if let Some((_, meant)) = FOREIGN_ROLES.iter().find(|(foreign, _)| *foreign == message.role) {
        let what = format!("`{at}.role` is `{}`, which is ShareGPT's name for `{meant}`", message.role);
        return Err((what, "write the roles as `system`, `user`, `assistant` and `tool`, or use `from` and `value`"));
    }
    let lower = message.role.to_lowercase();
    if lower != message.role && ROLES.contains(&lower.as_str()) {
        let what = format!("`{at}.role` is `{}`, and roles are written in lower case: `{lower}`", message.role);
        return Err((what, "write the roles as `system`, `user`, `assistant` and `tool`"));
    }
    let is_trained = take_is_trained(at, &mut message)?;
    let turn = Turn { message, is_trained };
    if turn.is_assistant() && is_trained && turn.message.content.trim().is_empty() && turn.message.extra.is_empty() {
        notes.push(Note::Other("an answer is empty; trained is that nothing is said, only the end of the turn".into()));
    }
    Ok(turn)
}

pub(super) const FUNCTION_CALL_HINT: &str = "write the call as `\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": ..., \
     \"arguments\": {...}}}]`";

/// The members of a message with `role` and `content`, also if it has ShareGPT's `from` and `value`.
fn with_role(at: &str, members: &Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let mut members = members.clone();
    if members.contains_key("role") {
        return Ok(members);
    }
    let Some(from) = members.shift_remove("from") else { return Ok(members) };
    let role = match from.as_str() {
        Some("human" | "user") => USER,
        Some("gpt" | "assistant" | "bot" | "model" | "chatgpt") => ASSISTANT,
        Some("system") => SYSTEM,
        Some("tool" | "observation" | "function_response") => "tool",
        Some("function_call") => {
            return Err((
                format!("`{at}.from` is `function_call`, a call without its answer's `content`"),
                FUNCTION_CALL_HINT,
            ));
        }
        _ => {
            return Err((
                format!("`{at}.from` must be `human`, `gpt`, `system` or `tool`, got {from}"),
                "write conversations as `messages` with `role` and `content`",
            ));
        }
    };
    members.insert("role".into(), role.into());
    if let Some(value) = members.shift_remove("value") {
        members.insert("content".into(), value);
    }
    Ok(members)
}

/// Removes the members that mark a message as trained or not, and returns whether it is trained. Only the assistant's
/// messages can be trained; by default they are.
fn take_is_trained(at: &str, message: &mut Message) -> Result<bool, Problem> {
    let mut is_trained = true;
    for (name, flag) in FLAGS {
        let Some(value) = message.extra.shift_remove(name) else { continue };
        let Some(says) = flag.read(&value) else {
            return Err((format!("`{at}.{name}` must be {}, got {value}", flag.allowed()), FLAG_HINT));
        };
        if says && message.role != ASSISTANT && !matches!(flag, Flag::ZeroOrOne) {
            let role = &message.role;
            return Err((
                format!(
                    "`{at}.{name}` must be `false` for the role `{role}`: only what the assistant writes is trained"
                ),
                FLAG_HINT,
            ));
        }
        is_trained &= says;
    }
    if let Some(name) = message.extra.keys().find(|name| may_say_trained(name)) {
        return Err((format!("`{at}.{name}` may say whether the message is trained, but is not read"), FLAG_HINT));
    }
    Ok(is_trained)
}

/// Whether a member of a message may mark the message as not trained.
pub(super) fn may_say_trained(name: &str) -> bool {
    let name = name.to_lowercase();
    LIKE_FLAGS.iter().any(|part| name.contains(part))
}
