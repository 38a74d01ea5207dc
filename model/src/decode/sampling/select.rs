//! Selects the largest values without sorting the others.
//!
//! Values are scanned in blocks by their maxima: if a block's maximum is too small, the block is skipped. Few tokens of
//! a vocabulary are likely, so few blocks are scanned.

use crate::ops::{SCAN_BLOCK, block_maxima};

/// The position of a value and its rank: smaller means more likely. Ranks are never equal, because the first position
/// comes first among equal values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u64);

impl Rank {
    /// NaN ranks as -infinity.
    pub(super) fn new(value: f32, place: usize) -> Self {
        let value = if value.is_nan() { f32::NEG_INFINITY } else { value };
        // Maps -0 to +0.
        let bits = (value + 0.0).to_bits();
        // The same order as integers: for negative numbers, larger bits mean smaller values.
        let ascending = if value < 0.0 { !bits } else { bits | 1 << 31 };
        Self(u64::from(!ascending) << 32 | place as u64)
    }

    pub(super) fn place(self) -> usize {
        self.0 as u32 as usize
    }

    fn weight(self, weights: &[f32]) -> f64 {
        f64::from(weights[self.place()])
    }
}

/// Values to select from.
#[derive(Clone, Debug)]
pub(super) struct Scan<'a> {
    values: &'a [f32],
    /// The maximum of each block.
    maxima: Vec<f32>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(values: &'a [f32]) -> Self {
        Self { values, maxima: block_maxima(values) }
    }

    /// The largest value, -infinity if there is none.
    pub(super) fn largest(&self) -> f32 {
        self.maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    /// The first position of the largest value.
    pub(super) fn first_of_largest(&self) -> Option<usize> {
        let largest = self.largest();
        let start = self.maxima.iter().position(|&most| most == largest)? * SCAN_BLOCK;
        Some(start + self.values[start..].iter().position(|&value| value == largest)?)
    }

    /// The `n` largest in order, or all if there are fewer.
    pub(super) fn first(&self, n: usize) -> Vec<Rank> {
        if n == 0 {
            return Vec::new();
        }
        let bar = self.bar(n);
        let mut ranks = if bar == f32::NEG_INFINITY {
            // NaN, too.
            self.values.iter().zip(0..).map(|(&value, place)| Rank::new(value, place)).collect()
        } else {
            self.gather(bar, |_| true, Rank::new)
        };
        if n < ranks.len() {
            ranks.select_nth_unstable(n);
            ranks.truncate(n);
        }
        ranks.sort_unstable();
        ranks
    }

    /// A value that at least `n` values reach; `n` must be above 0.
    fn bar(&self, n: usize) -> f32 {
        let mut maxima = self.maxima.clone();
        if n > maxima.len() {
            return f32::NEG_INFINITY;
        }
        *maxima.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
    }

    /// The last of the smallest set of positions, largest values first, whose weights sum to `wanted`; `None` if the
    /// sum of all is smaller. `unit` is a distance between values at which one is much less likely than the other.
    pub(super) fn last_of_mass(&self, unit: f32, weights: &[f32], wanted: f64) -> Option<Rank> {
        /// How many units below the largest to look, ring by ring: almost all values are far below.
        const RINGS: [f32; 7] = [3.0, 6.0, 9.0, 12.0, 18.0, 27.0, f32::INFINITY];
        let (mut mass, mut above) = (0.0, f32::INFINITY);
        for width in RINGS {
            let bar = self.largest() - width * unit;
            let ring = self.gather(bar, |value| value < above, Rank::new);
            let ring_mass: f64 = ring.iter().map(|rank| rank.weight(weights)).sum();
            if mass + ring_mass >= wanted {
                return cut_at(ring, weights, wanted - mass);
            }
            (mass, above) = (mass + ring_mass, bar);
        }
        None
    }

    /// The places of the values that rank as high as `last`, or higher, in ascending order.
    pub(super) fn down_to(&self, last: Rank) -> Vec<usize> {
        let mut places = self.at_least(self.values[last.place()]);
        places.retain(|&place| Rank::new(self.values[place], place) <= last);
        places
    }

    /// The places of the values that are at least `bar`, in ascending order.
    pub(super) fn at_least(&self, bar: f32) -> Vec<usize> {
        self.gather(bar, |_| true, |_, place| place)
    }

    /// Calls `make` with each value that is at least `bar` and wanted, and with its place.
    fn gather<T: Copy + Default>(
        &self,
        bar: f32,
        is_wanted: impl Fn(f32) -> bool,
        make: impl Fn(f32, usize) -> T,
    ) -> Vec<T> {
        let mut found = Vec::new();
        let blocks = self.values.chunks(SCAN_BLOCK).zip(&self.maxima).enumerate();
        for (number, (block, _)) in blocks.filter(|(_, (_, most))| **most >= bar) {
            // Every value is written, but only wanted ones advance the index: a branch for each value would often be
            // mispredicted.
            let mut made = [T::default(); SCAN_BLOCK];
            let mut n_made = 0;
            for (offset, &value) in block.iter().enumerate() {
                made[n_made] = make(value, number * SCAN_BLOCK + offset);
                n_made += usize::from(value >= bar && is_wanted(value));
            }
            found.extend_from_slice(&made[..n_made]);
        }
        found
    }
}

/// The last of the smallest set of best-ranked values whose weights sum to `wanted` or more; the last of all if the sum
/// of all is smaller.
fn cut_at(mut ranks: Vec<Rank>, weights: &[f32], wanted: f64) -> Option<Rank> {
    const SORTED: usize = 32;
    let (mut least, mut most) = (ranks.iter().min()?.0, ranks.iter().max()?.0);
    let mut mass = 0.0;
    let (mut low, mut high) = (Vec::new(), Vec::new());
    // Halves the range of ranks until few are left, keeping the half in which the sum reaches `wanted`. Ranks are never
    // equal, so this ends.
    while ranks.len() > SORTED {
        let bound = least + (most - least) / 2;
        low.resize(ranks.len(), Rank::default());
        high.resize(ranks.len(), Rank::default());
        let (mut n_low, mut n_high, mut low_mass) = (0, 0, 0.0);
        for &rank in &ranks {
            let is_low = rank.0 <= bound;
            (low[n_low], high[n_high]) = (rank, rank);
            n_low += usize::from(is_low);
            n_high += usize::from(!is_low);
            low_mass += if is_low { rank.weight(weights) } else { 0.0 };
        }
        // A sum in another order may be slightly smaller, so `wanted` may never be reached: then the last ranks are
        // kept.
        if mass + low_mass >= wanted || n_high == 0 {
            low.truncate(n_low);
            std::mem::swap(&mut ranks, &mut low);
            most = bound;
        } else {
            high.truncate(n_high);
            std::mem::swap(&mut ranks, &mut high);
            mass += low_mass;
            least = bound + 1;
        }
    }
    ranks.sort_unstable();
    let crossing = ranks.iter().find(|rank| {
        mass += rank.weight(weights);
        mass >= wanted
    });
    crossing.or(ranks.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::sampling::{Purpose, RandomStream};

    /// Few different values, so that many are equal.
    fn values(n: usize, seed: u64) -> Vec<f32> {
        let random = RandomStream::new(seed, 0);
        (0..n).map(|at| (random.uniform(at, Purpose::Token) * 200.0).floor() as f32 - 100.0).collect()
    }

    fn sorted(values: &[f32]) -> Vec<usize> {
        let mut places: Vec<usize> = (0..values.len()).collect();
        places.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        places
    }

    #[test]
    fn scan_first_n_equals_the_head_of_a_sorted_list() {
        for n_values in [1, 127, 128, 129, 1000, 5000] {
            let values = values(n_values, 3);
            let expected = sorted(&values);
            for n in [0, 1, 2, 7, 64, 400, 4999, 6000] {
                let found: Vec<usize> = Scan::new(&values).first(n).into_iter().map(Rank::place).collect();
                assert_eq!(found, expected[..n.min(n_values)], "{n} of {n_values}");
            }
        }
    }

    #[test]
    fn scan_ranks_zeros_equal_and_nan_and_negative_infinity_last() {
        let places = |values: &[f32], n| Scan::new(values).first(n).into_iter().map(Rank::place).collect::<Vec<_>>();
        assert_eq!(places(&[-0.0, 0.0, -1.0, 1.0], 4), [3, 0, 1, 2]);
        assert_eq!(places(&[f32::NAN, f32::NEG_INFINITY, f32::MIN, f32::MAX], 4), [3, 2, 0, 1]);
        let mut many = vec![f32::NEG_INFINITY; 300];
        many[200] = f32::NAN;
        many[299] = -5.0;
        assert_eq!(places(&many, 3), [299, 0, 1]);
    }

    #[test]
    fn scan_at_least_finds_all_values_at_or_above_a_threshold() {
        let values = values(3000, 4);
        for bar in [-200.0, -100.0, 0.0, 99.0, 98.5, 200.0, f32::NEG_INFINITY, f32::INFINITY] {
            let expected: Vec<usize> = (0..3000).filter(|&place| values[place] >= bar).collect();
            assert_eq!(Scan::new(&values).at_least(bar), expected, "{bar}");
        }
    }

    #[test]
    fn cut_at_ends_the_smallest_set_that_reaches_the_sum() {
        // Integers, whose sums are exact in any order.
        let weights: Vec<f32> = values(2000, 5).iter().map(|value| value + 101.0).collect();
        let order = sorted(&weights);
        let total: f32 = weights.iter().sum();
        for wanted in [0.0, 1.0, 200.0, 201.0, 5000.0, 77_777.0, total - 1.0, total, 2.0 * total] {
            let ranks: Vec<Rank> =
                weights.iter().enumerate().map(|(place, &weight)| Rank::new(weight, place)).collect();
            let cut = cut_at(ranks, &weights, f64::from(wanted));
            let mut mass = 0.0;
            let crossing = order.iter().find(|&&place| {
                mass += weights[place];
                mass >= wanted
            });
            assert_eq!(cut.map(Rank::place), crossing.or(order.last()).copied(), "{wanted}");
        }
        assert_eq!(cut_at(Vec::new(), &[], 1.0), None);
    }

    /// The sum of partial sums may be slightly smaller than the sequential sum, which is `wanted` here. The cut is then
    /// the last value that the sequential sum includes, or a neighbor of it.
    #[test]
    fn cut_at_tolerates_rounding_of_the_sum() {
        let values: Vec<f32> =
            [(5, 10.0), (40, 5.0), (5, -100.0)].iter().flat_map(|&(n, value)| vec![value; n]).collect();
        for seed in 0..50 {
            let random = RandomStream::new(seed, 0);
            let weights: Vec<f32> =
                (0..50).map(|at| (-20.0 * random.uniform(at, Purpose::Token)).exp() as f32).collect();
            let ranks = values.iter().enumerate().map(|(place, &value)| Rank::new(value, place)).collect();
            let wanted = weights[..45].iter().map(|&weight| f64::from(weight)).sum();
            let cut = cut_at(ranks, &weights, wanted).map(Rank::place);
            assert!(cut == Some(44) || cut == Some(43) || cut == Some(45), "{cut:?} of seed {seed}");
        }
    }
}
