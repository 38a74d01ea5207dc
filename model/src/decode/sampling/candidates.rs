//! The tokens that may be sampled, after each step of the chain: logits and weights.

use std::{borrow::Cow, collections::BTreeSet};

use super::{
    LogitRow, TokenLogprobs,
    select::{Rank, Scan},
};
use crate::{
    TokenId,
    error::{Error, Result},
    ops,
};

/// Number of weights that are summed at once when sampling.
const DRAWN_AT_ONCE: usize = 1024;

/// The remaining tokens, in the order of their ids. Before the first truncating step, all tokens of the row, including
/// excluded ones (with a logit of -infinity).
#[derive(Clone, Debug)]
pub(super) struct Candidates<'a> {
    /// Ascending; `None`: all tokens of the vocabulary.
    ids: Option<Vec<TokenId>>,
    /// Before the temperature.
    logits: Cow<'a, [f32]>,
    /// `exp((logit - largest logit) / temperature)`: the probability up to a common factor. At most 1. Empty if not
    /// computed for the current logits.
    weights: Vec<f32>,
    /// Separate from the logits, so that a low temperature does not make two logits equal.
    temperature: f32,
}

impl<'a> Candidates<'a> {
    /// All tokens of the row.
    ///
    /// # Errors
    /// [`Error::Logits`] for NaN and +infinity, which mean that the computation failed, and for a row that excludes all
    /// tokens.
    pub(super) fn new(row: &'a LogitRow<'_>) -> Result<Self> {
        let (ids, logits) = match row {
            LogitRow::Whole(logits) => (None, Cow::Borrowed(logits.as_ref())),
            LogitRow::Best(logits) => {
                let mut logits = logits.to_vec();
                logits.sort_unstable_by_key(|&(id, _)| id);
                let (ids, logits) = logits.into_iter().unzip();
                (Some(ids), Cow::Owned(logits))
            }
        };
        let candidates = Self { ids, logits, weights: Vec::new(), temperature: 1.0 };
        candidates.check()?;
        Ok(candidates)
    }

    fn check(&self) -> Result<()> {
        if !ops::all_below_infinity(&self.logits)
            && let Some(place) = self.logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY)
        {
            let (id, logit) = (self.id(place), self.logits[place]);
            return Err(Error::Logits { what: format!("token {id} has the logit {logit}") });
        }
        if self.is_nothing_left() {
            return Err(Error::Logits { what: "all tokens are excluded: every logit is -inf".into() });
        }
        Ok(())
    }

    /// Whether all logits are -infinity.
    pub(super) fn is_nothing_left(&self) -> bool {
        self.logits.iter().all(|&logit| logit == f32::NEG_INFINITY)
    }

    fn id(&self, place: usize) -> TokenId {
        self.ids.as_ref().map_or(place as TokenId, |ids| ids[place])
    }

    fn place(&self, id: TokenId) -> Option<usize> {
        match &self.ids {
            None => Some(id as usize).filter(|&place| place < self.logits.len()),
            Some(ids) => ids.binary_search(&id).ok(),
        }
    }

    /// Changes a logit, after applying the temperature. The result stays below +infinity, which only a broken model
    /// returns, and above -infinity unless it was -infinity before.
    pub(super) fn change(&mut self, id: TokenId, change: impl FnOnce(f32) -> f32) {
        self.apply_temperature();
        self.weights.clear();
        if let Some(place) = self.place(id)
            && self.logits[place] > f32::NEG_INFINITY
        {
            let logit = &mut self.logits.to_mut()[place];
            *logit = finite(change(*logit));
        }
    }

    /// Replaces all logits except those of -infinity, after any temperature.
    pub(super) fn replace_logits(&mut self, logits: impl Iterator<Item = f64>) {
        self.temperature = 1.0;
        self.weights.clear();
        for (logit, new) in self.logits.to_mut().iter_mut().zip(logits) {
            if *logit > f32::NEG_INFINITY {
                *logit = finite(new as f32);
            }
        }
    }

    /// Excludes tokens.
    pub(super) fn ban(&mut self, banned: &BTreeSet<TokenId>) {
        self.weights.clear();
        for place in banned.iter().filter_map(|&id| self.place(id)).collect::<Vec<_>>() {
            self.logits.to_mut()[place] = f32::NEG_INFINITY;
        }
    }

    /// Excludes all other tokens.
    pub(super) fn allow(&mut self, allowed: &BTreeSet<TokenId>) {
        self.weights.clear();
        let places: Vec<usize> = allowed.iter().filter_map(|&id| self.place(id)).collect();
        self.keep(&places);
    }

    /// Divides the logits by `temperature`, which is above 0.
    pub(super) fn divide_by(&mut self, temperature: f32) {
        if temperature != 1.0 {
            self.temperature *= temperature;
            self.weights.clear();
        }
    }

    /// Applies the temperature to the logits, for a later step that changes them.
    fn apply_temperature(&mut self) {
        if self.temperature != 1.0 {
            let divisor = self.temperature.max(LEAST_TEMPERATURE);
            for logit in self.logits.to_mut() {
                *logit = if *logit == f32::NEG_INFINITY { *logit } else { finite(*logit / divisor) };
            }
            self.temperature = 1.0;
        }
    }

    /// Keeps the candidates at `places`, which must be ascending.
    pub(super) fn keep(&mut self, places: &[usize]) {
        self.ids = Some(places.iter().map(|&place| self.id(place)).collect());
        self.logits = places.iter().map(|&place| self.logits[place]).collect::<Vec<_>>().into();
        if !self.weights.is_empty() {
            self.weights = places.iter().map(|&place| self.weights[place]).collect();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.logits.len()
    }

    pub(super) fn logits(&self) -> &[f32] {
        &self.logits
    }

    pub(super) fn temperature(&self) -> f32 {
        self.temperature
    }

    /// Ranks by logit, not by weight: a low temperature makes weights equal. The lower id comes first among equals.
    pub(super) fn rank(&self, place: usize) -> Rank {
        Rank::new(self.logits[place], place)
    }

    /// The `n` most likely candidates in order.
    pub(super) fn first(&self, n: usize) -> Vec<Rank> {
        Scan::new(&self.logits).first(n)
    }

    /// Computes the weights, which are valid until a logit changes.
    pub(super) fn weigh(&mut self) -> &[f32] {
        if self.weights.len() != self.logits.len() {
            let largest = Scan::new(&self.logits).largest();
            self.weights = ops::relative_weights(&self.logits, largest, self.temperature);
        }
        &self.weights
    }

    /// The weights as computed [last](Self::weigh).
    pub(super) fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Invalidates the weights: the most likely candidate may be gone.
    pub(super) fn forget_weights(&mut self) {
        self.weights.clear();
    }

    /// The sum of the weights.
    pub(super) fn total_weight(&mut self) -> f64 {
        self.weigh().chunks(DRAWN_AT_ONCE).map(ops::sum_of).sum()
    }

    /// How much less likely each candidate is than the most likely one: the negative logarithm of its weight, in nats.
    pub(super) fn nats_below_largest(&self) -> impl Iterator<Item = f64> + '_ {
        let largest = f64::from(Scan::new(&self.logits).largest());
        self.logits.iter().map(move |&logit| (largest - f64::from(logit)) / f64::from(self.temperature))
    }

    /// The entropy of the probabilities in nats.
    pub(super) fn entropy(&mut self) -> f64 {
        let total = self.total_weight();
        let possible = self.weights.iter().zip(self.nats_below_largest()).filter(|(weight, _)| **weight > 0.0);
        total.ln() + possible.map(|(&weight, below)| f64::from(weight) * below).sum::<f64>() / total
    }

    pub(super) fn drop_impossible(&mut self) {
        let places: Vec<usize> =
            self.weigh().iter().enumerate().filter(|(_, w)| **w > 0.0).map(|(place, _)| place).collect();
        if places.len() < self.len() {
            self.keep(&places);
        }
    }

    /// The candidate at the fraction `uniform`, in `[0, 1)`, of the cumulative weights.
    pub(super) fn draw(&mut self, uniform: f64) -> Option<TokenId> {
        let target = uniform * self.total_weight();
        let mut reached = 0.0;
        let mut end = self.weights.len();
        for (number, chunk) in self.weights.chunks(DRAWN_AT_ONCE).enumerate() {
            let sum = ops::sum_of(chunk);
            if reached + sum <= target {
                reached += sum;
                continue;
            }
            let start = number * DRAWN_AT_ONCE;
            for (offset, &weight) in chunk.iter().enumerate() {
                reached += f64::from(weight);
                if reached > target {
                    return Some(self.id(start + offset));
                }
            }
            // A sequential sum may be slightly smaller.
            end = start + chunk.len();
            break;
        }
        // Rounding may raise the target to the total, which no partial sum exceeds.
        self.weights[..end].iter().rposition(|weight| *weight > 0.0).map(|place| self.id(place))
    }

    /// The probability of a token, 0 if it is not a candidate.
    pub(super) fn probability(&mut self, id: TokenId) -> f64 {
        let total = self.total_weight();
        self.place(id).map_or(0.0, |place| f64::from(self.weights[place]) / total)
    }

    /// The log-probability of a token and of the `n_top` most likely ones in the current distribution.
    pub(super) fn into_logprobs(mut self, id: TokenId, n_top: usize) -> TokenLogprobs {
        self.drop_impossible();
        let total = self.total_weight();
        let logprob = |place: usize| (f64::from(self.weights[place]) / total).ln() as f32;
        let top = self.first(n_top).into_iter().map(|rank| (self.id(rank.place()), logprob(rank.place())));
        let top = top.collect();
        let (own, logprob) = match self.place(id) {
            Some(place) => (self.logits[place], logprob(place)),
            None => (f32::NEG_INFINITY, f32::NEG_INFINITY),
        };
        let rank = self.logits.iter().filter(|logit| **logit > own).count() + 1;
        TokenLogprobs { id, logprob, rank, top }
    }

    /// All candidates with a positive probability, most likely first.
    pub(super) fn into_distribution(mut self) -> Vec<(TokenId, f64)> {
        self.drop_impossible();
        let total = self.total_weight();
        let ranked = self.first(self.len()).into_iter().map(Rank::place);
        ranked.map(|place| (self.id(place), f64::from(self.weights[place]) / total)).collect()
    }

    /// The most likely candidate.
    pub(super) fn best(&self) -> Option<TokenId> {
        Scan::new(&self.logits).first_of_largest().map(|place| self.id(place))
    }
}

/// Divisor instead of any smaller temperature, so that quotients of logits stay finite and different. Probabilities are 0 and
/// 1 long before.
pub(super) const LEAST_TEMPERATURE: f32 = 1e-30;

fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}
