//! The steps that a row of logits goes through, each a small function; their order is at [`super::Sampler`].
//!
//! All of them work on [`Candidates`]: some change logits, the others take candidates away.

use std::cmp::Ordering;

use super::{Dry, LogitRow, Mirostat, MirostatVersion, Xtc};
use crate::{
    TokenId,
    error::{Error, Result},
    ops,
};

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: TokenId,
    /// Before the temperature.
    logit: f32,
    /// `exp((logit - largest logit) / temperature)`: the probability, but for one common factor. At most 1.
    pub(super) weight: f32,
}

/// The tokens that are left. Up to the first step that takes some away, all of the row's in its order, those among them
/// that are ruled out (a logit of -infinity).
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
    /// Kept apart from the logits, so that a low one makes no two of them equal.
    temperature: f32,
    /// Whether the weights belong to the logits.
    is_weighed: bool,
}

impl Candidates {
    /// All tokens of the row.
    pub(super) fn new(row: &LogitRow<'_>) -> Result<Self> {
        check(row)?;
        let candidate = |id, logit| Candidate { id, logit, weight: 0.0 };
        let list = match row {
            LogitRow::Whole(logits) => logits.iter().zip(0..).map(|(&logit, id)| candidate(id, logit)).collect(),
            LogitRow::Best(logits) => logits.iter().map(|&(id, logit)| candidate(id, logit)).collect(),
        };
        Ok(Self { list, temperature: 1.0, is_weighed: false })
    }

    /// Whether the largest logit is -infinity.
    pub(super) fn is_nothing_left(&self) -> bool {
        self.list.iter().all(|candidate| candidate.logit == f32::NEG_INFINITY)
    }

    /// Changes one logit, as the temperature so far left it. The result stays below +infinity, which only a broken model
    /// gives, and above -infinity unless it was there.
    pub(super) fn change(&mut self, id: TokenId, change: impl FnOnce(f32) -> f32) {
        self.apply_temperature();
        self.is_weighed = false;
        let at_its_place = self.list.get(id as usize).is_some_and(|candidate| candidate.id == id);
        let candidate = if at_its_place {
            self.list.get_mut(id as usize)
        } else {
            self.list.iter_mut().find(|candidate| candidate.id == id)
        };
        if let Some(candidate) = candidate.filter(|candidate| candidate.logit > f32::NEG_INFINITY) {
            candidate.logit = change(candidate.logit).clamp(f32::MIN, f32::MAX);
        }
    }

    /// Rules tokens out.
    pub(super) fn ban(&mut self, is_banned: impl Fn(TokenId) -> bool) {
        self.is_weighed = false;
        for candidate in &mut self.list {
            if is_banned(candidate.id) {
                candidate.logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Divides the logits by `temperature`; at 0, the most likely token alone stays, the lowest id among equals.
    pub(super) fn heat(&mut self, temperature: f32) {
        if temperature == 0.0 {
            let best = self.list.iter().copied().min_by(by_rank);
            self.list.clear();
            self.list.extend(best);
            self.is_weighed = false;
        } else if temperature != 1.0 {
            self.temperature *= temperature;
            self.is_weighed = false;
        }
    }

    /// Heats by what lies between `low` and `high` as the entropy does between none and that of equal probabilities.
    pub(super) fn heat_by_entropy(&mut self, low: f32, high: f32, exponent: f32) {
        self.weigh();
        let n_possible = self.list.iter().filter(|candidate| candidate.weight > 0.0).count();
        let most = (n_possible.max(2) as f64).ln();
        let share = (self.entropy() / most).clamp(0.0, 1.0).powf(f64::from(exponent));
        self.heat(low + (high - low) * share as f32);
    }

    /// Keeps the `k` most likely, most likely first.
    pub(super) fn keep_top_k(&mut self, k: usize) {
        if k < self.list.len() {
            sort_first(k, &mut self.list, by_rank);
            self.list.truncate(k);
        }
    }

    /// Keeps the fewest, most likely first, whose probabilities sum to `p` or more: the one that crosses `p` stays.
    pub(super) fn keep_top_p(&mut self, p: f32) {
        self.weigh();
        let wanted = f64::from(p) * self.total_weight();
        keep_first(&mut self.list, by_rank, |candidate| candidate.weight, wanted);
    }

    /// Keeps those with at least `p` times the largest probability.
    pub(super) fn keep_min_p(&mut self, p: f32) {
        self.weigh();
        // The largest weight is 1, so the most likely one stays.
        self.list.retain(|candidate| candidate.weight >= p);
    }

    /// Keeps the fewest that sum to `p` or more, those first whose surprise `-ln(probability)` is nearest to the entropy,
    /// which is the surprise to be expected. The one that crosses `p` stays.
    pub(super) fn keep_typical_p(&mut self, p: f32) {
        self.weigh();
        self.drop_impossible();
        let (total, entropy) = (self.total_weight(), self.entropy());
        let mut by_distance: Vec<(f64, Candidate)> = self
            .list
            .iter()
            .map(|&candidate| ((-(f64::from(candidate.weight) / total).ln() - entropy).abs(), candidate))
            .collect();
        let nearest =
            |a: &(f64, Candidate), b: &(f64, Candidate)| a.0.total_cmp(&b.0).then_with(|| by_rank(&a.1, &b.1));
        keep_first(&mut by_distance, nearest, |(_, candidate)| candidate.weight, f64::from(p) * total);
        self.list = by_distance.into_iter().map(|(_, candidate)| candidate).collect();
        // The most likely one may be gone.
        self.is_weighed = false;
    }

    /// Keeps those whose logit is at most `n` standard deviations of all the logits below the largest. The temperature
    /// scales both alike, so it makes no difference.
    pub(super) fn keep_top_n_sigma(&mut self, n: f32) {
        let possible = || self.list.iter().map(|candidate| candidate.logit).filter(|&logit| logit > f32::NEG_INFINITY);
        let count = possible().count() as f64;
        let mean = possible().map(f64::from).sum::<f64>() / count;
        let variance = possible().map(|logit| (f64::from(logit) - mean).powi(2)).sum::<f64>() / count;
        let largest = possible().fold(f32::NEG_INFINITY, f32::max);
        let bar = f64::from(largest) - f64::from(n) * variance.sqrt();
        self.list.retain(|candidate| f64::from(candidate.logit) >= bar);
    }

    /// Takes away all those at least as probable as the threshold, but the least probable of them.
    pub(super) fn exclude_top_choices(&mut self, xtc: Xtc) {
        self.weigh();
        let bar = f64::from(xtc.threshold) * self.total_weight();
        let is_top = |candidate: &Candidate| f64::from(candidate.weight) >= bar;
        let last = self.list.iter().filter(|candidate| is_top(candidate)).copied().max_by(by_rank);
        let Some(last) = last else { return };
        self.list.retain(|candidate| candidate.id == last.id || !is_top(candidate));
        self.is_weighed = false;
    }

    /// Keeps what mirostat allows while the bound on the surprise is `bound` bits.
    pub(super) fn keep_unsurprising(&mut self, mirostat: Mirostat, bound: f32) {
        self.weigh();
        self.drop_impossible();
        let n = self.list.len();
        let n_kept = match mirostat.version {
            MirostatVersion::V1 => {
                sort_first(n.min(N_ESTIMATED), &mut self.list, by_rank);
                k_of_surprise(self.fall_off(), n, f64::from(bound))
            }
            MirostatVersion::V2 => {
                let total = self.total_weight();
                let least = total * (-f64::from(bound)).exp2();
                self.list.iter().filter(|candidate| f64::from(candidate.weight) >= least).count()
            }
        };
        self.keep_top_k(n_kept.clamp(1, n));
    }

    /// The exponent `s` of a Zipf distribution (the probability of rank `i` goes with `i^-s`) that fits the most likely
    /// ones best: equation 30 of the paper on mirostat.
    fn fall_off(&self) -> f64 {
        let (mut products, mut squares) = (0.0, 0.0);
        let ranked = &self.list[..self.list.len().min(N_ESTIMATED)];
        for (at, pair) in ranked.windows(2).enumerate() {
            let step = ((at as f64 + 2.0) / (at as f64 + 1.0)).ln();
            products += step * (f64::from(pair[0].weight) / f64::from(pair[1].weight)).ln();
            squares += step * step;
        }
        if squares == 0.0 { f64::INFINITY } else { products / squares }
    }

    /// The candidate at the share `uniform`, in `[0, 1)`, of the weights laid end to end.
    pub(super) fn draw(&mut self, uniform: f64) -> Option<TokenId> {
        self.weigh();
        let target = uniform * self.total_weight();
        let mut reached = 0.0;
        let crossing = self.list.iter().find(|candidate| {
            reached += f64::from(candidate.weight);
            reached > target
        });
        // The product above may round up to the total itself, which no sum exceeds.
        let last = || self.list.iter().rfind(|candidate| candidate.weight > 0.0);
        crossing.or_else(last).map(|candidate| candidate.id)
    }

    /// The probability of one, 0 if it is not there.
    pub(super) fn probability(&mut self, id: TokenId) -> f64 {
        self.weigh();
        let found = self.list.iter().find(|candidate| candidate.id == id);
        found.map_or(0.0, |candidate| f64::from(candidate.weight) / self.total_weight())
    }

    /// All that can be drawn with their probabilities, most likely first.
    pub(super) fn into_distribution(mut self) -> Vec<(TokenId, f64)> {
        self.weigh();
        self.drop_impossible();
        self.list.sort_unstable_by(by_rank);
        let total = self.total_weight();
        self.list.iter().map(|candidate| (candidate.id, f64::from(candidate.weight) / total)).collect()
    }

    /// Makes the weights belong to the logits.
    fn weigh(&mut self) {
        if self.is_weighed {
            return;
        }
        let largest = self.list.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
        // The largest is taken off first, so that no temperature overflows. All at once: a vocabulary has 50,000 of them
        // and more, for each sequence of a step.
        let mut weights: Vec<f32> =
            self.list.iter().map(|candidate| (candidate.logit - largest) / self.temperature).collect();
        ops::exp_all(&mut weights);
        for (candidate, weight) in self.list.iter_mut().zip(weights) {
            candidate.weight = weight;
        }
        self.is_weighed = true;
    }

    fn drop_impossible(&mut self) {
        self.list.retain(|candidate| candidate.weight > 0.0);
    }

    /// Puts the temperature into the logits, for a step behind it that changes them.
    fn apply_temperature(&mut self) {
        if self.temperature != 1.0 {
            for candidate in &mut self.list {
                let logit = candidate.logit;
                candidate.logit = if logit == f32::NEG_INFINITY { logit } else { finite(logit / self.temperature) };
            }
            self.temperature = 1.0;
        }
    }

    /// The sum of the weights. In double precision, as a vocabulary has more tokens than `f32` has digits for.
    fn total_weight(&self) -> f64 {
        self.list.iter().map(|candidate| f64::from(candidate.weight)).sum()
    }

    /// In nats, of the weights.
    fn entropy(&self) -> f64 {
        let total = self.total_weight();
        let shares = self.list.iter().map(|candidate| f64::from(candidate.weight) / total);
        shares.filter(|share| *share > 0.0).map(|share| -share * share.ln()).sum()
    }
}

/// NaN and +infinity are a computation that failed, not a choice, and so is a row that rules out all.
fn check(row: &LogitRow<'_>) -> Result<()> {
    match row {
        LogitRow::Whole(logits) => check_all(logits.iter().copied(), |at| at as TokenId),
        LogitRow::Best(logits) => check_all(logits.iter().map(|pair| pair.1), |at| logits[at].0),
    }
}

fn check_all(mut logits: impl Iterator<Item = f32> + Clone, id_at: impl Fn(usize) -> TokenId) -> Result<()> {
    let is_broken = |logit: f32| logit.is_nan() || logit == f32::INFINITY;
    // Without an early end, so that the compiler looks at many at a time.
    if logits.clone().fold(false, |any, logit| any | is_broken(logit))
        && let Some((at, logit)) = logits.clone().enumerate().find(|&(_, logit)| is_broken(logit))
    {
        return Err(Error::Logits { what: format!("token {} has the logit {logit}", id_at(at)) });
    }
    if logits.all(|logit| logit == f32::NEG_INFINITY) {
        return Err(Error::Logits { what: "every token is ruled out, all are -inf".into() });
    }
    Ok(())
}

/// The token with the largest logit, the lowest id among equals: what all steps come to where only the temperature is
/// set, to 0.
pub(super) fn argmax(row: &LogitRow<'_>) -> Result<Option<TokenId>> {
    check(row)?;
    Ok(match row {
        LogitRow::Whole(logits) => {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            logits.iter().position(|&logit| logit == largest).map(|id| id as TokenId)
        }
        LogitRow::Best(logits) => {
            let candidates = logits.iter().map(|&(id, logit)| Candidate { id, logit, weight: 0.0 });
            candidates.min_by(by_rank).map(|candidate| candidate.id)
        }
    })
}

/// How many tokens the estimate of mirostat 1 looks at: the paper's `m`.
const N_ESTIMATED: usize = 100;

/// How many of `n` tokens to keep, so that under a Zipf distribution of the exponent `s` none surprises more than `bound`
/// bits: algorithm 1 of the paper on mirostat.
fn k_of_surprise(s: f64, n: usize, bound: f64) -> usize {
    let excess = s - 1.0;
    let n_effective = if excess.abs() < 1e-9 {
        // The limit of the quotient below.
        bound.exp2() / (n as f64).ln().max(f64::MIN_POSITIVE)
    } else {
        excess * bound.exp2() / (1.0 - (n as f64).powf(-excess))
    };
    // A cast of NaN gives 0 and one beyond the range its end; the caller clamps.
    n_effective.powf(1.0 / s).round() as usize
}

/// The length of the longest repetition that each token would go on with, for those for which there is one: if the text
/// so far, `tokens`, ends in a passage that it holds before, what came behind that passage.
///
/// A repetition does not reach over a breaker.
pub(super) fn repetitions(tokens: &[TokenId], dry: &Dry) -> Vec<(TokenId, usize)> {
    /// Longer ones are penalized no more: the penalty is beyond all logits by then.
    const MAX_LENGTH: usize = 50;
    let is_breaker = |id: &TokenId| dry.sequence_breakers.contains(id);
    let mut found: Vec<(TokenId, usize)> = Vec::new();
    for (before, next) in tokens.iter().enumerate().skip(1) {
        let pairs = tokens[..before].iter().rev().zip(tokens.iter().rev());
        let length = pairs.take(MAX_LENGTH).take_while(|(a, b)| a == b && !is_breaker(b)).count();
        if length >= dry.allowed_length && !is_breaker(next) {
            found.push((*next, length));
        }
    }
    // The longest of each token last, where the others are dropped.
    found.sort_unstable_by(|a, b| (a.0, b.1).cmp(&(b.0, a.1)));
    found.dedup_by_key(|(id, _)| *id);
    found
}

/// Keeps the fewest of the first in `order` whose weights sum to `wanted` or more. Sorts only as far as the sum needs.
fn keep_first<T>(
    list: &mut Vec<T>,
    order: impl Fn(&T, &T) -> Ordering + Copy,
    weight: impl Fn(&T) -> f32,
    wanted: f64,
) {
    const FIRST_BATCH: usize = 256;
    let (mut n_kept, mut mass, mut batch) = (0, 0.0, FIRST_BATCH);
    while n_kept < list.len() {
        let rest = &mut list[n_kept..];
        let n_sorted = batch.min(rest.len());
        sort_first(n_sorted, rest, order);
        for item in &rest[..n_sorted] {
            mass += f64::from(weight(item));
            n_kept += 1;
            if mass >= wanted {
                list.truncate(n_kept);
                return;
            }
        }
        batch *= 4;
    }
}

/// Moves the `n` first in `order` to the front and sorts them; the others follow in any order.
fn sort_first<T>(n: usize, list: &mut [T], order: impl Fn(&T, &T) -> Ordering + Copy) {
    if n == 0 {
        return;
    }
    if n < list.len() {
        list.select_nth_unstable_by(n - 1, order);
    }
    list[..n].sort_unstable_by(order);
}

/// The larger logit first, the lower id among equals. Logits, not weights: a low temperature makes weights equal.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    // Not `total_cmp`, to which -0 is less than 0; NaN never gets here.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}
