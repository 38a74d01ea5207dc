//! Counts of n-grams.

use std::{collections::HashMap, hash::Hash};

/// How often each run of `order` neighbours occurs in `items`.
pub(super) fn counts<T: Eq + Hash>(items: &[T], order: usize) -> HashMap<&[T], usize> {
    let mut counts = HashMap::new();
    for ngram in items.windows(order) {
        *counts.entry(ngram).or_insert(0) += 1;
    }
    counts
}

/// How many n-grams of `found` are also in `wanted`, each counted at most as often as it is there.
pub(super) fn matches<T: Eq + Hash>(found: &HashMap<&[T], usize>, wanted: &HashMap<&[T], usize>) -> usize {
    found.iter().map(|(ngram, &count)| count.min(wanted.get(ngram).copied().unwrap_or(0))).sum()
}
