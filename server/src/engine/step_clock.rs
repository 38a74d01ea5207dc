//! How long the current step has been running: a device that hangs does not report an error.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Set by the inference thread, read by any other.
#[derive(Debug, Default)]
pub(crate) struct StepClock(Mutex<Option<Instant>>);

impl StepClock {
    /// A step begins.
    pub(crate) fn start(&self) {
        self.set(Some(Instant::now()));
    }

    /// The step has ended.
    pub(crate) fn stop(&self) {
        self.set(None);
    }

    /// The duration so far of the current step. `None` between steps.
    pub(crate) fn elapsed(&self) -> Option<Duration> {
        let started = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        started.map(|started| started.elapsed())
    }

    fn set(&self, started: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = started;
    }
}
