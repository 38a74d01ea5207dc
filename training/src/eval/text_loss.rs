//! The loss over texts: sliding windows over each document, many windows a step.

use anyhow::{Result, ensure};
use hearth_model::text::tokenizer::Tokenizer;

use super::{
    loss::Score,
    scorer::{Scorer, TextGroup},
    sliding::Sliding,
};
use crate::data::shard::Tokens;

/// The loss over documents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextScore {
    /// Mean loss and number of scored tokens.
    pub score: Score,
    /// Bytes of the scored tokens.
    pub n_bytes: u64,
    /// Number of windows.
    pub n_windows: usize,
}

/// Windows whose log-probabilities are held at once.
const WINDOWS_AT_ONCE: usize = 256;

/// Scores each token of `documents` once, special tokens that the tokenizer has added included, see [`Sliding::spans`].
/// Reports the number of finished windows and the total to `progress`.
///
/// # Errors
/// The window is longer than the model's context, no document has two tokens, or the device fails.
pub fn text_loss(
    scorer: &Scorer,
    tokenizer: &Tokenizer,
    documents: &[Tokens],
    sliding: Sliding,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TextScore> {
    let windows: Vec<_> = documents
        .iter()
        .flat_map(|document| sliding.spans(document.len() as usize).map(move |span| (document, span)))
        .collect();
    let n_windows = windows.len();
    ensure!(n_windows > 0, "evaluation needs a text of at least 2 tokens");
    let (mut nats, mut n_targets, mut n_done) = (0.0, 0, 0);
    for windows in windows.chunks(WINDOWS_AT_ONCE) {
        let groups: Vec<TextGroup> = windows
            .iter()
            .map(|(document, span)| {
                let mut ids = vec![0; span.end - span.start];
                document.read(span.start as u64, &mut ids);
                TextGroup::of_text(ids, span.first_scored - span.start)
            })
            .collect();
        let logprobs = scorer.logprobs(&groups, &mut |n| progress(n_done + n, n_windows))?;
        for logprob in logprobs.into_iter().flatten().flatten() {
            nats -= f64::from(logprob);
            n_targets += 1;
        }
        n_done += windows.len();
    }
    let n_bytes = documents.iter().map(|document| scored_bytes(document, sliding, tokenizer)).sum();
    Ok(TextScore { score: Score { loss: nats / n_targets as f64, n_targets, accuracy: None }, n_bytes, n_windows })
}

/// Bytes of the tokens that some window scores.
fn scored_bytes(document: &Tokens, sliding: Sliding, tokenizer: &Tokenizer) -> u64 {
    let n_tokens = document.len() as usize;
    let mut next = 0;
    let mut unscored = Vec::new();
    for span in sliding.spans(n_tokens) {
        unscored.extend(next..span.first_scored);
        next = span.end;
    }
    unscored.extend(next..n_tokens);
    let bytes_at = |at: usize| {
        let mut id = [0];
        document.read(at as u64, &mut id);
        tokenizer.text_bytes(&id)
    };
    document.n_bytes().saturating_sub(unscored.into_iter().map(bytes_at).sum())
}
