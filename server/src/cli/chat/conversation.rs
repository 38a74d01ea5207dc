//! A conversation: messages and settings.

use anyhow::ensure;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Parameters that `/set` cannot set, because the program sets them.
pub(super) const OWN: [&str; 8] =
    ["messages", "model", "stream", "stream_options", "n", "tools", "add_generation_prompt", "continue_final_message"];

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) role: Role,
    pub(super) content: String,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

/// Messages, with a system prompt before them if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChatHistory {
    pub(super) system: Option<String>,
    turns: Vec<Message>,
    /// Parameters of requests.
    pub(super) settings: Map<String, Value>,
}

impl ChatHistory {
    pub(super) fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
    }

    /// A conversation with these messages, none of which is the system prompt.
    pub(super) fn of(system: Option<String>, turns: Vec<Message>, settings: Map<String, Value>) -> Self {
        Self { system, turns, settings }
    }

    /// The messages without the system prompt.
    pub(super) fn turns(&self) -> &[Message] {
        &self.turns
    }

    /// The number of messages without the system prompt.
    pub(super) fn n_turns(&self) -> usize {
        self.turns.len()
    }

    pub(super) fn ask(&mut self, text: String) {
        self.turns.push(Message { role: Role::User, content: text });
    }

    pub(super) fn add_answer(&mut self, text: String) {
        self.turns.push(Message { role: Role::Assistant, content: text });
    }

    /// Removes the question that has no answer.
    pub(super) fn take_back(&mut self) {
        if self.turns.last().is_some_and(|turn| turn.role == Role::User) {
            self.turns.pop();
        }
    }

    /// Removes the last answer, so that its question is the last message, and returns it. `None` if there is none.
    pub(super) fn forget_answer(&mut self) -> Option<String> {
        let is_answer = self.turns.last().is_some_and(|turn| turn.role == Role::Assistant) && self.turns.len() > 1;
        if is_answer { self.turns.pop().map(|turn| turn.content) } else { None }
    }

    /// Forgets all messages but the system prompt.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
    }

    /// The messages of a request.
    pub(super) fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|content| json!({ "role": Role::System, "content": content }));
        system
            .chain(self.turns.iter().map(|Message { role, content }| json!({ "role": role, "content": content })))
            .collect()
    }
}

/// A parameter of requests, or its absence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    name: String,
    value: Option<Value>,
}

impl Setting {
    /// Parses `NAME=VALUE` or `NAME VALUE`. The value is JSON, or else a string; without one, the default applies again.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let text = text.trim();
        let end = text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len());
        let (name, value) = (text[..end].trim(), text[end..].trim_start());
        let value = value.strip_prefix('=').unwrap_or(value).trim();
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        ensure!(is_name, "a parameter must be `NAME VALUE`, got `{text}`\nhint: for example `temperature 0.7`");
        ensure!(!OWN.contains(&name), "`{name}` cannot be set: `hearth chat` sets it itself");
        let value = (!value.is_empty()).then(|| serde_json::from_str(value).unwrap_or_else(|_| json!(value)));
        Ok(Self { name: name.to_owned(), value })
    }

    /// Parses `NAME=VALUE` of the command line.
    pub(super) fn parse_flag(text: &str) -> anyhow::Result<Self> {
        ensure!(
            text.contains('='),
            "a parameter must be `NAME=VALUE`, got `{text}`\nhint: for example `temperature=0.7`"
        );
        Self::parse(text)
    }

    /// The name and the value, if it has one.
    pub(super) fn into_parts(self) -> (String, Option<Value>) {
        (self.name, self.value)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn take_back_and_forget_answer_undo_the_last_question_and_answer() {
        let mut conversation = ChatHistory::new(None);
        assert_eq!(conversation.forget_answer(), None);
        conversation.ask("a".to_owned());
        conversation.take_back();
        assert_eq!(conversation.n_turns(), 0);
        conversation.ask("a".to_owned());
        assert_eq!(conversation.forget_answer(), None);
        conversation.add_answer("b".to_owned());
        conversation.take_back();
        assert_eq!(conversation.n_turns(), 2);
        assert_eq!(conversation.forget_answer().unwrap(), "b");
        assert_eq!(conversation.messages(), [json!({ "role": "user", "content": "a" })]);
    }

    #[test]
    fn chat_settings_parse_as_json_or_plain_strings() {
        let parse = |text: &str| Setting::parse(text).map(Setting::into_parts).map_err(|error| error.to_string());
        for (text, name, value) in [
            ("temperature 0.7", "temperature", Some(json!(0.7))),
            ("temperature=0.7", "temperature", Some(json!(0.7))),
            (r#"stop ["a", "b"]"#, "stop", Some(json!(["a", "b"]))),
            ("stop a b", "stop", Some(json!("a b"))),
            ("stop===", "stop", Some(json!("=="))),
            ("stop = =x", "stop", Some(json!("=x"))),
            ("seed", "seed", None),
        ] {
            assert_eq!(parse(text).unwrap(), (name.to_owned(), value), "{text}");
        }
        assert!(parse("messages []").unwrap_err().contains("`messages` cannot be set"));
        assert!(parse("=1").unwrap_err().contains("must be `NAME VALUE`"));
    }
}
