//! One prompt on its way into the engine: what is kept of it, how its answer starts, what ends it, and what is told of its
//! tokens.

use std::sync::Arc;

use hearth_model::{
    TokenId,
    sampling::TokenLogprobs,
    tokenizer::{DecodeOptions, Tokenizer},
};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{
    error::ApiError,
    fields::{Fields, must_be},
    stream::{PromptLogprobs, finite},
};

/// What a prompt may keep of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// As much as the context has room for beside the answer.
    Fitting,
    /// So many of its last tokens.
    Last(usize),
}

/// A prompt as token ids, and how its answer starts.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(super) ids: Arc<[TokenId]>,
    /// Text to start the answer with.
    pub(super) echo: Option<Arc<str>>,
    /// Tokens that were cut off in front.
    pub(super) n_cut: usize,
    /// Tokens that end its answer as the model's end-of-sequence tokens do.
    pub(super) end_ids: Vec<TokenId>,
}

impl Prompt {
    /// The end of `ids` that `truncation` keeps, for an answer of `wanted` tokens in a context of `max_seq_len`.
    pub(super) fn cut(
        mut ids: Vec<TokenId>,
        truncation: Option<Truncation>,
        [wanted, max_seq_len]: [usize; 2],
    ) -> Self {
        let n_kept = match truncation {
            None => ids.len(),
            Some(Truncation::Last(n)) => n,
            // An answer without a limit takes what is left.
            Some(Truncation::Fitting) if wanted >= max_seq_len => max_seq_len - 1,
            Some(Truncation::Fitting) => max_seq_len - wanted,
        };
        let n_cut = ids.len().saturating_sub(n_kept);
        ids.drain(..n_cut);
        Self { ids: ids.into(), echo: None, n_cut, end_ids: Vec::new() }
    }

    /// Starts the answer with the prompt's text: `given` if it is all there, else what is left of it.
    pub(crate) fn echoed(self, given: Option<String>, tokenizer: &Tokenizer) -> Self {
        let text = given.filter(|_| self.n_cut == 0);
        let decode = || tokenizer.decode(&self.ids, DecodeOptions { skip_special_tokens: false });
        Self { echo: Some(text.unwrap_or_else(decode).into()), ..self }
    }

    /// Ends the answer on more tokens than the model's own.
    pub(crate) fn ending_on(self, end_ids: &[TokenId]) -> Self {
        Self { end_ids: end_ids.to_vec(), ..self }
    }
}

/// The prompt's log-probabilities as vLLM writes them: for each token but the first an object by token id. They are put
/// into words as they are written, since that takes many times their memory.
#[derive(Debug)]
pub(super) struct WirePromptLogprobs {
    pub(super) logprobs: PromptLogprobs,
    pub(super) tokenizer: Tokenizer,
}

#[derive(Serialize)]
struct WireAlternative {
    logprob: f64,
    rank: usize,
    decoded_token: String,
}

impl Serialize for WirePromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.logprobs.entries.iter().map(|logprobs| {
            let logprobs = logprobs.as_ref()?;
            Some(PositionLogprobs { logprobs, n_top: self.logprobs.n_top, tokenizer: &self.tokenizer })
        }))
    }
}

/// Of one token of the prompt.
struct PositionLogprobs<'a> {
    logprobs: &'a TokenLogprobs,
    n_top: usize,
    tokenizer: &'a Tokenizer,
}

impl Serialize for PositionLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let top = self.logprobs.top.get(..self.n_top).unwrap_or(&self.logprobs.top);
        let ranked = top.iter().zip(1..).map(|(&(id, logprob), rank)| (id, logprob, rank));
        let own = (self.logprobs.id, self.logprobs.logprob, self.logprobs.rank);
        let is_ranked = top.iter().any(|(id, _)| *id == self.logprobs.id);
        serializer.collect_map(ranked.chain((!is_ranked).then_some(own)).map(|(id, logprob, rank)| {
            let decoded_token = self.tokenizer.decode(&[id], DecodeOptions { skip_special_tokens: false });
            (id.to_string(), WireAlternative { logprob: f64::from(finite(logprob)), rank, decoded_token })
        }))
    }
}

/// How much of a prompt a request lets go; `None`: nothing.
pub(crate) fn truncation(fields: &mut Fields) -> Result<Option<Truncation>, ApiError> {
    const NAME: &str = "truncate_prompt_tokens";
    match fields.integer(NAME, -1..=i64::MAX)? {
        None => Ok(None),
        Some(0) => Err(must_be(NAME, "-1, for what the context has room for, or at least 1", &json!(0))),
        Some(n) => Ok(Some(usize::try_from(n).map_or(Truncation::Fitting, Truncation::Last))),
    }
}
