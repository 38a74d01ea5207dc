//! Grammars that apply only to parts of a text, such as its tool calls.
//!
//! A [`Watch`] sleeps: it follows the text without restricting it. From the byte that completes a [`Mark`], the text is
//! restricted to the mark's grammar; when the grammar's text is complete, the watch sleeps again, or the whole text
//! ends. While it sleeps, it forbids only tokens that would complete a mark and continue with something that the
//! grammar does not allow. They are few and known in advance, so a sleeping watch computes no mask. In a part in which
//! marks do not count, such as a thought, it is silent.

mod pattern;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

pub use self::pattern::Mark;
use self::pattern::Progress;
use super::{Constraint, vocabulary::Vocabulary};
use crate::{TokenId, error::Result};

/// What happens when the text of a grammar is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterGrammar {
    /// The watch sleeps until the next mark.
    Sleep,
    /// Nothing may follow.
    End,
}

/// When the grammar of a [`Watch`] holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRules {
    /// After any of these the grammar holds.
    pub marks: Vec<Mark>,
    /// What follows the grammar's text.
    pub after: AfterGrammar,
    /// Whether special tokens are part of the text. Otherwise they are passed over.
    pub shows_special: bool,
}

/// The restrictions on the token after a sleeping or an awake watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The grammar applies: any token may be forbidden.
    Bound,
    /// Only these tokens are forbidden.
    Free(Arc<BTreeSet<TokenId>>),
}

/// A text in which some parts follow a grammar. A clone is independent.
#[derive(Clone, Debug)]
pub struct Watch {
    rules: Arc<Compiled>,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// How far the text has come in each mark.
    Asleep(Vec<Progress>),
    /// Marks do not count.
    Silent,
    /// The grammar holds.
    Bound(Constraint),
    /// The text is complete.
    Ended,
}

#[derive(Debug)]
struct Compiled {
    rules: WatchRules,
    vocabulary: Arc<Vocabulary>,
    grammar: Constraint,
    /// The grammar after each mark.
    starts: Vec<OnceLock<Constraint>>,
    /// The tokens that are forbidden because of a mark, by its index and the progress in it.
    forbidden: Mutex<Forbidden>,
}

type Forbidden = HashMap<(usize, Progress), Arc<BTreeSet<TokenId>>>;

impl WatchRules {
    /// At the start of a text.
    fn start(&self) -> Vec<Progress> {
        self.marks.iter().map(Mark::start).collect()
    }

    /// Reads a byte. Returns the index of the mark that it completes.
    fn step(&self, progress: &mut [Progress], byte: u8) -> Option<usize> {
        let mut completed = None;
        for (index, (mark, progress)) in self.marks.iter().zip(progress).enumerate() {
            if mark.step(progress, byte) && completed.is_none() {
                completed = Some(index);
            }
        }
        completed
    }
}

impl Compiled {
    /// The grammar's state after a mark. `None` if the grammar does not begin with the mark's text, which is then not a
    /// mark.
    fn start(&self, index: usize) -> Option<Constraint> {
        let mark = self.rules.marks.get(index)?;
        if mark.read.is_empty() {
            return Some(self.grammar.clone());
        }
        if !self.grammar.fits(&mark.read) {
            return None;
        }
        let start = self.starts.get(index)?.get_or_init(|| {
            let mut start = self.grammar.clone();
            // If this fails, the error recurs and is reported when the grammar is used.
            let _ = start.accept_bytes(&mark.read);
            start
        });
        Some(start.clone())
    }

    /// Reads bytes in sleep. Returns the state of the grammar and the index of the byte after a mark that they complete,
    /// if the bytes from there are allowed.
    fn read(&self, progress: &mut [Progress], bytes: &[u8]) -> Option<(Constraint, usize)> {
        for (end, &byte) in (1..).zip(bytes) {
            let Some(index) = self.rules.step(progress, byte) else { continue };
            let rest = bytes.get(end..).unwrap_or_default();
            if let Some(start) = self.start(index).filter(|start| rest.is_empty() || start.fits(rest)) {
                return Some((start, end));
            }
        }
        None
    }

    fn bytes(&self, id: TokenId) -> &[u8] {
        self.vocabulary.bytes(id, self.rules.shows_special)
    }

    /// The tokens that may not come next.
    fn forbidden(&self, progress: &[Progress]) -> Arc<BTreeSet<TokenId>> {
        let of_marks = self.rules.marks.iter().zip(progress).enumerate();
        let mut sets = of_marks
            .map(|(index, (mark, progress))| self.forbidden_by(index, mark, progress))
            .filter(|set| !set.is_empty());
        let Some(first) = sets.next() else { return Arc::default() };
        sets.fold(first, |all, more| Arc::new(all.union(&more).copied().collect()))
    }

    /// The tokens that would complete a mark and continue with something that the grammar does not allow.
    fn forbidden_by(&self, index: usize, mark: &Mark, progress: &Progress) -> Arc<BTreeSet<TokenId>> {
        if Mark::is_missed(progress) {
            return Arc::default();
        }
        let key = (index, progress.clone());
        let lock = || self.forbidden.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Arc::clone(known);
        }
        let step = |progress: &mut Progress, byte: u8| {
            let is_complete = mark.step(progress, byte);
            (!Mark::is_missed(progress)).then_some(is_complete)
        };
        let compute = || self.vocabulary.endings(progress, &step);
        let endings = match (mark.literal(), progress) {
            (Some(literal), &Progress::Bytes(n)) => self.vocabulary.endings_of_literal(literal, n, compute),
            _ => Arc::new(compute()),
        };
        let mut forbidden: BTreeSet<TokenId> = BTreeSet::new();
        if !endings.is_empty()
            && let Some(start) = self.start(index)
        {
            let unfit = endings.iter().filter(|(_, rest)| !start.fits(rest));
            forbidden.extend(unfit.map(|&(id, _)| id));
        }
        let forbidden = Arc::new(forbidden);
        lock().insert(key, Arc::clone(&forbidden));
        forbidden
    }
}

impl Watch {
    /// A text that follows a grammar, compiled by a [compiler](super::GrammarCompiler), in the parts that `rules`
    /// define.
    pub fn new(grammar: Constraint, rules: WatchRules) -> Self {
        let starts = rules.marks.iter().map(|_| OnceLock::new()).collect();
        let start = rules.start();
        let vocabulary = Arc::clone(grammar.vocabulary());
        let compiled = Compiled { rules, vocabulary, grammar, starts, forbidden: Mutex::default() };
        // So that the first step does not wait for it.
        compiled.forbidden(&start);
        Self { rules: Arc::new(compiled), state: State::Asleep(start) }
    }

    /// A part begins in which marks do not count. It does not begin while the grammar holds.
    pub fn silence(&mut self) {
        if let State::Asleep(_) = self.state {
            self.state = State::Silent;
        }
    }

    /// A part in which marks did not count has ended, and `text` has followed it, as at the start of a text. Returns
    /// whether the text is complete.
    ///
    /// # Errors
    /// As [`Constraint::accept`].
    pub fn wake(&mut self, text: &str) -> Result<bool> {
        if let State::Silent = self.state {
            self.state = State::Asleep(self.rules.rules.start());
            return self.accept_bytes(text.as_bytes());
        }
        Ok(false)
    }

    /// The parameter that requests the grammar.
    pub fn param(&self) -> &'static str {
        self.rules.grammar.param()
    }

    /// Whether the grammar holds for the next token.
    pub fn is_bound(&self) -> bool {
        matches!(self.state, State::Bound(_))
    }

    /// The restriction of the next token.
    pub fn outlook(&self) -> Outlook {
        match &self.state {
            State::Asleep(progress) => Outlook::Free(self.rules.forbidden(progress)),
            State::Silent => Outlook::Free(Arc::default()),
            State::Bound(_) | State::Ended => Outlook::Bound,
        }
    }

    /// As [`Constraint::is_slow`].
    pub fn is_slow(&self) -> bool {
        matches!(&self.state, State::Bound(constraint) if constraint.is_slow())
    }

    /// As [`Constraint::prepare`].
    pub fn prepare(&self) {
        if let State::Bound(constraint) = &self.state {
            constraint.prepare();
        }
    }

    /// As [`Constraint::restrict`], if the grammar applies; otherwise the logits with -infinity for the
    /// [forbidden](Outlook::Free) tokens.
    ///
    /// # Errors
    /// As [`Constraint::restrict`].
    pub fn restrict(&self, logits: &[f32], end_ids: &BTreeSet<TokenId>) -> Result<Vec<f32>> {
        match (&self.state, self.outlook()) {
            (State::Bound(constraint), _) => constraint.restrict(logits, end_ids),
            (_, Outlook::Free(forbidden)) => {
                let mut allowed = logits.to_vec();
                for &id in forbidden.iter() {
                    if let Some(logit) = allowed.get_mut(id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                Ok(allowed)
            }
            _ => Ok(logits.to_vec()),
        }
    }

    /// Adds a token. Returns whether the text is complete, so that nothing may follow.
    ///
    /// # Errors
    /// As [`Constraint::accept`].
    pub fn accept(&mut self, id: TokenId) -> Result<bool> {
        match &mut self.state {
            State::Bound(constraint) => {
                let is_complete = constraint.accept(id)?;
                Ok(self.after(is_complete))
            }
            State::Asleep(_) => {
                let rules = Arc::clone(&self.rules);
                self.accept_bytes(rules.bytes(id))
            }
            State::Silent => Ok(false),
            State::Ended => Ok(true),
        }
    }

    /// Adds text in sleep.
    fn accept_bytes(&mut self, bytes: &[u8]) -> Result<bool> {
        let State::Asleep(progress) = &mut self.state else { return Ok(false) };
        let Some((mut constraint, end)) = self.rules.read(progress, bytes) else { return Ok(false) };
        let rest = bytes.get(end..).unwrap_or_default();
        let is_complete = !rest.is_empty() && constraint.accept_bytes(rest)?;
        self.state = State::Bound(constraint);
        Ok(self.after(is_complete))
    }

    /// As [`Constraint::accept_elsewhere`]. Only if [`is_slow`](Self::is_slow).
    pub fn accept_elsewhere(&mut self, id: TokenId) {
        if let State::Bound(constraint) = &mut self.state {
            constraint.accept_elsewhere(id);
        }
    }

    /// As [`Constraint::accepted`].
    pub fn accepted(&mut self) -> Option<Result<bool>> {
        let State::Bound(constraint) = &mut self.state else { return None };
        let accepted = constraint.accepted()?;
        Some(accepted.map(|is_complete| self.after(is_complete)))
    }

    /// The state after a token. Returns whether the text is complete.
    fn after(&mut self, is_complete: bool) -> bool {
        if !is_complete {
            return false;
        }
        let rules = &self.rules.rules;
        let is_over = rules.after == AfterGrammar::End;
        self.state = if is_over { State::Ended } else { State::Asleep(rules.start()) };
        is_over
    }
}

#[cfg(test)]
mod tests;
