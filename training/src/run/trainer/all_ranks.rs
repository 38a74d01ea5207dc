//! Agreement between ranks during a run, so that all make the same steps, and the costs of each rank.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Trainer, speed::Speed};
use crate::interrupt::Interrupt;

/// Requests by signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signals {
    /// The number of the signal that ends the run.
    pub(super) ends: Option<usize>,
    /// Whether one has asked for a checkpoint.
    pub(super) saves: bool,
}

/// What a run in several processes cost each rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankCosts {
    /// Bytes that it sent in a step, on average.
    pub bytes_sent_per_step: u64,
    /// Bytes of the rank's part of the optimizer's state.
    pub optimizer_bytes: u64,
    /// Peak resident memory of the rank's process in bytes, if the system reports it.
    pub peak_resident_bytes: Option<u64>,
}

impl Trainer<'_> {
    /// Agrees on the time of a step and the signals so far, the same on all ranks: the time is rank 0's, and a signal
    /// to one rank counts for all.
    ///
    /// # Errors
    /// A rank does not answer.
    pub(super) fn agreed(&self, took: Duration, interrupt: &Interrupt) -> Result<(Duration, Signals)> {
        let own = Signals { ends: interrupt.signal(), saves: interrupt.takes_checkpoint() };
        if self.group.is_alone() {
            return Ok((took, own));
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let all: Vec<(u64, Signals)> = self.group.gather(&(nanos, own))?;
        let agreed = Signals {
            ends: all.iter().find_map(|(_, signals)| signals.ends),
            saves: all.iter().any(|(_, signals)| signals.saves),
        };
        if let Some(signal) = agreed.ends.filter(|_| own.ends.is_none()) {
            interrupt.receive(signal);
        }
        Ok((Duration::from_nanos(all.first().map_or(nanos, |(first, _)| *first)), agreed))
    }

    /// Whether a signal has come to any rank, which then counts for all.
    ///
    /// # Errors
    /// A rank does not answer.
    pub(super) fn is_interrupted(&self, interrupt: &Interrupt) -> Result<bool> {
        Ok(self.agreed(Duration::ZERO, interrupt)?.1.ends.is_some())
    }

    /// The costs of each rank, by rank; empty if this process is alone.
    ///
    /// # Errors
    /// A rank does not answer.
    pub(super) fn costs(&self, speed: &Speed) -> Result<Vec<RankCosts>> {
        if self.group.is_alone() {
            return Ok(Vec::new());
        }
        self.group.gather(&RankCosts {
            bytes_sent_per_step: speed.bytes_per_step(),
            optimizer_bytes: match &self.replicas {
                None => self.learner.optimizer.n_bytes(),
                Some(replicas) => replicas.n_bytes(),
            },
            peak_resident_bytes: hearth_model::system::memory::peak_resident_bytes(),
        })
    }
}
