//! The longest common subsequence.

/// The length of the longest common subsequence of two lists.
pub fn longest_common<T: PartialEq>(left: &[T], right: &[T]) -> usize {
    // For each start of `right`, the length for it and the part of `left` so far.
    let mut row = vec![0; right.len() + 1];
    for item in left {
        let mut diagonal = 0;
        for (at, other) in right.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if item == other { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_common_counts_the_items_of_a_common_subsequence() {
        assert_eq!(longest_common(&[1, 2, 3, 4, 5], &[9, 1, 3, 9, 5, 4]), 3);
        assert_eq!(longest_common(&[1, 2], &[2, 1]), 1);
        assert_eq!(longest_common(&[1, 1], &[1]), 1);
        assert_eq!((longest_common(&[], &[1]), longest_common(&[1], &[])), (0, 0));
    }
}
