//! Timestamps of a request, and the duration of each phase.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::outcome::Outcome;

/// Timestamps of a request. Answers to the same prompt have clones, which count their ends together.
#[derive(Clone, Debug)]
pub struct Timeline {
    answers: Arc<Answers>,
    arrived: Instant,
    started: Option<Instant>,
    logits: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// The answers to one prompt.
#[derive(Debug)]
struct Answers {
    n_answers: AtomicUsize,
    n_ended: AtomicUsize,
    /// Tokens of the longest one.
    longest: AtomicUsize,
}

impl Answers {
    /// Records the end of an answer with `n_tokens`. After the last one, returns the number of answers and the length
    /// of the longest.
    fn ended(&self, n_tokens: usize) -> Option<(usize, usize)> {
        let longest = self.longest.fetch_max(n_tokens, Ordering::Relaxed).max(n_tokens);
        let n_answers = self.n_answers.load(Ordering::Relaxed);
        (self.n_ended.fetch_add(1, Ordering::Relaxed) + 1 == n_answers).then_some((n_answers, longest))
    }
}

/// When a token came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenTime {
    /// The answer's first token, this long after the request's arrival.
    First(Duration),
    /// A later token, this long after the previous one.
    Next(Duration),
}

/// An answer that is complete or was abandoned.
#[derive(Clone, Copy, Debug)]
pub struct EndedAnswer<'a> {
    /// How it ended.
    pub outcome: Outcome,
    /// Number of generated tokens.
    pub n_tokens: usize,
    /// Maximum number of tokens; 0 if nothing was to be generated.
    pub max_tokens: usize,
    /// The name of the adapter that generated it.
    pub adapter: Option<&'a str>,
    /// From the request's arrival to the end.
    pub total: Duration,
    /// Durations of the phases; `None` if the answer was never started.
    pub phases: Option<PhaseTimes>,
    /// From the first to the last token; `None` for fewer than two tokens.
    pub decoding: Option<Duration>,
    /// Once all answers to the prompt have ended: their number, and the number of tokens of the longest.
    pub all: Option<(usize, usize)>,
}

/// Durations of a request's phases.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseTimes {
    /// From arrival to the first step that computes any of it.
    pub queue: Duration,
    /// From that step to the first token.
    pub prefill: Duration,
    /// From the first token to the end.
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

    /// Records that a step computes some of the request, and returns the time in the queue. `None` after the first call.
    pub fn start(&mut self) -> Option<Duration> {
        if self.started.is_some() {
            return None;
        }
        let now = Instant::now();
        self.started = Some(now);
        Some(now.saturating_duration_since(self.arrived))
    }

    /// Records that a token was sampled from the last logits.
    pub fn token(&mut self) -> TokenTime {
        let now = self.logits.unwrap_or_else(Instant::now);
        self.first_token.get_or_insert(now);
        match self.last_token.replace(now) {
            None => TokenTime::First(now.saturating_duration_since(self.arrived)),
            Some(before) => TokenTime::Next(now.saturating_duration_since(before)),
        }
    }

    /// Records the end of an answer of `n_tokens` tokens, at most `max_tokens`.
    pub fn end<'a>(
        &self,
        outcome: Outcome,
        n_tokens: usize,
        max_tokens: usize,
        adapter: Option<&'a str>,
    ) -> EndedAnswer<'a> {
        let decoding = self.first_token.zip(self.last_token).filter(|_| n_tokens >= 2);
        EndedAnswer {
            outcome,
            n_tokens,
            max_tokens,
            adapter,
            total: self.arrived.elapsed(),
            phases: self.started.map(|_| self.spans()),
            decoding: decoding.map(|(first, last)| last.saturating_duration_since(first)),
            all: self.answers.ended(n_tokens),
        }
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
