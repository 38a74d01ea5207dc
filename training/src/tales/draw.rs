//! Chooses at random, without state: each choice is a pure function of the seed, the number of the tale and the number of
//! the choice. So tale 1,000,000 costs no more than the first, and tales can be made in any order.

use super::{derivation::Chooser, walk::Choice};
use crate::loader::mix;

/// Draws the choices of one tale.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    key: u64,
    n_drawn: u64,
}

impl Draw {
    /// The choices of tale `index` of `seed`. Streams of the same seed have nothing in common.
    pub(super) fn new(seed: u64, stream: u64, index: u64) -> Draw {
        Draw { key: mix(mix(mix(seed) ^ stream) ^ index), n_drawn: 0 }
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        let bits = mix(self.key ^ self.n_drawn);
        self.n_drawn += 1;
        // The high half of the product maps 64 random bits onto 0..n; the bias, n / 2^64, is negligible.
        ((u128::from(bits) * u128::from(n)) >> 64) as u64
    }
}

impl Chooser for Draw {
    fn choose(&mut self, choices: &[Choice<'_>]) -> usize {
        let total = choices.iter().map(|choice| choice.weight).sum();
        let mut left = self.below(total);
        let chosen = choices.iter().position(|choice| {
            let is_here = left < choice.weight;
            left = left.saturating_sub(choice.weight);
            is_here
        });
        chosen.unwrap_or_default()
    }
}
