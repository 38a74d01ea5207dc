//! What a run says about itself: a line that rewrites itself on terminals and plain lines elsewhere, both on stderr, and
//! every number as one JSON object a line in `metrics.jsonl`.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Serialize;

/// Back to the start of the line, and clear what stood there.
const CLEAR_LINE: &str = "\r\x1b[K";

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Record {
    /// An optimizer step.
    Step(StepRecord),
    /// An evaluation over the whole validation split.
    Eval(EvalRecord),
    /// A text that the model wrote.
    Sample {
        /// Optimizer steps done.
        step: usize,
        /// The text.
        sample: String,
    },
}

/// An optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// Optimizer steps done, this one included.
    pub step: usize,
    /// Mean cross entropy over the step's batch, in nats per token.
    pub loss: f32,
    /// Learning rate of the step.
    pub lr: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f32,
    /// Tokens trained on per second since the last read-back.
    pub tok_per_sec: f64,
}

/// An evaluation over the whole validation split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalRecord {
    /// Optimizer steps done.
    pub step: usize,
    /// Mean cross entropy in nats per token.
    pub val_loss: f64,
    /// `exp(val_loss)`.
    pub val_perplexity: f64,
    /// Bits per byte of the validation text.
    pub val_bpb: f64,
    /// Whether no evaluation of this run was better.
    pub best: bool,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One line that is written over.
    Terminal,
    /// A line each time.
    Plain,
}

impl Style {
    /// What suits stderr.
    pub fn of_stderr() -> Style {
        if io::stderr().is_terminal() { Style::Terminal } else { Style::Plain }
    }
}

/// Writes records down and shows them.
pub struct Reporter {
    jsonl: Option<BufWriter<File>>,
    shown: Box<dyn Write>,
    style: Style,
    started: Instant,
    max_steps: usize,
}

impl Reporter {
    /// A reporter for a run of `max_steps` that starts now, showing progress on `shown`.
    pub fn new(shown: Box<dyn Write>, style: Style, max_steps: usize) -> Reporter {
        Reporter { jsonl: None, shown, style, started: Instant::now(), max_steps }
    }

    /// Also writes every record to a new file at `path`.
    pub fn with_jsonl(mut self, path: &Path) -> Result<Reporter> {
        let file = File::create(path).with_context(|| format!("cannot create `{}`", path.display()))?;
        self.jsonl = Some(BufWriter::new(file));
        Ok(self)
    }

    /// Time since the run started.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// A line of its own: what was chosen, what was saved.
    pub fn note(&mut self, line: &str) {
        let clear = match self.style {
            Style::Plain => "",
            Style::Terminal => CLEAR_LINE,
        };
        self.show(&format!("{clear}{line}\n"));
    }

    /// Steps in order, the latest last: all are written down, the latest is shown.
    pub fn steps(&mut self, records: Vec<StepRecord>) -> Result<()> {
        if let Some(latest) = records.last() {
            let line = step_line(latest, self.max_steps, self.elapsed());
            match self.style {
                Style::Plain => self.show(&format!("{line}\n")),
                Style::Terminal => self.show(&format!("{CLEAR_LINE}{line}")),
            }
        }
        records.into_iter().try_for_each(|record| self.write_down(&Record::Step(record)))
    }

    /// An evaluation.
    pub fn eval(&mut self, record: EvalRecord) -> Result<()> {
        let EvalRecord { step, val_loss, val_perplexity, val_bpb, best } = &record;
        let mark = if *best { ", the best so far" } else { "" };
        self.note(&format!(
            "step {step}: val loss {val_loss:.4} over the whole split, perplexity {val_perplexity:.3}, {val_bpb:.4} bits \
             per byte{mark}"
        ));
        self.write_down(&Record::Eval(record))
    }

    /// A text that the model wrote after `step` steps.
    pub fn sample(&mut self, step: usize, sample: String) -> Result<()> {
        self.note(&format!("step {step}, the model writes:"));
        for line in sample.lines() {
            self.note(&format!("  | {line}"));
        }
        self.write_down(&Record::Sample { step, sample })
    }

    /// Whole lines only reach the file, each as soon as it is there: a run that dies leaves what it measured.
    fn write_down(&mut self, record: &Record) -> Result<()> {
        let Some(jsonl) = &mut self.jsonl else { return Ok(()) };
        let line = serde_json::to_string(record)?;
        writeln!(jsonl, "{line}").and_then(|()| jsonl.flush()).context("cannot write `metrics.jsonl`")
    }

    /// A run goes on when nobody can watch it any more: a closed terminal is no reason to lose hours of training.
    fn show(&mut self, text: &str) {
        let _ = self.shown.write_all(text.as_bytes()).and_then(|()| self.shown.flush());
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reporter")
            .field("style", &self.style)
            .field("max_steps", &self.max_steps)
            .finish_non_exhaustive()
    }
}

fn step_line(record: &StepRecord, max_steps: usize, elapsed: Duration) -> String {
    let StepRecord { step, loss, lr, grad_norm, tok_per_sec } = record;
    // From the whole run so far, so that evaluations and samples are in it.
    let left = elapsed.div_f64(*step as f64).mul_f64(max_steps.saturating_sub(*step) as f64);
    format!(
        "step {step}/{max_steps}  loss {loss:.4}  lr {lr:.2e}  grad norm {grad_norm:.2}  {tok_per_sec:.0} tok/s  eta {}",
        clock(left)
    )
}

/// `1:02:03` or `2:03`.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_step_shows_loss_rate_speed_and_time_left() {
        let record = StepRecord { step: 500, loss: 2.345678, lr: 9.5e-4, grad_norm: 1.234, tok_per_sec: 6123.4 };
        assert_eq!(
            step_line(&record, 2000, Duration::from_secs(60)),
            "step 500/2000  loss 2.3457  lr 9.50e-4  grad norm 1.23  6123 tok/s  eta 3:00"
        );
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }

    #[test]
    fn every_record_is_a_line_of_json_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut reporter = Reporter::new(Box::new(io::sink()), Style::Plain, 2).with_jsonl(&path).unwrap();
        let record = StepRecord { step: 1, loss: 0.5, lr: 0.1, grad_norm: 2.0, tok_per_sec: 10.0 };
        reporter.steps(vec![record.clone(), StepRecord { step: 2, ..record }]).unwrap();
        let eval = EvalRecord { step: 2, val_loss: 1.5, val_perplexity: 4.5, val_bpb: 2.0, best: true };
        reporter.eval(eval).unwrap();
        reporter.sample(2, "a\nb".to_owned()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((&lines[1]["step"], &lines[1]["loss"]), (&2.into(), &0.5.into()));
        assert_eq!((&lines[2]["val_loss"], &lines[2]["best"]), (&1.5.into(), &true.into()));
        assert_eq!(lines[3]["sample"], "a\nb");
    }
}
