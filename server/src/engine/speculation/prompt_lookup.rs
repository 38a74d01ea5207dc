//! Guesses by looking back: where the last few tokens of a text appeared before, what followed them then may follow now.
//! Good for answers that quote, edit or repeat ([Saxena 2023](https://github.com/apoorvumang/prompt-lookup-decoding)).
//! Pure.

use hearth_model::TokenId;

use crate::engine::token_ids::TokenIds;

/// A single token in common says nothing.
const MIN_MATCH: usize = 2;

/// Longer matches are as good as this one.
const MAX_MATCH: usize = 8;

/// What followed the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Tokens at the end of the text that appeared before.
    pub(super) n_matched: usize,
    /// What may follow.
    pub(super) token_ids: Vec<TokenId>,
}

/// Looks for the longest end of the text that appeared before, the latest among equals, and gives the `n` tokens that
/// followed there. Where the text ends before that, they go on as they began: a repetition is guessed to go on.
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

    fn guess(text: &str, n: usize) -> Option<String> {
        let ids: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
        look_up(TokenIds::of(&ids), n).map(|found| found.token_ids.iter().map(|&id| id as u8 as char).collect())
    }

    #[test]
    fn what_followed_before_is_guessed() {
        assert_eq!(guess("the cat sat; the ca", 4).as_deref(), Some("t sa"));
        assert_eq!(guess("ab1 ab2 ab", 1).as_deref(), Some("2"), "the latest of two that are as long");
        assert_eq!(guess("xab1 ab2 xab", 1).as_deref(), Some("1"), "a longer match goes before a later one");
        assert_eq!(guess("abcde", 3), None);
        assert_eq!(guess("a", 3), None);
        assert_eq!(guess("", 3), None);
        assert_eq!(guess("a b", 3), None, "one token in common is not enough");
    }

    #[test]
    fn a_repetition_is_guessed_to_go_on() {
        assert_eq!(guess("xyzabab", 5).as_deref(), Some("ababa"));
        assert_eq!(guess("aaa", 4).as_deref(), Some("aaaa"));
    }
}
