//! The samplers in the chain: how each changes the candidates. [`ChainStep::DEFAULT_ORDER`] is the order, and `Sampler`
//! runs it.

use super::{
    ChainStep, Dry, Mirostat, MirostatVersion, SamplingParams, Smoothing, Xtc, candidates::Candidates, select::Rank,
    select::Scan,
};
use crate::TokenId;

impl Candidates<'_> {
    /// Applies a step that only depends on the candidates and `params`: all except the penalties.
    pub(super) fn apply(&mut self, step: ChainStep, params: &SamplingParams) {
        match step {
            ChainStep::Penalties | ChainStep::Dry => unreachable!("penalties need the text"),
            ChainStep::Temperature if params.dynatemp_range > 0.0 => {
                let (middle, range) = (params.temperature, params.dynatemp_range);
                self.heat_by_entropy((middle - range).max(0.0), middle + range, params.dynatemp_exponent);
            }
            ChainStep::Temperature => self.heat(params.temperature),
            ChainStep::Smoothing => self.smooth(params.smoothing),
            ChainStep::TopNSigma => self.keep_top_n_sigma(params.top_n_sigma),
            ChainStep::TopK => self.keep_top_k(params.top_k),
            ChainStep::TypicalP => self.keep_typical_p(params.typical_p),
            ChainStep::EpsilonCutoff => {
                let bar = f64::from(params.epsilon_cutoff);
                self.keep_probable(|_| bar);
            }
            ChainStep::EtaCutoff => {
                let bar = f64::from(params.eta_cutoff);
                self.keep_probable(|candidates| bar.min(bar.sqrt() * (-candidates.entropy()).exp()));
            }
            ChainStep::Tfs => self.keep_before_tail(params.tfs),
            ChainStep::TopA => {
                let share = f64::from(params.top_a);
                self.keep_probable(|candidates| share * candidates.total_weight().powi(-2));
            }
            ChainStep::TopP => self.keep_top_p(params.top_p),
            ChainStep::MinP => self.keep_min_p(params.min_p),
            ChainStep::Xtc => self.exclude_top_choices(params.xtc),
        }
    }

    /// Divides the logits by `temperature`. At 0 only the most likely token remains, with the lowest id if several are
    /// equally likely.
    fn heat(&mut self, temperature: f32) {
        if temperature == 0.0 {
            self.keep_top_k(1);
        } else {
            self.divide_by(temperature);
        }
    }

    /// Applies a temperature between `low` and `high`, by the entropy relative to the maximum entropy.
    fn heat_by_entropy(&mut self, low: f32, high: f32, exponent: f32) {
        let n_possible = self.weigh().iter().filter(|weight| **weight > 0.0).count();
        let most = (n_possible.max(2) as f64).ln();
        let share = (self.entropy() / most).clamp(0.0, 1.0).powf(f64::from(exponent));
        self.heat(low + (high - low) * share as f32);
    }

    /// Keeps the `k` most likely tokens.
    pub(super) fn keep_top_k(&mut self, k: usize) {
        if k < self.len() {
            let scan = Scan::new(self.logits());
            let places = scan.first(k).last().map(|&last| scan.down_to(last)).unwrap_or_default();
            self.keep(&places);
        }
    }

    /// Keeps the smallest set of most likely tokens whose probabilities sum to `p` or more, including the one that
    /// crosses `p`.
    fn keep_top_p(&mut self, p: f32) {
        let wanted = f64::from(p) * self.total_weight();
        let scan = Scan::new(self.logits());
        if let Some(last) = scan.last_of_mass(self.temperature(), self.weights(), wanted) {
            let places = scan.down_to(last);
            self.keep(&places);
        }
    }

    /// Keeps tokens with at least `p` times the largest probability.
    fn keep_min_p(&mut self, p: f32) {
        // The largest weight is 1, so the most likely token remains.
        let places = Scan::new(self.weigh()).at_least(p);
        self.keep(&places);
    }

    /// Keeps the smallest set of tokens whose probabilities sum to `p` or more, in the order of how close their
    /// surprise `-ln(probability)` is to its expectation, the entropy. Includes the token that crosses `p`.
    fn keep_typical_p(&mut self, p: f32) {
        self.drop_impossible();
        let (total, entropy) = (self.total_weight(), self.entropy());
        let distance = |below: f64| (below + total.ln() - entropy).abs();
        // The closest is the largest of these.
        let nearness: Vec<f32> = self.nats_below_largest().map(|below| -distance(below) as f32).collect();
        let scan = Scan::new(&nearness);
        if let Some(last) = scan.last_of_mass(1.0, self.weights(), f64::from(p) * total) {
            self.keep(&scan.down_to(last));
        }
        // The most likely token may be gone.
        self.forget_weights();
    }

    /// Keeps tokens whose logit is at most `n` standard deviations of all logits below the largest. Temperature scales
    /// both, so it has no effect here.
    fn keep_top_n_sigma(&mut self, n: f32) {
        let count = sum_in_lanes(self.logits(), |_| 1.0);
        let mean = sum_in_lanes(self.logits(), |logit| logit) / count;
        let variance = sum_in_lanes(self.logits(), |logit| (logit - mean) * (logit - mean)) / count;
        let scan = Scan::new(self.logits());
        let bar = f64::from(scan.largest()) - f64::from(n) * variance.sqrt();
        let mut places = scan.at_least((bar as f32).next_down());
        places.retain(|&place| f64::from(self.logits()[place]) >= bar);
        self.keep(&places);
    }

    /// Keeps tokens with at least the probability that `bar` returns, and always the most likely ones.
    fn keep_probable(&mut self, bar: impl FnOnce(&mut Self) -> f64) {
        // The largest weight is 1.
        let bar = (bar(self) * self.total_weight()).min(1.0);
        let is_kept = |place: &usize| f64::from(self.weights()[*place]) >= bar;
        let places: Vec<usize> = (0..self.len()).filter(is_kept).collect();
        self.keep(&places);
    }

    /// Keeps the most likely tokens up to where the absolute second differences of the sorted probabilities sum to more
    /// than the fraction `z` of their total. The last of several tokens never remains, the first always does.
    fn keep_before_tail(&mut self, z: f32) {
        self.drop_impossible();
        let ranked = self.first(self.len());
        let sorted = |at: usize| f64::from(self.weights()[ranked[at].place()]);
        let bend = |at: usize| (sorted(at) - 2.0 * sorted(at + 1) + sorted(at + 2)).abs();
        let n_bends = self.len().saturating_sub(2);
        let wanted = f64::from(z) * (0..n_bends).map(bend).sum::<f64>();
        let mut reached = 0.0;
        let n_within = (0..n_bends).take_while(|&at| {
            reached += bend(at);
            reached <= wanted
        });
        let n_kept = 1 + n_within.count();
        let mut places: Vec<usize> = ranked.into_iter().take(n_kept).map(Rank::place).collect();
        places.sort_unstable();
        self.keep(&places);
    }

    /// Moves logits along the curve of `smoothing`.
    fn smooth(&mut self, smoothing: Smoothing) {
        let (factor, curve) = (f64::from(smoothing.factor), f64::from(smoothing.curve));
        let distance = |d: f64| factor * (d * d * (3.0 - curve) / 2.0 + d * d * d * (curve - 1.0) / 2.0);
        let nats: Vec<f64> = self.nats_below_largest().collect();
        self.replace_logits(nats.into_iter().map(|d| -distance(d)));
    }

    /// Shifts the distribution towards the probability `target`; see [`AdaptiveP`](super::AdaptiveP).
    pub(super) fn draw_towards(&mut self, target: f64) {
        const WIDTH: f64 = 0.3;
        self.drop_impossible();
        let total = self.total_weight();
        let logits: Vec<f64> = self
            .weights()
            .iter()
            .map(|&weight| {
                let distance = (f64::from(weight) / total - target).abs() / WIDTH;
                5.0 - 10.0 * distance * distance / (1.0 + distance)
            })
            .collect();
        self.replace_logits(logits.into_iter());
    }

    /// Removes all tokens at least as probable as the threshold, except the least probable of them.
    fn exclude_top_choices(&mut self, xtc: Xtc) {
        let bar = f64::from(xtc.threshold) * self.total_weight();
        let is_top = |place: usize| f64::from(self.weights()[place]) >= bar;
        let places = 0..self.len();
        let Some(last) = places.clone().filter(|&place| is_top(place)).map(|place| self.rank(place)).max() else {
            return;
        };
        let places: Vec<usize> = places.filter(|&place| place == last.place() || !is_top(place)).collect();
        self.keep(&places);
        self.forget_weights();
    }

    /// Keeps the tokens that mirostat allows for a surprise of at most `bound` bits.
    pub(super) fn keep_unsurprising(&mut self, mirostat: Mirostat, bound: f32) {
        self.drop_impossible();
        let n = self.len();
        let n_kept = match mirostat.version {
            MirostatVersion::V1 => k_of_surprise(self.fall_off(), n, f64::from(bound)),
            MirostatVersion::V2 => {
                let least = self.total_weight() * (-f64::from(bound)).exp2();
                self.weights().iter().filter(|weight| f64::from(**weight) >= least).count()
            }
        };
        self.keep_top_k(n_kept.clamp(1, n));
    }

    /// Estimates the exponent `s` of a Zipf distribution (the probability of rank `i` is proportional to `i^-s`) from
    /// the most likely tokens: equation 30 of the paper on mirostat.
    fn fall_off(&self) -> f64 {
        let (mut products, mut squares) = (0.0, 0.0);
        let ranked: Vec<f64> =
            self.first(N_ESTIMATED).iter().map(|rank| f64::from(self.weights()[rank.place()])).collect();
        for (at, pair) in ranked.windows(2).enumerate() {
            let step = ((at as f64 + 2.0) / (at as f64 + 1.0)).ln();
            products += step * (pair[0] / pair[1]).ln();
            squares += step * step;
        }
        if squares == 0.0 { f64::INFINITY } else { products / squares }
    }
}

/// The sum of `f` over all logits above -infinity, in 16 independent partial sums.
fn sum_in_lanes(logits: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    let value = |logit: f32| if logit > f32::NEG_INFINITY { f(f64::from(logit)) } else { 0.0 };
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, &logit)| *sum += value(logit));
    }
    sums.iter_mut().zip(rest).for_each(|(sum, &logit)| *sum += value(logit));
    sums.iter().sum()
}

/// Number of tokens for the estimate of mirostat 1: the paper's `m`.
const N_ESTIMATED: usize = 100;

/// How many of `n` tokens to keep so that, under a Zipf distribution with exponent `s`, none has a surprise above
/// `bound` bits: algorithm 1 of the paper on mirostat.
fn k_of_surprise(s: f64, n: usize, bound: f64) -> usize {
    let excess = s - 1.0;
    let n_effective = if excess.abs() < 1e-9 {
        // The limit of the quotient below.
        bound.exp2() / (n as f64).ln().max(f64::MIN_POSITIVE)
    } else {
        excess * bound.exp2() / (1.0 - (n as f64).powf(-excess))
    };
    // A cast maps NaN to 0 and saturates at the ends of the range; the caller clamps.
    n_effective.powf(1.0 / s).round() as usize
}

/// The tokens that would complete a sequence of `n` tokens that `tokens` already has.
pub(super) fn completions(tokens: &[TokenId], n: usize) -> impl Iterator<Item = TokenId> + '_ {
    let begun = tokens.len().checked_sub(n.saturating_sub(1)).map(|start| &tokens[start..]);
    let earlier = tokens.windows(n.max(1)).filter_map(|words| words.split_last());
    earlier.filter(move |(_, before)| begun == Some(*before)).map(|(&last, _)| last)
}

/// The penalty grows for this many tokens beyond `allowed_length`: with the default base, to 1e12 times `multiplier`.
const MAX_EXCESS: usize = 50;

/// The tokens that would continue a repetition, each with the length of the longest such repetition: that many last
/// tokens of `tokens` also occur earlier in it, followed by the continuing token.
///
/// A repetition does not extend across a breaker.
pub(super) fn repetitions(tokens: &[TokenId], dry: &Dry) -> Vec<(TokenId, usize)> {
    let is_breaker = |id: &TokenId| dry.sequence_breakers.contains(id);
    let longest = dry.allowed_length.saturating_add(MAX_EXCESS);
    let max_length = tokens.iter().rev().take(longest).take_while(|id| !is_breaker(id)).count();
    if max_length < dry.allowed_length {
        return Vec::new();
    }
    // The Z-function of the reversed tokens, in linear time: `lengths[at]` is how many tokens from `at` on equal the
    // first ones, at most `max_length`. Only this many tokens are compared again.
    let n = tokens.len();
    let reversed = |at: usize| tokens[n - 1 - at];
    let mut lengths = vec![0; max_length];
    // The known match that reaches farthest: `start..end` equals the first tokens.
    let (mut start, mut end) = (0, 0);
    let mut found: Vec<(TokenId, usize)> = Vec::new();
    for at in 1..n {
        let mut length = if at < end { lengths[at - start].min(end - at) } else { 0 };
        while length < max_length && at + length < n && reversed(length) == reversed(at + length) {
            length += 1;
        }
        if at + length > end {
            (start, end) = (at, at + length);
        }
        if let Some(known) = lengths.get_mut(at) {
            *known = length;
        }
        if length >= dry.allowed_length {
            found.push((reversed(at - 1), length));
        }
    }
    // Sorted so that the longest one of each token remains.
    found.sort_unstable_by(|a, b| (a.0, b.1).cmp(&(b.0, a.1)));
    found.dedup_by_key(|(id, _)| *id);
    // Last, so that each token is looked up once.
    found.retain(|(id, _)| !is_breaker(id));
    found
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        iter::repeat_n,
        sync::Arc,
    };

    use proptest::prelude::*;

    use super::*;

    /// [`repetitions`] by its definition, in quadratic time.
    fn defined(tokens: &[TokenId], dry: &Dry) -> Vec<(TokenId, usize)> {
        let is_breaker = |id: &TokenId| dry.sequence_breakers.contains(id);
        let mut longest = BTreeMap::new();
        for (at, next) in tokens.iter().enumerate().skip(1).filter(|(_, next)| !is_breaker(next)) {
            let pairs = tokens[..at].iter().rev().zip(tokens.iter().rev()).take(dry.allowed_length + 50);
            let length = pairs.take_while(|(a, b)| a == b && !is_breaker(b)).count();
            if length >= dry.allowed_length {
                let longest = longest.entry(*next).or_insert(length);
                *longest = length.max(*longest);
            }
        }
        longest.into_iter().collect()
    }

    /// Few different tokens, in a period with some changes: repetitions of all lengths, that overlap.
    fn tokens() -> impl Strategy<Value = Vec<TokenId>> {
        let period = prop::collection::vec(0..4_u32, 1..8);
        let changes = prop::collection::vec((0..160_usize, 0..4_u32), 0..6);
        (period, 0..160_usize, changes).prop_map(|(period, n, changes)| {
            let mut tokens: Vec<TokenId> = period.into_iter().cycle().take(n).collect();
            for (at, id) in changes {
                if let Some(token) = tokens.get_mut(at) {
                    *token = id;
                }
            }
            tokens
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn dry_repetitions_match_the_quadratic_definition(
            tokens in tokens(),
            penalty_last_n in 0..200_usize,
            allowed_length in prop_oneof![1..4_usize, 1..60_usize],
            breakers in prop_oneof![Just(BTreeSet::new()), prop::collection::btree_set(0..5_u32, 0..3)],
        ) {
            let tokens = &tokens[tokens.len().saturating_sub(penalty_last_n)..];
            let dry = Dry { allowed_length, sequence_breakers: Arc::new(breakers), ..Dry::default() };
            prop_assert_eq!(repetitions(tokens, &dry), defined(tokens, &dry));
        }
    }

    #[test]
    fn dry_repetitions_of_empty_single_and_equal_tokens() {
        let found =
            |tokens: &[TokenId], allowed_length: usize| repetitions(tokens, &Dry { allowed_length, ..Dry::default() });
        assert_eq!(found(&[], 1), []);
        assert_eq!(found(&[7], 1), []);
        assert_eq!(found(&[7, 7], 1), [(7, 1)]);
        assert_eq!(found(&[7, 7], 2), []);
        let same: Vec<TokenId> = repeat_n(7, 10_000).collect();
        assert_eq!(found(&same[..50], 1), [(7, 49)]);
        assert_eq!(found(&same, 1), [(7, 51)]);
        assert_eq!(found(&same[..51], 50), [(7, 50)]);
        assert_eq!(found(&same, 9_000), [(7, 9_050)]);
        assert_eq!(found(&same, 9_999), [(7, 9_999)]);
        assert_eq!(found(&same, 10_000), []);
        assert_eq!(found(&same, usize::MAX), []);
    }
}
