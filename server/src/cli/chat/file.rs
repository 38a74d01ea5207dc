//! Files of conversations. `/save` writes the format of the page's export, which both read (`web/conversation.js`). Files of
//! messages as the API has them can be loaded too.

use std::collections::HashSet;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::{Map, Value, json};

use super::conversation::{ChatHistory, Message, Role};
use crate::api::guard::bounded_json;

/// The name of the format.
const FORMAT: &str = "hearth-conversations";

/// The text of a file with this conversation, answered by `model`.
pub(super) fn written(conversation: &ChatHistory, model: &str) -> anyhow::Result<String> {
    let message = |message: &Message| match message.role {
        Role::Assistant => json!({ "role": message.role, "content": message.content, "model": model }),
        _ => json!({ "role": message.role, "content": message.content }),
    };
    let mut settings = json!({ "parameters": conversation.settings });
    if let Some(system) = &conversation.system {
        settings["system"] = json!(system);
    }
    let messages: Vec<Value> = conversation.turns().iter().map(message).collect();
    let file =
        json!({ "format": FORMAT, "version": 1, "conversations": [{ "settings": settings, "messages": messages }] });
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

/// The conversation in the text of a file.
pub(super) fn read(text: &str) -> anyhow::Result<ChatHistory> {
    let file: Value =
        serde_json::from_str(text).map_err(|error| anyhow!("it is not JSON: {}", bounded_json::problem(&error)))?;
    if file["format"] == FORMAT {
        return exported(&file);
    }
    let messages = if file.is_array() { &file } else { &file["messages"] };
    let messages = messages.as_array().context(
        "it is not a conversation\nhint: it must be a file of `/save`, an export of the page, or a list of messages as in the API",
    )?;
    let settings = file["settings"].as_object().cloned().unwrap_or_default();
    conversation(None, messages.iter(), settings)
}

/// The conversation of an export of the page.
fn exported(file: &Value) -> anyhow::Result<ChatHistory> {
    ensure!(file["version"] == 1, "its version must be 1, got {}", file["version"]);
    let conversations = file["conversations"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [given] = conversations else {
        bail!(
            "it has {} conversations, and one is needed\nhint: the page exports one conversation with the button beside its name",
            conversations.len()
        );
    };
    let settings = &given["settings"];
    let has_tools = settings["tools"].as_str().is_some_and(|tools| !tools.trim().is_empty());
    ensure!(
        !has_tools,
        "it has tools, which `hearth chat` cannot call\nhint: continue it on the page, or remove its tools there"
    );
    let mut parameters = settings["parameters"].as_object().cloned().unwrap_or_default();
    parameters.extend(format_parameters(&settings["format"])?);
    let system = settings["system"].as_str().filter(|system| !system.trim().is_empty()).map(str::to_owned);
    conversation(system, sent(&shown(given)).into_iter(), parameters)
}

/// The parameters of the format of answers that the page's settings have.
fn format_parameters(format: &Value) -> anyhow::Result<Map<String, Value>> {
    let text = format["text"].as_str().unwrap_or_default();
    let structured = |name: &str, value: Value| json!({ "structured_outputs": { name: value } });
    let parameters = match format["kind"].as_str() {
        Some("json_object") => json!({ "response_format": { "type": "json_object" } }),
        Some("json_schema") => {
            let schema: Value = serde_json::from_str(text)
                .map_err(|error| anyhow!("the schema of its answers is not JSON: {}", bounded_json::problem(&error)))?;
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } } })
        }
        Some("regex") => structured("regex", json!(text)),
        Some("choice") => structured("choice", text.lines().filter(|line| !line.is_empty()).collect()),
        Some("grammar") => structured("grammar", json!(text)),
        _ => json!({}),
    };
    Ok(parameters.as_object().cloned().unwrap_or_default())
}

/// The messages that the page shows: from the first one on, of several branches the chosen one, else the last one. Messages
/// without ids follow one another.
fn shown(given: &Value) -> Vec<&Value> {
    let messages: Vec<&Value> = given["messages"].as_array().into_iter().flatten().collect();
    if messages.iter().all(|message| message["id"].is_null()) {
        return messages;
    }
    let (mut path, mut seen) = (Vec::new(), HashSet::new());
    let mut parent = &Value::Null;
    loop {
        let chosen = &given["chosen"][parent.as_str().unwrap_or("root")];
        let mut branches = messages.iter().copied().filter(|message| message["parent"] == *parent);
        let next = branches
            .clone()
            .find(|message| message["id"] == *chosen && !chosen.is_null())
            .or_else(|| branches.next_back());
        // A file that was edited may have a circle.
        match next {
            Some(next) if next["id"].as_str().is_some_and(|id| seen.insert(id)) => {
                path.push(next);
                parent = &next["id"];
            }
            _ => return path,
        }
    }
}

/// The messages that the page would send: without messages that were left out, and without turns that have no answer.
fn sent<'a>(shown: &[&'a Value]) -> Vec<&'a Value> {
    let is_answer = |message: &Value| {
        let has_text = message["content"].as_str().is_some_and(|text| !text.is_empty());
        message["role"] == "assistant" && (has_text || message["toolCalls"].is_array())
    };
    let mut turns: Vec<Vec<&Value>> = Vec::new();
    for message in shown {
        match turns.last_mut() {
            Some(turn) if message["role"] != "user" => turn.push(message),
            _ => turns.push(vec![message]),
        }
    }
    turns.retain(|turn| {
        let is_question = turn.first().is_some_and(|message| message["role"] == "user");
        !is_question || turn.last().is_some_and(|message| is_answer(message) || message["role"] == "tool")
    });
    turns.into_iter().flatten().filter(|message| message["leftOut"] != true).collect()
}

fn conversation<'a>(
    mut system: Option<String>,
    messages: impl Iterator<Item = &'a Value>,
    settings: Map<String, Value>,
) -> anyhow::Result<ChatHistory> {
    let mut turns = Vec::new();
    for message in messages {
        let calls = [&message["toolCalls"], &message["tool_calls"]];
        let has_calls = calls.iter().any(|calls| calls.as_array().is_some_and(|calls| !calls.is_empty()));
        let role = match message["role"].as_str() {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") if !has_calls => Role::Assistant,
            Some("assistant" | "tool") => {
                bail!("it has tool calls, which `hearth chat` does not send\nhint: continue it on the page")
            }
            _ => bail!("it has a message whose `role` is not `system`, `user` or `assistant`: {}", cut(message)),
        };
        let content = text(&message["content"])
            .with_context(|| format!("it has a message whose `content` is not a text: {}", cut(message)))?;
        match role {
            Role::System if system.is_none() && turns.is_empty() => system = Some(content),
            Role::System => bail!("only the first message may be of the system"),
            _ => turns.push(Message { role, content }),
        }
    }
    Ok(ChatHistory::of(system, turns, settings))
}

/// The text of a message: a string, or a list of text parts.
fn text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str()).collect(),
        _ => None,
    }
}

/// The beginning of a value, to show it.
fn cut(value: &Value) -> String {
    const MAX_CHARS: usize = 80;
    let shown = value.to_string();
    match shown.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", shown.get(..end).unwrap_or_default()),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn message(role: Role, content: &str) -> Message {
        Message { role, content: content.to_owned() }
    }

    /// `.ci/page/turns-test.mjs` imports the same file into the page.
    #[test]
    fn what_save_writes_is_a_file_of_the_page_and_is_loaded_again() {
        let mut conversation = ChatHistory::new(Some("Be brief.".to_owned()));
        conversation.ask("Hello".to_owned());
        conversation.add_answer("Hi.".to_owned());
        conversation.settings.insert("temperature".to_owned(), json!(0.5));
        let file = written(&conversation, "org/name").unwrap();
        let expected = json!({ "format": "hearth-conversations", "version": 1, "conversations": [{
            "settings": { "system": "Be brief.", "parameters": { "temperature": 0.5 } },
            "messages": [
                { "role": "user", "content": "Hello" },
                { "role": "assistant", "content": "Hi.", "model": "org/name" },
            ],
        }] });
        assert_eq!(serde_json::from_str::<Value>(&file).unwrap(), expected);
        assert_eq!(read(&file).unwrap(), conversation);
    }

    #[test]
    fn an_export_of_the_page_is_its_shown_branch_without_failed_and_left_out_turns() {
        let file = json!({ "format": FORMAT, "version": 1, "conversations": [{
            "id": "c", "title": "t", "chosen": { "root": "a", "a": "b", "f": "g" },
            "settings": {
                "system": " ", "parameters": { "seed": 1 }, "tools": "", "format": { "kind": "choice", "text": "yes\n\nno" },
            },
            "messages": [
                { "id": "a", "parent": null, "role": "user", "content": "one", "leftOut": true },
                { "id": "b", "parent": "a", "role": "assistant", "content": "chosen", "leftOut": true },
                { "id": "x", "parent": "a", "role": "assistant", "content": "other branch" },
                { "id": "c", "parent": "b", "role": "user", "content": "too long" },
                { "id": "d", "parent": "c", "role": "assistant", "content": "", "error": "too long" },
                { "id": "e", "parent": "d", "role": "user", "content": "old" },
                { "id": "f", "parent": "d", "role": "user", "content": "two" },
                { "id": "g", "parent": "f", "role": "assistant", "content": "Two." },
            ],
        }] });
        let conversation = read(&file.to_string()).unwrap();
        assert_eq!(conversation.turns(), [message(Role::User, "two"), message(Role::Assistant, "Two.")]);
        assert_eq!(conversation.system, None);
        let settings = json!({ "seed": 1, "structured_outputs": { "choice": ["yes", "no"] } });
        assert_eq!(Value::Object(conversation.settings), settings);
    }

    #[test]
    fn messages_as_the_api_has_them_and_older_files_are_loaded() {
        let list = r#"[{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
        let conversation = read(list).unwrap();
        assert_eq!(
            (conversation.system.as_deref(), conversation.turns()),
            (Some("S"), &[message(Role::User, "ab")][..])
        );
        let old = r#"{"model": "m", "messages": [{"role": "user", "content": "x"}], "settings": {"temperature": 0.5}}"#;
        assert_eq!(read(old).unwrap().settings["temperature"], 0.5);
    }

    #[test]
    fn files_that_cannot_be_loaded_say_why() {
        let one = |conversation: Value| {
            json!({ "format": FORMAT, "version": 1, "conversations": [conversation] }).to_string()
        };
        let circle = json!({ "messages": [{ "id": "a", "parent": "a", "role": "user", "content": "x" }] });
        assert_eq!(read(&one(circle)).unwrap().turns(), []);
        for (wrong, message) in [
            ("{".to_owned(), "it is not JSON"),
            (
                format!("{}{}", "[".repeat(200), "]".repeat(200)),
                "it is not JSON: arrays and objects may be nested at most 127 deep",
            ),
            (r#"{"a": 1}"#.to_owned(), "it is not a conversation"),
            (r#"[{"role": "bot", "content": "x"}]"#.to_owned(), "it has a message whose `role` is not"),
            (r#"[{"role": "user", "content": 7}]"#.to_owned(), "it has a message whose `content` is not a text"),
            (r#"[{"role": "tool", "content": "x"}]"#.to_owned(), "it has tool calls"),
            (
                r#"[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]"#.to_owned(),
                "only the first message",
            ),
            (json!({ "format": FORMAT, "version": 2 }).to_string(), "its version must be 1, got 2"),
            (
                json!({ "format": FORMAT, "version": 1, "conversations": [{}, {}] }).to_string(),
                "it has 2 conversations, and one is needed",
            ),
            (one(json!({ "settings": { "tools": "[]" }, "messages": [] })), "it has tools"),
        ] {
            let error = read(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(message), "{wrong}: {error}");
        }
    }
}
