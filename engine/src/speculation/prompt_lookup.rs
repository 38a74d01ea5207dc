//! Drafts by prompt lookup: if the last tokens of a text occurred before, the tokens that followed them may follow
//! again. Works well for answers that quote, edit or repeat ([Saxena
//! 2023](https://github.com/apoorvumang/prompt-lookup-decoding)). Pure: no tensors, no state.

use hearth_model::TokenId;

use crate::token_ids::TokenIds;

/// A single common token is not significant.
const MIN_MATCH: usize = 2;

/// Longer matches are not better than this.
const MAX_MATCH: usize = 8;

/// The match and its continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Length of the match in tokens.
    pub(super) n_matched: usize,
    /// The tokens that may follow.
    pub(super) token_ids: Vec<TokenId>,
}

/// Finds the longest suffix of the text that occurred before, the latest of equal length, and returns the `n` tokens
/// that followed it. If fewer than `n` tokens followed, they are repeated, assuming that the text repeats itself.
pub(super) fn look_up(text: TokenIds<'_>, n: usize) -> Option<Found> {
    let mut best = (0, 0);
    for end in (1..text.len()).rev() {
        let is_alike = |back: &usize| text.get(end - back) == text.get(text.len() - back);
        let n_matched = (1..=end.min(MAX_MATCH)).take_while(is_alike).count();
        if n_matched > best.0 {
            best = (n_matched, end);
            if n_matched == MAX_MATCH {
                break;
            }
        }
    }
    let (n_matched, end) = best;
    if n_matched < MIN_MATCH {
        return None;
    }
    Some(Found { n_matched, token_ids: text.range(end..text.len()).cycle().take(n).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(text: &str, n: usize) -> Option<String> {
        let ids: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
        look_up(TokenIds::of(&ids), n).map(|found| found.token_ids.iter().map(|&id| id as u8 as char).collect())
    }

    #[test]
    fn prompt_lookup_drafts_what_followed_the_longest_latest_match() {
        assert_eq!(draft("the cat sat; the ca", 4).as_deref(), Some("t sa"));
        assert_eq!(draft("ab1 ab2 ab", 1).as_deref(), Some("2"), "the latest of two that are as long");
        assert_eq!(draft("xab1 ab2 xab", 1).as_deref(), Some("1"), "a longer match goes before a later one");
        assert_eq!(draft("abcde", 3), None);
        assert_eq!(draft("a", 3), None);
        assert_eq!(draft("", 3), None);
        assert_eq!(draft("a b", 3), None, "one token in common is not enough");
    }

    #[test]
    fn prompt_lookup_continues_a_repeating_suffix() {
        assert_eq!(draft("xyzabab", 5).as_deref(), Some("ababa"));
        assert_eq!(draft("aaa", 4).as_deref(), Some("aaaa"));
    }
}
