//! Log-probabilities of the model itself, before any sampling parameter.

use super::select::Scan;
use crate::{TokenId, ops};

/// How likely the model found a token, and which it found likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token in question.
    pub id: TokenId,
    /// Its log-probability, in nats; -infinity if its logit is, or if the vocabulary has no such id.
    pub logprob: f32,
    /// How many tokens are more likely, plus 1: the most likely token has rank 1, and so have its equals.
    pub rank: usize,
    /// The most likely tokens with their log-probabilities, the most likely first, the lower id among equals.
    pub top: Vec<(TokenId, f32)>,
}

/// The log-softmax of raw logits at `id` and at the `n_top` most likely tokens.
///
/// Where `id` is among the top, both places hold the very same float: clients compare them for equality.
pub fn token_logprobs(logits: &[f32], id: TokenId, n_top: usize) -> TokenLogprobs {
    let scan = Scan::new(logits);
    let log_total = log_sum_exp(logits, scan.largest());
    let logprob =
        |id: TokenId| logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - log_total) as f32);
    let top = scan.first(n_top).into_iter().map(|rank| rank.place() as TokenId).map(|id| (id, logprob(id))).collect();
    let own = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let rank = logits.iter().map(|&logit| u32::from(logit > own)).sum::<u32>() as usize + 1;
    TokenLogprobs { id, logprob: logprob(id), rank, top }
}

/// `ln(sum(exp(logits)))`, to within `1e-6`: as close as the logits are themselves.
fn log_sum_exp(logits: &[f32], largest: f32) -> f64 {
    f64::from(largest) + ops::sum_of(&ops::relative_weights(logits, largest, 1.0)).ln()
}
