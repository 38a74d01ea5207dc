//! How fast a run goes, in tokens per second; and how long a step takes, before a run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Trainer;
use crate::{eval::read_numbers, run::learner::LossGradients};

/// Time after which the measurement ends, once it has the least number of [`TRIES`].
const TRIAL: Duration = Duration::from_secs(3);

/// Minimum and maximum number of trial steps.
const TRIES: [usize; 2] = [2, 10];

/// How long steps take.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    /// Wall clock of a step.
    pub step: Duration,
    /// Micro-batches that were measured. A step of n micro-batches is assumed to take n times as long as one, plus one update.
    pub n_measured: usize,
}

impl Trainer<'_> {
    /// Measures how long a step takes: does a few and forgets them. The first, which takes memory and compiles kernels, does not
    /// count.
    ///
    /// # Errors
    /// A device that fails.
    pub fn time_step(mut self) -> Result<StepTime> {
        // The reference model is not needed: the values of its log-probabilities do not affect the time of a step.
        self.reference = None;
        let n_micro = self.loader.n_micro_batches(0);
        let rates = self.schedule.rates(0, &self.config.optim);
        let (mut passes, mut updates) = (Vec::new(), Vec::new());
        let started = Instant::now();
        for number in 0..=TRIES[1] {
            if number > TRIES[0] && started.elapsed() > TRIAL {
                break;
            }
            let batch = self.loader.batch(0, number % n_micro);
            let index = self.learner.step_index(0, [&batch].into_iter());
            let began = Instant::now();
            let sums = self.learner.gradients(index, [(0, batch)].into_iter())?;
            let LossGradients { loss, mut gradients, .. } = sums.context("a micro-batch has gradients")?;
            // Reading back waits for the device.
            read_numbers([loss.clone()])?;
            let passed = Instant::now();
            let norm = self.learner.clip(&mut gradients)?;
            self.learner = self.learner.update(gradients, rates);
            read_numbers([loss, norm])?;
            if number > 0 {
                passes.push(passed - began);
                updates.push(passed.elapsed());
            }
        }
        // The median: other processes on the machine slow some down.
        let middle = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let n_measured = passes.len();
        let step = middle(&mut passes) * u32::try_from(n_micro).unwrap_or(u32::MAX) + middle(&mut updates);
        Ok(StepTime { step, n_measured })
    }
}

/// Tokens per second of training alone.
#[derive(Debug, Default)]
pub(super) struct Speed {
    all: Work,
    /// Since the last lap.
    recent: Work,
    /// Bytes sent to other ranks, and the steps that sent them.
    n_bytes: u64,
    n_steps: u64,
}

/// Tokens, and how long they took.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    n_tokens: usize,
    time: Duration,
}

impl Speed {
    pub(super) fn add_step(&mut self, n_tokens: usize, took: Duration) {
        for work in [&mut self.all, &mut self.recent] {
            work.n_tokens += n_tokens;
            work.time += took;
        }
    }

    /// Counts bytes that the step sent to other ranks.
    pub(super) fn add_sent(&mut self, n_bytes: u64) {
        self.n_bytes += n_bytes;
        self.n_steps += 1;
    }

    /// Bytes that a step has sent to other ranks, on average.
    pub(super) fn bytes_per_step(&self) -> u64 {
        self.n_bytes / self.n_steps.max(1)
    }

    /// The speed since the last lap.
    pub(super) fn recent(&self) -> f64 {
        self.recent.rate()
    }

    /// Counts from here.
    pub(super) fn lap(&mut self) {
        self.recent = Work::default();
    }

    pub(super) fn overall(&self) -> f64 {
        self.all.rate()
    }
}

impl Work {
    fn rate(self) -> f64 {
        self.n_tokens as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
