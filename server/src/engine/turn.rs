//! What the logits of a step lead to in each request. Requests do not see each other here, so their turns are taken on
//! all threads at once: a vocabulary is looked through for every row, which on one thread would take as long as a small
//! model's step.

use std::collections::BTreeMap;

use hearth_model::{Result, TokenId, ops, sampling::LogitRow};

use super::{
    beams::BeamProgress,
    generation::Generation,
    scheduler::{RequestId, SequenceId},
    sequence::{Progress, Sequence},
};
use crate::metrics::EngineMetrics;

/// Logits below which waking other threads takes longer than looking through them: what a GPU has picked out, or a
/// vocabulary of characters.
const SHARED_FROM: usize = 1 << 15;

/// A row of a step whose logits somebody wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedRow {
    /// Its place in the step.
    pub(crate) row: usize,
    pub(crate) id: SequenceId,
    /// Its place in its sequence.
    pub(crate) position: usize,
    /// Its token was guessed.
    pub(crate) is_guess: bool,
}

/// A request's turn: its rows, one after the other.
#[derive(Debug)]
struct Turn<'a> {
    id: RequestId,
    generation: &'a mut Generation,
    rows: Vec<(WantedRow, LogitRow<'a>)>,
    outcomes: Vec<Outcome>,
}

/// What one row led to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// It was a guess, which came true.
    pub(crate) is_guess: bool,
    pub(crate) progress: RowProgress,
}

/// What became of a request by one row.
#[derive(Debug)]
pub(crate) enum RowProgress {
    /// Of a sequence, and of those that fork from it here, by the same row.
    Sequence {
        /// Its own.
        own: Result<Progress>,
        /// Theirs.
        forks: Vec<(Sequence, Result<Progress>)>,
    },
    /// Of a beam search.
    Beams(Result<BeamProgress>),
}

/// Hands each row's logits to its request, and gives what that led to, by request in the order of their first rows.
/// `token_ids` are those of all rows of the step.
pub(crate) fn take_turns<'a>(
    generations: &'a mut BTreeMap<RequestId, Generation>,
    rows: impl Iterator<Item = (WantedRow, LogitRow<'a>)>,
    token_ids: &[TokenId],
    metrics: &EngineMetrics,
) -> Vec<(RequestId, Vec<Outcome>)> {
    let mut rows_of: BTreeMap<RequestId, Vec<(WantedRow, LogitRow<'a>)>> = BTreeMap::new();
    for (wanted, logits) in rows {
        rows_of.entry(wanted.id.request).or_default().push((wanted, logits));
    }
    let mut turns: Vec<Turn<'a>> = generations
        .iter_mut()
        .filter_map(|(&id, generation)| {
            let rows = rows_of.remove(&id)?;
            Some(Turn { id, generation, rows, outcomes: Vec::new() })
        })
        .collect();
    turns.sort_by_key(|turn| turn.rows.first().map(|(wanted, _)| wanted.row));
    let take = |turn: &mut Turn<'a>| turn.take(token_ids, metrics);
    let n_logits: usize = turns.iter().flat_map(|turn| &turn.rows).map(|(_, logits)| logits.n_logits()).sum();
    if n_logits < SHARED_FROM {
        turns.iter_mut().for_each(take)
    } else {
        ops::share_items(&mut turns, take)
    }
    turns.into_iter().map(|turn| (turn.id, turn.outcomes)).collect()
}

impl Turn<'_> {
    fn take(&mut self, token_ids: &[TokenId], metrics: &EngineMetrics) {
        for (wanted, logits) in &self.rows {
            // A row of another token than its sequence has there is not what was drawn, or behind such a one: a guess
            // that was wrong.
            let known = self.generation.token_ids(wanted.id.branch).get(wanted.position);
            if known.is_none() || known != token_ids.get(wanted.row).copied() {
                continue;
            }
            let progress = match self.generation {
                Generation::Sequence(sequence) => {
                    let mut forks: Vec<(Sequence, Result<Progress>)> = Vec::new();
                    let taken = sequence.take_forks(wanted.position);
                    let own = advance(sequence, wanted.position, logits, metrics);
                    for mut fork in taken {
                        let progress = advance(&mut fork, wanted.position, logits, metrics);
                        forks.push((fork, progress));
                    }
                    RowProgress::Sequence { own, forks }
                }
                Generation::Beams(beams) => {
                    beams.timeline.has_logits();
                    RowProgress::Beams(beams.advance(wanted.id.branch, logits))
                }
                Generation::Embedding(_) => continue,
            };
            let goes_on = progress.goes_on();
            self.outcomes.push(Outcome { is_guess: wanted.is_guess, progress });
            if !goes_on {
                return;
            }
        }
    }
}

impl RowProgress {
    /// Whether the request can take further rows: it has not ended, and nothing is to be found out first.
    fn goes_on(&self) -> bool {
        match self {
            Self::Sequence { own, .. } => matches!(own, Ok(Progress::PromptRow | Progress::Token(_))),
            Self::Beams(progress) => matches!(progress, Ok(BeamProgress::Waits | BeamProgress::Goes(_))),
        }
    }
}

fn advance(
    sequence: &mut Sequence,
    position: usize,
    logits: &LogitRow<'_>,
    metrics: &EngineMetrics,
) -> Result<Progress> {
    let n_before = sequence.n_completion();
    sequence.timeline.has_logits();
    let progress = sequence.advance(position, logits);
    if sequence.n_completion() > n_before {
        metrics.token(&mut sequence.timeline);
    }
    progress
}
