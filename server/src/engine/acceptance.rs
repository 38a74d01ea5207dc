//! Decides when drafting pays: how often drafts are accepted, and what they cost.

use std::time::Duration;

/// The source of a draft. Sources with different acceptance rates are tracked separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The last two tokens occurred before.
    Pair,
    /// The last three tokens occurred before.
    Triple,
    /// More tokens occurred before.
    Passage,
    /// The draft model.
    Model,
}

impl Evidence {
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
        let all = [Evidence::Pair, Evidence::Triple, Evidence::Passage, Evidence::Model];
        Self { rates: all.map(Evidence::prior) }
    }
}

/// Weight of a new observation of acceptance.
const LEARNING: f64 = 0.15;

/// Rate per step at which a low acceptance rate returns to its initial value, so that drafting is retried from time to
/// time.
const FORGETTING: f64 = 1.0 / 64.0;

impl Acceptance {
    /// The number of tokens to draft, at most `max`: as long as the probability that all of them are accepted exceeds
    /// the `price` of computing the last one.
    pub(crate) fn worthwhile(&mut self, evidence: Evidence, price: f64, max: usize) -> usize {
        let rate = self.rate(evidence);
        let mut chance = *rate;
        let mut n_tokens = 0;
        while n_tokens < max && chance > price {
            n_tokens += 1;
            chance *= *rate;
        }
        if n_tokens == 0 {
            *rate += (evidence.prior() - *rate) * FORGETTING;
        }
        n_tokens
    }

    /// Records that the first `n_accepted` of `n_verified` draft tokens were accepted. Tokens after the first rejected
    /// one were never verified.
    pub(crate) fn learn(&mut self, evidence: Evidence, n_verified: usize, n_accepted: usize) {
        let rate = self.rate(evidence);
        for guess in 0..n_verified.min(n_accepted + 1) {
            let came_true = if guess < n_accepted { 1.0 } else { 0.0 };
            *rate += (came_true - *rate) * LEARNING;
        }
    }

    fn rate(&mut self, evidence: Evidence) -> &mut f64 {
        let [pair, triple, passage, model] = &mut self.rates;
        match evidence {
            Evidence::Pair => pair,
            Evidence::Triple => triple,
            Evidence::Passage => passage,
            Evidence::Model => model,
        }
    }
}

/// The cost of a draft token, from measured step times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// Duration of a step without drafts in seconds.
    plain: Option<f64>,
    /// What each draft token adds to that, as a fraction.
    share: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { plain: None, share: FIRST_PRICE }
    }
}

/// Initial cost of a draft token as a fraction of a step: reading the weights dominates.
const FIRST_PRICE: f64 = 0.1;

/// Weight of the last step in the average.
const NEWEST: f64 = 0.1;

/// The same for steps with drafts, which are rare if drafting is expensive.
const SHARE_NEWEST: f64 = 0.3;

/// Upper limit of a measured cost, so that outliers are forgotten within some hundred steps.
const HIGHEST_PRICE: f64 = 4.0;

impl Costs {
    /// Records the duration of a step with this many draft tokens.
    pub(crate) fn observe(&mut self, time: Duration, n_guesses: usize) {
        let seconds = time.as_secs_f64();
        let average = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + (new - old) * NEWEST));
        match (n_guesses, self.plain) {
            (0, _) => {
                self.plain = average(self.plain, seconds);
                // Too high a cost, after a disturbance of the machine, decreases over time.
                self.share += (FIRST_PRICE - self.share) * FORGETTING;
            }
            (_, Some(plain)) => {
                let share = (seconds - plain) / (plain * n_guesses as f64);
                self.share += (share.clamp(0.0, HIGHEST_PRICE) - self.share) * SHARE_NEWEST;
            }
            (_, None) => {}
        }
    }

    /// The cost of another draft token, in tokens that `n_decoding` sequences would decode in the same time.
    pub(crate) fn price(&self, n_decoding: usize) -> f64 {
        self.share * n_decoding as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_guesses_are_made_longer_and_bad_ones_given_up() {
        let mut acceptance = Acceptance::default();
        let price = 0.1;
        // 0.6, 0.36, 0.216 and 0.1296 are above the price.
        assert_eq!(acceptance.worthwhile(Evidence::Model, price, 16), 4);
        assert_eq!(acceptance.worthwhile(Evidence::Model, price, 3), 3);
        (0..20).for_each(|_| acceptance.learn(Evidence::Model, 4, 4));
        assert_eq!(acceptance.worthwhile(Evidence::Model, price, 16), 16);
        (0..20).for_each(|_| acceptance.learn(Evidence::Model, 4, 0));
        assert_eq!(acceptance.worthwhile(Evidence::Model, price, 16), 0);
        assert_eq!(acceptance.worthwhile(Evidence::Passage, price, 16), 4, "other evidence is another matter");
    }

    /// Text whose guesses never come true: the guesses that are made all the same are few.
    #[test]
    fn guessing_in_vain_costs_little() {
        for price in [0.05, 0.1, 0.3] {
            let mut acceptance = Acceptance::default();
            let mut n_guesses = 0;
            for step in 0..1000 {
                let n_tokens = acceptance.worthwhile(Evidence::Passage, price, 16);
                acceptance.learn(Evidence::Passage, n_tokens, 0);
                n_guesses += if step < 100 { 0 } else { n_tokens };
            }
            assert!(n_guesses > 0, "it is tried again");
            let cost = n_guesses as f64 * price / 900.0;
            assert!(cost < 0.04, "{n_guesses} guesses at {price} cost {cost}");
        }
    }

    #[test]
    fn the_price_is_what_was_measured() {
        let mut costs = Costs::default();
        assert!((costs.price(1) - 0.1).abs() < 1e-9);
        assert!((costs.price(4) - 0.4).abs() < 1e-9);
        for _ in 0..100 {
            costs.observe(Duration::from_millis(10), 0);
            (0..9).for_each(|_| costs.observe(Duration::from_millis(18), 4));
        }
        assert!((costs.price(1) - 0.2).abs() < 0.01);
        // A hiccup of the machine stops the guessing, but not for ever.
        (0..30).for_each(|_| costs.observe(Duration::from_secs(1), 1));
        assert!(costs.price(1) > 0.9);
        (0..600).for_each(|_| costs.observe(Duration::from_millis(10), 0));
        assert!(costs.price(1) < 0.12);
    }
}
