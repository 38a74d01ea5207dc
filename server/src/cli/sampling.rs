//! The flags for sampling.

use clap::Args;
use hearth_model::decode::sampling::SamplingParams;
use serde_json::{Map, Value, json};

use crate::{config::SamplingConfig, random::random_u64};

/// The sampling parameters. The names are the API's. Omitted ones come from `--sampling-defaults`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Sampling temperature; 0 always takes the most likely token [default: the model's, or 1]
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep this many of the most likely tokens; 0 and -1 keep all [default: the model's, or 0]
    #[arg(long, allow_negative_numbers = true, value_parser = top_k)]
    top_k: Option<usize>,
    /// Nucleus sampling: keep the smallest set of tokens whose probabilities sum to this value; 1 keeps all [default: the model's, or 1]
    #[arg(long, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens whose probability is at least this fraction of the largest one; 0 keeps all [default: the model's, or
    /// 0]
    #[arg(long, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Penalty for tokens that already occurred; 1 disables it [default: the model's, or 1]
    #[arg(long, allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Random seed; the same seed gives the same text [default: random]
    #[arg(long, allow_negative_numbers = true, value_parser = seed)]
    seed: Option<u64>,
    #[command(flatten)]
    pub(super) defaults: SamplingConfig,
}

/// As in the API, -1 disables it.
fn top_k(given: &str) -> Result<usize, String> {
    if given == "-1" { Ok(0) } else { given.parse().map_err(|_| "must be a whole number from -1".to_owned()) }
}

/// As in the API, seeds may be negative.
fn seed(given: &str) -> Result<u64, String> {
    let negative = || given.parse::<i64>().map(i64::cast_unsigned);
    given.parse().or_else(|_| negative()).map_err(|_| "must be a 64-bit whole number".to_owned())
}

impl SamplingArgs {
    /// The parameters: those given, and the model's defaults for the rest.
    pub(super) fn over(&self, defaults: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            // As in the API, 0 keeps only the most likely token.
            top_p: self.top_p.map_or(defaults.top_p, |top_p| if top_p == 0.0 { f32::MIN_POSITIVE } else { top_p }),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            seed: self.seed.unwrap_or_else(random_u64),
            ..defaults
        }
    }

    /// The given parameters as fields of a request.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let fields = [
            ("temperature", self.temperature.map(decimal)),
            ("top_k", self.top_k.map(|value| json!(value))),
            ("top_p", self.top_p.map(decimal)),
            ("min_p", self.min_p.map(decimal)),
            ("repetition_penalty", self.repetition_penalty.map(decimal)),
            // Other servers take signed numbers only.
            ("seed", self.seed.map(|value| json!(value.cast_signed()))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// As it was given: 0.7, not the nearest f32 in all its digits.
fn decimal(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or_else(|_| f64::from(value)))
}
