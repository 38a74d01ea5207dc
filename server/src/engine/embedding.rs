//! Embeddings: a text goes through the model once, and the final hidden states of its tokens become one vector.
//!
//! A request is a prefill without an answer: it is scheduled in chunks like any other, and its rows are pooled as they
//! come. All positions are wanted, so it takes nothing from the prefix cache.

use std::time::Duration;

use hearth_model::{Error, Result, TokenId};

use super::{
    Event, EventSender, QueuePlace,
    request::{ModelLimits, PRIORITIES, ValidationError},
    scheduler::Arrival,
    sequence::Intake,
};
use crate::metrics::Timeline;

/// How the hidden states of a text become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// That of the last token, which has seen all others.
    Last,
    /// The largest of each component.
    Max,
}

/// How long the vector is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorScale {
    /// 1, by the Euclidean norm. A vector of zeros stays as it is.
    #[default]
    Unit,
    /// As the model gives it.
    AsIs,
}

/// The parts of a request for an embedding, not checked yet.
#[derive(Clone, Debug, Default)]
pub struct EmbedParts {
    /// The text.
    pub token_ids: Vec<TokenId>,
    /// How its hidden states become one.
    pub pooling: Pooling,
    /// How long that is.
    pub scale: VectorScale,
    /// Lower goes first, within [`PRIORITIES`].
    pub priority: i32,
    /// From its arrival on, the request may take this long.
    pub deadline: Option<Duration>,
}

/// A request for an embedding that the engine can serve.
#[derive(Clone, Debug)]
pub struct EmbedRequest(EmbedParts);

impl EmbedRequest {
    /// Checks the parts against the model's limits.
    ///
    /// # Errors
    /// The first part that the model cannot serve.
    pub fn new(parts: EmbedParts, limits: &ModelLimits) -> std::result::Result<Self, ValidationError> {
        let ModelLimits { vocab_size, max_seq_len, .. } = *limits;
        let n_tokens = parts.token_ids.len();
        if n_tokens == 0 {
            return Err(ValidationError::EmptyInput);
        }
        if n_tokens > max_seq_len {
            return Err(ValidationError::InputLength { n_tokens, max_seq_len });
        }
        if let Some(&id) = parts.token_ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(ValidationError::TokenId { param: "input", id, vocab_size });
        }
        if !PRIORITIES.contains(&parts.priority) {
            return Err(ValidationError::Priority { given: parts.priority });
        }
        Ok(Self(parts))
    }

    /// The parts, checked.
    pub fn parts(&self) -> &EmbedParts {
        &self.0
    }
}

/// What the worker keeps for a request from its arrival to its end.
#[derive(Debug)]
pub(crate) struct Embedding {
    request: EmbedRequest,
    events: EventSender,
    queue_place: Option<QueuePlace>,
    pool: Pool,
    pub(crate) timeline: Timeline,
}

impl Embedding {
    pub(crate) fn new(request: EmbedRequest, events: EventSender, intake: &mut Intake<'_>) -> Self {
        Self {
            pool: Pool::new(request.0.pooling),
            events,
            queue_place: Some(intake.take_places(1)),
            timeline: Timeline::new(intake.arrived),
            request,
        }
    }

    pub(crate) fn parts(&self) -> &EmbedParts {
        &self.request.0
    }

    pub(crate) fn arrival(&self) -> Arrival {
        Arrival {
            n_prompt: self.request.0.token_ids.len(),
            width: 1,
            priority: self.request.0.priority,
            // Nobody is to find its pages: they would push out those of prompts.
            keys: Vec::new(),
            reads_kept_pages: false,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub(crate) fn started(&mut self) {
        self.queue_place = None;
    }

    pub(crate) fn end_with(&self, event: &Event) {
        self.events.send(event.clone());
    }

    /// Takes the final hidden states from position `start` on, row by row, each `[d_model]`. After a preemption they may
    /// come a second time. Whether the request has ended with them.
    ///
    /// # Errors
    /// A hidden state is no number.
    pub(crate) fn advance(&mut self, start: usize, hidden: &[f32], d_model: usize) -> Result<bool> {
        if let Some(value) = hidden.iter().find(|value| !value.is_finite()) {
            return Err(Error::Logits { what: format!("there is a hidden state of {value}") });
        }
        let n_seen = self.pool.n_rows.saturating_sub(start);
        hidden.chunks_exact(d_model).skip(n_seen).for_each(|row| self.pool.add(row));
        if self.pool.n_rows < self.request.0.token_ids.len() {
            return Ok(false);
        }
        let pooled = std::mem::take(&mut self.pool.values);
        self.events.send(Event::Embedding(scaled(pooled, self.pool.divisor(), self.request.0.scale)));
        Ok(true)
    }
}

/// Rows on their way to one. Row by row and in double precision, so that it makes no difference how the text was cut
/// into chunks.
#[derive(Debug)]
struct Pool {
    pooling: Pooling,
    values: Vec<f64>,
    n_rows: usize,
}

impl Pool {
    fn new(pooling: Pooling) -> Self {
        Self { pooling, values: Vec::new(), n_rows: 0 }
    }

    fn add(&mut self, row: &[f32]) {
        let row = row.iter().copied().map(f64::from);
        self.n_rows += 1;
        if self.n_rows == 1 || self.pooling == Pooling::Last {
            self.values = row.collect();
            return;
        }
        for (value, new) in self.values.iter_mut().zip(row) {
            *value = if self.pooling == Pooling::Max { value.max(new) } else { *value + new };
        }
    }

    fn divisor(&self) -> f64 {
        if self.pooling == Pooling::Mean { self.n_rows as f64 } else { 1.0 }
    }
}

fn scaled(values: Vec<f64>, divisor: f64, scale: VectorScale) -> Vec<f32> {
    let norm = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let divisor = match scale {
        VectorScale::AsIs => divisor,
        VectorScale::Unit if norm > 0.0 => norm,
        VectorScale::Unit => 1.0,
    };
    values.into_iter().map(|value| (value / divisor) as f32).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn pooled(pooling: Pooling, scale: VectorScale) -> Vec<f32> {
        let mut pool = Pool::new(pooling);
        [[1.0, -4.0], [2.0, -2.0], [0.0, 0.0]].iter().for_each(|row| pool.add(row));
        scaled(pool.values.clone(), pool.divisor(), scale)
    }

    #[test]
    fn rows_are_pooled_and_scaled() {
        assert_eq!(pooled(Pooling::Mean, VectorScale::AsIs), [1.0, -2.0]);
        assert_eq!(pooled(Pooling::Max, VectorScale::AsIs), [2.0, 0.0]);
        assert_eq!(pooled(Pooling::Last, VectorScale::AsIs), [0.0, 0.0]);
        assert_eq!(pooled(Pooling::Max, VectorScale::Unit), [1.0, 0.0]);
        let unit = 0.2_f32.sqrt();
        assert_eq!(pooled(Pooling::Mean, VectorScale::Unit), [unit, -2.0 * unit]);
        assert_eq!(pooled(Pooling::Last, VectorScale::Unit), [0.0, 0.0], "no direction at all");
    }

    #[test]
    fn inputs_are_checked() {
        let limits = ModelLimits { vocab_size: 10, max_seq_len: 8, max_batch_size: 4, n_pages: 3 };
        let refusal = |token_ids| {
            let error = EmbedRequest::new(EmbedParts { token_ids, ..EmbedParts::default() }, &limits).unwrap_err();
            (error.param(), error.to_string())
        };
        assert!(EmbedRequest::new(EmbedParts { token_ids: vec![9; 8], ..EmbedParts::default() }, &limits).is_ok());
        assert_eq!(refusal(vec![]), (Some("input"), "`input` must hold at least one token, got none".into()));
        assert_eq!(
            refusal(vec![1; 9]),
            (
                Some("input"),
                "`input` has 9 tokens, but the context holds 8\nhint: `truncate_prompt_tokens` cuts it".into()
            )
        );
        assert_eq!(refusal(vec![10]), (Some("input"), "`input` must hold token ids below 10, got 10".into()));
    }
}
