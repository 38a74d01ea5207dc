//! The tale that choices lead to.

use anyhow::{Context, Result, bail};

use super::{
    grammar::{Grammar, Speaker, Symbol},
    walk::{Bound, Choice, Key, Step, Walk},
};

/// Who chooses.
pub(super) trait Chooser {
    /// The index of one of `choices`, which has at least two.
    fn choose(&mut self, choices: &[Choice<'_>]) -> usize;
}

/// The end of a walk.
#[derive(Clone, Debug)]
pub(super) struct Derivation<'g> {
    /// The messages of a conversation. A story is one message without a speaker.
    pub(super) messages: Vec<DerivedMessage>,
    pub(super) labels: Vec<(&'g str, &'g str)>,
    pub(super) keys: Vec<Key>,
    pub(super) bound: Vec<Bound>,
}

/// A message, and its information.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DerivedMessage {
    pub(super) speaker: Option<Speaker>,
    pub(super) text: String,
    /// The information of its choices in nats: the negative logarithm of their probability.
    pub(super) nats: f64,
}

/// Walks from `start` to the end.
///
/// # Errors
/// The grammar has a dead end.
pub(super) fn tell<'g>(grammar: &'g Grammar, start: &'g Symbol, chooser: &mut dyn Chooser) -> Result<Derivation<'g>> {
    let mut walk = Walk::new(grammar, start);
    let mut messages = Vec::new();
    let mut said = DerivedMessage { speaker: None, text: String::new(), nats: 0.0 };
    loop {
        match walk.step() {
            Step::Text(text) => said.text += &text,
            Step::Message(speaker) => {
                let next = DerivedMessage { speaker: Some(speaker), text: String::new(), nats: 0.0 };
                if said.speaker.is_none() {
                    // Choices before the first message, such as the subject of a conversation, count to that message.
                    said.speaker = next.speaker;
                } else {
                    messages.push(std::mem::replace(&mut said, next));
                }
            }
            Step::Choice(options) => {
                if options.is_empty() {
                    bail!("nothing fits after `{}`", said.text);
                }
                let choice = chooser.choose(&options);
                let option = *options.get(choice).with_context(|| format!("there is no choice {choice}"))?;
                said.nats += nats(option, &options);
                said.text.extend(walk.take(option));
            }
            Step::End => break,
        }
    }
    messages.push(said);
    let bound = walk.bound().to_vec();
    Ok(Derivation { messages, labels: walk.labels, keys: walk.keys, bound })
}

/// The information of choosing `option` among `options`.
fn nats(option: Choice<'_>, options: &[Choice<'_>]) -> f64 {
    let total: u64 = options.iter().map(|option| option.weight).sum();
    (total as f64 / option.weight as f64).ln()
}
