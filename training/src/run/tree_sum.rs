//! Sums over micro-batches in an order that depends only on their number: a binary tree over the index of the micro-batch, padded to a
//! power of two.

/// Adds `right` to `left`; `left` precedes `right` in the tree.
pub trait Sum {
    /// The sum of both.
    fn sum(left: Self, right: Self) -> Self;
}

/// Adds the leaves of the tree in order, as they arrive. At most one partial sum per level of the tree exists
/// at a time.
#[derive(Clone, Debug)]
pub struct TreeSum<T> {
    /// Sums of complete subtrees with their numbers of leaves; each has fewer than the one before.
    partial: Vec<(usize, T)>,
}

impl<T> Default for TreeSum<T> {
    fn default() -> Self {
        TreeSum { partial: Vec::new() }
    }
}

impl<T: Sum> TreeSum<T> {
    /// Adds the next leaf.
    pub fn push(&mut self, leaf: T) {
        let (mut n_leaves, mut sum) = (1, leaf);
        while let Some((n_before, before)) = self.partial.pop_if(|(n_before, _)| *n_before == n_leaves) {
            sum = T::sum(before, sum);
            n_leaves += n_before;
        }
        self.partial.push((n_leaves, sum));
    }

    /// The sum of all leaves; `None` without leaves. Missing leaves, up to a power of two, add nothing.
    pub fn finish(self) -> Option<T> {
        self.partial.into_iter().map(|(_, sum)| sum).rev().reduce(|right, left| T::sum(left, right))
    }

    /// Maximum number of partial sums that exist at the same time for `n_leaves`, including the one being added.
    pub fn most_at_once(n_leaves: usize) -> usize {
        (n_leaves.max(1).ilog2() + 1) as usize
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::ops::Range;

    use super::*;

    /// Records the order of the additions.
    #[derive(Clone, Debug, PartialEq)]
    struct Shown(String);

    impl Sum for Shown {
        fn sum(Shown(left): Shown, Shown(right): Shown) -> Shown {
            Shown(format!("({left}+{right})"))
        }
    }

    fn sum_of(leaves: Range<usize>) -> Option<Shown> {
        let mut tree = TreeSum::default();
        leaves.for_each(|leaf| tree.push(Shown(leaf.to_string())));
        tree.finish()
    }

    #[test]
    fn tree_sum_adds_leaves_as_a_binary_tree_padded_to_a_power_of_two() {
        assert_eq!(sum_of(0..0), None);
        assert_eq!(sum_of(0..1).unwrap().0, "0");
        assert_eq!(sum_of(0..3).unwrap().0, "((0+1)+2)");
        assert_eq!(sum_of(0..8).unwrap().0, "(((0+1)+(2+3))+((4+5)+(6+7)))");
        assert_eq!(sum_of(0..6).unwrap().0, "(((0+1)+(2+3))+(4+5))");
        assert_eq!(sum_of(0..7).unwrap().0, "(((0+1)+(2+3))+((4+5)+6))");
    }

    #[test]
    fn tree_sum_holds_no_more_partial_sums_than_most_at_once() {
        for n in 1..40 {
            let mut tree = TreeSum::default();
            let mut most = 0;
            for leaf in 0..n {
                // The leaf being added exists in addition to the others.
                tree.push(Shown(leaf.to_string()));
                most = most.max(tree.partial.len());
            }
            assert!(most <= TreeSum::<Shown>::most_at_once(n), "{n}");
        }
    }
}
