//! How the engine's state gets from the inference thread to handles and to the observer.

use std::sync::Arc;

use crate::{
    observer::Observer,
    stats::{EngineState, EngineStats, LastStats},
};

/// Publishes the state; belongs to the inference thread. If it is dropped without an end, the thread has failed.
#[derive(Debug)]
pub(crate) struct StatsPublisher {
    last: LastStats,
    observer: Arc<dyn Observer>,
}

impl StatsPublisher {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { last: LastStats::default(), observer }
    }

    /// The state, as this publishes it.
    pub(crate) fn last(&self) -> LastStats {
        self.last.clone()
    }

    /// Changes the state, and tells the observer if the state is different.
    pub(crate) fn update(&self, change: impl FnOnce(&mut EngineStats)) {
        let mut last = self.last.lock();
        let before = last.clone();
        change(&mut last);
        let now = (*last != before).then(|| last.clone());
        drop(last);
        now.iter().for_each(|now| self.observer.stats(now));
    }
}

impl Drop for StatsPublisher {
    fn drop(&mut self) {
        self.update(|stats| {
            if stats.state == EngineState::Running {
                stats.state = EngineState::Failed("the inference thread has ended".to_owned());
            }
        });
        self.observer.closed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::NoObserver;

    #[test]
    fn inference_thread_ending_unexpectedly_is_reported_as_failed() {
        let ending_in = |last: EngineState| {
            let publisher = StatsPublisher::new(Arc::new(NoObserver));
            let stats = publisher.last();
            assert_eq!(stats.lock().state, EngineState::Running);
            publisher.update(|stats| stats.state = last);
            drop(publisher);
            stats.lock().state.clone()
        };
        assert_eq!(ending_in(EngineState::Running), EngineState::Failed("the inference thread has ended".into()));
        assert_eq!(ending_in(EngineState::Stopped), EngineState::Stopped);
        assert_eq!(ending_in(EngineState::Failed("x".into())), EngineState::Failed("x".into()));
    }
}
