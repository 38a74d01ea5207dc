//! The output of `--dry-run`: the predicted costs of a run.

use std::{
    io::{self, Write},
    time::Duration,
};

use anyhow::Result;
use hearth_training::{
    cli::{counted, print_json},
    config::TrainConfig,
    data::loader::RowSource,
    plan::{estimate::Estimate, memory_fit::Limits},
    run::{
        schedule::{RunSize, Schedule},
        trainer::StepTime,
    },
};
use serde::Serialize;

/// The predicted costs of a run, and the available resources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    pub(crate) estimate: Estimate,
    /// Bytes of the process that were in memory before the model.
    pub(crate) held_before: u64,
    pub(crate) limits: Limits,
}

/// Results of a trial of the run, new or resumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// Steps completed before.
    pub(crate) steps_done: usize,
    /// Steps of the run, unless it ends by time.
    pub(crate) total_steps: Option<usize>,
    pub(crate) time: StepTime,
}

/// The plan as JSON.
#[derive(Debug, Serialize)]
struct Plan {
    #[serde(flatten)]
    estimate: Estimate,
    /// Rows of a micro-batch.
    micro_batch_size: usize,
    /// Bytes of the process that were in memory before the model.
    held_before_bytes: u64,
    /// Available memory, if the system reports it.
    available_bytes: Option<u64>,
    /// Steps of the run, unless it ends by time.
    steps: Option<usize>,
    /// Steps completed before.
    steps_done: usize,
    /// Measured wall clock of a step; absent if the run does not fit.
    seconds_per_step: Option<f64>,
    /// Wall clock of the remaining steps, without evaluations, samples and checkpoints.
    expected_seconds: Option<f64>,
}

/// Prints the plan of a run by `config` over `source` on stdout.
pub(crate) fn print_plan(
    config: &TrainConfig,
    prediction: &Prediction,
    trial: Option<Trial>,
    source: &RowSource,
    as_json: bool,
) -> Result<()> {
    let Prediction { estimate, held_before, limits } = *prediction;
    let size = RunSize::new(estimate.n_params, source, config.model.max_seq_len);
    let (step, done) = (trial.map(|trial| trial.time), trial.map_or(0, |trial| trial.steps_done));
    let total = trial.map_or_else(|| Schedule::new(config, size).total(), |trial| trial.total_steps);
    let left = total.map(|total| total.saturating_sub(done));
    let expected = step.zip(left).map(|(time, left)| time.step.as_secs_f64() * left as f64);
    let micro_batch_size = config.data.micro_batch_size.rows();
    if as_json {
        let plan = Plan {
            estimate,
            micro_batch_size,
            held_before_bytes: held_before,
            available_bytes: limits.available,
            steps: total,
            steps_done: done,
            seconds_per_step: step.map(|time| time.step.as_secs_f64()),
            expected_seconds: expected,
        };
        print_json(&plan)?;
        return Ok(());
    }
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let rows = [
        ("parameters", format!("{}{}", estimate.n_params, of_a_token(&estimate))),
        ("arithmetic", format!("{:.3} MFLOP a token, forward and backward", estimate.flops_per_token as f64 / 1e6)),
        (
            "steps",
            total.map_or("by time".to_owned(), |total| {
                let passes = size.passes(config, total);
                let behind = if done > 0 { format!("; {done} are done") } else { String::new() };
                format!("{total} of {}, {passes:.1} passes over the data{behind}", step_size(config))
            }),
        ),
        (
            "micro-batches",
            format!("{} of {micro_batch_size} rows, {} partial sums", estimate.micro_steps, estimate.n_partial_sums),
        ),
        ("weights", megabytes(estimate.weight_bytes)),
        ("moments", megabytes(estimate.moment_bytes)),
        ("gradients", megabytes(estimate.gradient_bytes)),
        ("activations", format!("about {}", megabytes(estimate.activation_bytes))),
        (
            "peak memory",
            format!("about {}, and the process has {}", megabytes(estimate.peak_bytes), megabytes(held_before)),
        ),
        ("available", limits.available.map_or("unknown".to_owned(), megabytes)),
        ("time", time_line(step, expected)),
    ];
    let text: String = rows.into_iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// How many of the parameters a token goes through, if these are not all.
pub(crate) fn of_a_token(estimate: &Estimate) -> String {
    estimate.n_active_params.map(|n_active| format!(", {n_active} of them for a token")).unwrap_or_default()
}

/// The size of a step, in words.
pub(crate) fn step_size(config: &TrainConfig) -> String {
    let n_items = config.micro_steps() * config.data.micro_batch_size.rows();
    let (n, what) = config.objective.objective().step_size(config.tokens_per_step(), n_items);
    counted(n, what)
}

fn time_line(step: Option<StepTime>, expected: Option<f64>) -> String {
    let Some(StepTime { step, n_measured }) = step else { return "unknown: it does not fit in memory".to_owned() };
    let per_step = format!("{:.3} s a step, by {n_measured} micro-batches measured now", step.as_secs_f64());
    match expected {
        Some(seconds) => format!("about {} for the steps alone: {per_step}", duration(seconds)),
        None => per_step,
    }
}

/// Such as `3 d 4 h`, `2 h 5 min`, `1 min 40 s`, `12 s`.
fn duration(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match () {
        () if days > 0 => format!("{days} d {hours} h"),
        () if hours > 0 => format!("{hours} h {minutes} min"),
        () if minutes > 0 => format!("{minutes} min {} s", seconds % 60),
        () => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_shows_at_most_two_units() {
        let cases = [(0.4, "0 s"), (75.0, "1 min 15 s"), (3661.0, "1 h 1 min"), (200_000.0, "2 d 7 h")];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
        assert!(duration(f64::INFINITY).ends_with(" h"));
    }
}
