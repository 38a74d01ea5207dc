//! The learning rate as a pure function of the step: nothing is stored, so a resumed run sees the same rates.

use std::f64::consts::PI;

use crate::config::ScheduleSettings;

impl ScheduleSettings {
    /// Learning rate of `step`, counted from 0: a linear rise over the warmup, then half a cosine from `lr` down to
    /// `min_lr` at `max_steps` ([Loshchilov and Hutter, 2016](https://arxiv.org/abs/1608.03983)), then `min_lr`.
    ///
    /// The first step's rate is not zero, which would waste it: step `s` of the warmup has `(s + 1) / (warmup + 1)` of `lr`.
    pub fn lr_at(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.lr * (step + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        if step >= self.max_steps {
            return self.min_lr;
        }
        // Not zero: here warmup_steps <= step < max_steps.
        let span = (self.max_steps - self.warmup_steps) as f64;
        let done = (step - self.warmup_steps) as f64 / span;
        self.min_lr + 0.5 * (1.0 + (PI * done).cos()) * (self.lr - self.min_lr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: ScheduleSettings = ScheduleSettings { max_steps: 2000, lr: 1e-3, min_lr: 1e-4, warmup_steps: 100 };

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-15, "{found} is not {expected}");
    }

    #[test]
    fn rises_linearly_over_the_warmup() {
        assert_close(SCHEDULE.lr_at(0), 1e-3 / 101.0);
        assert_close(SCHEDULE.lr_at(49), 1e-3 * 50.0 / 101.0);
        assert_close(SCHEDULE.lr_at(99), 1e-3 * 100.0 / 101.0);
    }

    #[test]
    fn falls_along_half_a_cosine_and_stays_down() {
        assert_close(SCHEDULE.lr_at(100), 1e-3);
        assert_close(SCHEDULE.lr_at(1050), 5.5e-4); // halfway
        assert_close(SCHEDULE.lr_at(575), 1e-4 + 0.5 * (1.0 + 0.5_f64.sqrt()) * 9e-4); // a quarter of the way
        assert_close(SCHEDULE.lr_at(2000), 1e-4);
        assert_close(SCHEDULE.lr_at(1_000_000), 1e-4); // a cosine that is not held would rise again
    }

    #[test]
    fn never_leaves_its_bounds_whatever_the_lengths() {
        for (max_steps, warmup_steps) in [(1, 0), (1, 1), (5, 5), (10, 3)] {
            let schedule = ScheduleSettings { max_steps, warmup_steps, ..SCHEDULE };
            for step in 0..20 {
                let lr = schedule.lr_at(step);
                assert!(lr > 0.0 && lr <= 1e-3, "{lr} at step {step} of {max_steps}, warmup {warmup_steps}");
            }
        }
    }
}
