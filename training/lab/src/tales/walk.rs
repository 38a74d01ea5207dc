//! The walk over a grammar that makes a tale, one choice after the other.
//!
//! The walk does not know who chooses: [`draw`](super::draw) lets a random generator choose, and in tests `read` the text of a
//! tale. So a tale is read by the very rules that made it.

use std::borrow::Cow;

use super::grammar::{Condition, Constraint, Grammar, Slot, Speaker, Symbol};

/// A walk in progress.
#[derive(Clone, Debug)]
pub(super) struct Walk<'g> {
    grammar: &'g Grammar,
    /// The remaining symbols of each open phrasing, the innermost last.
    open: Vec<&'g [Symbol]>,
    /// The entries bound to the roles.
    bound: Vec<Bound>,
    /// The constraints on the roles' features so far.
    known: Vec<(usize, Constraint)>,
    /// Labels of the tale.
    pub(super) labels: Vec<(&'g str, &'g str)>,
    /// Texts that an answer must have to be right.
    pub(super) keys: Vec<Key>,
    /// The number of messages that have begun.
    pub(super) n_messages: usize,
}

/// An entry that a role keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) role: usize,
    pub(super) list: usize,
    pub(super) entry: usize,
    /// The number of messages that had begun when it was chosen.
    pub(super) message: usize,
}

/// A text that an answer must have to be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) list: usize,
    pub(super) entry: usize,
    pub(super) column: usize,
    /// Whether the role had it before the answer, as it should.
    pub(super) was_bound: bool,
}

/// The next step of a tale.
#[derive(Debug)]
pub(super) enum Step<'g> {
    Text(Cow<'g, str>),
    Message(Speaker),
    /// One of the options must be taken with [`Walk::take`]. There are at least two, or none at a dead end of the
    /// grammar.
    Choice(Vec<Choice<'g>>),
    End,
}

/// A possible continuation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'g> {
    pub(super) weight: u64,
    way: ChoiceKind<'g>,
}

#[derive(Clone, Copy, Debug)]
enum ChoiceKind<'g> {
    Phrasing { conditions: &'g [Condition], symbols: &'g [Symbol] },
    Word { slot: Slot, entry: usize },
}

impl<'g> Walk<'g> {
    /// A walk that begins with the rule `start`.
    pub(super) fn new(grammar: &'g Grammar, start: &'g Symbol) -> Walk<'g> {
        Walk {
            grammar,
            open: vec![std::slice::from_ref(start)],
            bound: Vec::new(),
            known: Vec::new(),
            labels: Vec::new(),
            keys: Vec::new(),
            n_messages: 0,
        }
    }

    /// The entries bound to the roles so far.
    pub(super) fn bound(&self) -> &[Bound] {
        &self.bound
    }

    /// Goes on to the next text, message or choice.
    pub(super) fn step(&mut self) -> Step<'g> {
        loop {
            let Some(rest) = self.open.last_mut() else { return Step::End };
            let Some((symbol, after)) = rest.split_first() else {
                self.open.pop();
                continue;
            };
            *rest = after;
            let choices = match symbol {
                Symbol::Text(text) => return Step::Text(text.as_str().into()),
                Symbol::Message(speaker) => {
                    self.n_messages += 1;
                    return Step::Message(*speaker);
                }
                Symbol::Label { key, value } => {
                    self.labels.push((key, value));
                    continue;
                }
                Symbol::Rule(rule) => self.phrasings(*rule),
                Symbol::Slot(slot) => match self.entry_of(slot) {
                    Some(entry) => return Step::Text(self.word(*slot, entry)),
                    None => self.words(*slot),
                },
            };
            let [only] = choices[..] else { return Step::Choice(choices) };
            if let Some(text) = self.take(only) {
                return Step::Text(text);
            }
        }
    }

    /// Takes a choice; returns the text of a word.
    pub(super) fn take(&mut self, choice: Choice<'g>) -> Option<Cow<'g, str>> {
        match choice.way {
            ChoiceKind::Phrasing { conditions, symbols } => {
                conditions.iter().for_each(|condition| self.learn(condition.role, condition.constraint));
                self.open.push(symbols);
                None
            }
            ChoiceKind::Word { slot, entry } => {
                let text = self.word(slot, entry);
                if let Some(role) = slot.role {
                    let list = &self.grammar.lists[slot.list];
                    list.entries[entry]
                        .constraints
                        .iter()
                        .for_each(|constraint| self.learn(self.grammar.roles[role].1, *constraint));
                    self.bound.push(Bound { role, list: slot.list, entry, message: self.n_messages });
                }
                Some(text)
            }
        }
    }

    /// Whether `text` can continue with this choice, as far as the choice itself shows.
    #[cfg(test)]
    pub(super) fn begins(&self, choice: &Choice<'g>, text: &str) -> bool {
        match choice.way {
            ChoiceKind::Word { slot, entry } => {
                text.starts_with(&*slot.text(&self.grammar.lists[slot.list].entries[entry]))
            }
            ChoiceKind::Phrasing { symbols: [Symbol::Text(first), ..], .. } => text.starts_with(first.as_str()),
            ChoiceKind::Phrasing { .. } => true,
        }
    }

    fn word(&mut self, slot: Slot, entry: usize) -> Cow<'g, str> {
        if slot.is_key {
            let was_bound = self.entry_of(&slot).is_some();
            self.keys.push(Key { list: slot.list, entry, column: slot.column, was_bound });
        }
        slot.text(&self.grammar.lists[slot.list].entries[entry])
    }

    fn entry_of(&self, slot: &Slot) -> Option<usize> {
        let role = slot.role?;
        let found = self.bound.iter().find(|bound| (bound.role, bound.list) == (role, slot.list));
        found.map(|bound| bound.entry)
    }

    fn phrasings(&self, rule: usize) -> Vec<Choice<'g>> {
        let alternatives = self.grammar.rules[rule].alternatives.iter();
        let possible = alternatives.filter(|alternative| {
            alternative.conditions.iter().all(|condition| self.agrees(condition.role, condition.constraint))
        });
        let choice = |conditions, symbols| ChoiceKind::Phrasing { conditions, symbols };
        possible
            .map(|alternative| Choice {
                weight: alternative.weight,
                way: choice(&alternative.conditions[..], &alternative.symbols[..]),
            })
            .collect()
    }

    fn words(&self, slot: Slot) -> Vec<Choice<'g>> {
        let list = &self.grammar.lists[slot.list];
        let is_free = |entry: usize| {
            let taken = |bound: &Bound| bound.list == slot.list && bound.entry == entry;
            list.repeats || slot.role.is_none() || !self.bound.iter().any(taken)
        };
        let fits = |entry: usize| {
            let constraints = &list.entries[entry].constraints;
            let agrees =
                |role: usize| constraints.iter().all(|constraint| self.agrees(self.grammar.roles[role].1, *constraint));
            slot.role.is_none_or(agrees)
        };
        let entries = (0..list.entries.len()).filter(|&entry| is_free(entry) && fits(entry));
        entries.map(|entry| Choice { weight: 1, way: ChoiceKind::Word { slot, entry } }).collect()
    }

    fn agrees(&self, role: usize, constraint: Constraint) -> bool {
        let of_feature =
            |(known_role, known): &&(usize, Constraint)| (*known_role, known.feature) == (role, constraint.feature);
        self.known.iter().find(of_feature).is_none_or(|(_, known)| known.values & constraint.values != 0)
    }

    fn learn(&mut self, role: usize, constraint: Constraint) {
        let of_feature =
            |(known_role, known): &&mut (usize, Constraint)| (*known_role, known.feature) == (role, constraint.feature);
        match self.known.iter_mut().find(of_feature) {
            Some((_, known)) => known.values &= constraint.values,
            None => self.known.push((role, constraint)),
        }
    }
}
