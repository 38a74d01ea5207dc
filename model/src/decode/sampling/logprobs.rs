//! Log-probabilities of the model itself, before any sampling parameter.

use super::select::Scan;
use crate::{TokenId, ops};

/// The log-probability of a token, and the most likely alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub id: TokenId,
    /// Its log-probability in nats; -infinity if its logit is, or if the id is not in the vocabulary.
    pub logprob: f32,
    /// Number of more likely tokens, plus 1; equally likely tokens have the same rank.
    pub rank: usize,
    /// The most likely tokens with their log-probabilities, most likely first, lower ids first among equals; or the
    /// requested tokens.
    pub top: Vec<(TokenId, f32)>,
}

/// The log-softmax of raw logits at `id` and at the `n_top` most likely tokens.
///
/// If `id` is among the top, both values are the same float: clients test them for equality.
pub fn token_logprobs(logits: &[f32], id: TokenId, n_top: usize) -> TokenLogprobs {
    let scan = Scan::new(logits);
    let top: Vec<TokenId> = scan.first(n_top).into_iter().map(|rank| rank.place() as TokenId).collect();
    reported(logits, &scan, id, &top)
}

/// The log-softmax of raw logits at `id` and, as [`TokenLogprobs::top`], at the tokens `of` in their order.
pub fn logprobs_of(logits: &[f32], id: TokenId, of: &[TokenId]) -> TokenLogprobs {
    reported(logits, &Scan::new(logits), id, of)
}

fn reported(logits: &[f32], scan: &Scan<'_>, id: TokenId, listed: &[TokenId]) -> TokenLogprobs {
    let log_total = log_sum_exp(logits, scan.largest());
    let logprob =
        |id: TokenId| logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - log_total) as f32);
    let top = listed.iter().map(|&id| (id, logprob(id))).collect();
    let own = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let rank = logits.iter().map(|&logit| u32::from(logit > own)).sum::<u32>() as usize + 1;
    TokenLogprobs { id, logprob: logprob(id), rank, top }
}

/// The log-softmax of raw logits at `id`, which must be in the vocabulary.
pub(crate) fn logprob(logits: &[f32], id: TokenId) -> f32 {
    (f64::from(logits[id as usize]) - log_sum_exp(logits, Scan::new(logits).largest())) as f32
}

/// The entropy in nats of the softmax of raw logits.
pub(crate) fn entropy(logits: &[f32]) -> f64 {
    let largest = Scan::new(logits).largest();
    let weights = ops::relative_weights(logits, largest, 1.0);
    let total = ops::sum_of(&weights);
    let weighted = weights.iter().zip(logits).filter(|(weight, _)| **weight > 0.0);
    let mean: f64 = weighted.map(|(weight, logit)| f64::from(*weight) * f64::from(logit - largest)).sum();
    total.ln() - mean / total
}

/// `ln(sum(exp(logits)))` to within `1e-6`, the precision of the logits themselves.
fn log_sum_exp(logits: &[f32], largest: f32) -> f64 {
    f64::from(largest) + ops::sum_of(&ops::relative_weights(logits, largest, 1.0)).ln()
}
