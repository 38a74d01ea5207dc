//! The actions that are due after a step.

use super::all_ranks::Signals;
use crate::{config::TrainConfig, run::schedule::Schedule};

/// The actions that are due after a step.
#[expect(clippy::struct_excessive_bools, reason = "each by itself")]
pub(super) struct Due {
    /// The step is shown.
    pub(super) shows: bool,
    pub(super) evaluates: bool,
    pub(super) samples: bool,
    pub(super) saves: bool,
    /// A signal asked for the checkpoint.
    pub(super) saves_on_demand: bool,
    /// The process ends.
    pub(super) stops: bool,
}

impl Due {
    /// The actions after `done` steps. `signals` are the requests so far: later ones are handled after the next step.
    pub(super) fn after(done: usize, config: &TrainConfig, schedule: &Schedule, signals: Signals) -> Due {
        let TrainConfig { eval, sample, checkpoint, .. } = config;
        let is_due = |every: usize| every > 0 && done.is_multiple_of(every);
        let is_last = schedule.is_over(done);
        let stops = is_last || signals.ends.is_some();
        let evaluates = is_last || is_due(eval.every);
        let samples = sample.every > 0 && (is_last || is_due(sample.every));
        let saves_on_demand = signals.saves;
        let saves = stops || saves_on_demand || is_due(checkpoint.every) || checkpoint.keep_steps.contains(&done);
        Due {
            shows: stops || evaluates || samples || saves || is_due(eval.log_every),
            evaluates,
            samples,
            saves,
            saves_on_demand,
            stops,
        }
    }
}
