//! What the worker keeps per request: one sequence, or a beam search with several.

use std::time::Instant;

use hearth_model::TokenId;

use super::{
    Event,
    beams::Beams,
    request::GenerateRequest,
    scheduler::{Arrival, Chunk},
    sequence::Sequence,
};
use crate::metrics::Timeline;

/// A request on its way through the engine.
#[derive(Debug)]
pub(crate) enum Generation {
    /// Token by token.
    Sequence(Box<Sequence>),
    /// Several partial answers at once.
    Beams(Box<Beams>),
}

impl Generation {
    pub(crate) fn request(&self) -> &GenerateRequest {
        match self {
            Self::Sequence(sequence) => sequence.request(),
            Self::Beams(beams) => beams.request(),
        }
    }

    /// How it asks to be scheduled; once.
    pub(crate) fn arrival(&mut self) -> Arrival {
        match self {
            Self::Sequence(sequence) => sequence.arrival(),
            Self::Beams(beams) => beams.arrival(),
        }
    }

    pub(crate) fn token_ids(&self, branch: usize) -> &[TokenId] {
        match self {
            Self::Sequence(sequence) => sequence.token_ids(),
            Self::Beams(beams) => beams.token_ids(branch),
        }
    }

    /// The known tokens that a chunk computes.
    pub(crate) fn chunk(&self, chunk: &Chunk) -> &[TokenId] {
        self.token_ids(chunk.id.branch).get(chunk.start..chunk.known_end()).unwrap_or_default()
    }

    pub(crate) fn timeline(&mut self) -> &mut Timeline {
        match self {
            Self::Sequence(sequence) => &mut sequence.timeline,
            Self::Beams(beams) => &mut beams.timeline,
        }
    }

    /// Whether the client has gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        match self {
            Self::Sequence(sequence) => sequence.is_cancelled(),
            Self::Beams(beams) => beams.is_cancelled(),
        }
    }

    /// Whether its time is up.
    pub(crate) fn is_late(&mut self, now: Instant) -> bool {
        let deadline = self.request().parts().deadline;
        deadline.is_some_and(|deadline| now.saturating_duration_since(self.timeline().arrived()) > deadline)
    }

    /// It has left the queue; so many tokens of its prompt were computed before.
    pub(crate) fn started(&mut self, n_cached: usize) {
        match self {
            Self::Sequence(sequence) => sequence.started(n_cached),
            Self::Beams(beams) => beams.started(n_cached),
        }
    }

    /// Ends all its answers with the same event.
    pub(crate) fn end_with(&self, event: &Event) {
        match self {
            Self::Sequence(sequence) => sequence.end_with(event),
            Self::Beams(beams) => beams.end_with(event),
        }
    }

    /// Tokens of the answer so far; not known of a beam search.
    pub(crate) fn n_completion(&self) -> usize {
        match self {
            Self::Sequence(sequence) => sequence.n_completion(),
            Self::Beams(_) => 0,
        }
    }

    /// Whether the row at `position` of a chunk says something about the prompt that was asked for.
    pub(crate) fn wants_prompt_row(&self, position: usize) -> bool {
        match self {
            Self::Sequence(sequence) => sequence.wants_prompt_row(position),
            Self::Beams(_) => false,
        }
    }
}
