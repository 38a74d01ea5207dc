//! Measures how long work has gone on without progress: hanging work does not report an error.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The work in progress. Clones share it; any thread may read it.
#[derive(Clone, Debug, Default)]
pub struct WorkClock(Arc<Mutex<Works>>);

#[derive(Debug, Default)]
struct Works {
    n_started: u64,
    /// The kind of each work, and when it last made progress.
    running: BTreeMap<u64, (&'static str, Instant)>,
}

/// Work in progress, until dropped.
#[derive(Debug)]
pub struct RunningWork {
    clock: WorkClock,
    number: u64,
}

impl WorkClock {
    fn lock(&self) -> MutexGuard<'_, Works> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work begins. `what` names it in messages, as in "{what} has made no progress".
    pub fn start(&self, what: &'static str) -> RunningWork {
        let mut works = self.lock();
        works.n_started += 1;
        let number = works.n_started;
        works.running.insert(number, (what, Instant::now()));
        drop(works);
        RunningWork { clock: self.clone(), number }
    }

    /// The work that has made no progress for the longest time, and that time. `None` if there is none.
    pub fn slowest(&self) -> Option<(&'static str, Duration)> {
        let slowest = self.lock().running.values().copied().min_by_key(|(_, since)| *since);
        slowest.map(|(what, since)| (what, since.elapsed()))
    }
}

impl RunningWork {
    /// The work has made progress.
    pub fn progress(&self) {
        if let Some((_, since)) = self.clock.lock().running.get_mut(&self.number) {
            *since = Instant::now();
        }
    }

    /// How long it has made no progress.
    pub fn idle(&self) -> Duration {
        self.clock.lock().running.get(&self.number).map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

impl Drop for RunningWork {
    fn drop(&mut self) {
        self.clock.lock().running.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_work_is_the_one_that_made_progress_first() {
        let clock = WorkClock::default();
        assert!(clock.slowest().is_none());
        let first = clock.start("first");
        let second = clock.start("second");
        assert_eq!(clock.slowest().map(|(what, _)| what), Some("first"));
        while first.idle().is_zero() {}
        first.progress();
        assert_eq!(clock.slowest().map(|(what, _)| what), Some("second"));
        drop(second);
        drop(first);
        assert!(clock.slowest().is_none());
    }
}
