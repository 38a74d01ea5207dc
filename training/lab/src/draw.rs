//! Random choices without state: each is a pure function of the seed, the index of the item and the index of the choice. So text 1,000,000 of a seed costs no more than the first, and texts can be made in any order.

use hearth_training::data::loader::mix;

/// Draws the choices of one text.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    key: u64,
    n_drawn: u64,
}

impl Draw {
    /// Random choices for text `index` of `seed`. Different streams of the same seed are independent.
    pub(crate) fn new(seed: u64, stream: u64, index: u64) -> Draw {
        Draw { key: mix(mix(mix(seed) ^ stream) ^ index), n_drawn: 0 }
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        let bits = mix(self.key ^ self.n_drawn);
        self.n_drawn += 1;
        // The high half of the product maps 64 random bits onto 0..n; the bias, n / 2^64, is negligible.
        ((u128::from(bits) * u128::from(n)) >> 64) as u64
    }

    /// Whether an event of probability `1 / n` happens.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub(crate) fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}
