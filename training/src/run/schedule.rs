//! Learning rate, momentum and decay as pure functions of the step: there is no state, so a resumed run gets the same
//! values.

use std::f64::consts::PI;

use anyhow::{Result, ensure};

use crate::{
    config::{DecaySchedule, MuonSettings, OptimSettings, ScheduleKind, ScheduleSettings, TrainConfig},
    data::loader::RowSource,
};

/// The rates of a run. Steps are counted from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    settings: ScheduleSettings,
    /// Number of steps of the run; `None` while a budget in minutes is not used up.
    total: Option<usize>,
}

/// The sizes to which budgets may be relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Values that train.
    pub n_params: usize,
    /// Rows of the training split, or pairs.
    pub rows_per_epoch: u64,
    /// Tokens of these rows.
    pub tokens_per_epoch: u64,
}

impl RunSize {
    /// A run over `source` in rows of `seq_len` tokens, which trains `n_params` values.
    pub fn new(n_params: usize, source: &RowSource, seq_len: usize) -> RunSize {
        let (rows_per_epoch, tokens_per_epoch) = (source.n_rows(seq_len), source.tokens_per_epoch(seq_len));
        RunSize { n_params, rows_per_epoch, tokens_per_epoch }
    }

    /// Number of steps of a run with `config` until `tokens` tokens were trained on.
    fn steps_of_tokens(self, config: &TrainConfig, tokens: u64) -> usize {
        let tokens_per_rows = u128::from(self.tokens_per_epoch) * rows_per_step(config) as u128;
        let steps = (u128::from(tokens) * u128::from(self.rows_per_epoch)).div_ceil(tokens_per_rows.max(1));
        usize::try_from(steps).unwrap_or(usize::MAX)
    }

    /// Passes over the data in `steps` steps of a run with `config`.
    pub fn passes(self, config: &TrainConfig, steps: usize) -> f64 {
        self.rows_of_steps(config, steps) as f64 / self.rows_per_epoch.max(1) as f64
    }

    /// Rows of the first `steps` steps of a run with `config`.
    pub fn rows_of_steps(self, config: &TrainConfig, steps: usize) -> u128 {
        let rows = steps as u128 * rows_per_step(config) as u128;
        self.rows_of_epochs(config).map_or(rows, |all| rows.min(all.into()))
    }

    /// Rows of a whole run with `config` if its budget is in epochs. Its last step has only the remaining rows.
    pub fn rows_of_epochs(self, config: &TrainConfig) -> Option<u64> {
        config.schedule.epochs.map(|epochs| rounded_up(epochs * self.rows_per_epoch as f64) as u64)
    }
}

/// Rows that a step trains on, or pairs.
pub fn rows_per_step(config: &TrainConfig) -> usize {
    (config.micro_steps() * config.data.micro_batch_size.rows()).max(1)
}

/// The next integer, unless `number` exceeds an integer only by rounding errors.
fn rounded_up(number: f64) -> f64 {
    (number * (1.0 - 4.0 * f64::EPSILON)).ceil()
}

/// The rates of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The learning rates as a fraction of their highest.
    pub lr: f64,
    /// Weight decay as a fraction of its setting.
    pub decay: f64,
    /// Muon's momentum.
    pub momentum: f64,
}

impl ScheduleSettings {
    /// Rejects a warmup and a cooldown that do not fit into a run of `total` steps.
    ///
    /// # Errors
    /// They are longer.
    pub fn check_steps(&self, total: usize) -> Result<()> {
        let warmup_steps = self.warmup_steps;
        ensure!(
            warmup_steps <= total,
            "`schedule.warmup_steps` must be at most the steps of the run, got {warmup_steps} and {total}\nhint: set \
             `schedule.warmup_steps={}`, or a larger budget in `schedule`",
            total.div_ceil(10)
        );
        let (cooldown, n_left) = (self.cooldown_of(total), total - warmup_steps);
        let given = match self.cooldown_steps {
            Some(steps) => format!("`schedule.cooldown_steps={steps}`"),
            None => format!("`schedule.cooldown_ratio={}`", self.cooldown_ratio),
        };
        ensure!(
            self.kind != ScheduleKind::Wsd || cooldown <= n_left,
            "{given} is a cooldown of {cooldown} steps, but `schedule.warmup_steps={warmup_steps}` leaves {n_left} of the run's \
             {total} steps\nhint: set a smaller one of the two, or a larger budget in `schedule`"
        );
        Ok(())
    }

    /// Steps of the cooldown of `wsd` in a run of `total` steps.
    fn cooldown_of(&self, total: usize) -> usize {
        self.cooldown_steps.unwrap_or((total as f64 * self.cooldown_ratio).round() as usize)
    }
}

impl Schedule {
    /// The schedule of `config` for a run of this size.
    pub fn new(config: &TrainConfig, size: RunSize) -> Schedule {
        let ScheduleSettings { max_steps, max_tokens, tokens_per_param, .. } = config.schedule;
        let tokens =
            max_tokens.or(tokens_per_param.map(|per_param| rounded_up(per_param * size.n_params as f64) as u64));
        let of_tokens = tokens.map(|tokens| size.steps_of_tokens(config, tokens));
        let of_epochs = size.rows_of_epochs(config).map(|rows| rows.div_ceil(rows_per_step(config) as u64) as usize);
        Schedule { settings: config.schedule.clone(), total: max_steps.or(of_epochs).or(of_tokens) }
    }

    /// Sets `total` steps, for a budget in minutes that was used up before.
    pub fn with_total(self, total: Option<usize>) -> Schedule {
        Schedule { total: total.filter(|_| self.settings.max_minutes.is_some()).or(self.total), ..self }
    }

    /// Steps of the run, if they are known.
    pub fn total(&self) -> Option<usize> {
        self.total
    }

    /// Rejects a budget of no step, and one that is too short for warmup and cooldown.
    ///
    /// # Errors
    /// The number of steps is known and too small.
    pub fn check(&self) -> Result<()> {
        let Some(total) = self.total.filter(|_| self.settings.max_minutes.is_none()) else { return Ok(()) };
        ensure!(total > 0, "the budget in `schedule` is less than one step\nhint: increase it, or use more data");
        self.settings.check_steps(total)
    }

    /// A warning if a budget in minutes ended the run during its warmup, which cannot be known in advance.
    pub fn warning(&self) -> Option<String> {
        let ScheduleSettings { max_minutes, warmup_steps, .. } = self.settings;
        let (minutes, total) = max_minutes.zip(self.total)?;
        (total < warmup_steps).then(|| {
            format!(
                "warning: `schedule.max_minutes={minutes}` ended the run at step {total}, in its warmup of {warmup_steps} steps: the \
                 learning rate did not reach its highest\nhint: set a smaller `schedule.warmup_steps`, or more minutes"
            )
        })
    }

    /// Whether all steps are done after `done`.
    pub fn is_over(&self, done: usize) -> bool {
        self.total.is_some_and(|total| done >= total)
    }

    /// Records that `done` steps, at least one, took `minutes` so far. With a budget in minutes, sets the number of
    /// steps of the run once the budget is used up, or once the rest of it is just enough for the cooldown.
    pub fn use_up(&mut self, minutes: f64, done: usize) {
        let Some(budget) = self.settings.max_minutes.filter(|_| self.total.is_none()) else { return };
        let ScheduleSettings { kind, cooldown_ratio, cooldown_steps, .. } = self.settings;
        let cooldown = match (kind, cooldown_steps) {
            (ScheduleKind::Wsd, Some(steps)) => steps as f64,
            (ScheduleKind::Wsd, None) => done as f64 * cooldown_ratio / (1.0 - cooldown_ratio),
            _ => 0.0,
        };
        // Assumes that further steps take as long as the previous ones.
        let left = (budget - minutes).max(0.0) * done as f64 / minutes.max(f64::MIN_POSITIVE);
        if left <= cooldown {
            self.total = Some(done + left.round() as usize);
        }
    }

    /// The rates of `step`.
    pub fn rates(&self, step: usize, optim: &OptimSettings) -> Rates {
        Rates {
            lr: self.lr(step),
            decay: self.decay(step, optim.decay_schedule),
            momentum: momentum(step, &optim.muon),
        }
    }

    /// Whether the first `n_steps` steps have the same rates as in `other`.
    pub fn has_same_past(&self, other: &Schedule, n_steps: usize, optim: &OptimSettings) -> bool {
        (0..n_steps).all(|step| self.rates(step, optim) == other.rates(step, optim))
    }

    /// The learning rate of `step` as a fraction of the highest: a linear rise over the warmup, then by kind; constant
    /// after the last step. The first step's rate is not zero, which would waste the step: step `s` of the warmup has
    /// `(s + 1) / (warmup + 1)`.
    fn lr(&self, step: usize) -> f64 {
        let ScheduleSettings { kind, warmup_steps, min_lr_ratio, .. } = self.settings;
        if step < warmup_steps {
            return (step + 1) as f64 / (warmup_steps + 1) as f64;
        }
        let Some(total) = self.total else { return 1.0 };
        let above_min = match kind {
            ScheduleKind::Constant => return 1.0,
            _ if step >= total => 0.0,
            ScheduleKind::Linear => 1.0 - share_done(step, warmup_steps, total),
            ScheduleKind::Cosine => 0.5 * (1.0 + (PI * share_done(step, warmup_steps, total)).cos()),
            ScheduleKind::Wsd => {
                let cooldown = self.settings.cooldown_of(total).clamp(1, total.max(1));
                ((total - step) as f64 / cooldown as f64).min(1.0)
            }
        };
        min_lr_ratio + (1.0 - min_lr_ratio) * above_min
    }

    fn decay(&self, step: usize, kind: DecaySchedule) -> f64 {
        let Some(total) = self.total else { return 1.0 };
        let done = share_done(step, 0, total);
        match kind {
            DecaySchedule::Constant => 1.0,
            DecaySchedule::Linear => 1.0 - done,
            DecaySchedule::Cosine => 0.5 * (1.0 + (PI * done).cos()),
        }
    }
}

/// The fraction of the steps from `start` to `total` that lies before `step`.
fn share_done(step: usize, start: usize, total: usize) -> f64 {
    if step >= total { 1.0 } else { (step - start) as f64 / (total - start) as f64 }
}

/// Muon's momentum: a linear rise, then constant.
fn momentum(step: usize, muon: &MuonSettings) -> f64 {
    if step >= muon.momentum_warmup_steps {
        return muon.momentum;
    }
    let share = step as f64 / muon.momentum_warmup_steps as f64;
    muon.momentum_start + (muon.momentum - muon.momentum_start) * share
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    fn config(sets: &[&str]) -> TrainConfig {
        let mut base = TrainConfig::default();
        base.schedule.max_steps = Some(2000);
        let mut all = vec!["schedule.warmup_steps=100", "schedule.min_lr_ratio=0.1"];
        all.extend(sets);
        let layers =
            Layers { base: Some(base), sets: all.into_iter().map(str::to_owned).collect(), ..Layers::default() };
        let config = layers.resolve().unwrap();
        config.validate().unwrap();
        config
    }

    fn schedule(sets: &[&str]) -> Schedule {
        Schedule::new(&config(sets), RunSize { n_params: 1000, rows_per_epoch: 100, tokens_per_epoch: 6400 })
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn cosine_lr_warms_up_linearly_decays_and_stays_at_the_minimum() {
        let schedule = schedule(&["schedule.kind=cosine"]);
        for (step, expected) in [
            (0, 1.0 / 101.0),
            (49, 50.0 / 101.0),
            (99, 100.0 / 101.0),
            (100, 1.0),
            (1050, 0.55),                                    // halfway
            (575, 0.1 + 0.5 * (1.0 + 0.5_f64.sqrt()) * 0.9), // a quarter of the way
            (2000, 0.1),
            (1_000_000, 0.1), // a cosine that is not held would rise again
        ] {
            assert_close(schedule.lr(step), expected);
        }
    }

    #[test]
    fn linear_constant_and_wsd_lr_match_their_definitions() {
        let linear = schedule(&["schedule.kind=linear"]);
        assert_close(linear.lr(1050), 0.55);
        assert_close(linear.lr(5000), 0.1);
        assert_close(schedule(&["schedule.kind=constant"]).lr(5000), 1.0);
        let wsd = schedule(&["schedule.kind=wsd", "schedule.cooldown_ratio=0.25"]);
        for (step, expected) in [(100, 1.0), (1500, 1.0), (1750, 0.55), (1999, 0.1 + 0.9 / 500.0), (2000, 0.1)] {
            assert_close(wsd.lr(step), expected);
        }
    }

    #[test]
    fn token_parameter_and_epoch_budgets_are_converted_to_steps() {
        let steps = |sets: &[&str]| schedule(sets).total();
        // 12 rows of 64 tokens are 768.
        assert_eq!(steps(&["schedule.max_tokens=7681"]), Some(11));
        assert_eq!(steps(&["schedule.tokens_per_param=7.68"]), Some(10));
        // 100 rows, 12 per step.
        assert_eq!(steps(&["schedule.epochs=1.5"]), Some(13));
        // A thirteenth step of 6 rows.
        let size = RunSize { n_params: 1, rows_per_epoch: 100, tokens_per_epoch: 6400 };
        let epochs = config(&["schedule.epochs=1.5"]);
        assert_eq!([12, 13, 14].map(|steps| size.rows_of_steps(&epochs, steps)), [144, 150, 150]);
        // In floating point, 1.1 times 100 is more than 110.
        let size = RunSize { n_params: 100, rows_per_epoch: 100, tokens_per_epoch: 100 };
        let exact = |set: &str| Schedule::new(&config(&["data.micro_batch_size=10", set]), size).total();
        assert_eq!(exact("schedule.epochs=1.1"), Some(11));
        assert_eq!(exact("schedule.tokens_per_param=1.1"), Some(11));
        assert_eq!(steps(&["schedule.max_minutes=2", "schedule.kind=wsd"]), None);
        // Rows of documents with 40 tokens on average.
        let size = RunSize { n_params: 1000, rows_per_epoch: 100, tokens_per_epoch: 4000 };
        assert_eq!(Schedule::new(&config(&["schedule.max_tokens=4800"]), size).total(), Some(10));
        assert_eq!(Schedule::new(&config(&["schedule.max_tokens=4801"]), size).total(), Some(11));
    }

    #[test]
    fn run_size_passes_counts_epochs_by_rows_without_overflow() {
        let config = config(&["data.tokens_per_step=1536", "schedule.epochs=3"]);
        let size = RunSize { n_params: 1, rows_per_epoch: 48, tokens_per_epoch: 3072 };
        // A step has 24 rows.
        assert_eq!(Schedule::new(&config, size).total(), Some(6));
        assert_eq!((size.passes(&config, 6), size.passes(&config, 7)), (3.0, 3.0), "epochs are epochs");
        let steps = self::config(&["data.tokens_per_step=1536"]);
        assert!(size.passes(&steps, usize::MAX) > 1e18);
        assert!(RunSize { rows_per_epoch: 0, ..size }.passes(&config, 6).is_finite());
    }

    #[test]
    fn schedule_check_rejects_warmup_or_cooldown_beyond_the_budget() {
        let check = |sets: &[&str]| schedule(sets).check().map_err(|error| error.to_string());
        // 100 rows, 12 per step: 9 steps.
        check(&["schedule.epochs=1", "schedule.warmup_steps=9"]).unwrap();
        let error = check(&["schedule.epochs=1", "schedule.warmup_steps=10"]).unwrap_err();
        assert!(
            error.contains("`schedule.warmup_steps` must be at most the steps of the run, got 10 and 9"),
            "{error}"
        );
        assert!(error.contains("\nhint: set `schedule.warmup_steps=1`"), "{error}");
        assert!(check(&["schedule.max_tokens=768"]).unwrap_err().contains("got 100 and 1\n"));
        check(&["schedule.max_minutes=1", "schedule.kind=constant"]).unwrap();
        // Half of 9 steps is a cooldown of 5, rounded.
        let halves = ["schedule.epochs=1", "schedule.kind=wsd", "schedule.cooldown_ratio=0.5"];
        check(&[&halves[..], &["schedule.warmup_steps=4"]].concat()).unwrap();
        let error = check(&[&halves[..], &["schedule.warmup_steps=5"]].concat()).unwrap_err();
        assert!(
            error.contains(
                "`schedule.cooldown_ratio=0.5` is a cooldown of 5 steps, but `schedule.warmup_steps=5` leaves 4 of"
            ) && error.contains("\nhint: "),
            "{error}"
        );
        // Only `wsd` has a cooldown.
        check(&["schedule.epochs=1", "schedule.warmup_steps=9", "schedule.cooldown_ratio=1"]).unwrap();
        check(&["schedule.max_minutes=1", "schedule.kind=wsd", "schedule.cooldown_ratio=0.9"]).unwrap();
    }

    #[test]
    fn max_minutes_budget_includes_the_time_of_the_wsd_cooldown() {
        let mut wsd = schedule(&["schedule.max_minutes=10", "schedule.kind=wsd", "schedule.cooldown_ratio=0.2"]);
        wsd.use_up(7.9, 790);
        assert_eq!(wsd.total(), None);
        wsd.use_up(8.0, 800);
        assert_eq!(wsd.total(), Some(1000));
        wsd.use_up(9.0, 900);
        assert_eq!(wsd.total(), Some(1000), "the total does not change again");
        let mut steps = schedule(&["schedule.max_minutes=10", "schedule.kind=wsd", "schedule.cooldown_steps=300"]);
        steps.use_up(6.9, 690);
        assert_eq!(steps.total(), None);
        steps.use_up(7.0, 700);
        assert_eq!(steps.total(), Some(1000), "so that all of it takes ten minutes");
        let mut long = schedule(&["schedule.max_minutes=10", "schedule.kind=wsd", "schedule.cooldown_steps=5000"]);
        long.use_up(0.01, 1);
        assert_eq!(long.total(), Some(1000), "no longer than the budget");
        let mut constant = schedule(&["schedule.max_minutes=10", "schedule.kind=constant", "schedule.warmup_steps=78"]);
        assert_eq!(constant.warning(), None, "it is not known yet");
        constant.use_up(10.0, 77);
        assert!(constant.is_over(77));
        assert!(constant.warning().unwrap().contains("at step 77, in its warmup of 78 steps"));
        let mut enough = schedule(&["schedule.max_minutes=10", "schedule.kind=constant", "schedule.warmup_steps=77"]);
        enough.use_up(10.0, 77);
        assert_eq!(enough.warning(), None);
        assert_eq!(schedule(&["schedule.max_steps=100"]).warning(), None);
    }

    #[test]
    fn has_same_past_is_true_only_while_both_runs_have_equal_rates() {
        let optim = OptimSettings::default();
        let wsd = |steps: &str| schedule(&["schedule.kind=wsd", steps, "schedule.cooldown_steps=500"]);
        let (short, long) = (wsd("schedule.max_steps=2000"), wsd("schedule.max_steps=3000"));
        assert!(short.has_same_past(&long, 1501, &optim));
        assert!(!short.has_same_past(&long, 1502, &optim));
        let (short, long) = (schedule(&[]), schedule(&["schedule.max_steps=3000"]));
        assert!(short.has_same_past(&long, 101, &optim) && !short.has_same_past(&long, 102, &optim));
        let decaying = OptimSettings { decay_schedule: DecaySchedule::Linear, ..optim };
        assert!(!short.has_same_past(&long, 50, &decaying));
    }

    #[test]
    fn momentum_warms_up_and_weight_decay_follows_its_schedule() {
        let muon =
            MuonSettings { momentum_start: 0.8, momentum: 0.9, momentum_warmup_steps: 10, ..MuonSettings::default() };
        assert_close(momentum(0, &muon), 0.8);
        assert_close(momentum(5, &muon), 0.85);
        assert_close(momentum(50, &muon), 0.9);
        let schedule = schedule(&[]);
        assert_close(schedule.decay(500, DecaySchedule::Linear), 0.75);
        assert_close(schedule.decay(1000, DecaySchedule::Cosine), 0.5);
        assert_close(schedule.decay(1000, DecaySchedule::Constant), 1.0);
    }

    #[test]
    fn lr_factor_of_short_runs_stays_above_zero_and_at_most_one() {
        for kind in ["linear", "cosine", "wsd"] {
            for (max_steps, warmup_steps) in [(1, 0), (1, 1), (5, 5), (10, 3)] {
                let sets = [
                    format!("schedule.kind={kind}"),
                    format!("schedule.max_steps={max_steps}"),
                    format!("schedule.warmup_steps={warmup_steps}"),
                    "schedule.cooldown_ratio=0.05".to_owned(),
                ];
                let schedule = schedule(&sets.each_ref().map(String::as_str));
                for step in 0..20 {
                    let lr = schedule.lr(step);
                    assert!(lr > 0.0 && lr <= 1.0, "{lr} at step {step} of {max_steps}, warmup {warmup_steps}");
                }
            }
        }
    }
}
