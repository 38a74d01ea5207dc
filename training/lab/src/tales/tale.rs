//! A tale as it is written to a file.

use serde_json::{Map, Value, json};

use super::{
    derivation::Derivation,
    grammar::{Grammar, Speaker},
};

/// A story or a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Tale {
    /// The messages. A story is one message without a speaker.
    pub messages: Vec<Message>,
    /// The expected properties of the last message.
    pub expected: Expected,
}

/// A message of a conversation, or a story.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks; `None`: it is a story.
    pub speaker: Option<Speaker>,
    /// The text.
    pub content: String,
    /// The message's information in nats: the negative logarithm of its probability, given the messages before it.
    pub nats: f64,
}

/// The expected properties of the last message of a tale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The task of the message.
    pub task: Task,
    /// The plot: the requested plot of a conversation, if any, or the story's own.
    pub plot: Option<String>,
    /// The elements that a story was asked to have: list and word.
    pub elements: Vec<(String, String)>,
    /// The texts that a right answer contains.
    pub answer: Vec<String>,
}

/// The task of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// A story.
    #[default]
    Story,
    /// The answer to a question about a story.
    Question,
    /// Something else.
    Talk,
}

impl Tale {
    pub(super) fn new(grammar: &Grammar, told: Derivation<'_>) -> Tale {
        let label = |wanted: &str| told.labels.iter().find(|(key, _)| *key == wanted).map(|&(_, value)| value);
        let task = label("task").and_then(Task::named).unwrap_or_default();
        let is_conversation = told.messages.first().is_some_and(|said| said.speaker.is_some());
        let word = |list: usize, entry: usize| grammar.lists[list].entries[entry].forms[0].clone();
        // Entries that were chosen before the last message began: the request has asked for them.
        let asked = told.bound.iter().filter(|bound| is_conversation && bound.message < told.messages.len());
        let elements = asked.map(|bound| (grammar.lists[bound.list].columns[0].clone(), word(bound.list, bound.entry)));
        let keys = told.keys.iter().map(|key| grammar.lists[key.list].entries[key.entry].forms[key.column].clone());
        let musts = told.labels.iter().filter(|(key, _)| *key == "must").map(|&(_, value)| value.to_owned());
        let expected = Expected {
            task,
            plot: label(if is_conversation { "asked" } else { "plot" }).map(str::to_owned),
            elements: if task == Task::Story { elements.collect() } else { Vec::new() },
            answer: if task == Task::Story { Vec::new() } else { keys.chain(musts).collect() },
        };
        let messages = told.messages.into_iter();
        let messages =
            messages.map(|said| Message { speaker: said.speaker, content: said.text, nats: said.nats }).collect();
        Tale { messages, expected }
    }

    /// Whether it is a conversation, not a story.
    pub fn is_conversation(&self) -> bool {
        self.messages.first().is_some_and(|message| message.speaker.is_some())
    }

    /// Its information in nats.
    pub fn nats(&self) -> f64 {
        self.messages.iter().map(|message| message.nats).sum()
    }

    /// Its line in a file: `text`, or `messages` and `expected`.
    pub fn json(&self) -> Value {
        match self.messages.as_slice() {
            [Message { speaker: None, content, .. }] => json!({ "text": content }),
            messages => json!({
                "messages": messages.iter().map(Message::json).collect::<Vec<_>>(),
                "expected": self.expected.json(),
            }),
        }
    }
}

impl Message {
    /// The message as clients of chat models write it.
    pub fn json(&self) -> Value {
        let role = self.speaker.map_or("", Speaker::role);
        json!({ "role": role, "content": self.content })
    }
}

impl Speaker {
    /// The name of the role in a conversation.
    pub fn role(self) -> &'static str {
        match self {
            Speaker::User => "user",
            Speaker::Assistant => "assistant",
        }
    }
}

impl Expected {
    /// As JSON, without empty members.
    pub fn json(&self) -> Value {
        let mut json = Map::new();
        json.insert("task".into(), self.task.name().into());
        if let Some(plot) = &self.plot {
            json.insert("plot".into(), plot.as_str().into());
        }
        if !self.elements.is_empty() {
            let elements = self.elements.iter().map(|(list, word)| json!([list, word]));
            json.insert("elements".into(), elements.collect());
        }
        if !self.answer.is_empty() {
            json.insert("answer".into(), self.answer.clone().into());
        }
        Value::Object(json)
    }
}

impl Task {
    const ALL: [Task; 3] = [Task::Story, Task::Question, Task::Talk];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Task::Story => "story",
            Task::Question => "question",
            Task::Talk => "talk",
        }
    }

    /// The task of a name.
    pub fn named(name: &str) -> Option<Task> {
        Task::ALL.into_iter().find(|task| task.name() == name)
    }
}
