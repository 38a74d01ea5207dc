//! The kind of a record: a conversation, a prompt with a completion, a text, a text on which predictions are kept, or a
//! preference. All commands read records with this code, so they all read the same.

use std::{cell::RefCell, collections::BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    conversation::{TOOLS, is_empty, tools_of},
    message::{ASSISTANT, FLAGS, FUNCTION_CALL_HINT, Problem, SYSTEM, Turn, USER, parsed_list, turns},
    notes::Note,
    text_record::{LABEL, SPLIT, names, wrong_split},
};

/// Members of records.
const MESSAGES: &str = "messages";
const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";
pub(crate) const CHOSEN: &str = "chosen";
pub(crate) const REJECTED: &str = "rejected";
const KEEP: &str = "keep";
/// The usual member of a text.
const TEXT: &str = "text";

/// Names of the list of messages: Hearth's, TRL's and OpenAI's; ShareGPT's; and others'.
const CONVERSATIONS: [&str; 4] = [MESSAGES, "conversations", "conversation", "dialog"];
/// Names of a system message next to a conversation.
const SYSTEMS: [&str; 2] = ["system", "system_prompt"];

/// Layouts with a question and an answer, both strings, and perhaps a text that the question is about. The first that fits
/// is used.
const QUESTIONS: [Question; 11] = [
    Question::new("Alpaca", "instruction", "input", "output"),
    Question::new("Dolly", "instruction", "context", "response"),
    Question::new("Alpaca", "instruction", "input", "response"),
    Question::new("a prompt with a response", PROMPT, "", "response"),
    Question::new("a prompt with an answer", PROMPT, "", "answer"),
    Question::new("a question with an answer", "question", "context", "answer"),
    Question::new("a question with a response", "question", "", "response"),
    Question::new("a query with a response", "query", "", "response"),
    Question::new("a query with an answer", "query", "", "answer"),
    Question::new("an input with an output", "input", "", "output"),
    Question::new("a user with an assistant", USER, "", ASSISTANT),
];

/// Members of records that would change the training if they were read.
const CHANGING: [(&str, &str); 3] = [
    ("functions", "write them as `\"tools\": [{\"type\": \"function\", \"function\": {...}}]`"),
    ("function_call", FUNCTION_CALL_HINT),
    ("history", "write the whole conversation as `messages`"),
];

/// Whether KTO's label marks an answer as good. Tables write it as a word. In other layouts than KTO's, numbers are a
/// class.
fn kto_label(label: &Value, is_kto: bool) -> Option<bool> {
    let word = label.as_str().map_or_else(|| label.to_string(), str::to_lowercase);
    match word.as_str() {
        "true" => Some(true),
        "false" => Some(false),
        "1" if is_kto => Some(true),
        "0" if is_kto => Some(false),
        _ => None,
    }
}

/// The members of a layout.
struct Question {
    name: &'static str,
    question: &'static str,
    /// The member with the input of the question; empty: the layout has no such member.
    about: &'static str,
    answer: &'static str,
}

impl Question {
    const fn new(name: &'static str, question: &'static str, about: &'static str, answer: &'static str) -> Question {
        Question { name, question, about, answer }
    }
}

/// The members that records may have, for tables: only these columns are read.
pub(crate) fn record_members(text_field: &str) -> Vec<&str> {
    let mut names = vec![text_field, PROMPT, COMPLETION, CHOSEN, REJECTED, KEEP, TOOLS, LABEL];
    names.splice(1..1, CONVERSATIONS);
    names.extend(SYSTEMS.into_iter().chain([SPLIT]));
    names.extend(QUESTIONS.iter().flat_map(|layout| [layout.question, layout.about, layout.answer]));
    names.extend(CHANGING.iter().map(|(name, _)| *name));
    names.extend(FLAGS.iter().map(|(name, _)| *name));
    let mut seen = BTreeSet::new();
    names.retain(|name| !name.is_empty() && seen.insert(*name));
    names
}

/// The contents of one example.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RecordKind {
    /// A conversation. The assistant's messages from index `first` on are trained, unless they are marked otherwise.
    Conversation { turns: Vec<Turn>, tools: Option<Value>, first: usize },
    /// Strings; the completion is trained.
    Completion { prompt: String, completion: String },
    /// A text, which is trained.
    Text(String),
    /// A text that is only read: predictions on it should stay unchanged.
    Keep(String),
}

const EXAMPLE_HINT: &str = "an example has `messages`, or `prompt` and `completion`, or `text`, or `keep`";
const PREFERENCE_HINT: &str = "a preference has `chosen` and `rejected`, and may have `prompt`";
const PAIR_HINT: &str = "`prompt` and its answers must be all strings, or all lists of messages";
const KTO_HINT: &str = "leave out what should not be learned, or make pairs with `chosen` and `rejected` for \
                        `--set objective.kind=dpo`";

/// The members of a record, and which of them have been read.
pub(super) struct Members<'a> {
    all: &'a Map<String, Value>,
    read: RefCell<Vec<&'a str>>,
    notes: RefCell<Vec<Note>>,
}

impl<'a> Members<'a> {
    pub(super) fn new(all: &'a Map<String, Value>) -> Members<'a> {
        Members { all, read: RefCell::default(), notes: RefCell::default() }
    }

    /// A member that is not null, which counts as read: tables have every member in every row.
    pub(super) fn take(&self, name: &str) -> Option<&'a Value> {
        let (name, value) = self.all.get_key_value(name).filter(|(_, value)| !value.is_null())?;
        self.read.borrow_mut().push(name);
        Some(value)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|value| !value.is_null())
    }

    /// The names of all members, for messages.
    pub(super) fn names(&self) -> String {
        names(self.all)
    }

    fn note(&self, what: String) {
        self.notes.borrow_mut().push(Note::Other(what));
    }

    fn turns(&self, name: &str, value: &Value) -> Result<Vec<Turn>, Problem> {
        turns(name, value, &mut self.notes.borrow_mut())
    }

    fn tools(&self) -> Result<Option<Value>, Problem> {
        self.take(TOOLS).map_or(Ok(None), tools_of)
    }

    /// Handles unread members: rejects them if they would change the training.
    pub(super) fn finish(self) -> Result<Vec<Note>, Problem> {
        let (read, mut notes) = (self.read.into_inner(), self.notes.into_inner());
        for (name, value) in self.all.iter().filter(|(name, value)| !is_empty(value) && !read.contains(&name.as_str()))
        {
            if let Some((_, flag)) = FLAGS.iter().find(|(flag, _)| flag == name) {
                if flag.read(value) == Some(true) {
                    continue;
                }
                return Err((
                    format!("`{name}` of the whole record is {value}, but only messages can be left out of training"),
                    "remove the line, or write `\"train\": false` in those of the assistant's messages that are not trained",
                ));
            }
            if let Some((_, hint)) = CHANGING.iter().find(|(changing, _)| changing == name) {
                return Err((format!("`{name}` is not read"), hint));
            }
            if let Some(problem) = wrong_split(name, value) {
                return Err(problem);
            }
            match (name.as_str(), value) {
                (LABEL, label) if kto_label(label, self.all.contains_key(COMPLETION)) == Some(false) => {
                    let what = format!(
                        "`label` is `{}`, which says that this is a bad answer (KTO's layout), and it would be trained as a \
                         good one",
                        label.as_str().map_or_else(|| label.to_string(), str::to_owned)
                    );
                    return Err((what, KTO_HINT));
                }
                (LABEL, label) if kto_label(label, self.all.contains_key(COMPLETION)) == Some(true) => {}
                _ => notes.push(Note::Unread(name.clone())),
            }
        }
        Ok(notes)
    }
}

impl RecordKind {
    /// The example of a record, and notes about it.
    pub(crate) fn of(members: &Map<String, Value>, text_field: &str) -> Result<(RecordKind, Vec<Note>), Problem> {
        let members = Members::new(members);
        let form = RecordKind::read(&members, text_field)?;
        Ok((form, members.finish()?))
    }

    fn read(members: &Members<'_>, text_field: &str) -> Result<RecordKind, Problem> {
        // A field that was chosen is the text, whatever else there is.
        if text_field != TEXT && members.has(text_field) {
            return RecordKind::of_string(members, text_field).map(RecordKind::Text);
        }
        let is_conversation = |name: &&str| {
            *name == MESSAGES
                || members.all.get(*name).is_some_and(|value| value.is_array() || parsed_list(value).is_some())
        };
        let conversations = CONVERSATIONS.iter().copied().filter(is_conversation);
        let forms: Vec<&str> =
            conversations.chain([KEEP, COMPLETION, text_field]).filter(|name| members.has(name)).collect();
        if let [first, second, ..] = forms[..] {
            return Err((format!("there is both `{first}` and `{second}`"), EXAMPLE_HINT));
        }
        match forms.first().copied() {
            Some(name) if name == text_field => RecordKind::of_string(members, name).map(RecordKind::Text),
            Some(KEEP) => RecordKind::of_string(members, KEEP).map(RecordKind::Keep),
            Some(COMPLETION) => {
                let Some(prompt) = members.take(PROMPT) else {
                    return Err((format!("there is a `{COMPLETION}`, but no `{PROMPT}`"), EXAMPLE_HINT));
                };
                let completion = members.take(COMPLETION).unwrap_or(&Value::Null);
                let tools = if is_list(prompt) { members.tools()? } else { None };
                RecordKind::answer(members, prompt, (COMPLETION, completion), tools)
            }
            Some(name) => {
                let turns = members.turns(name, members.take(name).unwrap_or(&Value::Null))?;
                Ok(RecordKind::Conversation { turns: with_system(members, turns)?, tools: members.tools()?, first: 0 })
            }
            None => RecordKind::of_question(members),
        }
    }

    fn of_string(members: &Members<'_>, name: &str) -> Result<String, Problem> {
        match members.take(name) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            Some(Value::String(_)) => Err((format!("`{name}` is empty"), "remove the line, or add a text")),
            _ => Err((format!("`{name}` is not a string"), EXAMPLE_HINT)),
        }
    }

    /// A question with an answer, as a conversation.
    fn of_question(members: &Members<'_>) -> Result<RecordKind, Problem> {
        let fits = |layout: &&Question| members.has(layout.question) && members.has(layout.answer);
        let Some(layout) = QUESTIONS.iter().find(fits) else {
            return Err(no_example(members.all));
        };
        let Question { name, question, about, answer } = layout;
        let (asked, answered) = (members.take(question), members.take(answer));
        if let (Some(prompt), Some(value)) = (asked, answered)
            && is_list(prompt)
        {
            return RecordKind::answer(members, prompt, (answer, value), members.tools()?);
        }
        let (Some(asked), Some(answered)) = (asked.and_then(Value::as_str), answered.and_then(Value::as_str)) else {
            if members.has("choices") {
                return Err((
                    format!(
                        "it is a question with `choices` (MMLU's layout), to measure models by, and not an example: only {}",
                        names(members.all)
                    ),
                    "use it with `hearth-train eval multiple-choice`",
                ));
            }
            return Err((
                format!("it looks like {name} (`{question}` and `{answer}`), but these are not both strings"),
                EXAMPLE_HINT,
            ));
        };
        if answered.is_empty() {
            return Err((format!("`{answer}` is empty"), "remove the line, or add a text"));
        }
        let text = members.take(about).and_then(Value::as_str).filter(|text| !text.is_empty());
        let with = if about.is_empty() { String::new() } else { format!(", with `{about}` below it") };
        members.note(format!(
            "read as {name}: `{question}` is what the user says{with}, `{answer}` is the assistant's answer"
        ));
        let asked = text.map_or_else(|| asked.to_owned(), |text| format!("{asked}\n{text}"));
        let turns = with_system(members, vec![Turn::new(USER, &asked), Turn::new(ASSISTANT, answered)])?;
        Ok(RecordKind::Conversation { turns, tools: members.tools()?, first: 0 })
    }

    /// Whether a record has a member of an example.
    pub(super) fn is_known(members: &Map<String, Value>, text_field: &str) -> bool {
        record_members(text_field).iter().any(|name| members.contains_key(*name))
    }

    /// Whether all that a record has of an example is empty or null.
    pub(super) fn is_nothing(members: &Map<String, Value>, text_field: &str) -> bool {
        let questions = QUESTIONS.iter().flat_map(|layout| [layout.question, layout.answer]);
        let names = CONVERSATIONS.into_iter().chain([text_field, KEEP, COMPLETION, CHOSEN, REJECTED]).chain(questions);
        let mut values = names.filter_map(|name| members.get(name)).peekable();
        values.peek().is_some() && values.all(is_empty)
    }

    /// The chosen and the rejected example of a record, and notes about them. Without a prompt, the prompt is the
    /// common beginning of both conversations.
    pub(crate) fn pair(members: &Map<String, Value>) -> Result<([RecordKind; 2], Vec<Note>), Problem> {
        let members = Members::new(members);
        let forms = RecordKind::read_pair(&members)?;
        Ok((forms, members.finish()?))
    }

    fn read_pair(members: &Members<'_>) -> Result<[RecordKind; 2], Problem> {
        let answer = |name: &'static str| match members.take(name) {
            Some(value) => Ok((name, value)),
            None if members.has(COMPLETION) && members.has(LABEL) => Err((
                format!("`{COMPLETION}` and `{LABEL}` are KTO's layout, which is not supported: there is no `{name}`"),
                PREFERENCE_HINT,
            )),
            None => Err((format!("there is no `{name}`, only {}", names(members.all)), PREFERENCE_HINT)),
        };
        let answers = [answer(CHOSEN)?, answer(REJECTED)?];
        let tools = members.tools()?;
        // As in Intel's pairs: texts, with the user's message in `question`.
        if let (Some(Value::String(question)), false) = (members.all.get("question"), members.has(PROMPT))
            && answers.iter().all(|(_, value)| value.is_string() && !is_list(value))
        {
            let _ = members.take("question");
            members
                .note("`question` is what the user says, `chosen` and `rejected` are the assistant's answers".into());
            let turns = with_system(members, vec![Turn::new(USER, question)])?;
            let prompt: Vec<Value> = turns
                .iter()
                .map(|Turn { message, .. }| json!({ "role": message.role, "content": message.content }))
                .collect();
            return RecordKind::answers(members, &prompt.into(), answers, tools);
        }
        let text = match members.take(PROMPT) {
            Some(Value::String(text)) if !is_list_text(text) && answers.iter().all(|(_, value)| is_list(value)) => {
                Some(text)
            }
            Some(prompt) => return RecordKind::answers(members, prompt, answers, tools),
            None => match members.all.get(MESSAGES).filter(|messages| !messages.is_null() && !has_answer(messages)) {
                Some(prompt) => {
                    let _ = members.take(MESSAGES);
                    return RecordKind::answers(members, prompt, answers, tools);
                }
                None => None,
            },
        };
        if answers.iter().any(|(_, value)| value.is_string() && parsed_list(value).is_none()) {
            return Err((
                format!("`{CHOSEN}` and `{REJECTED}` are strings, but there is no `{PROMPT}`"),
                PREFERENCE_HINT,
            ));
        }
        let [chosen, rejected] = answers.map(|(name, value)| members.turns(name, value));
        let (chosen, rejected) = (chosen?, rejected?);
        if let Some(text) = text.filter(|_| chosen[0].is_assistant()) {
            return RecordKind::answers(members, &json!([{ "role": USER, "content": text }]), answers, tools);
        }
        let first = n_common(&chosen, &rejected);
        if first == 0 && !chosen[0].is_assistant() {
            return Err((
                format!("`{CHOSEN}` and `{REJECTED}` do not begin with the same message, and there is no `{PROMPT}`"),
                "both must answer the same prompt",
            ));
        }
        // If both conversations are equal, the last message is the answer.
        let first = first.min(chosen.len() - 1).min(rejected.len() - 1);
        // As in UltraFeedback: the prompt's text next to conversations that begin with it.
        if let Some(text) = text.filter(|text| chosen[..first].iter().all(|turn| turn.message.content != **text)) {
            let shown: String = text.chars().take(40).collect();
            return Err((
                format!("`{CHOSEN}` and `{REJECTED}` do not begin with the `{PROMPT}` {shown:?}"),
                "beside a text as prompt, they are the answers, or whole conversations that begin with it",
            ));
        }
        let conversation = |turns| RecordKind::Conversation { turns, tools: tools.clone(), first };
        Ok([conversation(chosen), conversation(rejected)])
    }

    /// One prompt with both answers.
    fn answers(
        members: &Members<'_>,
        prompt: &Value,
        answers: [(&str, &Value); 2],
        tools: Option<Value>,
    ) -> Result<[RecordKind; 2], Problem> {
        let [chosen, rejected] = answers;
        Ok([
            RecordKind::answer(members, prompt, chosen, tools.clone())?,
            RecordKind::answer(members, prompt, rejected, tools)?,
        ])
    }

    /// A prompt with an answer: strings, or lists of messages. After a list, the answer may also be one message or its text,
    /// or a whole conversation that begins with the prompt.
    fn answer(
        members: &Members<'_>,
        prompt: &Value,
        (name, value): (&str, &Value),
        tools: Option<Value>,
    ) -> Result<RecordKind, Problem> {
        match (prompt, value) {
            (Value::String(prompt), Value::String(completion)) if !(is_list(value) && is_list_text(prompt)) => {
                if completion.is_empty() {
                    return Err((format!("`{name}` is empty"), "remove the line, or add a text"));
                }
                Ok(RecordKind::Completion { prompt: prompt.clone(), completion: completion.clone() })
            }
            (prompt, answer) if is_list(prompt) => {
                let mut all = members.turns(PROMPT, prompt)?;
                let first = all.len();
                let mut answer = match answer {
                    Value::String(text) if !is_list(answer) => {
                        vec![Turn::new(ASSISTANT, text)]
                    }
                    Value::Object(_) => members.turns(name, &Value::Array(vec![answer.clone()]))?,
                    _ => members.turns(name, answer)?,
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
                Ok(RecordKind::Conversation { turns: all, tools, first })
            }
            _ => Err((format!("`{PROMPT}` and `{name}` are of different kinds"), PAIR_HINT)),
        }
    }
}

/// The number of messages at the beginning that both conversations have in common, ignoring which of them are trained.
fn n_common(left: &[Turn], right: &[Turn]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left.message == right.message).count()
}

/// The conversation with the system message next to it, if there is one.
fn with_system(members: &Members<'_>, mut turns: Vec<Turn>) -> Result<Vec<Turn>, Problem> {
    let is_text =
        |name: &&&str| members.all.get(**name).is_some_and(|value| value.as_str().is_some_and(|text| !text.is_empty()));
    let Some(&name) = SYSTEMS.iter().find(is_text) else { return Ok(turns) };
    let text = members.take(name).and_then(Value::as_str).unwrap_or_default();
    match turns.first().filter(|first| first.message.role == SYSTEM) {
        Some(first) if first.message.content == text => {}
        Some(_) => {
            return Err((
                format!("there is both `{name}` and another message of the role `{SYSTEM}`"),
                "keep one of them",
            ));
        }
        None => turns.insert(0, Turn::new(SYSTEM, text)),
    }
    Ok(turns)
}

/// The error for a record of no known form.
fn no_example(members: &Map<String, Value>) -> Problem {
    let has = |name: &str| members.get(name).is_some_and(|value| !value.is_null());
    if has(CHOSEN) || has(REJECTED) {
        let what = "it is a pair of answers (`chosen` and `rejected`), and these are for DPO";
        return (what.into(), "add `--set objective.kind=dpo`");
    }
    match () {
        () if has(PROMPT) => {
            (format!("there is a `{PROMPT}`, but no `{COMPLETION}`, `response` or `answer`"), EXAMPLE_HINT)
        }
        () if has("instruction") => (
            format!("there is an `instruction`, but no `output` (Alpaca's layout), only {}", names(members)),
            EXAMPLE_HINT,
        ),
        () if has("question") => {
            (format!("there is a `question`, but no `answer`, only {}", names(members)), EXAMPLE_HINT)
        }
        () if has("endings") => (
            "it is a question with `endings` (HellaSwag's layout), to measure models by, and not an example".into(),
            "use it with `hearth-train eval multiple-choice`",
        ),
        () => (format!("there is no example, only {}", names(members)), EXAMPLE_HINT),
    }
}

/// Whether the last of `messages` is an answer.
fn has_answer(messages: &Value) -> bool {
    let parsed = parsed_list(messages);
    let last = parsed.as_ref().or(messages.as_array()).and_then(|list| list.last());
    let role = last.and_then(|message| message.get("role").or(message.get("from")));
    role.is_some_and(|role| role == ASSISTANT || role == "gpt")
}

fn is_list(value: &Value) -> bool {
    value.is_array() || parsed_list(value).is_some_and(|list| is_messages(&list))
}

fn is_messages(list: &[Value]) -> bool {
    !list.is_empty() && list.iter().all(|value| value.get("role").or(value.get("from")).is_some())
}

fn is_list_text(text: &str) -> bool {
    serde_json::from_str::<Vec<Value>>(text).is_ok_and(|list| is_messages(&list))
}
