//! The logits processors, each a small function; their order is at [`super::Sampler`].
//!
//! The first ones change logits in place. Then every token that can still be drawn becomes a [`Candidate`], and the
//! others take candidates away.

use std::cmp::Ordering;

use super::SamplingParams;
use crate::{
    TokenId,
    error::{Error, Result},
};

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: TokenId,
    pub(super) logit: f32,
    /// `exp((logit - largest logit) / temperature)`: the probability, but for one common factor. At most 1.
    pub(super) weight: f32,
}

/// Passes the model's logits on, but for what no model should give: NaN and +infinity are a computation that failed,
/// not a choice. -infinity is allowed; it rules a token out.
pub(super) fn checked(logits: &[f32]) -> Result<&[f32]> {
    let broken = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY);
    broken.map_or(Ok(logits), |id| {
        Err(Error::Execution { what: format!("the model gave token {id} the logit {}", logits[id]) })
    })
}

/// Adds the bias of each token.
pub(super) fn add_logit_bias(params: &SamplingParams, logits: &mut [f32]) {
    for (&id, &bias) in &params.logit_bias {
        change(logits, id, |logit| logit + bias);
    }
}

/// Divides the positive and multiplies the negative logits of tokens seen before, in the prompt or in the output.
pub(super) fn penalize_repetition(penalty: f32, seen: impl Iterator<Item = TokenId>, logits: &mut [f32]) {
    for id in seen {
        change(logits, id, |logit| if logit > 0.0 { logit / penalty } else { logit * penalty });
    }
}

/// Subtracts the presence penalty once, and the frequency penalty `count` times, from each token of the output.
pub(super) fn penalize_output(
    params: &SamplingParams,
    counts: impl Iterator<Item = (TokenId, u32)>,
    logits: &mut [f32],
) {
    for (id, count) in counts {
        let penalty = params.presence_penalty + params.frequency_penalty * count as f32;
        change(logits, id, |logit| logit - penalty);
    }
}

/// Changes one logit. The result stays below +infinity, which only a broken model gives.
fn change(logits: &mut [f32], id: TokenId, change: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = change(*logit).min(f32::MAX);
    }
}

/// The token with the largest logit, the lowest id among equals.
pub(super) fn argmax(logits: &[f32]) -> Result<TokenId> {
    let mut best: Option<(usize, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.map_or(f32::NEG_INFINITY, |(_, largest)| largest) {
            best = Some((id, logit));
        }
    }
    best.map(|(id, _)| id as TokenId).ok_or_else(nothing_left)
}

/// Every token that can be drawn, in the order of ids, with its weight at this temperature (above 0).
pub(super) fn candidates(logits: &[f32], temperature: f32) -> Result<Vec<Candidate>> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return Err(nothing_left());
    }
    // The largest is taken off first, so that no temperature overflows.
    let weight = |logit: f32| ((logit - largest) / temperature).exp();
    let possible = logits.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    Ok(possible.map(|(id, &logit)| Candidate { id: id as TokenId, logit, weight: weight(logit) }).collect())
}

fn nothing_left() -> Error {
    Error::Execution { what: "the model ruled out every token: all logits are -inf".into() }
}

/// Keeps the `k` most likely candidates, most likely first.
pub(super) fn keep_top_k(k: usize, candidates: &mut Vec<Candidate>) {
    if k < candidates.len() {
        rank_first(k, candidates);
        candidates.truncate(k);
    }
}

/// Keeps the fewest candidates, most likely first, whose probabilities sum to `p` or more: the one that crosses `p`
/// stays. Sorts only as far as the sum needs.
pub(super) fn keep_top_p(p: f32, candidates: &mut Vec<Candidate>) {
    const FIRST_BATCH: usize = 256;
    let wanted = f64::from(p) * total_weight(candidates);
    let (mut n_kept, mut mass, mut batch) = (0, 0.0, FIRST_BATCH);
    while n_kept < candidates.len() {
        let rest = &mut candidates[n_kept..];
        let n_ranked = batch.min(rest.len());
        rank_first(n_ranked, rest);
        for candidate in &rest[..n_ranked] {
            mass += f64::from(candidate.weight);
            n_kept += 1;
            if mass >= wanted {
                candidates.truncate(n_kept);
                return;
            }
        }
        batch *= 4;
    }
}

/// Keeps the candidates with at least `p` times the largest probability.
pub(super) fn keep_min_p(p: f32, candidates: &mut Vec<Candidate>) {
    // The most likely token is never taken away, so the largest weight is 1.
    candidates.retain(|candidate| candidate.weight >= p);
}

/// The candidate at the share `uniform`, in `[0, 1)`, of the weights laid end to end.
pub(super) fn draw(uniform: f64, candidates: &[Candidate]) -> Option<TokenId> {
    let target = uniform * total_weight(candidates);
    let mut reached = 0.0;
    let crossing = candidates.iter().find(|candidate| {
        reached += f64::from(candidate.weight);
        reached > target
    });
    // The product above may round up to the total itself, which no sum exceeds.
    let last = || candidates.iter().rfind(|candidate| candidate.weight > 0.0);
    crossing.or_else(last).map(|candidate| candidate.id)
}

/// The sum of the weights. In double precision, as a vocabulary has more tokens than `f32` has digits for.
pub(super) fn total_weight(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// Moves the `n` most likely candidates to the front, in order; the others follow in any order.
pub(super) fn rank_first(n: usize, candidates: &mut [Candidate]) {
    if n == 0 {
        return;
    }
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n - 1, by_rank);
    }
    candidates[..n].sort_unstable_by(by_rank);
}

/// The larger logit first, the lower id among equals. Logits, not weights: a low temperature makes weights equal.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    // Not `total_cmp`, to which -0 is less than 0; NaN never gets here.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}
