//! Progress of a run: a line that is rewritten on terminals and plain lines elsewhere, both on stderr; and all metrics
//! in `metrics.jsonl`, TensorBoard's event files and `curves.svg`.

mod crc32c;
mod curves;
mod line;
mod metrics_file;
mod record;
mod tensorboard;

use std::time::{Duration, Instant};

use anyhow::Result;

use self::{curves::Curves, metrics_file::MetricsFile, tensorboard::EventFile};
pub use self::{
    line::{ProgressLine, Style},
    record::{EvalRecord, Record, SampleRecord, SkipRecord, StepRecord},
};
use crate::{output_files::write_whole, run::run_dir::RunDir};

/// Data for the progress line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Steps of the run, if known.
    pub total: Option<usize>,
    /// Minutes that are left, if they are the budget.
    pub minutes_left: Option<f64>,
    /// Fraction of the device's arithmetic rate in use, if measured.
    pub mfu: Option<f64>,
}

/// Records and shows metrics.
#[derive(Debug)]
pub struct Reporter {
    files: Option<Files>,
    line: ProgressLine,
    started: Instant,
    first_step: usize,
    /// Seconds of training of earlier processes.
    seconds_before: f64,
}

/// The metrics files of a run.
#[derive(Debug)]
struct Files {
    jsonl: MetricsFile,
    events: EventFile,
    curves: Curves,
    curves_path: std::path::PathBuf,
}

impl Reporter {
    /// A reporter for a run that starts now, with progress on `line`.
    pub fn new(line: ProgressLine) -> Reporter {
        Reporter { files: None, line, started: Instant::now(), first_step: 0, seconds_before: 0.0 }
    }

    /// Also writes all records to the files of `run`, after those of the first `step` steps. Records of later steps
    /// from an earlier process are removed: these steps are repeated.
    pub fn with_files(mut self, run: &RunDir, step: usize) -> Result<Reporter> {
        let (jsonl, kept) = MetricsFile::open(&run.metrics_path(), step)?;
        let (mut events, mut times) = EventFile::create(&run.tensorboard_dir())?;
        let mut curves = Curves::default();
        self.seconds_before = seconds_of(&kept).last().copied().unwrap_or(0.0);
        if times.len() < kept.len() {
            // The earlier event file is missing or damaged: assume that training was not paused.
            let now = tensorboard::now();
            times = seconds_of(&kept).iter().map(|seconds| now - (self.seconds_before - seconds)).collect();
        }
        for (record, time) in kept.iter().zip(times) {
            events.write_of(record, time)?;
            curves.add(record);
        }
        self.files = Some(Files { jsonl, events, curves, curves_path: run.curves_path() });
        self.first_step = step;
        Ok(self)
    }

    /// Seconds of training so far, earlier processes included.
    pub fn seconds(&self) -> f64 {
        self.seconds_before + self.elapsed().as_secs_f64()
    }

    /// Time since the process started training.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows a permanent line.
    pub fn note(&mut self, line: &str) {
        self.line.note(line);
    }

    /// Records a step.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.write_down(&Record::Step(record.clone()))
    }

    /// Shows a step.
    pub fn show_step(&mut self, record: &StepRecord, pace: Pace) {
        let line = self.step_line(record, pace);
        self.line.show(&line);
    }

    /// Records a skipped step.
    pub fn skipped(&mut self, step: usize, reason: String) -> Result<()> {
        self.note(&format!("step {step} skipped: {reason}; weights and moments are unchanged"));
        self.write_down(&Record::Skip(SkipRecord { step, skipped: reason }))
    }

    /// Records an evaluation.
    pub fn eval(&mut self, record: EvalRecord) -> Result<()> {
        let EvalRecord { step, val_loss, val_perplexity, val_bpb, val_accuracy, best, .. } = &record;
        let mut line = format!("step {step}: val loss {val_loss:.4}");
        if let Some(perplexity) = val_perplexity {
            line += &format!(", perplexity {perplexity:.3}");
        }
        if let Some(bpb) = val_bpb {
            line += &format!(", {bpb:.4} bits per byte");
        }
        if let Some(accuracy) = val_accuracy {
            line += &format!(", {:.1} % of pairs right", 100.0 * accuracy);
        }
        self.note(&format!("{line}{}", if *best { ", the best so far" } else { "" }));
        self.write_down(&Record::Eval(record))?;
        self.draw()
    }

    /// Records a sample after `step` steps.
    pub fn sample(&mut self, step: usize, sample: String) -> Result<()> {
        self.note(&format!("step {step}, sample:"));
        for line in sample.lines() {
            self.note(&format!("  | {line}"));
        }
        self.write_down(&Record::Sample(SampleRecord { step, sample }))
    }

    /// Redraws `curves.svg`.
    pub fn draw(&mut self) -> Result<()> {
        match &self.files {
            Some(files) => write_whole(&files.curves_path, files.curves.svg().as_bytes()),
            None => Ok(()),
        }
    }

    /// Flushes `metrics.jsonl` to disk: before a checkpoint that refers to its contents.
    pub fn flush(&mut self) -> Result<()> {
        match &self.files {
            Some(files) => files.jsonl.sync(),
            None => Ok(()),
        }
    }

    /// Writes each line immediately and as a whole, so that a crash loses no record.
    fn write_down(&mut self, record: &Record) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        files.jsonl.write(record)?;
        files.curves.add(record);
        files.events.write(record)
    }

    fn step_line(&self, record: &StepRecord, pace: Pace) -> String {
        let StepRecord { step, epoch, tokens, loss, lr, grad_norm, tok_per_sec, seconds, .. } = record;
        let of_total = pace.total.map(|total| format!("/{total}")).unwrap_or_default();
        let loss = loss.map_or("none".to_owned(), |loss| format!("{loss:.4}"));
        let mut line = format!(
            "step {step}{of_total}  epoch {epoch:.2}  {} tokens  loss {loss}  lr {lr:.2e}  grad norm {grad_norm:.2}  \
             {tok_per_sec:.0} tok/s",
            counted(*tokens)
        );
        if let Some(load) = record.expert_load {
            line += &format!("  expert load {load:.2}");
        }
        if let Some(mfu) = pace.mfu {
            line += &format!("  mfu {:.1}%", 100.0 * mfu);
        }
        if let Some(bytes) = hearth_model::system::memory::resident_bytes() {
            line += &format!("  mem {:.2} GB", bytes as f64 / 1e9);
        }
        // Based on this process's run so far, so that evaluations and samples are included.
        let n_done = step.saturating_sub(self.first_step).max(1) as f64;
        let left = match (pace.total, pace.minutes_left) {
            (Some(total), _) => {
                let seconds = seconds - self.seconds_before;
                Some(seconds / n_done * total.saturating_sub(*step) as f64)
            }
            (None, Some(minutes)) => Some((60.0 * minutes).max(0.0)),
            (None, None) => None,
        };
        if let Some(left) = left.filter(|left| left.is_finite()) {
            line += &format!("  eta {}", clock(left as u64));
        }
        line
    }
}

/// The seconds of training at each record.
fn seconds_of(records: &[Record]) -> Vec<f64> {
    let mut latest = 0.0;
    let at = |record: &Record| {
        if let Record::Step(step) = record {
            latest = step.seconds;
        }
        latest
    };
    records.iter().map(at).collect()
}

/// `512`, `7.7k`, `1.23M` or `4.56B`.
fn counted(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1}k", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", count as f64 / 1e6),
        _ => format!("{:.2}B", count as f64 / 1e9),
    }
}

/// `1:02:03` or `2:03`.
fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_line_shows_loss_learning_rate_speed_and_eta() {
        let reporter = Reporter::new(ProgressLine::new(Box::new(std::io::sink()), Style::Plain));
        let record = StepRecord {
            step: 500,
            epoch: 0.754,
            tokens: 384_000,
            loss: Some(2.345678),
            lr: 9.5e-4,
            grad_norm: 1.234,
            tok_per_sec: 6123.4,
            seconds: 60.0,
            balance_loss: None,
            expert_load: None,
        };
        let pace = Pace { total: Some(2000), mfu: Some(0.123), ..Pace::default() };
        let line = reporter.step_line(&record, pace);
        assert!(
            line.starts_with(
                "step 500/2000  epoch 0.75  384.0k tokens  loss 2.3457  lr 9.50e-4  grad norm 1.23  6123 tok/s  mfu 12.3%"
            ),
            "{line}"
        );
        assert_eq!([17, 1_230_000, 4_560_000_000].map(counted), ["17", "1.23M", "4.56B"]);
        assert!(line.ends_with("  eta 3:00"), "{line}");
        assert_eq!(clock(3723), "1:02:03");
        let only_kept = reporter.step_line(&StepRecord { loss: None, ..record.clone() }, pace);
        assert!(only_kept.contains("  loss none  lr "), "{only_kept}");
        let by_time = reporter.step_line(&record, Pace { minutes_left: Some(2.0), ..Pace::default() });
        assert!(by_time.starts_with("step 500  ") && by_time.ends_with("  eta 2:00"), "{by_time}");
    }
}
