//! The engine's state, which the inference thread publishes after each step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hearth_model::ops::KvDtype;

/// The engine's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// Whether it accepts requests.
    pub state: EngineState,
    /// Sequences in the batch. A beam search counts as its width.
    pub running: usize,
    /// Requests in the scheduler's queue, preempted ones included, and answers that wait for a prompt they share.
    pub waiting: usize,
    /// Free pages of the KV cache.
    pub free_pages: usize,
    /// Pages of the KV cache.
    pub n_pages: usize,
    /// The dtype of the KV cache.
    pub kv_dtype: KvDtype,
    /// Names of the adapters of running requests.
    pub running_adapters: Vec<Arc<str>>,
    /// Names of the adapters of requests that have not started.
    pub waiting_adapters: Vec<Arc<str>>,
}

impl Default for EngineStats {
    /// An engine without requests, whose model is not loaded yet.
    fn default() -> Self {
        Self {
            state: EngineState::Running,
            running: 0,
            waiting: 0,
            free_pages: 0,
            n_pages: 0,
            kv_dtype: KvDtype::default(),
            running_adapters: Vec::new(),
            waiting_adapters: Vec::new(),
        }
    }
}

/// Whether the engine accepts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// It accepts requests.
    Running,
    /// It was stopped.
    Stopped,
    /// A step failed; it accepts no more requests.
    Failed(String),
}

/// The last published state, for any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastStats(Arc<Mutex<EngineStats>>);

impl LastStats {
    pub(crate) fn lock(&self) -> MutexGuard<'_, EngineStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
