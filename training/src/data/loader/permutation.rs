//! A random permutation of the numbers below n, with random access to any position.
//!
//! A Feistel network permutes the numbers of 2k bits, whatever its round function is; numbers at or above n are mapped again
//! until one is below n (cycle walking, [Black and Rogaway, 2002](https://doi.org/10.1007/3-540-45760-7_9)), which keeps it
//! a permutation. There are fewer than 4n numbers of 2k bits, so that takes fewer than 4 tries on average.

use super::mix;

/// More than the 4 rounds that suffice for strong round functions, since `mix` is not one.
const N_ROUNDS: usize = 6;

/// A permutation of `0..n`, a function of the seed and the epoch.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    epoch: u64,
    n: u64,
    /// Bits of each half.
    half_bits: u32,
    keys: [u64; N_ROUNDS],
}

impl Permutation {
    /// The order of epoch `epoch` for `n` items.
    pub fn new(seed: u64, epoch: u64, n: u64) -> Permutation {
        let n_bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let mut key = mix(mix(seed ^ 0x7065_726d_7574_6174) ^ epoch);
        let keys = [(); N_ROUNDS].map(|()| {
            key = mix(key);
            key
        });
        Permutation { epoch, n, half_bits: n_bits.div_ceil(2).max(1), keys }
    }

    /// The epoch of this order.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The item at `position`, which must be below n.
    pub fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.n);
        let mut value = position;
        loop {
            value = self.encrypt(value);
            if value < self.n {
                return value;
            }
        }
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn permutation_visits_every_number_once_for_n_up_to_2000() {
        for n in 1..=2000 {
            let permutation = Permutation::new(n * 3, n % 5, n);
            let mut seen = vec![false; n as usize];
            for position in 0..n {
                assert!(!std::mem::replace(&mut seen[permutation.at(position) as usize], true), "n = {n}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn large_permutation_maps_distinct_positions_to_distinct_values(
            seed: u64, epoch: u64, n in 2_u64..1 << 62, positions in prop::collection::btree_set(any::<u64>(), 2..50),
        ) {
            let permutation = Permutation::new(seed, epoch, n);
            let positions: std::collections::BTreeSet<u64> = positions.into_iter().map(|position| position % n).collect();
            let visited: std::collections::BTreeSet<u64> =
                positions.iter().map(|&position| permutation.at(position)).collect();
            prop_assert!(visited.iter().all(|&value| value < n));
            prop_assert_eq!(visited.len(), positions.len());
        }
    }

    /// Chi-squared tests over seeds and epochs: of the value at each position, and of the pair at positions 0 and 1.
    #[test]
    fn permutation_values_and_neighbour_pairs_are_uniform() {
        for n in [2_u64, 3, 5, 8, 13, 16] {
            let n_orders = 4000;
            let mut places = vec![0_f64; (n * n) as usize];
            let mut pairs = vec![0_f64; (n * n) as usize];
            for order in 0..n_orders {
                let permutation = Permutation::new(order / 40, order % 40, n);
                for position in 0..n {
                    places[(position * n + permutation.at(position)) as usize] += 1.0;
                }
                pairs[(permutation.at(0) * n + permutation.at(1)) as usize] += 1.0;
            }
            let expected = n_orders as f64 / n as f64;
            let chi: f64 = places.iter().map(|count| (count - expected).powi(2) / expected).sum();
            let freedom = ((n - 1) * (n - 1)) as f64;
            assert!(chi < freedom + 6.0 * (2.0 * freedom).sqrt(), "n = {n}: {chi} for {freedom} degrees of freedom");

            let expected = n_orders as f64 / (n * (n - 1)) as f64;
            let off_diagonal = pairs.iter().enumerate().filter(|(at, _)| *at as u64 / n != *at as u64 % n);
            let chi: f64 = off_diagonal.map(|(_, count)| (count - expected).powi(2) / expected).sum();
            let freedom = (n * (n - 1) - 1) as f64;
            assert!(chi < freedom + 6.0 * (2.0 * freedom).sqrt(), "n = {n}: {chi} for {freedom} degrees of freedom");
        }
    }

    /// Rows that lie side by side in the data are spread over a whole epoch.
    #[test]
    fn large_permutation_maps_neighbours_far_apart_on_average() {
        let n = 1_000_000_u64;
        let permutation = Permutation::new(1, 0, n);
        let n_pairs = 20_000;
        let total: u64 = (0..n_pairs).map(|at| permutation.at(at).abs_diff(permutation.at(at + 1))).sum();
        // The expected distance of two random places is n / 3; the mean of this many is within 1 % of it.
        let mean = total as f64 / n_pairs as f64 / n as f64;
        assert!((mean - 1.0 / 3.0).abs() < 0.01, "{mean}");
    }
}
