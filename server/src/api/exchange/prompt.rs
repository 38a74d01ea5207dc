//! One prompt: truncation, echo, end tokens, and its log-probabilities.

use std::sync::Arc;

use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    decode::sampling::TokenLogprobs,
    text::tokenizer::{CutAt, DecodeOptions, EncodeOptions, Tokenizer},
};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::stream::{PromptLogprobs, finite};
use crate::api::{
    error::ApiError,
    wire::{
        fields::{Fields, must_be},
        text_input::TextOrIds,
    },
};

/// How to truncate a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// To the length that leaves room for the answer in the context.
    Fitting,
    /// Cut to this many of the last tokens.
    Last(usize),
}

/// A prompt as token ids, and how its answer starts and ends.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Arc<[TokenId]>,
    /// The source that the encoder of an encoder-decoder reads; `ids` are then the decoder's.
    pub(crate) source: Option<Arc<[TokenId]>>,
    /// Text at the start of the answer (`echo`).
    pub(crate) echo: Option<Arc<str>>,
    /// Number of tokens removed from the front.
    pub(crate) n_cut: usize,
    /// Tokens that end the answer, in addition to the model's end-of-sequence tokens.
    pub(crate) end_ids: Vec<TokenId>,
}

impl Prompt {
    /// Truncates `ids` to their last tokens according to `truncation`, for an answer of `wanted` tokens in a context of
    /// `max_seq_len` tokens.
    pub(crate) fn cut(
        mut ids: Vec<TokenId>,
        truncation: Option<Truncation>,
        [wanted, max_seq_len]: [usize; 2],
    ) -> Self {
        let n_kept = match truncation {
            None => ids.len(),
            Some(Truncation::Last(n)) => n,
            // An answer without a limit uses the rest of the context.
            Some(Truncation::Fitting) if wanted >= max_seq_len => max_seq_len - 1,
            Some(Truncation::Fitting) => max_seq_len - wanted,
        };
        let n_cut = ids.len().saturating_sub(n_kept);
        ids.drain(..n_cut);
        Self { ids: ids.into(), source: None, echo: None, n_cut, end_ids: Vec::new() }
    }

    /// A text of the parameter `param` as a source for the encoder of `model`; the answer has a context of its own. It is cut at its
    /// beginning, as in vLLM, and keeps what the tokenizer adds there and at its end.
    pub(crate) fn source(
        text: &TextOrIds,
        truncation: Option<Truncation>,
        (param, encode): (&'static str, EncodeOptions),
        model: &ServedModel,
    ) -> Result<Self, ApiError> {
        let max_source_len = model.limits.max_source_len;
        let most = match truncation {
            Some(Truncation::Last(n)) => n,
            Some(Truncation::Fitting) | None => max_source_len,
        };
        match text {
            TextOrIds::Text(text) if truncation.is_some() => {
                let encoded = model.tokenizer.encode_within(text, (most, CutAt::Start), encode);
                let encoded = encoded
                    .map_err(|error| ApiError::invalid(param, format!("`{param}` cannot be encoded: {error}")))?;
                Ok(Self { n_cut: encoded.n_cut, ..Self::cut(encoded.token_ids, None, [0, max_source_len]) })
            }
            text => Ok(Self::cut(text.encode(param, &model.tokenizer, encode)?, truncation, [0, max_source_len])),
        }
    }

    /// Makes the prompt the source of a text that begins with the tokens `decoder_ids`.
    pub(crate) fn into_source_of(self, decoder_ids: Vec<TokenId>) -> Self {
        Self { source: Some(self.ids), ids: decoder_ids.into(), ..self }
    }

    /// The tokens of the text that the model reads first: the source, or the prompt.
    pub(crate) fn read_ids(&self) -> &Arc<[TokenId]> {
        self.source.as_ref().unwrap_or(&self.ids)
    }

    /// Number of tokens of source and prompt together.
    pub(crate) fn n_tokens(&self) -> usize {
        self.ids.len() + self.source.as_ref().map_or(0, |source| source.len())
    }

    /// Starts the answer with the prompt's text: `given`, or the decoded tokens if the prompt was truncated.
    pub(crate) fn echoed(self, given: Option<String>, tokenizer: &Tokenizer) -> Self {
        let text = given.filter(|_| self.n_cut == 0);
        let decode = || tokenizer.decode(&self.ids, DecodeOptions { skip_special_tokens: false });
        Self { echo: Some(text.unwrap_or_else(decode).into()), ..self }
    }

    /// Adds tokens that end the answer.
    pub(crate) fn ending_on(self, end_ids: &[TokenId]) -> Self {
        Self { end_ids: end_ids.to_vec(), ..self }
    }
}

/// The prompt's log-probabilities in vLLM's format: for each token an object whose keys are token ids, `null` for the
/// first. Texts are formatted during serialization, because they take many times the memory of the ids.
#[derive(Debug)]
pub(crate) struct WirePromptLogprobs {
    pub(crate) logprobs: PromptLogprobs,
    pub(crate) tokenizer: Tokenizer,
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

/// The entry of one prompt token.
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

/// Reads `truncate_prompt_tokens`. `None`: no truncation.
pub(crate) fn truncation(fields: &mut Fields) -> Result<Option<Truncation>, ApiError> {
    const NAME: &str = "truncate_prompt_tokens";
    match fields.integer(NAME, -1..=i64::MAX)? {
        None => Ok(None),
        Some(0) => Err(must_be(NAME, "-1, to keep as many tokens as fit into the context, or at least 1", &json!(0))),
        Some(n) => Ok(Some(usize::try_from(n).map_or(Truncation::Fitting, Truncation::Last))),
    }
}
