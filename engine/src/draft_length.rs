//! Decides when drafting pays, from the acceptance rate and the cost of drafts.

use std::time::Duration;

/// The source of a draft. Acceptance rates are tracked by source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftSource {
    /// The last two tokens occurred before.
    Pair,
    /// The last three tokens occurred before.
    Triple,
    /// More tokens occurred before.
    Passage,
    /// The draft model.
    Model,
}

impl DraftSource {
    pub(crate) fn of_match(n_matched: usize) -> Self {
        match n_matched {
            0..=2 => Self::Pair,
            3 => Self::Triple,
            _ => Self::Passage,
        }
    }

    /// The assumed acceptance rate for a new sequence.
    fn prior(self) -> f64 {
        match self {
            Self::Pair => 0.3,
            Self::Triple => 0.4,
            Self::Passage | Self::Model => 0.6,
        }
    }
}

/// A sequence's acceptance rates by source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    rates: [f64; 4],
}

impl Default for Acceptance {
    fn default() -> Self {
        let all = [DraftSource::Pair, DraftSource::Triple, DraftSource::Passage, DraftSource::Model];
        Self { rates: all.map(DraftSource::prior) }
    }
}

/// Weight of a new observation in an acceptance rate.
const RATE_WEIGHT: f64 = 0.15;

/// Fraction per step by which unused estimates return to their initial values, so that drafting is retried from time to
/// time.
const RESET_WEIGHT: f64 = 1.0 / 64.0;

impl Acceptance {
    /// The number of tokens to draft, at most `max`: tokens are added as long as the probability that all of them are
    /// accepted exceeds the `price` of computing the last one.
    pub(crate) fn n_drafts_that_pay(&mut self, source: DraftSource, price: f64, max: usize) -> usize {
        let rate = self.rate(source);
        let mut chance = *rate;
        let mut n_tokens = 0;
        while n_tokens < max && chance > price {
            n_tokens += 1;
            chance *= *rate;
        }
        if n_tokens == 0 {
            *rate += (source.prior() - *rate) * RESET_WEIGHT;
        }
        n_tokens
    }

    /// Records that the first `n_accepted` of `n_verified` draft tokens were accepted. Tokens after the first rejected
    /// one were never verified.
    pub(crate) fn record_acceptance(&mut self, source: DraftSource, n_verified: usize, n_accepted: usize) {
        let rate = self.rate(source);
        for draft in 0..n_verified.min(n_accepted + 1) {
            let is_accepted = if draft < n_accepted { 1.0 } else { 0.0 };
            *rate += (is_accepted - *rate) * RATE_WEIGHT;
        }
    }

    fn rate(&mut self, source: DraftSource) -> &mut f64 {
        let [pair, triple, passage, model] = &mut self.rates;
        match source {
            DraftSource::Pair => pair,
            DraftSource::Triple => triple,
            DraftSource::Passage => passage,
            DraftSource::Model => model,
        }
    }
}

/// The cost of a draft token, from measured step times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// Average duration of a step without drafts in seconds.
    plain: Option<f64>,
    /// Time that each draft token adds, as a fraction of `plain`.
    cost_per_draft: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { plain: None, cost_per_draft: INITIAL_COST }
    }
}

/// Initial cost of a draft token as a fraction of a step: reading the weights dominates.
const INITIAL_COST: f64 = 0.1;

/// Weight of a new step in the average duration of steps without drafts.
const PLAIN_WEIGHT: f64 = 0.1;

/// Weight of a new step in the cost of a draft token: larger, since steps with drafts are rare if drafting is
/// expensive.
const COST_WEIGHT: f64 = 0.3;

/// Upper limit of a measured cost, so that outliers are forgotten within some hundred steps.
const MAX_COST: f64 = 4.0;

impl Costs {
    /// Records the duration of a step with this many draft tokens.
    pub(crate) fn record_step_time(&mut self, time: Duration, n_drafts: usize) {
        let seconds = time.as_secs_f64();
        let average = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + (new - old) * PLAIN_WEIGHT));
        match (n_drafts, self.plain) {
            (0, _) => {
                self.plain = average(self.plain, seconds);
                // A cost that was measured too high during a disturbance decreases over time.
                self.cost_per_draft += (INITIAL_COST - self.cost_per_draft) * RESET_WEIGHT;
            }
            (_, Some(plain)) => {
                let cost = (seconds - plain) / (plain * n_drafts as f64);
                self.cost_per_draft += (cost.clamp(0.0, MAX_COST) - self.cost_per_draft) * COST_WEIGHT;
            }
            (_, None) => {}
        }
    }

    /// The cost of another draft token, in tokens that `n_decoding` sequences would decode in the same time.
    pub(crate) fn price(&self, n_decoding: usize) -> f64 {
        self.cost_per_draft * n_decoding as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draft_length_grows_with_acceptance_and_drops_to_0_on_rejection() {
        let mut acceptance = Acceptance::default();
        let price = 0.1;
        // 0.6, 0.36, 0.216 and 0.1296 are above the price.
        assert_eq!(acceptance.n_drafts_that_pay(DraftSource::Model, price, 16), 4);
        assert_eq!(acceptance.n_drafts_that_pay(DraftSource::Model, price, 3), 3);
        (0..20).for_each(|_| acceptance.record_acceptance(DraftSource::Model, 4, 4));
        assert_eq!(acceptance.n_drafts_that_pay(DraftSource::Model, price, 16), 16);
        (0..20).for_each(|_| acceptance.record_acceptance(DraftSource::Model, 4, 0));
        assert_eq!(acceptance.n_drafts_that_pay(DraftSource::Model, price, 16), 0);
        assert_eq!(acceptance.n_drafts_that_pay(DraftSource::Passage, price, 16), 4, "sources are separate");
    }

    /// Drafts that are never accepted are rarely retried.
    #[test]
    fn always_rejected_drafts_cost_under_4_percent_of_the_steps() {
        for price in [0.05, 0.1, 0.3] {
            let mut acceptance = Acceptance::default();
            let mut n_drafts = 0;
            for step in 0..1000 {
                let n_tokens = acceptance.n_drafts_that_pay(DraftSource::Passage, price, 16);
                acceptance.record_acceptance(DraftSource::Passage, n_tokens, 0);
                n_drafts += if step < 100 { 0 } else { n_tokens };
            }
            assert!(n_drafts > 0, "it is tried again");
            let cost = n_drafts as f64 * price / 900.0;
            assert!(cost < 0.04, "{n_drafts} drafts at {price} cost {cost}");
        }
    }

    #[test]
    fn draft_token_price_follows_measured_step_times() {
        let mut costs = Costs::default();
        assert!((costs.price(1) - 0.1).abs() < 1e-9);
        assert!((costs.price(4) - 0.4).abs() < 1e-9);
        for _ in 0..100 {
            costs.record_step_time(Duration::from_millis(10), 0);
            (0..9).for_each(|_| costs.record_step_time(Duration::from_millis(18), 4));
        }
        assert!((costs.price(1) - 0.2).abs() < 0.01);
        // A disturbance stops drafting, but not for ever.
        (0..30).for_each(|_| costs.record_step_time(Duration::from_secs(1), 1));
        assert!(costs.price(1) > 0.9);
        (0..600).for_each(|_| costs.record_step_time(Duration::from_millis(10), 0));
        assert!(costs.price(1) < 0.12);
    }
}
