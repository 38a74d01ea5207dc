//! What a record is: a conversation, a prompt with a completion, a text, a text on which predictions are kept, or a preference.

use hearth_model::chat::Message;
use serde_json::{Map, Value, json};

use super::message::{ASSISTANT, Problem, Turn, USER, turns};
use crate::corpus::{TOOLS, parsed_list, tools_of};

/// Members of records.
pub(super) const MESSAGES: &str = "messages";
pub(super) const PROMPT: &str = "prompt";
pub(super) const COMPLETION: &str = "completion";
pub(super) const CHOSEN: &str = "chosen";
pub(super) const REJECTED: &str = "rejected";
pub(super) const KEEP: &str = "keep";

/// What is encoded as one example.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// A conversation, of which the assistant's messages from index `first` on are trained, unless they say otherwise.
    Conversation { turns: Vec<Turn>, tools: Option<Value>, first: usize },
    /// Strings, of which the completion is trained.
    Completion { prompt: String, completion: String },
    /// A text, which is trained.
    Text(String),
    /// A text that is only read: what is predicted there is to stay.
    Keep(String),
}

const EXAMPLE_HINT: &str = "an example has `messages`, or `prompt` and `completion`, or `text`, or `keep`";
const PREFERENCE_HINT: &str = "a preference has `chosen` and `rejected`, and may have `prompt`";
const PAIR_HINT: &str = "`prompt` and its answers must be all strings, or all lists of messages";

impl Form {
    /// The example of a record.
    pub(super) fn of(members: &Map<String, Value>, text_field: &str) -> Result<Form, Problem> {
        let tools = tools(members)?;
        let forms: Vec<&str> = [MESSAGES, KEEP, COMPLETION, text_field]
            .into_iter()
            .filter(|name| member(members, name).is_some())
            .collect();
        if let [first, second, ..] = forms[..] {
            return Err((format!("there is both `{first}` and `{second}`"), EXAMPLE_HINT));
        }
        if let Some(value) = member(members, MESSAGES) {
            return Ok(Form::Conversation { turns: turns(MESSAGES, value)?, tools, first: 0 });
        }
        match member(members, KEEP) {
            Some(Value::String(text)) if !text.is_empty() => return Ok(Form::Keep(text.clone())),
            Some(Value::String(_)) => return Err((format!("`{KEEP}` is empty"), "remove the line, or add a text")),
            Some(_) => return Err((format!("`{KEEP}` is not a string"), EXAMPLE_HINT)),
            None => {}
        }
        match (member(members, PROMPT), member(members, COMPLETION), member(members, text_field)) {
            (Some(prompt), Some(completion), _) => Form::answer(prompt, (COMPLETION, completion), tools),
            (_, _, Some(Value::String(text))) if !text.is_empty() => Ok(Form::Text(text.clone())),
            (_, _, Some(Value::String(_))) => {
                Err((format!("`{text_field}` is empty"), "remove the line, or add a text"))
            }
            (_, _, Some(_)) => Err((format!("`{text_field}` is not a string"), EXAMPLE_HINT)),
            (Some(_), None, None) => Err((format!("there is a `{PROMPT}`, but no `{COMPLETION}`"), EXAMPLE_HINT)),
            (None, Some(_), None) => Err((format!("there is a `{COMPLETION}`, but no `{PROMPT}`"), EXAMPLE_HINT)),
            (None, None, None) => Err((format!("there is no example, only {}", names(members)), hint_for(members))),
        }
    }

    /// The chosen and the rejected example of a record. Without a prompt, it is the messages that both begin with.
    pub(super) fn pair(members: &Map<String, Value>) -> Result<[Form; 2], Problem> {
        let tools = tools(members)?;
        let answer = |name: &'static str| match member(members, name) {
            Some(value) => Ok((name, value)),
            None => Err((format!("there is no `{name}`, only {}", names(members)), PREFERENCE_HINT)),
        };
        let answers = [answer(CHOSEN)?, answer(REJECTED)?];
        let text = match member(members, PROMPT) {
            Some(Value::String(text)) if !is_list_text(text) && answers.iter().all(|(_, value)| is_list(value)) => {
                Some(text)
            }
            Some(prompt) => return Form::answers(prompt, answers, tools),
            None => match member(members, MESSAGES).filter(|messages| !has_answer(messages)) {
                Some(prompt) => return Form::answers(prompt, answers, tools),
                None => None,
            },
        };
        if answers.iter().any(|(_, value)| value.is_string() && parsed_list(value).is_none()) {
            return Err((
                format!("`{CHOSEN}` and `{REJECTED}` are strings, but there is no `{PROMPT}`"),
                PREFERENCE_HINT,
            ));
        }
        let [chosen, rejected] = answers.map(|(name, value)| turns(name, value));
        let (chosen, rejected) = (chosen?, rejected?);
        if let Some(text) = text.filter(|_| chosen[0].is_assistant()) {
            return Form::answers(&json!([{ "role": USER, "content": text }]), answers, tools);
        }
        let first = n_common(&chosen, &rejected);
        if first == 0 && !chosen[0].is_assistant() {
            return Err((
                format!("`{CHOSEN}` and `{REJECTED}` do not begin with the same message, and there is no `{PROMPT}`"),
                "both must answer the same prompt",
            ));
        }
        // Of two equal conversations, the last message is the answer.
        let first = first.min(chosen.len() - 1).min(rejected.len() - 1);
        // As in UltraFeedback: the prompt's text beside conversations that begin with it.
        if let Some(text) = text.filter(|text| chosen[..first].iter().all(|turn| turn.message.content != **text)) {
            let shown: String = text.chars().take(40).collect();
            return Err((
                format!("`{CHOSEN}` and `{REJECTED}` do not begin with the `{PROMPT}` {shown:?}"),
                "beside a text as prompt, they are the answers, or whole conversations that begin with it",
            ));
        }
        let conversation = |turns| Form::Conversation { turns, tools: tools.clone(), first };
        Ok([conversation(chosen), conversation(rejected)])
    }

    /// One prompt with both answers.
    fn answers(prompt: &Value, answers: [(&str, &Value); 2], tools: Option<Value>) -> Result<[Form; 2], Problem> {
        let [chosen, rejected] = answers;
        Ok([Form::answer(prompt, chosen, tools.clone())?, Form::answer(prompt, rejected, tools)?])
    }

    /// A prompt with an answer: strings, or lists of messages. After a list, the answer may also be one message or its text,
    /// or a whole conversation that begins with the prompt.
    fn answer(prompt: &Value, (name, value): (&str, &Value), tools: Option<Value>) -> Result<Form, Problem> {
        match (prompt, value) {
            (Value::String(prompt), Value::String(completion)) if !(is_list(value) && is_list_text(prompt)) => {
                if completion.is_empty() {
                    return Err((format!("`{name}` is empty"), "remove the line, or add a text"));
                }
                Ok(Form::Completion { prompt: prompt.clone(), completion: completion.clone() })
            }
            (prompt, answer) if is_list(prompt) => {
                let mut all = turns(PROMPT, prompt)?;
                let first = all.len();
                let mut answer = match answer {
                    Value::String(text) if !is_list(answer) => {
                        vec![Turn { message: Message::new(ASSISTANT, text), is_trained: true }]
                    }
                    Value::Object(_) => turns(name, &Value::Array(vec![answer.clone()]))?,
                    _ => turns(name, answer)?,
                };
                if n_common(&answer, &all) == first {
                    answer.drain(..first);
                }
                let asks = |turn: &Turn| turn.message.role == USER;
                match answer.first() {
                    None => return Err((format!("`{name}` has only the messages of `{PROMPT}`"), PAIR_HINT)),
                    Some(turn) if asks(turn) && all.last().is_some_and(asks) => {
                        return Err((
                            format!("`{name}` begins with a message of `{USER}`, but not with those of `{PROMPT}`"),
                            "after a prompt, an answer begins with the assistant's message, or repeats the whole prompt",
                        ));
                    }
                    Some(_) => all.extend(answer),
                }
                Ok(Form::Conversation { turns: all, tools, first })
            }
            _ => Err((format!("`{PROMPT}` and `{name}` are of different kinds"), PAIR_HINT)),
        }
    }
}

/// The number of messages that both conversations begin with, whichever of them are trained.
fn n_common(left: &[Turn], right: &[Turn]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left.message == right.message).count()
}

/// How to write an example that has the members of another program's.
fn hint_for(members: &Map<String, Value>) -> &'static str {
    if members.contains_key("conversations") {
        "write `conversations` with `from` and `value` (ShareGPT) as `messages` with `role` and `content`"
    } else if members.contains_key("instruction") {
        "write `instruction`, `input` and `output` (Alpaca) as `prompt` and `completion`, or as `messages`"
    } else {
        EXAMPLE_HINT
    }
}

/// A member that is not null: tables have every member in every row.
fn member<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    members.get(name).filter(|value| !value.is_null())
}

/// Whether the last of `messages` is an answer.
fn has_answer(messages: &Value) -> bool {
    let parsed = parsed_list(messages);
    let last = parsed.as_ref().or(messages.as_array()).and_then(|list| list.last());
    last.and_then(|message| message.get("role")).is_some_and(|role| role == ASSISTANT)
}

fn is_list(value: &Value) -> bool {
    value.is_array() || parsed_list(value).is_some_and(|list| is_messages(&list))
}

fn is_messages(list: &[Value]) -> bool {
    !list.is_empty() && list.iter().all(|value| value.get("role").is_some())
}

fn is_list_text(text: &str) -> bool {
    serde_json::from_str::<Vec<Value>>(text).is_ok_and(|list| is_messages(&list))
}

/// The tools of a record.
fn tools(members: &Map<String, Value>) -> Result<Option<Value>, Problem> {
    member(members, TOOLS).map_or(Ok(None), tools_of)
}

fn names(members: &Map<String, Value>) -> String {
    if members.is_empty() {
        return "an empty object".to_owned();
    }
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    format!("`{}`", names.join("`, `"))
}
