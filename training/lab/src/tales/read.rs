//! Reads a tale: finds the choices that lead to its text. With it, tests check that each text has exactly one derivation, on
//! which the floor relies.

use super::{
    grammar::{Grammar, Speaker, Symbol},
    walk::{Step, Walk},
};

/// The choices of a tale, in the order of its text. Places with only one option are not choices.
pub(super) type Derivation = Vec<usize>;

/// The messages to read: of a conversation, or a story, which has no speaker.
pub(super) type Messages<'a> = [(Option<Speaker>, &'a str)];

/// All derivations from `start` that lead to `messages`, but at most `limit`.
pub(super) fn read(grammar: &Grammar, start: &Symbol, messages: &Messages<'_>, limit: usize) -> Vec<Derivation> {
    let Some(((speaker, rest), later)) = messages.split_first() else { return Vec::new() };
    let mut reader = Reader { limit, found: Vec::new(), choices: Vec::new() };
    reader.go_on(Walk::new(grammar, start), Place { is_open: speaker.is_none(), speaker: *speaker, rest, later });
    reader.found
}

struct Reader {
    limit: usize,
    found: Vec<Derivation>,
    /// The choices up to here.
    choices: Derivation,
}

/// A place in the text.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Whether the message has begun.
    is_open: bool,
    speaker: Option<Speaker>,
    /// The rest of the message.
    rest: &'a str,
    later: &'a Messages<'a>,
}

impl Reader {
    /// Goes on until the text and the walk differ or end, trying each choice.
    fn go_on(&mut self, mut walk: Walk<'_>, mut place: Place<'_>) {
        loop {
            match walk.step() {
                Step::Text(text) => match place.rest.strip_prefix(&*text) {
                    Some(rest) if place.is_open => place.rest = rest,
                    _ => return,
                },
                Step::Message(speaker) => {
                    if place.is_open {
                        let (true, Some(((next, rest), later))) = (place.rest.is_empty(), place.later.split_first())
                        else {
                            return;
                        };
                        place = Place { is_open: true, speaker: *next, rest, later };
                    }
                    place.is_open = true;
                    if place.speaker != Some(speaker) {
                        return;
                    }
                }
                Step::Choice(options) => {
                    let n_choices = self.choices.len();
                    for (index, option) in options.iter().enumerate() {
                        if self.found.len() >= self.limit || !walk.begins(option, place.rest) {
                            continue;
                        }
                        let mut walk = walk.clone();
                        let text = walk.take(*option).unwrap_or_default();
                        self.choices.push(index);
                        self.go_on(walk, Place { rest: &place.rest[text.len()..], ..place });
                        self.choices.truncate(n_choices);
                    }
                    return;
                }
                Step::End => {
                    if place.rest.is_empty() && place.later.is_empty() {
                        self.found.push(self.choices.clone());
                    }
                    return;
                }
            }
        }
    }
}
