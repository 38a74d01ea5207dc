//! Conversations as documents: rendered by the chat template that a server would use.

use std::{cell::LazyCell, path::Path};

use anyhow::{Context, Result, anyhow};
use hearth_model::{
    TokenId,
    text::{
        chat::{ChatTemplate, Ending, Message, RenderContext},
        tokenizer::Tokenizer,
    },
};
use serde_json::Value;

use super::{
    message::{FUNCTION_CALL_HINT, Problem, parsed_list},
    notes::Note,
};

/// The field of the tools that a conversation may use.
pub(crate) const TOOLS: &str = "tools";

/// A document that is a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Message>,
    /// The tools that may be called: a list of JSON schemas.
    pub tools: Option<Value>,
    /// Its place in its file, such as "line 3".
    pub place: String,
}

impl Conversation {
    /// Roles and messages line by line, as most templates write them: the text to count words in, and to split documents
    /// by.
    pub fn text(&self) -> String {
        self.messages.iter().map(|message| format!("{}\n{}\n", message.role, message.content)).collect()
    }
}

/// The tools in a field: a list, or a list as JSON in a string. An empty list counts as none. The error has a hint.
pub(crate) fn tools_of(value: &Value) -> Result<Option<Value>, (String, &'static str)> {
    if value.is_null() {
        return Ok(None);
    }
    match parsed_list(value).or_else(|| value.as_array().cloned()) {
        Some(list) if list.is_empty() => Ok(None),
        Some(list) if list.iter().all(Value::is_object) => Ok(Some(list.into())),
        _ => Err((format!("`{TOOLS}` is not a list of objects"), "it must be a list of JSON schemas")),
    }
}

/// Names of the same member of messages: the model's reasoning before its answer.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Members of messages with contents. If the template leaves one out, the model is trained on something else.
const SAID: [&str; 7] =
    ["tool_calls", "function_call", REASONING[0], REASONING[1], REASONING[2], "tool_plan", "refusal"];

/// The member that names the call to which a result belongs. Most templates show this by the order of messages.
const CALL_ID: &str = "tool_call_id";

/// The messages and the tools in the form in which a server passes them to the template: tools and calls that the
/// template does not write are text.
pub(crate) fn as_served(
    template: &ChatTemplate,
    messages: &[Message],
    tools: &Option<Value>,
    context: &RenderContext,
) -> (Vec<Message>, RenderContext) {
    let list = tools.as_ref().and_then(Value::as_array).map(Vec::as_slice);
    let messages = template.with_tools_as_text(messages.to_vec(), list);
    let tools = tools.clone().filter(|_| template.takes_tools());
    (messages, RenderContext { tools, ..context.clone() })
}

/// Rejects members of messages that have contents but that the template would leave out. Returns other members that it
/// leaves out. `context` has the tools.
pub(crate) fn require_written(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    context: &RenderContext,
) -> Result<Vec<Note>, Problem> {
    let source = if context.tools.is_some() { template.tools_source() } else { template.source() };
    let n_written = |messages: &[Message]| Some(template.prompt_text(tokenizer, messages, context).ok()?.n_bytes());
    let all = LazyCell::new(|| n_written(messages));
    let mut notes = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for (name, _) in message.extra.iter().filter(|(_, value)| !is_empty(value)) {
            if !SAID.contains(&name.as_str()) {
                if name != CALL_ID && !has_word(source, name) {
                    notes
                        .push(Note::Other(format!("the chat template does not write the member `{name}` of messages")));
                }
                continue;
            }
            let mut without = messages.to_vec();
            without[index].extra.shift_remove(name);
            let names: &[&str] = if REASONING.contains(&name.as_str()) { &REASONING } else { &[name.as_str()] };
            let is_in_template = names.iter().any(|name| source.contains(name));
            let is_written = match *all {
                // A template that rejects the messages without it makes use of it.
                Some(n) => n_written(&without).is_none_or(|n_without| n_without != n),
                None => is_in_template,
            };
            if is_written {
                continue;
            }
            if !is_in_template {
                let hint = match name.as_str() {
                    "tool_calls" => "write the calls in `content`, or use a template with `tool_calls`",
                    "function_call" => FUNCTION_CALL_HINT,
                    _ => "remove it, write it in `content`, or use a template that writes it",
                };
                return Err((
                    format!(
                        "a message has `{name}`, but the model's chat template does not write it (message {})",
                        index + 1
                    ),
                    hint,
                ));
            }
            notes.push(Note::Other(format!(
                "the chat template leaves out `{name}` of message {} of {}",
                index + 1,
                messages.len()
            )));
        }
    }
    Ok(notes)
}

/// Whether `word` is in a text without letters, digits or underscores around it.
fn has_word(text: &str, word: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(start, _)| {
        !is_inside(text[..start].chars().next_back()) && !is_inside(text[start + word.len()..].chars().next())
    })
}

/// Whether a member is empty, like members of table rows that have a column for every member.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Tokenizes conversations.
#[derive(Clone, Debug)]
pub struct ConversationEncoder {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context: RenderContext,
}

impl ConversationEncoder {
    /// An encoder with the chat template of a tokenizer's folder; `None` if it has none.
    ///
    /// # Errors
    /// The template cannot be read.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<ConversationEncoder>> {
        let template = ChatTemplate::from_dir(dir).with_context(|| format!("cannot open `{}`", dir.display()))?;
        Ok(template.map(|template| Self::new(tokenizer, template)))
    }

    /// An encoder with this chat template.
    pub fn new(tokenizer: &Tokenizer, template: ChatTemplate) -> ConversationEncoder {
        let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(tokenizer) };
        ConversationEncoder { tokenizer: tokenizer.clone(), template, context }
    }

    /// The chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The ids of a whole conversation, with the end of its last message, and notes about it. Special-token strings in
    /// messages stay text.
    ///
    /// # Errors
    /// The template rejects the messages or leaves out a part of them, or a character is not in the vocabulary.
    pub fn encode(&self, conversation: &Conversation) -> Result<(Vec<TokenId>, Vec<Note>)> {
        let (messages, context) = as_served(&self.template, &conversation.messages, &conversation.tools, &self.context);
        let notes = require_written(&self.template, &self.tokenizer, &messages, &context)
            .map_err(|(what, hint)| anyhow!("{what}\nhint: {hint}"))?;
        let ids = self.template.encode(&self.tokenizer, &messages, &context);
        Ok((ids.context("cannot encode the conversation")?, notes))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use crate::data::tokenizer_build::BuiltTokenizer;

    fn conversation(messages: Value, tools: Option<Value>) -> Conversation {
        Conversation { messages: serde_json::from_value(messages).unwrap(), tools, place: String::new() }
    }

    #[test]
    fn conversation_encoder_normalizes_roles_content_parts_and_arguments() {
        let tokenizer = BuiltTokenizer::bpe(&"[system]a[assistant]b ".repeat(20), 280, 64).unwrap().open().unwrap();
        let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}\
            {{ call.function.arguments | tojson }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap();
        let encoder =
            ConversationEncoder { context: RenderContext::new(&tokenizer), tokenizer: tokenizer.clone(), template };
        let encode = |role: &str, content: Value, arguments: Value| {
            let call = json!({ "function": { "name": "f", "arguments": arguments } });
            let messages = json!([
                { "role": role, "content": content }, { "role": "assistant", "content": null, "tool_calls": [call] },
            ]);
            encoder.encode(&conversation(messages, None)).unwrap().0
        };
        let parts = json!([{ "type": "text", "text": "a" }]);
        let expected = encode("system", json!("a"), json!({ "x": 1 }));
        assert_eq!(tokenizer.decode(&expected, Default::default()), "[system]a[assistant]{\"x\": 1}");
        assert_eq!(encode("developer", parts, json!("{\"x\": 1}")), expected);
    }

    #[test]
    fn conversation_encoder_writes_tools_and_calls_also_where_the_template_does_not() {
        let tokenizer = BuiltTokenizer::bpe(&"[f]a ".repeat(20), 280, 64).unwrap().open().unwrap();
        let encode = |tools_part: &str, conversation: &Conversation| {
            let source = format!("{tools_part}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}");
            let template = ChatTemplate::new(&source, Path::new("chat_template.jinja")).unwrap();
            let ids = ConversationEncoder::new(&tokenizer, template).encode(conversation);
            ids.map(|(ids, _)| tokenizer.decode(&ids, Default::default())).map_err(|error| format!("{error:#}"))
        };
        let with_tools = conversation(json!([{ "role": "user", "content": "a" }]), Some(json!([{ "name": "f" }])));
        let written = encode("{% for tool in tools %}[{{ tool.name }}]{% endfor %}", &with_tools);
        assert_eq!(written, Ok("[f]a".to_owned()));
        let described = encode("", &with_tools).unwrap();
        assert!(described.contains("<tools>\n{\"name\":\"f\"}\n</tools>") && described.ends_with('a'), "{described}");
        let call = json!({ "function": { "name": "f", "arguments": {} } });
        let calls = conversation(json!([{ "role": "assistant", "content": "a", "tool_calls": [call] }]), None);
        let written = "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        assert_eq!(encode("", &calls), Ok(written.to_owned()));
        let no_calls = json!([{ "role": "assistant", "content": "a", "tool_calls": [] }]);
        assert_eq!(encode("", &conversation(no_calls, None)), Ok("a".to_owned()));
    }

    #[test]
    fn tools_are_a_list_of_objects_also_in_a_string() {
        let tools = json!([{ "name": "f" }]);
        assert_eq!(tools_of(&tools), Ok(Some(tools.clone())));
        assert_eq!(tools_of(&tools.to_string().into()), Ok(Some(tools)));
        for none in [json!([]), json!("[]"), Value::Null] {
            assert_eq!(tools_of(&none), Ok(None), "{none}");
        }
        for wrong in [json!("f"), json!([1]), json!({ "name": "f" })] {
            assert!(tools_of(&wrong).is_err(), "{wrong}");
        }
    }
}
