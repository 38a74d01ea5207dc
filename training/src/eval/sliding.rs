//! Sliding windows over a text that is longer than a model's context, as
//! [transformers documents them](https://huggingface.co/docs/transformers/perplexity): a token is scored once, by the first
//! window that reaches it and has something before it.

use anyhow::{Result, ensure};

/// How a text is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    window: usize,
    stride: usize,
}

/// A window of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The window's first token.
    pub start: usize,
    /// One past its last token.
    pub end: usize,
    /// The first token that the window scores, at least one after `start`.
    pub first_scored: usize,
}

impl Sliding {
    /// Windows of `window` tokens, each `stride` further than the one before.
    ///
    /// # Errors
    /// `window` is below 2: its only token has no context; or `stride` is not in `1..=window`.
    pub fn new(window: usize, stride: usize) -> Result<Self> {
        ensure!(window >= 2, "a window must have at least 2 tokens, got {window}\nhint: use a larger `--window`");
        ensure!(
            (1..=window).contains(&stride),
            "the stride must be in 1..={window}, the size of the window, got {stride}\nhint: use another `--stride`"
        );
        Ok(Self { window, stride })
    }

    /// The windows of a text of `n_tokens` tokens, in order. The first window scores all its tokens except the first,
    /// which has no context; later windows score the tokens that earlier ones did not reach. With a stride as long as
    /// the window, windows do not overlap, and the first token of each is not scored.
    pub fn spans(self, n_tokens: usize) -> impl Iterator<Item = Span> {
        let Self { window, stride } = self;
        let n_windows = match n_tokens {
            0 | 1 => 0,
            _ => 1 + n_tokens.saturating_sub(window).div_ceil(stride),
        };
        (0..n_windows)
            .map(move |number| {
                let start = number * stride;
                let reached = if number == 0 { 0 } else { start - stride + window };
                Span { start, end: (start + window).min(n_tokens), first_scored: reached.max(start + 1) }
            })
            // Drops a last window of one token, which has no context.
            .filter(|span| span.first_scored < span.end)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The loop of the transformers documentation, line by line.
    fn documented(n_tokens: usize, window: usize, stride: usize) -> Vec<Span> {
        let (mut spans, mut previous_end) = (Vec::new(), 0);
        for start in (0..n_tokens).step_by(stride) {
            let end = (start + window).min(n_tokens);
            // Labels before it are masked, and the first label of a window has no logits.
            let first_scored = previous_end.max(start + 1);
            if first_scored < end {
                spans.push(Span { start, end, first_scored });
            }
            previous_end = end;
            if end == n_tokens {
                break;
            }
        }
        spans
    }

    #[test]
    fn sliding_windows_match_the_loop_of_the_transformers_documentation() {
        for n_tokens in [0, 1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 100] {
            for (window, stride) in [(8, 8), (8, 4), (8, 3), (8, 1), (2, 1), (2, 2), (200, 50)] {
                let found: Vec<Span> = Sliding::new(window, stride).unwrap().spans(n_tokens).collect();
                assert_eq!(found, documented(n_tokens, window, stride), "{n_tokens} tokens, {window} by {stride}");
                if stride < window {
                    let scored: Vec<usize> = found.iter().flat_map(|span| span.first_scored..span.end).collect();
                    assert_eq!(scored, (1..n_tokens).collect::<Vec<_>>(), "each token but the first once");
                }
            }
        }
    }

    #[test]
    fn sliding_rejects_windows_below_2_tokens_and_invalid_strides() {
        assert!(Sliding::new(1, 1).unwrap_err().to_string().contains("at least 2 tokens, got 1"));
        assert!(Sliding::new(8, 9).unwrap_err().to_string().contains("must be in 1..=8"));
        assert!(Sliding::new(8, 0).is_err());
    }
}
