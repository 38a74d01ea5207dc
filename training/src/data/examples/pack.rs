//! Assigns examples to rows of a fixed length.

use std::{cmp::Reverse, collections::BTreeSet};

/// Packs examples of these lengths into rows of at most `row_len` tokens by best fit, longest first: each goes into the
/// fullest row that has room for it. Returns the example numbers of each row in ascending order; rows are ordered by
/// their first example. A longer example gets a separate row.
///
/// Takes time proportional to n log n for n examples; the result depends on the arguments only.
/// [Best-fit packing](https://arxiv.org/abs/2404.10830).
pub fn pack(lengths: &[usize], row_len: usize) -> Vec<Vec<usize>> {
    let mut by_length: Vec<(usize, usize)> = lengths.iter().copied().zip(0..).collect();
    by_length.sort_by_key(|&(length, example)| (Reverse(length), example));
    let mut rows: Vec<Vec<usize>> = Vec::new();
    // The room in each row, and the row.
    let mut room = BTreeSet::new();
    for (length, example) in by_length {
        let fullest = room.range((length, 0)..).next().copied();
        let (free, row) = match fullest {
            Some(found) => {
                room.remove(&found);
                found
            }
            None => {
                rows.push(Vec::new());
                (row_len.max(length), rows.len() - 1)
            }
        };
        rows[row].push(example);
        room.insert((free - length, row));
    }
    rows.iter_mut().for_each(|row| row.sort_unstable());
    rows.sort_unstable_by_key(|row| row.first().copied());
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pack_puts_each_example_in_the_fullest_row_with_room() {
        // Longest first: 7 and 6 begin rows; 4 fits only next to 6; 3 fills the row of 7.
        assert_eq!(pack(&[3, 6, 4, 7], 10), [vec![0, 3], vec![1, 2]]);
        assert_eq!(pack(&[5, 5, 5], 10), [vec![0, 1], vec![2]]);
        assert_eq!(pack(&[12, 1, 9], 10), [vec![0], vec![1, 2]]);
        assert!(pack(&[], 10).is_empty());
    }

    /// Best fit decreasing by its definition, in quadratic time.
    fn quadratic_best_fit(lengths: &[usize], row_len: usize) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&example| (Reverse(lengths[example]), example));
        let mut rows: Vec<(usize, Vec<usize>)> = Vec::new();
        for example in order {
            let length = lengths[example];
            let fitting = (0..rows.len()).filter(|&row| rows[row].0 + length <= row_len);
            match fitting.max_by_key(|&row| (rows[row].0, Reverse(row))) {
                Some(row) => {
                    rows[row].0 += length;
                    rows[row].1.push(example);
                }
                None => rows.push((length, vec![example])),
            }
        }
        let mut rows: Vec<Vec<usize>> = rows.into_iter().map(|(_, row)| row).collect();
        rows.iter_mut().for_each(|row| row.sort_unstable());
        rows.sort_unstable();
        rows
    }

    proptest! {
        #[test]
        fn pack_equals_a_quadratic_best_fit_on_random_lengths(lengths in prop::collection::vec(1..60_usize, 0..80)) {
            prop_assert_eq!(pack(&lengths, 50), quadratic_best_fit(&lengths, 50));
        }
    }

    #[test]
    fn packing_a_million_examples_wastes_at_most_1_percent() {
        let lengths: Vec<usize> =
            (0..1_000_000_u64).map(|n| (n.wrapping_mul(2_654_435_761) % 900 + 1) as usize).collect();
        let rows = pack(&lengths, 2048);
        let total: usize = lengths.iter().sum();
        assert!(rows.len() * 2048 <= total + total / 100);
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), lengths.len());
    }
}
