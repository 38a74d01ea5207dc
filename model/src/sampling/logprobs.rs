//! Log-probabilities of the model itself, before any sampling parameter.

use std::cmp::Ordering;

use crate::TokenId;

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
    let log_total = log_sum_exp(logits);
    let logprob =
        |id: TokenId| logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - log_total) as f32);
    let top = top_ids(logits, n_top).into_iter().map(|id| (id, logprob(id))).collect();
    let own = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let rank = logits.iter().filter(|logit| **logit > own).count() + 1;
    TokenLogprobs { id, logprob: logprob(id), rank, top }
}

/// `ln(sum(exp(logits)))`, in double precision.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + total.ln()
}

/// The ids of the `n` largest logits in order, without sorting the others. NaN ranks last.
fn top_ids(logits: &[f32], n: usize) -> Vec<TokenId> {
    let n = n.min(logits.len());
    if n == 0 {
        return Vec::new();
    }
    let key = |id: TokenId| {
        let logit = logits[id as usize];
        if logit.is_nan() { f32::NEG_INFINITY } else { logit }
    };
    let by_rank = |a: &TokenId, b: &TokenId| {
        // Not `total_cmp`, to which -0 is less than 0.
        key(*b).partial_cmp(&key(*a)).unwrap_or(Ordering::Equal).then(a.cmp(b))
    };
    let mut ids: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    ids.select_nth_unstable_by(n - 1, by_rank);
    ids.truncate(n);
    ids.sort_unstable_by(by_rank);
    ids
}
