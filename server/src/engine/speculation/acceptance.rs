//! When guessing is worth it: how often guesses come true, against what they cost.

use std::time::Duration;

/// What speaks for a guess. Kinds that come true at different rates are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The last two tokens appeared before.
    Pair,
    /// The last three did.
    Triple,
    /// More did.
    Passage,
    /// The draft model's word.
    Model,
}

impl Evidence {
    pub(super) fn of_match(n_matched: usize) -> Self {
        match n_matched {
            0..=2 => Self::Pair,
            3 => Self::Triple,
            _ => Self::Passage,
        }
    }

    /// How often such guesses come true, for a sequence of which nothing is known yet.
    fn prior(self) -> f64 {
        match self {
            Self::Pair => 0.3,
            Self::Triple => 0.4,
            Self::Passage | Self::Model => 0.6,
        }
    }
}

/// How often a sequence's guesses come true, by evidence.
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

/// What one more guess weighs against those before.
const LEARNING: f64 = 0.15;

/// How fast a rate that forbids guessing goes back to where it began, per step: so guessing is tried again now and then.
const FORGETTING: f64 = 1.0 / 64.0;

impl Acceptance {
    /// How many tokens to guess, at most `max`: as long as the chance that all of them come true is worth the `price`
    /// of computing the last one.
    pub(super) fn worthwhile(&mut self, evidence: Evidence, price: f64, max: usize) -> usize {
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

    /// Of so many guesses, the first so many came true. What is behind the first wrong one was never put to the test.
    pub(super) fn learn(&mut self, evidence: Evidence, n_verified: usize, n_accepted: usize) {
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

/// What a guess costs, from the times that steps take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Seconds of a step without guesses.
    plain: Option<f64>,
    /// What each guess adds to that, as a share of it.
    share: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { plain: None, share: FIRST_PRICE }
    }
}

/// What a guess costs before any was measured, as a share of a step: reading the weights is most of the work.
const FIRST_PRICE: f64 = 0.1;

/// What the last step weighs against those before.
const NEWEST: f64 = 0.1;

/// The same for those with guesses, which are few where guessing is dear.
const SHARE_NEWEST: f64 = 0.3;

/// A dearer guess is taken for a hiccup of the machine: so much is forgotten in some hundred steps.
const HIGHEST_PRICE: f64 = 4.0;

impl Costs {
    /// A step took so long, with so many guesses among its rows.
    pub(super) fn observe(&mut self, time: Duration, n_guesses: usize) {
        let seconds = time.as_secs_f64();
        let average = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + (new - old) * NEWEST));
        match (n_guesses, self.plain) {
            (0, _) => {
                self.plain = average(self.plain, seconds);
                // A price that was once too high, by whatever disturbed the machine, is not kept for ever.
                self.share += (FIRST_PRICE - self.share) * FORGETTING;
            }
            (_, Some(plain)) => {
                let share = (seconds - plain) / (plain * n_guesses as f64);
                self.share += (share.clamp(0.0, HIGHEST_PRICE) - self.share) * SHARE_NEWEST;
            }
            (_, None) => {}
        }
    }

    /// What one more guess costs, in tokens: those that so many sequences would decode in the same time.
    pub(super) fn price(&self, n_decoding: usize) -> f64 {
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
