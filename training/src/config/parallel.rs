//! Several processes, and replicas.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Training in several processes, which `mpirun` starts, and replicas that train apart
/// ([`run::replicas`](crate::run::replicas)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelSettings {
    /// Replicas of the model that train separately, each on its share of a step's micro-batches. A power of two; 1:
    /// none.
    pub replicas: usize,
    /// Steps after which replicas meet.
    pub sync_every: usize,
    /// The learning rate of the outer step, in which the replicas synchronize.
    pub outer_lr: f64,
    /// The momentum of the outer step (Nesterov's).
    pub outer_momentum: f64,
    /// Seconds that a process waits for another one before the run ends. Left out: 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_timeout: Option<u64>,
}

/// The outer step as in [DiLoCo](https://arxiv.org/abs/2311.08105), 4.
impl Default for ParallelSettings {
    fn default() -> Self {
        Self { replicas: 1, sync_every: 50, outer_lr: 0.7, outer_momentum: 0.9, peer_timeout: None }
    }
}

impl ParallelSettings {
    /// How long a process waits for another one: longer than an evaluation, a sample or a checkpoint of rank 0 takes.
    pub fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.peer_timeout.unwrap_or(600))
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
