//! Timestamps of a request, and the duration of each phase.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Timestamps of a request. Answers to the same prompt have clones, which count their ends together.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub(super) answers: Arc<Answers>,
    pub(super) arrived: Instant,
    pub(super) started: Option<Instant>,
    pub(super) logits: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Option<Instant>,
}

/// The answers to one prompt.
#[derive(Debug)]
pub(super) struct Answers {
    n_answers: AtomicUsize,
    n_ended: AtomicUsize,
    /// Tokens of the longest one.
    longest: AtomicUsize,
}

impl Answers {
    /// Records the end of an answer with `n_tokens`. After the last one, returns the number of answers and the length
    /// of the longest.
    pub(super) fn ended(&self, n_tokens: usize) -> Option<(usize, usize)> {
        let longest = self.longest.fetch_max(n_tokens, Ordering::Relaxed).max(n_tokens);
        let n_answers = self.n_answers.load(Ordering::Relaxed);
        (self.n_ended.fetch_add(1, Ordering::Relaxed) + 1 == n_answers).then_some((n_answers, longest))
    }
}

/// Durations of a request's phases.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseTimes {
    /// From arrival to the first step that computes any of it.
    pub queue: Duration,
    /// From there to the first token.
    pub prefill: Duration,
    /// From there to the end.
    pub decode: Duration,
}

impl PhaseTimes {
    /// Combines two answers to one request: until the first token of either, and from there to the end of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let until_token = |spans: &Self| spans.queue + spans.prefill;
        let until_end = |spans: &Self| until_token(spans) + spans.decode;
        let first = if until_token(&other) < until_token(&self) { other } else { self };
        let end = until_end(&self).max(until_end(&other));
        Self { decode: end.saturating_sub(until_token(&first)), ..first }
    }
}

impl Timeline {
    /// A request for `n_answers` answers that has just arrived.
    pub fn new(arrived: Instant, n_answers: usize) -> Self {
        let answers = Answers { n_answers: n_answers.into(), n_ended: 0.into(), longest: 0.into() };
        Self { answers: answers.into(), arrived, started: None, logits: None, first_token: None, last_token: None }
    }

    /// Adds `n_answers` to the same prompt.
    pub fn add_answers(&self, n_answers: usize) {
        self.answers.n_answers.fetch_add(n_answers, Ordering::Relaxed);
    }

    /// The time of arrival.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Records that logits are ready. A token sampled from them gets this time: a client may have it before anything
    /// else is recorded.
    pub fn has_logits(&mut self) {
        self.logits = Some(Instant::now());
    }

    /// Records that the logits of a beam search's first token are ready. The token itself is only known at the end.
    pub fn has_first_beams(&mut self) {
        self.first_token = self.first_token.or(self.logits);
    }

    /// Phase durations of a request that ends now.
    pub fn spans(&self) -> PhaseTimes {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.or(self.logits).unwrap_or(now);
        PhaseTimes {
            queue: started.saturating_duration_since(self.arrived),
            prefill: first_token.saturating_duration_since(started),
            decode: now.saturating_duration_since(first_token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One answer waits behind another: the first token is from the earlier answer, the end from the later one.
    #[test]
    fn merged_phase_times_use_the_first_token_and_the_last_end() {
        let spans = |parts: [u64; 3]| {
            let [queue, prefill, decode] = parts.map(Duration::from_millis);
            PhaseTimes { queue, prefill, decode }
        };
        let parts = |spans: PhaseTimes| [spans.queue, spans.prefill, spans.decode].map(|part| part.as_millis());
        let (early, late) = (spans([1, 2, 10]), spans([1, 16, 4]));
        assert_eq!(parts(early.and(late)), [1, 2, 18]);
        assert_eq!(parts(late.and(early)), [1, 2, 18]);
        assert_eq!(parts(early.and(spans([9, 1, 0]))), [1, 2, 10]);
    }
}
