//! Texts to judge, as stored in a file.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::super::tale::{Expected, Task};

/// A text to be judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The messages before it.
    pub before: Vec<String>,
    /// The text: a story, or the last message of a conversation.
    pub text: String,
    /// The expected properties.
    pub expected: Expected,
}

impl Judged {
    /// Reads a line of a file: an object with `text`, or with `messages` of which the last one is the assistant's, and
    /// `expected`.
    ///
    /// # Errors
    /// The line has neither, or is not of the form that `hearth-lab tales` writes.
    pub fn parse(line: &str) -> Result<Judged> {
        let json: Value = serde_json::from_str(line).map_err(|error| {
            let what = error.to_string().replace(" at line 1 column ", " at column ");
            anyhow!("{what}\nhint: each line must be a JSON object with `text` or `messages`")
        })?;
        let expected = match &json["expected"] {
            Value::Null => Expected::default(),
            expected => Expected::parse(expected)?,
        };
        if let Some(text) = json["text"].as_str() {
            return Ok(Judged { before: Vec::new(), text: text.to_owned(), expected });
        }
        let messages = json["messages"].as_array().context("there is neither `text` nor `messages`")?;
        let Some((last, before)) = messages.split_last() else { bail!("`messages` is empty") };
        if last["role"] != "assistant" {
            bail!("the last message is not the assistant's\nhint: append what the model answered to `messages`");
        }
        let content =
            |message: &Value| message["content"].as_str().map(str::to_owned).context("a message has no `content`");
        let before = before.iter().map(content).collect::<Result<_>>()?;
        Ok(Judged { before, text: content(last)?, expected })
    }
}

impl Expected {
    /// Reads the format that [`json`](Self::json) writes.
    fn parse(json: &Value) -> Result<Expected> {
        let task = json["task"].as_str().and_then(Task::named).context("`expected` has no known `task`")?;
        let plot = json["plot"].as_str().map(str::to_owned);
        let strings = |value: &Value| -> Result<Vec<String>> {
            let text =
                |value: &Value| value.as_str().map(str::to_owned).context("`expected` has something else than text");
            value.as_array().into_iter().flatten().map(text).collect()
        };
        let mut elements = Vec::new();
        for element in json["elements"].as_array().into_iter().flatten() {
            let [list, word] = &strings(element)?[..] else { bail!("an element of `expected` is not a pair") };
            elements.push((list.clone(), word.clone()));
        }
        Ok(Expected { task, plot, elements, answer: strings(&json["answer"])? })
    }
}
