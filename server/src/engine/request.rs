//! What a client may ask of the engine. A [`GenerateRequest`] that exists can be served: everything is checked here,
//! once, and nothing behind this point checks again.

use std::collections::BTreeSet;

use hearth_model::{Error, TokenId, sampling::SamplingParams};

/// Alternatives per position that a request may ask for.
pub const MAX_LOGPROBS: usize = 20;

/// What the served model allows.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Tokens of prompt and answer together: the model's context, or the KV cache where that is smaller.
    pub max_seq_len: usize,
}

/// When a generation ends.
#[derive(Clone, Debug, Default)]
pub struct StopConditions {
    /// Tokens to generate at most. 0 only runs the prompt.
    pub max_tokens: usize,
    /// Before so many tokens are generated, neither an end-of-sequence or stop token is drawn, nor a stop string seen.
    pub min_tokens: usize,
    /// Strings that end the text; they are cut from it.
    pub stop_strings: Vec<String>,
    /// Tokens that end the generation: the request's own, and the model's end-of-sequence tokens unless they are to be
    /// ignored.
    pub stop_token_ids: BTreeSet<TokenId>,
}

/// The parts of a request, not checked yet.
#[derive(Clone, Debug, Default)]
pub struct RequestParts {
    /// What to continue.
    pub prompt_ids: Vec<TokenId>,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// When to end.
    pub stop: StopConditions,
    /// Which of the alternatives for one prompt this is; part of the random stream's key.
    pub choice: u32,
    /// Report each generated token's log-probability, with so many alternatives.
    pub logprobs: Option<usize>,
    /// Report each prompt token's log-probability, with so many alternatives.
    pub prompt_logprobs: Option<usize>,
}

/// A request that the engine can serve.
#[derive(Clone, Debug)]
pub struct GenerateRequest(RequestParts);

/// Why a request cannot be served. The messages name parameters as clients write them.
#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    /// The prompt has no tokens, so there is nothing to predict from.
    #[error("`prompt` must hold at least one token, got none")]
    EmptyPrompt,
    /// A token id that the vocabulary does not have.
    #[error("`{param}` must hold token ids below {vocab_size}, got {id}")]
    TokenId {
        /// The parameter that holds it.
        param: &'static str,
        /// The id.
        id: TokenId,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// Prompt and answer do not fit into the context.
    #[error(
        "`prompt` has {n_prompt} tokens, but the context holds {max_seq_len} tokens of prompt and answer together and \
         an answer needs at least one"
    )]
    ContextLength {
        /// Tokens in the prompt.
        n_prompt: usize,
        /// Tokens that the context holds.
        max_seq_len: usize,
    },
    /// A stop string without characters: it would end every text before it starts.
    #[error("`stop` must not hold an empty string")]
    EmptyStopString,
    /// More tokens are demanded than allowed.
    #[error("`min_tokens` must be at most `max_tokens`, got {min_tokens} and {max_tokens}")]
    MinTokens {
        /// As given.
        min_tokens: usize,
        /// As given.
        max_tokens: usize,
    },
    /// Too many alternatives.
    #[error("`{param}` must be at most {MAX_LOGPROBS}, got {given}")]
    Logprobs {
        /// The parameter.
        param: &'static str,
        /// As given.
        given: usize,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(Error),
}

impl ValidationError {
    /// The parameter to blame, as clients write it.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt | Self::ContextLength { .. } => Some("prompt"),
            Self::TokenId { param, .. } | Self::Logprobs { param, .. } => Some(param),
            Self::EmptyStopString => Some("stop"),
            Self::MinTokens { .. } => Some("min_tokens"),
            Self::Sampling(Error::Param { name, .. }) => Some(name),
            Self::Sampling(_) => None,
        }
    }
}

impl GenerateRequest {
    /// Checks the parts against the model's limits. `max_tokens` is cut to what the context has room for behind the
    /// prompt, so that generation ends there with [`FinishReason::Length`](super::FinishReason::Length).
    ///
    /// # Errors
    /// The first part that the model cannot serve.
    pub fn new(mut parts: RequestParts, limits: &ModelLimits) -> Result<Self, ValidationError> {
        let ModelLimits { vocab_size, max_seq_len } = *limits;
        let n_prompt = parts.prompt_ids.len();
        if n_prompt == 0 {
            return Err(ValidationError::EmptyPrompt);
        }
        if n_prompt + usize::from(parts.stop.max_tokens > 0) > max_seq_len {
            return Err(ValidationError::ContextLength { n_prompt, max_seq_len });
        }
        let outside = |id: &&TokenId| **id as usize >= vocab_size;
        if let Some(&id) = parts.prompt_ids.iter().find(outside) {
            return Err(ValidationError::TokenId { param: "prompt", id, vocab_size });
        }
        if let Some(&id) = parts.stop.stop_token_ids.iter().find(outside) {
            return Err(ValidationError::TokenId { param: "stop_token_ids", id, vocab_size });
        }
        if parts.stop.stop_strings.iter().any(String::is_empty) {
            return Err(ValidationError::EmptyStopString);
        }
        let StopConditions { min_tokens, max_tokens, .. } = parts.stop;
        if min_tokens > max_tokens {
            return Err(ValidationError::MinTokens { min_tokens, max_tokens });
        }
        for (param, given) in [("logprobs", parts.logprobs), ("prompt_logprobs", parts.prompt_logprobs)] {
            if let Some(given) = given.filter(|&given| given > MAX_LOGPROBS) {
                return Err(ValidationError::Logprobs { param, given });
            }
        }
        parts.sampling.validate(vocab_size).map_err(ValidationError::Sampling)?;
        parts.stop.max_tokens = max_tokens.min(max_seq_len - n_prompt);
        Ok(Self(parts))
    }

    /// The parts, checked.
    pub fn parts(&self) -> &RequestParts {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const LIMITS: ModelLimits = ModelLimits { vocab_size: 10, max_seq_len: 8 };

    fn parts(n_prompt: usize, max_tokens: usize) -> RequestParts {
        let stop = StopConditions { max_tokens, ..StopConditions::default() };
        RequestParts { prompt_ids: vec![1; n_prompt], stop, ..RequestParts::default() }
    }

    fn refusal(parts: RequestParts) -> (Option<&'static str>, String) {
        let error = GenerateRequest::new(parts, &LIMITS).unwrap_err();
        (error.param(), error.to_string())
    }

    #[test]
    fn the_answer_is_cut_to_the_context() {
        let request = GenerateRequest::new(parts(6, 100), &LIMITS).unwrap();
        assert_eq!(request.parts().stop.max_tokens, 2);
    }

    #[test]
    fn a_prompt_may_fill_the_context_only_when_nothing_is_generated() {
        assert!(GenerateRequest::new(parts(8, 0), &LIMITS).is_ok());
        let (param, message) = refusal(parts(8, 1));
        assert_eq!(param, Some("prompt"));
        assert!(message.contains("8 tokens"), "{message}");
    }

    #[test]
    fn refusals_name_the_parameter() {
        assert_eq!(refusal(parts(0, 1)).0, Some("prompt"));
        let stop = StopConditions { max_tokens: 1, ..StopConditions::default() };
        let with_stop = |stop| RequestParts { stop, ..parts(1, 1) };
        assert_eq!(
            refusal(with_stop(StopConditions { stop_strings: vec![String::new()], ..stop.clone() })).0,
            Some("stop")
        );
        assert_eq!(refusal(with_stop(StopConditions { min_tokens: 2, ..stop.clone() })).0, Some("min_tokens"));
        let (param, message) = refusal(with_stop(StopConditions { stop_token_ids: [10].into(), ..stop }));
        assert_eq!(param, Some("stop_token_ids"));
        assert_eq!(message, "`stop_token_ids` must hold token ids below 10, got 10");
        assert_eq!(refusal(RequestParts { prompt_ids: vec![3, 11], ..parts(1, 1) }).0, Some("prompt"));
        assert_eq!(refusal(RequestParts { logprobs: Some(21), ..parts(1, 1) }).0, Some("logprobs"));
        let sampling = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
        assert_eq!(refusal(RequestParts { sampling, ..parts(1, 1) }).0, Some("temperature"));
    }
}
