//! Requests to the engine. An [`EngineRequest`] is validated when it is created, once: the engine can serve it.

mod error;

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc, time::Duration};

use hearth_model::{
    TokenId,
    decode::{
        constraint::{Constraint, Watch},
        sampling::{Dry, SamplingParams, Smoothing, Xtc, beam::BeamKind},
    },
    gpt::{
        kv_cache::PAGE_SIZE,
        pooling::{Pooling, VectorSteps},
    },
};

pub use self::error::ValidationError;
use crate::{
    adapters::{AdapterId, ServedAdapter},
    prefix_cache::PrefixSalt,
    scheduler::most_pages,
    tenant::TenantId,
    thinking::ThinkingRules,
};

/// Maximum number of alternatives per position.
pub const MAX_LOGPROBS: usize = 20;

/// Maximum number of answers per HTTP request: prompts times `n`.
pub const MAX_CHOICES: usize = 2048;

/// Allowed priorities; lower values are scheduled first.
pub const PRIORITIES: RangeInclusive<i32> = -100..=100;

/// Limits of the served model.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Vocabulary size: token ids are below this.
    pub vocab_size: usize,
    /// Maximum number of tokens of prompt and answer together: the model's context, or the KV cache if that is smaller.
    pub max_seq_len: usize,
    /// Maximum number of sequences that run at once.
    pub max_batch_size: usize,
    /// Pages in the KV cache.
    pub n_pages: usize,
    /// Whether the model has recurrent layers: sequences of a request that are recomputed then share no pages.
    pub is_recurrent: bool,
    /// Whether the model is an encoder, which computes vectors, not text.
    pub is_encoder: bool,
    /// Maximum number of tokens of the source that an encoder-decoder reads; 0 for other models. Its `max_seq_len` counts the
    /// decoder's tokens alone.
    pub max_source_len: usize,
}

/// How to process a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Strategy {
    /// Sample an answer token by token.
    #[default]
    Sample,
    /// Beam search; of the sampling parameters, only the temperature and the seed apply.
    Beams {
        /// Number of partial answers.
        width: usize,
        /// Number of answers to return, at most `width`. Each has an index in the stream of events.
        n_best: usize,
        /// How they are ranked.
        kind: BeamKind,
    },
    /// Compute a vector in one pass over the prompt. Only [`RequestParts::vector`], the priority, the deadline and the adapter
    /// apply.
    Embed {
        /// How the hidden states of the prompt are combined.
        pooling: Pooling,
    },
}

/// Conditions for ending a generation.
#[derive(Clone, Debug, Default)]
pub struct StopConditions {
    /// Maximum number of tokens to generate. 0 only computes the prompt.
    pub max_tokens: usize,
    /// Minimum number of tokens. Until then, end-of-sequence and stop tokens are not sampled, and stop strings ignored.
    pub min_tokens: usize,
    /// Strings that end the text, and are removed from it unless [`StopText::Keep`] is set.
    pub stop_strings: Arc<[String]>,
    /// Tokens that end the generation: the request's own, and the model's end-of-sequence tokens unless these are
    /// ignored.
    pub stop_token_ids: Arc<BTreeSet<TokenId>>,
}

/// How to convert tokens to text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Whether special tokens have text.
    pub special_tokens: SpecialTokens,
    /// Treatment of the stop string or stop token that ends the text.
    pub stop_text: StopText,
}

/// The text of special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Left out.
    #[default]
    Skip,
    /// Their strings.
    Show,
}

/// Treatment of the stop string or token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopText {
    /// Removed from the text.
    #[default]
    Cut,
    /// Included in the text.
    Keep,
}

/// The distribution of reported log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The model's own distribution.
    #[default]
    Raw,
    /// The distribution that tokens are sampled from, after all sampling parameters.
    Processed,
}

/// The parts of a request before validation. Clones are cheap: answers to a prompt share long data.
#[derive(Clone, Debug, Default)]
pub struct RequestParts {
    /// The prompt to continue or embed; with a source, the decoder's prompt. In a valid request, the slots of the
    /// source come before it: its tokens, and the padding of their last page.
    pub prompt_ids: Arc<[TokenId]>,
    /// The source that the encoder of an encoder-decoder reads. Empty for other models.
    pub source_ids: Arc<[TokenId]>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Conditions for ending.
    pub stop: StopConditions,
    /// Index of the answer among the answers to the same prompt; part of the random stream's key.
    pub choice: u32,
    /// Report each generated token's log-probability, with this many alternatives.
    pub logprobs: Option<usize>,
    /// The distribution of reported log-probabilities.
    pub logprobs_mode: LogprobsMode,
    /// Report the model's own log-probabilities of these tokens, in this order, in place of the alternatives.
    pub logprobs_of: Option<Arc<[TokenId]>>,
    /// Report each prompt token's log-probability, with this many alternatives.
    pub prompt_logprobs: Option<usize>,
    /// How to convert tokens to text.
    pub text: TextOptions,
    /// How to process the prompt.
    pub strategy: Strategy,
    /// Post-processing of the prompt's vector.
    pub vector: VectorSteps,
    /// Where the second text of the prompt begins, for encoders with token types.
    pub second_text: Option<usize>,
    /// Tokens at the end of the prompt that no token sees, of an encoder without a sliding window.
    pub n_hidden: usize,
    /// The grammar that constrains the answer.
    pub constraint: Option<Constraint>,
    /// A grammar that constrains parts of the answer, if no grammar constrains all of it.
    pub watch: Option<Watch>,
    /// How thoughts in the answer are tracked. `None`: thoughts are treated like any other text.
    pub thinking: Option<ThinkingRules>,
    /// Who sends it: tenants share the batch and the queue.
    pub tenant: TenantId,
    /// Lower values are scheduled first, within [`PRIORITIES`]; see [`scheduler`](crate::scheduler).
    pub priority: i32,
    /// Prefix-cache pages are only shared with requests that have the same salt.
    pub prefix_salt: Option<PrefixSalt>,
    /// The LoRA adapter.
    pub adapter: Option<Arc<ServedAdapter>>,
    /// Maximum duration of the request from its arrival.
    pub deadline: Option<Duration>,
}

impl RequestParts {
    /// The number and name of the adapter.
    pub(crate) fn adapter_id(&self) -> Option<&AdapterId> {
        self.adapter.as_deref().map(ServedAdapter::id)
    }

    /// Places of the source before the prompt, in whole pages.
    pub fn n_source_places(&self) -> usize {
        self.source_ids.len().next_multiple_of(PAGE_SIZE)
    }

    /// The prompt without the source before it.
    pub(crate) fn own_prompt_ids(&self) -> Arc<[TokenId]> {
        match self.n_source_places() {
            0 => Arc::clone(&self.prompt_ids),
            n_places => self.prompt_ids.get(n_places..).unwrap_or_default().into(),
        }
    }
}

/// The tokens with which the decoder of an encoder-decoder begins, if they are given: as in vLLM, with the first token of `start`, those
/// that the model's files name, or without it.
pub fn begun_by(start: &[TokenId], given: Vec<TokenId>) -> Vec<TokenId> {
    let first = start.first().filter(|first| given.first() != Some(first));
    first.copied().into_iter().chain(given).collect()
}

/// A valid request.
#[derive(Clone, Debug)]
pub struct EngineRequest(RequestParts);

impl EngineRequest {
    /// Validates the parts against the model's limits. Reduces `max_tokens` to the room in the context after the
    /// prompt, so that generation ends there with [`FinishReason::Length`](crate::FinishReason::Length).
    ///
    /// # Errors
    /// The first part that the model does not support.
    pub fn new(mut parts: RequestParts, limits: &ModelLimits) -> Result<Self, ValidationError> {
        let ModelLimits { vocab_size, max_seq_len, .. } = *limits;
        let n_prompt = parts.prompt_ids.len();
        let embeds = matches!(parts.strategy, Strategy::Embed { .. });
        let param = if embeds { "input" } else { "prompt" };
        if limits.is_encoder && !embeds {
            return Err(ValidationError::Encoder);
        }
        check_source(&parts, limits, embeds)?;
        if n_prompt == 0 {
            return Err(ValidationError::Empty { param });
        }
        if n_prompt + usize::from(parts.stop.max_tokens > 0) > max_seq_len {
            return Err(match embeds {
                _ if !parts.source_ids.is_empty() => ValidationError::DecoderLength { n_tokens: n_prompt, max_seq_len },
                true => ValidationError::InputLength { param, n_tokens: n_prompt, max_seq_len },
                false => ValidationError::ContextLength { param, n_prompt, max_seq_len },
            });
        }
        let outside = |id: &&TokenId| **id as usize >= vocab_size;
        let param_of_answer = if parts.source_ids.is_empty() { param } else { "decoder_prompt" };
        for (param, ids) in [(param, &parts.source_ids), (param_of_answer, &parts.prompt_ids)] {
            if let Some(&id) = ids.iter().find(outside) {
                return Err(ValidationError::TokenId { param, id, vocab_size });
            }
        }
        if let Some(&id) = parts.stop.stop_token_ids.iter().find(outside) {
            return Err(ValidationError::TokenId { param: "stop_token_ids", id, vocab_size });
        }
        if let Some(&id) = parts.logprobs_of.iter().flat_map(|ids| ids.iter()).find(outside) {
            return Err(ValidationError::TokenId { param: "logprobs_of", id, vocab_size });
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
        if !parts.source_ids.is_empty() {
            let n_places = parts.n_source_places();
            let room = (limits.n_pages * PAGE_SIZE).saturating_sub(n_places + n_prompt);
            if room == 0 {
                let (n_tokens, n_places) = (parts.source_ids.len(), limits.n_pages * PAGE_SIZE);
                return Err(ValidationError::SourcePlaces { param, n_tokens, n_places });
            }
            parts.stop.max_tokens = parts.stop.max_tokens.min(room);
            let filled = n_places - parts.source_ids.len();
            let source = parts.source_ids.iter().copied().chain(std::iter::repeat_n(0, filled));
            parts.prompt_ids = source.chain(parts.prompt_ids.iter().copied()).collect();
        }
        check_beams(&parts, limits)?;
        Ok(Self(parts))
    }

    /// Another answer to the same prompt.
    #[must_use]
    pub fn for_choice(&self, choice: u32) -> Self {
        Self(RequestParts { choice, ..self.0.clone() })
    }

    /// Number of answers, each with its own index in the stream of events.
    pub fn n_answers(&self) -> usize {
        match self.0.strategy {
            Strategy::Sample | Strategy::Embed { .. } => 1,
            Strategy::Beams { n_best, .. } => n_best,
        }
    }

    /// Maximum number of the request's sequences.
    pub(crate) fn width(&self) -> usize {
        match self.0.strategy {
            Strategy::Sample | Strategy::Embed { .. } => 1,
            Strategy::Beams { width, .. } => width,
        }
    }

    /// Whether another request has the same prompt and can share its computation.
    pub(crate) fn shares_prompt(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.0, &other.0);
        ours.strategy == Strategy::Sample
            && theirs.strategy == Strategy::Sample
            && ours.prompt_logprobs == theirs.prompt_logprobs
            && ours.priority == theirs.priority
            && ours.prefix_salt == theirs.prefix_salt
            && ours.adapter_id() == theirs.adapter_id()
            && ours.source_ids == theirs.source_ids
            && ours.prompt_ids == theirs.prompt_ids
    }

    /// The validated parts.
    pub fn parts(&self) -> &RequestParts {
        &self.0
    }
}

/// Checks that the request has a source if the model reads one, and only then.
fn check_source(parts: &RequestParts, limits: &ModelLimits, embeds: bool) -> Result<(), ValidationError> {
    let (n_tokens, max_source_len) = (parts.source_ids.len(), limits.max_source_len);
    match (max_source_len, n_tokens) {
        (0, 0) => Ok(()),
        (0, _) => Err(ValidationError::NoEncoder { param: "encoder_prompt" }),
        _ if embeds => Err(ValidationError::NoVectors),
        (_, 0) => Err(ValidationError::NoSource),
        _ if n_tokens > max_source_len => {
            Err(ValidationError::SourceLength { param: "prompt", n_tokens, max_source_len })
        }
        _ if parts.prompt_logprobs.is_some() => Err(ValidationError::NotWithSource { param: "prompt_logprobs" }),
        _ if parts.adapter.is_some() => Err(ValidationError::NoAdapters),
        _ => Ok(()),
    }
}

fn check_constraint(parts: &RequestParts) -> Result<(), ValidationError> {
    let whole = parts.constraint.as_ref().map(Constraint::param);
    let Some(constraint) = whole.or_else(|| parts.watch.as_ref().map(Watch::param)) else { return Ok(()) };
    let no_token = "together they could leave no token to go on with";
    let beams = match parts.strategy {
        Strategy::Sample | Strategy::Embed { .. } => None,
        Strategy::Beams { kind, .. } => Some(strategy_name(kind)),
    };
    let conflicts = [
        (beams.unwrap_or_default(), beams.is_some(), "beam search does not support constraints"),
        ("min_tokens", parts.stop.min_tokens > 0 && whole.is_some(), "the answer ends when it is complete"),
        ("allowed_token_ids", parts.sampling.allowed_token_ids.is_some(), no_token),
        ("bad_words", !parts.sampling.bad_words.is_empty(), no_token),
    ];
    match conflicts.into_iter().find(|(_, is_given, _)| *is_given) {
        Some((param, _, why)) => Err(ValidationError::NotWithConstraint { param, constraint, why }),
        None => Ok(()),
    }
}

/// The request field of the strategy.
fn strategy_name(kind: BeamKind) -> &'static str {
    match kind {
        BeamKind::Best { .. } => "use_beam_search",
        BeamKind::Stochastic { .. } => "stochastic_beam_search",
    }
}

fn check_beams(parts: &RequestParts, limits: &ModelLimits) -> Result<(), ValidationError> {
    let Strategy::Beams { width, n_best, kind } = parts.strategy else { return Ok(()) };
    let ModelLimits { max_batch_size, n_pages, is_recurrent, .. } = *limits;
    if width > max_batch_size || n_best > width || n_best == 0 {
        return Err(ValidationError::BeamWidth { width, n_best, max_batch_size });
    }
    let neutral = SamplingParams::default();
    // What excludes or penalizes tokens has a meaning for the most likely answers, as in `transformers`.
    let is_drawn = matches!(kind, BeamKind::Stochastic { .. });
    // Lists all fields, so that a new one is not forgotten.
    let SamplingParams {
        temperature: _,
        seed: _,
        logit_bias,
        repetition_penalty,
        // Ignored without a penalty; the other ignored fields depend on other parameters in the same way.
        repeat_last_n: _,
        presence_penalty,
        frequency_penalty,
        top_k,
        top_p,
        min_p,
        typical_p,
        top_n_sigma,
        epsilon_cutoff,
        eta_cutoff,
        tfs,
        top_a,
        smoothing: Smoothing { factor: smoothing_factor, curve: _ },
        xtc: Xtc { probability: xtc_probability, threshold: _ },
        dynatemp_range,
        dynatemp_exponent: _,
        mirostat,
        adaptive_p,
        prompt_bonus,
        no_repeat_ngram_size,
        logit_bias_tokens: _,
        dry: Dry { multiplier: dry_multiplier, base: _, allowed_length: _, penalty_last_n: _, sequence_breakers: _ },
        allowed_token_ids,
        bad_words,
        samplers,
    } = &parts.sampling;
    let unsupported = [
        ("prompt_logprobs", parts.prompt_logprobs.is_some()),
        ("max_tokens", parts.stop.max_tokens == 0),
        ("logit_bias", *logit_bias != neutral.logit_bias),
        ("repetition_penalty", is_drawn && *repetition_penalty != neutral.repetition_penalty),
        ("presence_penalty", *presence_penalty != neutral.presence_penalty),
        ("frequency_penalty", *frequency_penalty != neutral.frequency_penalty),
        ("top_k", *top_k != neutral.top_k),
        ("top_p", *top_p != neutral.top_p),
        ("min_p", *min_p != neutral.min_p),
        ("typical_p", *typical_p != neutral.typical_p),
        ("top_n_sigma", *top_n_sigma != neutral.top_n_sigma),
        ("epsilon_cutoff", *epsilon_cutoff != neutral.epsilon_cutoff),
        ("eta_cutoff", *eta_cutoff != neutral.eta_cutoff),
        ("tfs", *tfs != neutral.tfs),
        ("top_a", *top_a != neutral.top_a),
        ("smoothing_factor", *smoothing_factor != neutral.smoothing.factor),
        ("xtc_probability", *xtc_probability != neutral.xtc.probability),
        ("dynatemp_range", *dynatemp_range != neutral.dynatemp_range),
        ("mirostat", mirostat.is_some()),
        ("adaptive_target", adaptive_p.is_some()),
        ("encoder_repetition_penalty", *prompt_bonus != neutral.prompt_bonus),
        ("no_repeat_ngram_size", is_drawn && *no_repeat_ngram_size != neutral.no_repeat_ngram_size),
        ("dry_multiplier", *dry_multiplier != neutral.dry.multiplier),
        ("allowed_token_ids", allowed_token_ids.is_some()),
        ("bad_words", is_drawn && !bad_words.is_empty()),
        ("samplers", *samplers != neutral.samplers),
        ("logprobs_mode", parts.logprobs_mode != LogprobsMode::default()),
        ("logprobs_of", parts.logprobs_of.is_some()),
    ];
    if let Some((param, _)) = unsupported.into_iter().find(|(_, is_given)| *is_given) {
        return Err(ValidationError::NotWithBeams { param, kind });
    }
    if let Some(budget) = parts.thinking.as_ref().and_then(|thinking| thinking.budget.as_ref()) {
        return Err(ValidationError::NotWithBeams { param: budget.param, kind });
    }
    let n_tokens = parts.prompt_ids.len() + parts.stop.max_tokens;
    let n_shared = if is_recurrent { 0 } else { parts.prompt_ids.len() };
    let needed = most_pages(width, n_shared, n_tokens);
    if needed > n_pages {
        return Err(ValidationError::BeamPages { width, n_tokens, needed, n_pages });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const LIMITS: ModelLimits = ModelLimits {
        vocab_size: 10,
        max_seq_len: 8,
        max_batch_size: 4,
        n_pages: 3,
        is_recurrent: false,
        is_encoder: false,
        max_source_len: 0,
    };

    fn parts(n_prompt: usize, max_tokens: usize) -> RequestParts {
        let stop = StopConditions { max_tokens, ..StopConditions::default() };
        RequestParts { prompt_ids: vec![1; n_prompt].into(), stop, ..RequestParts::default() }
    }

    fn refusal(parts: RequestParts) -> (Option<&'static str>, String) {
        let error = EngineRequest::new(parts, &LIMITS).unwrap_err();
        (error.param(), error.to_string())
    }

    #[test]
    fn max_tokens_is_clamped_to_the_remaining_context() {
        let request = EngineRequest::new(parts(6, 100), &LIMITS).unwrap();
        assert_eq!(request.parts().stop.max_tokens, 2);
    }

    #[test]
    fn prompt_may_fill_the_context_only_if_max_tokens_is_0() {
        assert!(EngineRequest::new(parts(8, 0), &LIMITS).is_ok());
        let (param, message) = refusal(parts(8, 1));
        assert_eq!(param, Some("prompt"));
        assert!(message.contains("8 tokens"), "{message}");
    }

    #[test]
    fn engine_request_errors_name_the_invalid_parameter() {
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
    fn embedding_inputs_are_checked_for_length_and_token_ids() {
        let strategy = Strategy::Embed { pooling: Pooling::Mean };
        let embed = |ids: Vec<TokenId>| RequestParts { prompt_ids: ids.into(), strategy, ..RequestParts::default() };
        assert!(EngineRequest::new(embed(vec![9; 8]), &LIMITS).is_ok());
        let message = "`input` must hold at least one token, got none";
        assert_eq!(refusal(embed(vec![])), (Some("input"), message.into()));
        let message = "`input` has a text of 9 tokens, but the context holds 8\nhint: `truncate_prompt_tokens` cuts it";
        assert_eq!(refusal(embed(vec![1; 9])), (Some("input"), message.into()));
        let message = "`input` must hold token ids below 10, got 10";
        assert_eq!(refusal(embed(vec![10])), (Some("input"), message.into()));
    }

    #[test]
    fn beam_requests_with_too_many_pages_or_beams_are_rejected() {
        use hearth_model::decode::sampling::beam::{BeamGroups, BeamKind, EarlyStopping};
        let kind =
            BeamKind::Best { length_penalty: 1.0, early_stopping: EarlyStopping::Likely, groups: BeamGroups::ONE };
        let beams = |width, n_best| RequestParts { strategy: Strategy::Beams { width, n_best, kind }, ..parts(2, 4) };
        assert_eq!(EngineRequest::new(beams(3, 2), &LIMITS).unwrap().n_answers(), 2);
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
