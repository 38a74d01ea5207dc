//! Binds an answer to its grammar. Thoughts before the answer are free, and so are the marks that begin a thought.

use std::{collections::BTreeSet, sync::Arc};

use hearth_model::{Result, TokenId, decode::constraint::Constraint};

use crate::thinking::{AnswerStart, ThinkingStep};

/// Maximum number of tokens of white space between a thought and the answer.
const MAX_BLANKS: usize = 2;

/// The state of an answer that follows a grammar. While a thought is open, there is no state.
#[derive(Debug)]
pub(crate) struct BoundAnswer {
    /// The state in the grammar. `None` if the text so far cannot be an answer.
    answer: Option<Constraint>,
    /// The state in the marks that the text may begin with. `None` if the text does not begin with one, or has passed
    /// it.
    opening: Option<Constraint>,
    blank_ids: Arc<BTreeSet<TokenId>>,
    /// Number of tokens of white space that may still come before the answer.
    n_blanks: usize,
    /// Whether no thought may follow: the answer has text, or must begin.
    has_begun: bool,
}

/// The effect of an added token on the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The answer continues.
    Open,
    /// The answer is complete: nothing may follow.
    Complete,
    /// This is known [later](BoundAnswer::accepted).
    Later,
}

impl BoundAnswer {
    /// At the beginning of the text. `empty` is the grammar without text.
    pub(crate) fn new(empty: &Constraint, start: Option<&AnswerStart>) -> Self {
        let opening = start.and_then(|start| start.opening.as_ref());
        let is_mark_required = opening.is_some_and(|opening| opening.is_required);
        Self {
            answer: (!is_mark_required).then(|| empty.clone()),
            opening: opening.map(|opening| opening.grammar.clone()),
            blank_ids: start.map(|start| Arc::clone(&start.blank_ids)).unwrap_or_default(),
            n_blanks: 0,
            has_begun: start.is_none_or(|start| start.opening.is_none() && start.first_ids.is_empty()),
        }
    }

    /// Whether the next token belongs to the answer, in which no mark opens a thought.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The logits, `[vocab_size]`, with -infinity for all tokens that may not come next. If the answer may end,
    /// `end_ids` are allowed.
    ///
    /// # Errors
    /// As [`Constraint::restrict`].
    pub(crate) fn restrict(&self, logits: &[f32], end_ids: &BTreeSet<TokenId>) -> Result<Vec<f32>> {
        let none = BTreeSet::new();
        let answer = self.answer.as_ref().map(|answer| answer.restrict(logits, end_ids)).transpose()?;
        let opening = self.opening.as_ref().map(|opening| opening.restrict(logits, &none)).transpose()?;
        let mut allowed = match (answer, opening) {
            (Some(allowed), None) | (None, Some(allowed)) => allowed,
            (Some(answer), Some(opening)) => answer.into_iter().zip(opening).map(|(a, b)| a.max(b)).collect(),
            (None, None) => logits.to_vec(),
        };
        for &id in self.blank_ids.iter().filter(|_| self.n_blanks > 0) {
            if let (Some(to), Some(from)) = (allowed.get_mut(id as usize), logits.get(id as usize)) {
                *to = *from;
            }
        }
        Ok(allowed)
    }

    /// Adds an allowed token, with its place if thoughts are known. `empty` is the grammar without text.
    ///
    /// # Errors
    /// As [`Constraint::accept`].
    pub(crate) fn accept(&mut self, id: TokenId, step: Option<ThinkingStep>, empty: &Constraint) -> Result<Bound> {
        match step {
            Some(step) if step.is_open => (self.answer, self.opening) = (None, None),
            Some(step) if step.was_open => {
                (self.answer, self.opening, self.n_blanks) = (Some(empty.clone()), None, MAX_BLANKS);
                self.has_begun = false;
            }
            Some(step) if step.is_forced => {}
            _ if self.n_blanks > 0 && self.blank_ids.contains(&id) => self.n_blanks -= 1,
            _ => return self.accept_text(id, empty),
        }
        Ok(Bound::Open)
    }

    fn accept_text(&mut self, id: TokenId, empty: &Constraint) -> Result<Bound> {
        self.n_blanks = 0;
        let Some(opening) = &mut self.opening else {
            let Some(answer) = &mut self.answer else { return Ok(Bound::Open) };
            self.has_begun = true;
            if answer.is_slow() {
                answer.accept_elsewhere(id);
                return Ok(Bound::Later);
            }
            return Ok(if answer.accept(id)? { Bound::Complete } else { Bound::Open });
        };
        if opening.allows(id) {
            if opening.accept(id)? {
                // The mark is whole, and the answer begins.
                (self.answer, self.opening) = (Some(empty.clone()), None);
                return Ok(Bound::Open);
            }
        } else {
            self.opening = None;
        }
        let is_answer = self.answer.as_ref().is_some_and(|answer| answer.allows(id));
        let Some(answer) = self.answer.as_mut().filter(|_| is_answer) else {
            self.answer = None;
            return Ok(Bound::Open);
        };
        self.has_begun = self.opening.is_none();
        Ok(if answer.accept(id)? { Bound::Complete } else { Bound::Open })
    }

    /// Whether the last tokens were so slow that the next one is accepted on another thread.
    pub(crate) fn is_slow(&self) -> bool {
        self.answer.as_ref().is_some_and(Constraint::is_slow)
    }

    /// Starts computing the allowed next tokens on another thread.
    pub(crate) fn prepare(&self) {
        self.answer.iter().chain(&self.opening).for_each(Constraint::prepare);
    }

    /// The result of a token whose effect is known [later](Bound::Later): whether the answer is complete. Returned
    /// once, when it is ready.
    pub(crate) fn accepted(&mut self) -> Option<Result<bool>> {
        self.answer.as_mut()?.accepted()
    }
}
