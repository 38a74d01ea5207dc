//! A conversation: messages and settings, and its form as a file.

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Parameters that `/set` cannot set, because the program sets them.
const OWN: [&str; 8] =
    ["messages", "model", "stream", "stream_options", "n", "tools", "add_generation_prompt", "continue_final_message"];

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Message {
    pub(super) role: Role,
    pub(super) content: String,
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

/// Messages in turn, with a system prompt before them if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    turns: Vec<Message>,
    /// Parameters of requests.
    pub(super) settings: Map<String, Value>,
}

/// The form as a file. `messages` is that of the API.
#[derive(Serialize, Deserialize)]
struct Saved {
    #[serde(default)]
    model: String,
    messages: Vec<Message>,
    #[serde(default)]
    settings: Map<String, Value>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
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

    /// Forgets the question that has no answer.
    pub(super) fn take_back(&mut self) {
        if self.turns.last().is_some_and(|turn| turn.role == Role::User) {
            self.turns.pop();
        }
    }

    /// Forgets the last answer, so that its question is the last message, and returns it. `None` if there is none.
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
        self.all().map(|Message { role, content }| json!({ "role": role, "content": content })).collect()
    }

    fn all(&self) -> impl Iterator<Item = Message> {
        let system = self.system.clone().map(|content| Message { role: Role::System, content });
        system.into_iter().chain(self.turns.iter().cloned())
    }

    /// The file of the conversation.
    pub(super) fn to_json(&self, model: &str) -> anyhow::Result<String> {
        let saved = Saved { model: model.to_owned(), messages: self.all().collect(), settings: self.settings.clone() };
        Ok(serde_json::to_string_pretty(&saved)? + "\n")
    }

    /// Reads what [`to_json`](Self::to_json) has written, or a list of messages.
    pub(super) fn from_json(text: &str) -> anyhow::Result<Conversation> {
        let value: Value = serde_json::from_str(text).context("it is not JSON")?;
        let value = if value.is_array() { json!({ "messages": value }) } else { value };
        let Saved { messages, settings, .. } =
            serde_json::from_value(value).context("it is not a conversation with `messages`")?;
        let mut conversation = Conversation { settings, ..Conversation::default() };
        for message in messages {
            match message.role {
                Role::System if conversation.system.is_none() && conversation.turns.is_empty() => {
                    conversation.system = Some(message.content);
                }
                Role::System => bail!("only the first message may be of the system"),
                _ => conversation.turns.push(message),
            }
        }
        Ok(conversation)
    }
}

/// A parameter of requests, or its absence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    name: String,
    value: Option<Value>,
}

impl Setting {
    pub(super) fn of(name: &str, value: Value) -> Self {
        Self { name: name.to_owned(), value: Some(value) }
    }

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

    pub(super) fn apply(self, settings: &mut Map<String, Value>) {
        match self.value {
            Some(value) => drop(settings.insert(self.name, value)),
            None => drop(settings.remove(&self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn conversation_json_round_trips_and_invalid_json_is_rejected() {
        let mut conversation = Conversation::new(Some("Be brief.".to_owned()));
        conversation.ask("Hello".to_owned());
        conversation.add_answer("Hi.\n\"you\"".to_owned());
        Setting::parse("temperature 0.5").unwrap().apply(&mut conversation.settings);
        let text = conversation.to_json("org/name").unwrap();
        assert_eq!(Conversation::from_json(&text).unwrap(), conversation);
        let list = r#"[{"role": "user", "content": "x"}]"#;
        assert_eq!(Conversation::from_json(list).unwrap().n_turns(), 1);
        for (wrong, message) in [
            ("{", "it is not JSON"),
            (r#"{"a": 1}"#, "it is not a conversation"),
            (r#"[{"role": "tool", "content": "x"}]"#, "it is not a conversation"),
            (r#"[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]"#, "only the first message"),
        ] {
            assert!(Conversation::from_json(wrong).unwrap_err().to_string().starts_with(message), "{wrong}");
        }
    }

    #[test]
    fn take_back_and_forget_answer_undo_the_last_question_and_answer() {
        let mut conversation = Conversation::new(None);
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
        let parse = |text: &str| {
            let mut settings = Map::new();
            settings.insert("seed".to_owned(), json!(1));
            Setting::parse(text).map(|setting| setting.apply(&mut settings)).map_err(|error| error.to_string())?;
            Ok::<_, String>(Value::Object(settings))
        };
        assert_eq!(parse("temperature 0.7").unwrap(), json!({ "seed": 1, "temperature": 0.7 }));
        assert_eq!(parse("temperature=0.7").unwrap(), json!({ "seed": 1, "temperature": 0.7 }));
        assert_eq!(parse(r#"stop ["a", "b"]"#).unwrap()["stop"], json!(["a", "b"]));
        assert_eq!(parse("stop a b").unwrap()["stop"], "a b");
        assert_eq!(parse("stop===").unwrap()["stop"], "==");
        assert_eq!(parse("stop = =x").unwrap()["stop"], "=x");
        assert_eq!(parse("seed").unwrap(), json!({}));
        assert!(parse("messages []").unwrap_err().contains("`messages` cannot be set"));
        assert!(parse("=1").unwrap_err().contains("must be `NAME VALUE`"));
    }
}
