//! What the engine reports about its work, for example to metrics.

use std::{fmt::Debug, sync::Arc, time::Duration};

use hearth_model::{TokenId, gpt::kv_cache::PageKey};

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

    /// Whether it wants to know of [changes of the prefix cache](Self::cache_changed); asked once.
    fn follows_cache(&self) -> bool {
        false
    }

    /// The prefix cache has changed in a step, in this order.
    fn cache_changed(&self, _changes: &[CacheChange]) {}
}

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// A page was computed and is kept.
    Stored(StoredPage),
    /// The page with this key was evicted.
    Removed(PageKey),
}

/// A page that is kept in the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// Identifies its tokens and all before them.
    pub key: PageKey,
    /// The key of the page before it; `None` for the first page of a text.
    pub parent: Option<PageKey>,
    /// Its tokens.
    pub token_ids: Vec<TokenId>,
    /// The name of the adapter that computed it.
    pub adapter: Option<Arc<str>>,
}

/// Several observers, each of which is told everything.
#[derive(Clone, Debug)]
pub struct Observers(pub Vec<Arc<dyn Observer>>);

impl Observer for Observers {
    fn stats(&self, stats: &EngineStats) {
        self.0.iter().for_each(|observer| observer.stats(stats));
    }

    fn closed(&self) {
        self.0.iter().for_each(|observer| observer.closed());
    }

    fn step(&self, n_tokens: usize, totals: Totals) {
        self.0.iter().for_each(|observer| observer.step(n_tokens, totals));
    }

    fn drafted(&self, n_tokens: usize, n_accepted: usize) {
        self.0.iter().for_each(|observer| observer.drafted(n_tokens, n_accepted));
    }

    fn started(&self, queued: Duration, n_prompt: usize) {
        self.0.iter().for_each(|observer| observer.started(queued, n_prompt));
    }

    fn token(&self, time: TokenTime) {
        self.0.iter().for_each(|observer| observer.token(time));
    }

    fn beam_tokens(&self, n_tokens: usize) {
        self.0.iter().for_each(|observer| observer.beam_tokens(n_tokens));
    }

    fn ended(&self, answer: &EndedAnswer<'_>) {
        self.0.iter().for_each(|observer| observer.ended(answer));
    }

    fn follows_cache(&self) -> bool {
        self.0.iter().any(|observer| observer.follows_cache())
    }

    fn cache_changed(&self, changes: &[CacheChange]) {
        self.0.iter().for_each(|observer| observer.cache_changed(changes));
    }
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
