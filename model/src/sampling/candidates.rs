//! The tokens that may be drawn, as the steps of the chain leave them: logits, weights and what is read off them.

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

/// Weights whose sum is taken at once, where a draw looks for its place among them.
const DRAWN_AT_ONCE: usize = 1024;

/// The tokens that are left, in the order of their ids. Up to the first step that takes some away, all of the row's,
/// those among them that are ruled out (a logit of -infinity).
#[derive(Clone, Debug)]
pub(super) struct Candidates<'a> {
    /// Ascending; `None` while there is every token of the vocabulary.
    ids: Option<Vec<TokenId>>,
    /// Before the temperature.
    logits: Cow<'a, [f32]>,
    /// `exp((logit - largest logit) / temperature)`: the probability, but for one common factor. At most 1. Empty unless
    /// they belong to the logits.
    weights: Vec<f32>,
    /// Kept apart from the logits, so that a low one makes no two of them equal.
    temperature: f32,
}

impl<'a> Candidates<'a> {
    /// All tokens of the row.
    ///
    /// # Errors
    /// [`Error::Logits`]: NaN and +infinity are a computation that failed, not a choice, and so is a row that rules out
    /// all.
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
            return Err(Error::Logits { what: "every token is ruled out, all are -inf".into() });
        }
        Ok(())
    }

    /// Whether the largest logit is -infinity.
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

    /// Changes one logit, as the temperature so far left it. The result stays below +infinity, which only a broken model
    /// gives, and above -infinity unless it was there.
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

    /// Rules tokens out.
    pub(super) fn ban(&mut self, banned: &BTreeSet<TokenId>) {
        self.weights.clear();
        for place in banned.iter().filter_map(|&id| self.place(id)).collect::<Vec<_>>() {
            self.logits.to_mut()[place] = f32::NEG_INFINITY;
        }
    }

    /// Rules all others out.
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

    /// Puts the temperature into the logits, for a step behind it that changes them.
    fn apply_temperature(&mut self) {
        if self.temperature != 1.0 {
            for logit in self.logits.to_mut() {
                *logit = if *logit == f32::NEG_INFINITY { *logit } else { finite(*logit / self.temperature) };
            }
            self.temperature = 1.0;
        }
    }

    /// Keeps those at `places`, which ascend.
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

    /// By logit, not by weight: a low temperature makes weights equal. The lower id first among equals.
    pub(super) fn rank(&self, place: usize) -> Rank {
        Rank::new(self.logits[place], place)
    }

    /// The most likely first.
    pub(super) fn first(&self, n: usize) -> Vec<Rank> {
        Scan::new(&self.logits).first(n)
    }

    /// The weights, which belong to the logits from here on until one changes.
    pub(super) fn weigh(&mut self) -> &[f32] {
        if self.weights.len() != self.logits.len() {
            let largest = Scan::new(&self.logits).largest();
            self.weights = ops::relative_weights(&self.logits, largest, self.temperature);
        }
        &self.weights
    }

    /// As [weighed](Self::weigh) last.
    pub(super) fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// To be weighed anew: the most likely one may be gone.
    pub(super) fn forget_weights(&mut self) {
        self.weights.clear();
    }

    /// The sum of the weights.
    pub(super) fn total_weight(&mut self) -> f64 {
        self.weigh().chunks(DRAWN_AT_ONCE).map(ops::sum_of).sum()
    }

    /// Of each place, how much less likely than the most likely: the negative logarithm of its weight, in nats.
    pub(super) fn nats_below_largest(&self) -> impl Iterator<Item = f64> + '_ {
        let largest = f64::from(Scan::new(&self.logits).largest());
        self.logits.iter().map(move |&logit| (largest - f64::from(logit)) / f64::from(self.temperature))
    }

    /// In nats, of the probabilities.
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

    /// The candidate at the share `uniform`, in `[0, 1)`, of the weights laid end to end.
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
            // One after the other they may sum to a little less.
            end = start + chunk.len();
            break;
        }
        // The target may be rounded up to the total itself, which no sum exceeds.
        self.weights[..end].iter().rposition(|weight| *weight > 0.0).map(|place| self.id(place))
    }

    /// The probability of one, 0 if it is not there.
    pub(super) fn probability(&mut self, id: TokenId) -> f64 {
        let total = self.total_weight();
        self.place(id).map_or(0.0, |place| f64::from(self.weights[place]) / total)
    }

    /// The log-probability of one and of the `n_top` most likely, as they are now.
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

    /// All that can be drawn with their probabilities, most likely first.
    pub(super) fn into_distribution(mut self) -> Vec<(TokenId, f64)> {
        self.drop_impossible();
        let total = self.total_weight();
        let ranked = self.first(self.len()).into_iter().map(Rank::place);
        ranked.map(|place| (self.id(place), f64::from(self.weights[place]) / total)).collect()
    }

    /// The most likely one.
    pub(super) fn best(&self) -> Option<TokenId> {
        Scan::new(&self.logits).first_of_largest().map(|place| self.id(place))
    }
}

fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}
