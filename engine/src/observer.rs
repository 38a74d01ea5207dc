//! What the engine reports about its work, for example to metrics.

use std::{fmt::Debug, time::Duration};

use crate::{
    stats::EngineStats,
    timeline::{EndedAnswer, TokenTime},
};

/// Receives the engine's counts and measurements. It is called on the inference thread and on the threads of the pool,
/// so it must not wait. Everything is counted before the event that reports it is sent.
pub trait Observer: Debug + Send + Sync {
    /// The engine's state after a step, if it has changed.
    fn stats(&self, _stats: &EngineStats) {}

    /// The inference thread has ended: nothing more will be reported.
    fn closed(&self) {}

    /// A step has computed `n_tokens` tokens. `totals` never decrease: one thread runs all steps.
    fn step(&self, _n_tokens: usize, _totals: Totals) {}

    /// A draft of `n_tokens` tokens was verified, of which the first `n_accepted` were accepted.
    fn drafted(&self, _n_tokens: usize, _n_accepted: usize) {}

    /// A request with a prompt of `n_prompt` tokens has started after the time `queued`. Answers that share a prompt
    /// start once.
    fn started(&self, _queued: Duration, _n_prompt: usize) {}

    /// A request has sampled a token.
    fn token(&self, _time: TokenTime) {}

    /// A beam search has ended with `n_tokens` tokens. They are known at its end, all at once, so they have no times.
    fn beam_tokens(&self, _n_tokens: usize) {}

    /// An answer is complete or was abandoned.
    fn ended(&self, _answer: &EndedAnswer<'_>) {}
}

/// Counters of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Preemptions of running requests.
    pub n_preemptions: u64,
    /// Tokens of the requests that look up the prefix cache when they start; after a preemption, generated ones too.
    pub prefix_queries: u64,
    /// How many of these were in the prefix cache.
    pub prefix_hits: u64,
}

/// Ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
