//! Decides which steps to skip: steps with an invalid loss, or a gradient far larger than recent ones.

use std::collections::VecDeque;

use anyhow::{Result, ensure};

/// Number of recent gradient norms that a new one is compared with.
const N_NORMS: usize = 100;

/// With fewer norms than this, no step counts as a spike.
const MIN_NORMS: usize = 20;

/// After this many consecutive skipped steps, the run has diverged.
const MAX_SKIPPED: usize = 5;

/// Decides on each step.
#[derive(Clone, Debug)]
pub struct SpikeGuard {
    spike_factor: f64,
    /// Norms of the last steps that were not skipped.
    recent: VecDeque<f32>,
    /// Consecutive skipped steps.
    n_skipped: usize,
}

impl SpikeGuard {
    /// A guard that continues from [`state`](Self::state). A `spike_factor` of 0 disables spike detection.
    pub fn new(spike_factor: f64, (recent, n_skipped): (VecDeque<f32>, usize)) -> SpikeGuard {
        SpikeGuard { spike_factor, recent, n_skipped }
    }

    /// The guard's state: norms, and consecutive skipped steps.
    pub fn state(&self) -> (VecDeque<f32>, usize) {
        (self.recent.clone(), self.n_skipped)
    }

    /// Checks `step`; returns the reason if it must be skipped.
    ///
    /// # Errors
    /// Too many consecutive steps were skipped.
    pub fn check(&mut self, step: usize, loss: f32, grad_norm: f32) -> Result<Option<String>> {
        let reason = self.reason(loss, grad_norm);
        if reason.is_none() {
            self.n_skipped = 0;
            if self.spike_factor > 0.0 {
                self.recent.push_back(grad_norm);
                if self.recent.len() > N_NORMS {
                    self.recent.pop_front();
                }
            }
            return Ok(None);
        }
        self.n_skipped += 1;
        ensure!(
            self.n_skipped < MAX_SKIPPED,
            "training diverged at step {step}: {MAX_SKIPPED} steps in a row were skipped, the last one with loss {loss} \
             and gradient norm {grad_norm}\nhint: use a smaller `optim.lr`, a longer `schedule.warmup_steps`, or clip gradients \
             (`optim.clip=1`)"
        );
        Ok(reason)
    }

    fn reason(&self, loss: f32, grad_norm: f32) -> Option<String> {
        if !loss.is_finite() || !grad_norm.is_finite() {
            return Some(format!("loss {loss}, gradient norm {grad_norm}"));
        }
        if self.spike_factor == 0.0 || self.recent.len() < MIN_NORMS {
            return None;
        }
        let mut sorted: Vec<f32> = self.recent.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        let median = sorted[sorted.len() / 2];
        let is_spike = f64::from(grad_norm) > self.spike_factor * f64::from(median);
        is_spike.then(|| {
            let times = self.spike_factor;
            format!("gradient norm {grad_norm:.3} is more than {times} times the median {median:.3} of the last steps")
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn guard_skips_nan_and_infinite_steps_and_fails_after_five_in_a_row() {
        let mut guard = SpikeGuard::new(0.0, Default::default());
        for step in 0..4 {
            assert!(guard.check(step, f32::NAN, 1.0).unwrap().unwrap().contains("NaN"));
        }
        assert_eq!(guard.check(4, 1.0, 1e9).unwrap(), None, "spikes pass");
        for step in 0..4 {
            assert!(guard.check(step, 1.0, f32::INFINITY).unwrap().is_some());
        }
        let error = guard.check(9, 1.0, f32::INFINITY).unwrap_err().to_string();
        assert!(error.contains("diverged at step 9") && error.contains("hint"), "{error}");
    }

    #[test]
    fn guard_skips_a_gradient_norm_far_above_the_recent_norms() {
        let mut guard = SpikeGuard::new(10.0, Default::default());
        assert_eq!(guard.check(0, 1.0, 1e9).unwrap(), None, "there is nothing to compare with yet");
        for step in 0..30 {
            assert_eq!(guard.check(step, 1.0, 1.0 + step as f32 / 100.0).unwrap(), None);
        }
        let mut resumed = SpikeGuard::new(10.0, guard.state());
        for guard in [&mut guard, &mut resumed] {
            assert_eq!(guard.check(30, 1.0, 9.0).unwrap(), None);
            assert!(guard.check(31, 1.0, 12.5).unwrap().unwrap().contains("12.5"));
        }
    }
}
