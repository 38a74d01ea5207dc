//! What a client may ask of the engine. A [`GenerateRequest`] that exists can be served: everything is checked here,
//! once, and nothing behind this point checks again.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc, time::Duration};

use hearth_model::{
    Error, TokenId,
    constraint::Constraint,
    sampling::{SamplingParams, beam::BeamKind},
};

use super::{prefix_cache::PrefixSalt, scheduler::most_pages};

/// Alternatives per position that a request may ask for.
pub const MAX_LOGPROBS: usize = 20;

/// Answers that one HTTP request may ask for: prompts times `n`.
pub const MAX_CHOICES: usize = 2048;

/// Priorities that a request may have; lower goes first.
pub const PRIORITIES: RangeInclusive<i32> = -100..=100;

/// What the served model allows.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Tokens of prompt and answer together: the model's context, or the KV cache where that is smaller.
    pub max_seq_len: usize,
    /// Sequences that run at once.
    pub max_batch_size: usize,
    /// Pages in the KV cache.
    pub n_pages: usize,
}

/// How an answer is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Strategy {
    /// Token by token.
    #[default]
    Sample,
    /// Several partial answers at once; of the sampling parameters, only the temperature and the seed apply.
    Beams {
        /// Partial answers that are followed.
        width: usize,
        /// How many of the answers are given out, `width` at most. They take as many indices in the stream of events.
        n_best: usize,
        /// How they compete.
        kind: BeamKind,
    },
}

/// When a generation ends.
#[derive(Clone, Debug, Default)]
pub struct StopConditions {
    /// Tokens to generate at most. 0 only runs the prompt.
    pub max_tokens: usize,
    /// Before so many tokens are generated, neither an end-of-sequence or stop token is drawn, nor a stop string seen.
    pub min_tokens: usize,
    /// Strings that end the text; they are cut from it.
    pub stop_strings: Arc<[String]>,
    /// Tokens that end the generation: the request's own, and the model's end-of-sequence tokens unless they are to be
    /// ignored.
    pub stop_token_ids: Arc<BTreeSet<TokenId>>,
}

/// How tokens become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// What special tokens say.
    pub special_tokens: SpecialTokens,
    /// What becomes of the stop string or stop token that ends the text.
    pub stop_text: StopText,
}

/// What special tokens say in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Nothing.
    #[default]
    Skip,
    /// Their strings.
    Show,
}

/// What becomes of that which ends a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopText {
    /// It is no part of the text.
    #[default]
    Cut,
    /// The text ends with it.
    Keep,
}

/// Which distribution the log-probabilities of generated tokens are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The model's own.
    #[default]
    Raw,
    /// The one that tokens are drawn from, after all sampling parameters.
    Processed,
}

/// The parts of a request, not checked yet. Clones are cheap: what may be long is shared by the answers to a prompt.
#[derive(Clone, Debug, Default)]
pub struct RequestParts {
    /// What to continue.
    pub prompt_ids: Arc<[TokenId]>,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// When to end.
    pub stop: StopConditions,
    /// Which of the alternatives for one prompt this is; part of the random stream's key.
    pub choice: u32,
    /// Report each generated token's log-probability, with so many alternatives.
    pub logprobs: Option<usize>,
    /// Of which distribution.
    pub logprobs_mode: LogprobsMode,
    /// Report each prompt token's log-probability, with so many alternatives.
    pub prompt_logprobs: Option<usize>,
    /// How tokens become text.
    pub text: TextOptions,
    /// How the answer is looked for.
    pub strategy: Strategy,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Lower goes first, within [`PRIORITIES`]; see [`scheduler`](super::scheduler) for what it is worth.
    pub priority: i32,
    /// Computed prompts are shared with requests of the same salt only.
    pub prefix_salt: Option<PrefixSalt>,
    /// From its arrival on, the request may take this long.
    pub deadline: Option<Duration>,
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
        "This model's maximum context length is {max_seq_len} tokens, of prompt and answer together, but the prompt has \
         {n_prompt} and an answer needs at least one"
    )]
    ContextLength {
        /// Tokens in the prompt.
        n_prompt: usize,
        /// Tokens that the context holds.
        max_seq_len: usize,
    },
    /// The text to embed has no tokens.
    #[error("`input` must hold at least one token, got none")]
    EmptyInput,
    /// The text to embed does not fit into the context.
    #[error(
        "`input` has {n_tokens} tokens, but the context holds {max_seq_len}\nhint: `truncate_prompt_tokens` cuts it"
    )]
    InputLength {
        /// Tokens in the text.
        n_tokens: usize,
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
    /// A priority out of range.
    #[error("`priority` must be from {} to {}, got {given}", PRIORITIES.start(), PRIORITIES.end())]
    Priority {
        /// As given.
        given: i32,
    },
    /// More beams than sequences may run at once, none, or fewer than are to be given out.
    #[error(
        "`best_of` must be from `n` to {max_batch_size} beams, the sequences that run at once, got {width} with `n` \
         {n_best}"
    )]
    BeamWidth {
        /// As given.
        width: usize,
        /// As given.
        n_best: usize,
        /// Sequences that run at once.
        max_batch_size: usize,
    },
    /// The beams do not fit into the KV cache even when nobody else runs.
    #[error(
        "`best_of` of {width} beams with up to {n_tokens} tokens each needs {needed} pages of the KV cache, which has \
         {n_pages}\nhint: lower `best_of` or `max_tokens`"
    )]
    BeamPages {
        /// As given.
        width: usize,
        /// Tokens of prompt and answer.
        n_tokens: usize,
        /// Pages that all beams could fill, those of the prompt that they share counted once.
        needed: usize,
        /// Pages that there are.
        n_pages: usize,
    },
    /// Something that a beam search does not do.
    #[error("`{param}` does not go with `{}`", strategy_name(*kind))]
    NotWithBeams {
        /// The parameter.
        param: &'static str,
        /// Which search.
        kind: BeamKind,
    },
    /// Something that could leave a constrained answer without a token to go on with, or cut it.
    #[error("`{param}` cannot be combined with `{constraint}`: {why}")]
    NotWithConstraint {
        /// The parameter.
        param: &'static str,
        /// The parameter that constrains the answer.
        constraint: &'static str,
        /// What would happen.
        why: &'static str,
    },
    /// While there are too few tokens for the answer to end, no token may come.
    #[error("`allowed_token_ids` must hold a token that does not end the answer while `min_tokens` is above 0")]
    OnlyStopTokens,
    /// Every token is one that ends the answer, and it must not end yet.
    #[error("`stop_token_ids` must leave a token of the vocabulary while `min_tokens` is above 0")]
    AllStopTokens,
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(Error),
}

impl ValidationError {
    /// The parameter to blame, as clients write it.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt | Self::ContextLength { .. } => Some("prompt"),
            Self::EmptyInput | Self::InputLength { .. } => Some("input"),
            Self::TokenId { param, .. } | Self::Logprobs { param, .. } => Some(param),
            Self::EmptyStopString => Some("stop"),
            Self::MinTokens { .. } => Some("min_tokens"),
            Self::Priority { .. } => Some("priority"),
            Self::BeamWidth { .. } | Self::BeamPages { .. } => Some("best_of"),
            Self::NotWithBeams { param, .. } | Self::NotWithConstraint { param, .. } => Some(param),
            Self::OnlyStopTokens => Some("allowed_token_ids"),
            Self::AllStopTokens => Some("stop_token_ids"),
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
        let ModelLimits { vocab_size, max_seq_len, .. } = *limits;
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
        if min_tokens > 0
            && let Some(allowed) = &parts.sampling.allowed_token_ids
            && allowed.is_subset(&parts.stop.stop_token_ids)
        {
            return Err(ValidationError::OnlyStopTokens);
        }
        check_constraint(&parts)?;
        if min_tokens > 0 && parts.stop.stop_token_ids.len() >= vocab_size {
            return Err(ValidationError::AllStopTokens);
        }
        if !PRIORITIES.contains(&parts.priority) {
            return Err(ValidationError::Priority { given: parts.priority });
        }
        parts.stop.max_tokens = max_tokens.min(max_seq_len - n_prompt);
        check_beams(&parts, limits)?;
        Ok(Self(parts))
    }

    /// Another of the alternatives for the same prompt.
    #[must_use]
    pub fn for_choice(&self, choice: u32) -> Self {
        Self(RequestParts { choice, ..self.0.clone() })
    }

    /// Answers that come of it, each with an index of its own in the stream of events.
    pub fn n_answers(&self) -> usize {
        match self.0.strategy {
            Strategy::Sample => 1,
            Strategy::Beams { n_best, .. } => n_best,
        }
    }

    /// Whether another request starts alike, so that its prompt need not be computed twice.
    pub(crate) fn shares_prompt(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.0, &other.0);
        ours.strategy == Strategy::Sample
            && theirs.strategy == Strategy::Sample
            && ours.prompt_logprobs == theirs.prompt_logprobs
            && ours.priority == theirs.priority
            && ours.prefix_salt == theirs.prefix_salt
            && ours.prompt_ids == theirs.prompt_ids
    }

    /// The parts, checked.
    pub fn parts(&self) -> &RequestParts {
        &self.0
    }
}

fn check_constraint(parts: &RequestParts) -> Result<(), ValidationError> {
    let Some(constraint) = &parts.constraint else { return Ok(()) };
    let no_token = "together they could leave no token to go on with";
    let beams = match parts.strategy {
        Strategy::Sample => None,
        Strategy::Beams { kind, .. } => Some(strategy_name(kind)),
    };
    let conflicts = [
        (beams.unwrap_or_default(), beams.is_some(), "beams know of no constraint"),
        ("min_tokens", parts.stop.min_tokens > 0, "the answer ends when it is complete"),
        ("allowed_token_ids", parts.sampling.allowed_token_ids.is_some(), no_token),
        ("bad_words", !parts.sampling.bad_words.is_empty(), no_token),
    ];
    match conflicts.into_iter().find(|(_, is_given, _)| *is_given) {
        Some((param, _, why)) => Err(ValidationError::NotWithConstraint { param, constraint: constraint.param(), why }),
        None => Ok(()),
    }
}

/// The field that asks for it.
fn strategy_name(kind: BeamKind) -> &'static str {
    match kind {
        BeamKind::Best { .. } => "use_beam_search",
        BeamKind::Stochastic { .. } => "stochastic_beam_search",
    }
}

fn check_beams(parts: &RequestParts, limits: &ModelLimits) -> Result<(), ValidationError> {
    let Strategy::Beams { width, n_best, kind } = parts.strategy else { return Ok(()) };
    let ModelLimits { max_batch_size, n_pages, .. } = *limits;
    if width > max_batch_size || n_best > width || n_best == 0 {
        return Err(ValidationError::BeamWidth { width, n_best, max_batch_size });
    }
    // All but the temperature and the seed. The last entry catches what is not named before.
    let neutral = SamplingParams { temperature: 1.0, seed: 0, ..SamplingParams::default() };
    let sampling = &parts.sampling;
    let unsupported = [
        ("prompt_logprobs", parts.prompt_logprobs.is_some()),
        ("max_tokens", parts.stop.max_tokens == 0),
        ("logit_bias", sampling.logit_bias != neutral.logit_bias),
        ("repetition_penalty", sampling.repetition_penalty != neutral.repetition_penalty),
        ("presence_penalty", sampling.presence_penalty != neutral.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty != neutral.frequency_penalty),
        ("top_k", sampling.top_k != neutral.top_k),
        ("top_p", sampling.top_p != neutral.top_p),
        ("min_p", sampling.min_p != neutral.min_p),
        ("typical_p", sampling.typical_p != neutral.typical_p),
        ("top_n_sigma", sampling.top_n_sigma != neutral.top_n_sigma),
        ("xtc_probability", sampling.xtc.probability != neutral.xtc.probability),
        ("dynatemp_range", sampling.dynatemp_range != neutral.dynatemp_range),
        ("mirostat", sampling.mirostat.is_some()),
        ("dry_multiplier", sampling.dry.multiplier != neutral.dry.multiplier),
        ("allowed_token_ids", sampling.allowed_token_ids.is_some()),
        ("bad_words", !sampling.bad_words.is_empty()),
        ("samplers", sampling.samplers != neutral.samplers),
        ("logprobs_mode", parts.logprobs_mode != LogprobsMode::default()),
        ("sampling", SamplingParams { temperature: 1.0, seed: 0, ..sampling.clone() } != neutral),
    ];
    if let Some((param, _)) = unsupported.into_iter().find(|(_, is_given)| *is_given) {
        return Err(ValidationError::NotWithBeams { param, kind });
    }
    let n_tokens = parts.prompt_ids.len() + parts.stop.max_tokens;
    let needed = most_pages(width, parts.prompt_ids.len(), n_tokens);
    if needed > n_pages {
        return Err(ValidationError::BeamPages { width, n_tokens, needed, n_pages });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const LIMITS: ModelLimits = ModelLimits { vocab_size: 10, max_seq_len: 8, max_batch_size: 4, n_pages: 3 };

    fn parts(n_prompt: usize, max_tokens: usize) -> RequestParts {
        let stop = StopConditions { max_tokens, ..StopConditions::default() };
        RequestParts { prompt_ids: vec![1; n_prompt].into(), stop, ..RequestParts::default() }
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
            refusal(with_stop(StopConditions { stop_strings: [String::new()].into(), ..stop.clone() })).0,
            Some("stop")
        );
        assert_eq!(refusal(with_stop(StopConditions { min_tokens: 2, ..stop.clone() })).0, Some("min_tokens"));
        let (param, message) = refusal(with_stop(StopConditions { stop_token_ids: Arc::new([10].into()), ..stop }));
        assert_eq!(param, Some("stop_token_ids"));
        assert_eq!(message, "`stop_token_ids` must hold token ids below 10, got 10");
        assert_eq!(refusal(RequestParts { prompt_ids: [3, 11].into(), ..parts(1, 1) }).0, Some("prompt"));
        assert_eq!(refusal(RequestParts { logprobs: Some(21), ..parts(1, 1) }).0, Some("logprobs"));
        let sampling = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
        assert_eq!(refusal(RequestParts { sampling, ..parts(1, 1) }).0, Some("temperature"));
    }
    #[test]
    fn beams_that_can_never_fit_are_refused_with_the_numbers() {
        use hearth_model::sampling::beam::{BeamKind, EarlyStopping};
        let kind = BeamKind::Best { length_penalty: 1.0, early_stopping: EarlyStopping::Likely };
        let beams = |width, n_best| RequestParts { strategy: Strategy::Beams { width, n_best, kind }, ..parts(2, 4) };
        assert_eq!(GenerateRequest::new(beams(3, 2), &LIMITS).unwrap().n_answers(), 2);
        let (param, message) = refusal(beams(4, 2));
        assert_eq!(param, Some("best_of"));
        assert!(
            message.contains("4 beams with up to 6 tokens each needs 4 pages") && message.contains("has 3"),
            "{message}"
        );
        assert!(refusal(beams(5, 2)).1.contains("got 5 with `n` 2"));
        assert!(refusal(beams(2, 3)).1.contains("got 2 with `n` 3"));
        let sampling = SamplingParams { top_k: 5, ..SamplingParams::default() };
        assert_eq!(refusal(RequestParts { sampling, ..beams(2, 2) }).0, Some("top_k"));
        assert_eq!(refusal(RequestParts { priority: 101, ..parts(1, 1) }).0, Some("priority"));
    }
}
