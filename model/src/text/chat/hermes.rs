//! Tools for chat templates without tool support: as text in the Hermes format, which many models know.
//!
//! Serving and training share this code, so a model is prompted as it was trained.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::{ChatTemplate, Message};

/// A call: the text before the function's name, between the name and the arguments, and after the arguments.
pub const CALL: [&str; 3] = ["<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"];

/// The text between two calls.
pub const SEPARATOR: &str = "\n";

/// The mark of a call, in templates that write calls in this format.
const MARK: &str = "<tool_call>";

impl ChatTemplate {
    /// The messages, with everything that the template does not write itself as text: descriptions of `tools` in the
    /// system message; earlier calls and their results. If there are tools, earlier calls are written in the format of
    /// new ones.
    ///
    /// The number and the order of the assistant's messages do not change.
    pub fn with_tools_as_text(&self, mut messages: Vec<Message>, tools: Option<&[Value]>) -> Vec<Message> {
        let source = self.tools_source();
        let writes = |sign: &str| self.takes_tools() || source.contains(sign);
        if !writes(if tools.is_some() { MARK } else { "tool_call" }) {
            messages = messages.into_iter().map(as_text).fold(Vec::new(), joined);
        }
        if let Some(tools) = tools.filter(|_| !self.takes_tools()) {
            let section = section(tools);
            match messages.first_mut() {
                Some(first) if matches!(first.role.as_str(), "system" | "developer") => {
                    first.content = format!("{}\n\n{section}", first.content);
                }
                _ => messages.insert(0, Message::new("system", section)),
            }
        }
        messages
    }
}

/// The description of tools.
fn section(tools: &[Value]) -> String {
    let signatures: Vec<String> = tools.iter().map(Value::to_string).collect();
    format!(
        "You can call the functions whose signatures follow, one JSON object per line:\n<tools>\n{}\n</tools>\n\n\
         To call a function, write a JSON object with its name and its arguments between tags:\n<tool_call>\n\
         {{\"name\": \"the function's name\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n</tool_call>",
        signatures.join("\n")
    )
}

/// A message's tool calls or result as text.
fn as_text(mut message: Message) -> Message {
    if message.role == "tool" {
        return Message::new("user", format!("<tool_response>\n{}\n</tool_response>", message.content));
    }
    let Some(Value::Array(calls)) = message.extra.shift_remove("tool_calls") else { return message };
    if calls.is_empty() {
        return message;
    }
    let [before, between, after] = CALL;
    let written = calls.iter().map(|call| {
        let part = |name: &str| call.pointer(name).unwrap_or(&Value::Null);
        let quoted = part("/function/name").to_string();
        let name = quoted.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(&quoted);
        let arguments = match part("/function/arguments") {
            Value::String(text) if is_object(text) => text.trim().to_owned(),
            Value::String(text) if matches!(text.trim(), "" | "null") => "{}".to_owned(),
            Value::Null => "{}".to_owned(),
            other => other.to_string(),
        };
        format!("{before}{name}{between}{arguments}{after}")
    });
    let separator = if message.content.is_empty() { "" } else { "\n" };
    let calls = written.collect::<Vec<_>>().join(SEPARATOR);
    message.content.push_str(&format!("{separator}{calls}"));
    message
}

/// Whether a text is a JSON object. The object is not built: it may be large.
fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Merges consecutive results into one message: some templates require alternating roles.
fn joined(mut messages: Vec<Message>, message: Message) -> Vec<Message> {
    let is_result = |message: &Message| message.role == "user" && message.content.starts_with("<tool_response>");
    match messages.last_mut() {
        Some(last) if is_result(last) && is_result(&message) => {
            last.content = format!("{}\n{}", last.content, message.content);
        }
        _ => messages.push(message),
    }
    messages
}
