//! What the worker keeps per request: one sequence, a beam search with several, or a text to embed.

use std::time::{Duration, Instant};

use hearth_model::{TokenId, sampling::RowNeeds};

use super::{
    Event,
    beams::Beams,
    embedding::Embedding,
    scheduler::{Arrival, Chunk},
    sequence::Sequence,
    token_ids::TokenIds,
};
use crate::metrics::Timeline;

/// A request on its way through the engine.
#[derive(Debug)]
pub(crate) enum Generation {
    /// Token by token.
    Sequence(Box<Sequence>),
    /// Several partial answers at once.
    Beams(Box<Beams>),
    /// A prefill without an answer.
    Embedding(Box<Embedding>),
}

impl Generation {
    pub(crate) fn n_prompt(&self) -> usize {
        match self {
            Self::Sequence(sequence) => sequence.n_prompt(),
            Self::Beams(beams) => beams.request().parts().prompt_ids.len(),
            Self::Embedding(embedding) => embedding.parts().token_ids.len(),
        }
    }

    /// Answers that wait for its prompt to be computed.
    pub(crate) fn n_forks(&self) -> usize {
        match self {
            Self::Sequence(sequence) => sequence.n_forks(),
            Self::Beams(_) | Self::Embedding(_) => 0,
        }
    }

    /// How long it may take, from its arrival on.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Sequence(sequence) => sequence.request().parts().deadline,
            Self::Beams(beams) => beams.request().parts().deadline,
            Self::Embedding(embedding) => embedding.parts().deadline,
        }
    }

    /// How it asks to be scheduled; once.
    pub(crate) fn arrival(&mut self) -> Arrival {
        match self {
            Self::Sequence(sequence) => sequence.arrival(),
            Self::Beams(beams) => beams.arrival(),
            Self::Embedding(embedding) => embedding.arrival(),
        }
    }

    pub(crate) fn token_ids(&self, branch: usize) -> TokenIds<'_> {
        match self {
            Self::Sequence(sequence) => sequence.token_ids(),
            Self::Beams(beams) => beams.token_ids(branch),
            Self::Embedding(embedding) => TokenIds::of(&embedding.parts().token_ids),
        }
    }

    /// The known tokens that a chunk computes.
    pub(crate) fn chunk(&self, chunk: &Chunk) -> impl Iterator<Item = TokenId> {
        self.token_ids(chunk.id.branch).range(chunk.start..chunk.known_end())
    }

    pub(crate) fn timeline(&mut self) -> &mut Timeline {
        match self {
            Self::Sequence(sequence) => &mut sequence.timeline,
            Self::Beams(beams) => &mut beams.timeline,
            Self::Embedding(embedding) => &mut embedding.timeline,
        }
    }

    /// Whether the client has gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        match self {
            Self::Sequence(sequence) => sequence.is_cancelled(),
            Self::Beams(beams) => beams.is_cancelled(),
            Self::Embedding(embedding) => embedding.is_cancelled(),
        }
    }

    /// Whether its time is up.
    pub(crate) fn is_late(&mut self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| now.saturating_duration_since(self.timeline().arrived()) > deadline)
    }

    /// It has left the queue; so many tokens of its prompt were computed before.
    pub(crate) fn started(&mut self, n_cached: usize) {
        match self {
            Self::Sequence(sequence) => sequence.started(n_cached),
            Self::Beams(beams) => beams.started(n_cached),
            Self::Embedding(embedding) => embedding.started(),
        }
    }

    /// Ends all its answers with the same event.
    pub(crate) fn end_with(&self, event: &Event) {
        match self {
            Self::Sequence(sequence) => sequence.end_with(event),
            Self::Beams(beams) => beams.end_with(event),
            Self::Embedding(embedding) => embedding.end_with(event),
        }
    }

    /// Tokens of the answer so far; not known of a beam search.
    pub(crate) fn n_completion(&self) -> usize {
        match self {
            Self::Sequence(sequence) => sequence.n_completion(),
            Self::Beams(_) | Self::Embedding(_) => 0,
        }
    }

    /// What is needed of the row of logits at `position`, when `ahead` is what the text has more up to there than now.
    pub(crate) fn needs(&self, position: usize, ahead: &[TokenId]) -> RowNeeds {
        match self {
            Self::Sequence(sequence) => sequence.needs(position, ahead),
            Self::Beams(_) | Self::Embedding(_) => RowNeeds::Whole,
        }
    }

    /// Whether logits are wanted of the last row of what is known: the next token is to be drawn.
    pub(crate) fn wants_next_token(&self) -> bool {
        !matches!(self, Self::Embedding(_))
    }

    /// Whether the row at `position` of a chunk says something about the prompt that was asked for.
    pub(crate) fn wants_prompt_row(&self, position: usize) -> bool {
        match self {
            Self::Sequence(sequence) => sequence.wants_prompt_row(position),
            Self::Beams(_) | Self::Embedding(_) => false,
        }
    }
}
