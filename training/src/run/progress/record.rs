//! Lines of `metrics.jsonl`.

use serde::{Deserialize, Serialize};

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Record {
    /// An optimizer step.
    Step(StepRecord),
    /// An evaluation on the validation split.
    Eval(EvalRecord),
    /// A sample.
    Sample(SampleRecord),
    /// A skipped step.
    Skip(SkipRecord),
}

impl Record {
    /// Completed optimizer steps.
    pub fn step(&self) -> usize {
        match self {
            Record::Step(StepRecord { step, .. })
            | Record::Eval(EvalRecord { step, .. })
            | Record::Sample(SampleRecord { step, .. })
            | Record::Skip(SkipRecord { step, .. }) => *step,
        }
    }
}

/// An optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Completed optimizer steps, including this one.
    pub step: usize,
    /// Passes over the data so far.
    #[serde(default)]
    pub epoch: f64,
    /// Tokens trained on so far.
    #[serde(default)]
    pub tokens: u64,
    /// Mean cross entropy over the step's targets, in nats per token; with preferences, the mean loss of a pair. `None`
    /// for a step that has only texts of `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f32>,
    /// AdamW's learning rate of the step.
    pub lr: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f32,
    /// Training tokens per second since the last progress line. Differs from run to run.
    pub tok_per_sec: f64,
    /// Seconds of training so far, earlier processes included. Differs from run to run.
    pub seconds: f64,
    /// The load-balancing loss of a mixture's routers, if it has a weight: the number of active experts if all are used
    /// alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance_loss: Option<f32>,
    /// With a load-balancing loss: the load of the most used expert, relative to the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_load: Option<f32>,
}

/// An evaluation on the validation split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Completed optimizer steps.
    pub step: usize,
    /// Mean cross entropy in nats per token; with preferences, mean loss of a pair.
    pub val_loss: f64,
    /// `exp(val_loss)`, of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_perplexity: Option<f64>,
    /// Bits per byte of the validation text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_bpb: Option<f64>,
    /// With preferences, the share of validation pairs whose better answer is preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_accuracy: Option<f64>,
    /// Whether this is the best evaluation of the run so far.
    pub best: bool,
    /// With `eval.patience`: how many more evaluations in a row may be no better before the run ends; 0: it ends here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_left: Option<usize>,
}

/// A sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRecord {
    /// Completed optimizer steps.
    pub step: usize,
    /// The text.
    pub sample: String,
}

/// A skipped step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkipRecord {
    /// The step.
    pub step: usize,
    /// The reason.
    pub skipped: String,
}
