//! The loss over texts: sliding windows over each document, many windows a step.

use anyhow::{Result, ensure};
use hearth_model::{TokenId, tokenizer::Tokenizer};

use super::{
    loss::Score,
    scorer::{Scorer, TextGroup},
    sliding::Sliding,
};

/// A text to score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its tokens, with those that the tokenizer adds.
    pub ids: Vec<TokenId>,
    /// Bytes of its text. Special tokens have none.
    pub n_bytes: u64,
}

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

/// Scores the tokens of `documents` once, see [`Sliding::spans`]. `progress` is told the numbers of windows that are done and of all windows.
///
/// # Errors
/// The window is longer than the model's context, no document has two tokens, or the device fails.
pub fn text_loss(
    scorer: &Scorer,
    tokenizer: &Tokenizer,
    documents: &[Document],
    sliding: Sliding,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TextScore> {
    let windows: Vec<_> = documents
        .iter()
        .flat_map(|document| sliding.spans(document.ids.len()).map(move |span| (document, span)))
        .collect();
    let n_windows = windows.len();
    ensure!(n_windows > 0, "evaluation needs a text of at least 2 tokens");
    let (mut nats, mut n_targets, mut n_done) = (0.0, 0, 0);
    for windows in windows.chunks(WINDOWS_AT_ONCE) {
        let groups: Vec<TextGroup> = windows
            .iter()
            .map(|(document, span)| {
                TextGroup::of_text(document.ids[span.start..span.end].to_vec(), span.first_scored - span.start)
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
fn scored_bytes(document: &Document, sliding: Sliding, tokenizer: &Tokenizer) -> u64 {
    let mut next = 0;
    let mut unscored = Vec::new();
    for span in sliding.spans(document.ids.len()) {
        unscored.extend(next..span.first_scored);
        next = span.end;
    }
    unscored.extend(next..document.ids.len());
    let unscored: Vec<TokenId> = unscored.into_iter().map(|at| document.ids[at]).collect();
    document.n_bytes.saturating_sub(text_bytes(tokenizer, &unscored))
}

/// Bytes of the text of `ids`. Special tokens have none.
pub(super) fn text_bytes(tokenizer: &Tokenizer, ids: &[TokenId]) -> u64 {
    let bytes_of = |id: &TokenId| if tokenizer.is_special(*id) { 0 } else { tokenizer.token_bytes(*id).len() as u64 };
    ids.iter().map(bytes_of).sum()
}
