//! Makes batches on a separate thread, while the device computes.

use std::{
    ops::Range,
    sync::mpsc::{Receiver, sync_channel},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};

use super::{Batch, Loader};

/// Number of batches that wait to be taken.
const N_AHEAD: usize = 4;

/// The batches of a range of steps, in the order (step, micro-step), made in advance. Dropping it ends its thread and
/// waits for it.
#[derive(Debug)]
pub struct Prefetcher {
    /// Dropped before the thread is joined: the thread ends when there is no receiver.
    batches: Option<Receiver<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts with the first micro-batch of `steps.start`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(loader: &Loader, steps: Range<u64>) -> Result<Prefetcher> {
        let loader = loader.clone();
        let (sender, receiver) = sync_channel(N_AHEAD);
        let cut = move || {
            // A run may have an end, after which there are no batches.
            for step in steps.take_while(|step| loader.n_micro_batches(*step) > 0) {
                for micro_step in 0..loader.n_micro_batches(step) {
                    if sender.send(loader.batch(step, micro_step)).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = thread::Builder::new()
            .name("prefetch".into())
            .spawn(cut)
            .context("cannot start the thread that cuts batches")?;
        Ok(Prefetcher { batches: Some(receiver), thread: Some(thread) })
    }
}

impl Iterator for Prefetcher {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // The thread only reads and sends; the panic hook has reported its panics.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::{
        loader::{LoaderSettings, RowOrder},
        shard::Tokens,
    };

    fn loader() -> Loader {
        let tokens = Tokens::from_ids((0..1000).collect(), 0);
        let order = RowOrder::Permuted;
        let settings = LoaderSettings { seed: 1, seq_len: 7, micro_batch_size: 2, order, n_micro_batches: 3 };
        Loader::new(&tokens.into(), settings).unwrap()
    }

    #[test]
    fn prefetcher_yields_the_batches_of_the_loader_in_order() {
        let loader = loader();
        let found: Vec<_> = Prefetcher::new(&loader, 5..9).unwrap().collect();
        let expected: Vec<_> = (5..9).flat_map(|step| (0..3).map(move |micro| (step, micro))).collect();
        assert_eq!(found.len(), expected.len());
        for (found, (step, micro_step)) in found.into_iter().zip(expected) {
            assert_eq!(found, loader.batch(step, micro_step));
        }
    }

    #[test]
    fn dropping_a_prefetcher_ends_its_thread_that_waits_to_send() {
        let mut prefetcher = Prefetcher::new(&loader(), 0..u64::MAX).unwrap();
        assert!(prefetcher.next().is_some());
        drop(prefetcher);
    }
}
