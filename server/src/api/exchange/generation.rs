//! The common part of both generation endpoints: all fields but the prompt, and submitting requests. `prompt` handles a
//! single prompt.

mod constraint;
mod parameters;

use std::{
    cmp::Ordering,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::response::Response;
use hearth_engine::{
    ServedModel, StopCause,
    adapters::ServedAdapter,
    prefix_cache::PrefixSalt,
    request::{
        EngineRequest, LogprobsMode, MAX_CHOICES, MAX_LOGPROBS, RequestParts, SpecialTokens, StopConditions, Strategy,
        TextOptions, ValidationError,
    },
    tenant::TenantId,
};
use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};
use serde_json::{Value, json};

use self::parameters::{Choices, check_best_of, refuse_choices, text_options};
pub(crate) use self::parameters::{OneAnswer, deadline, examples, prefix_salt, priority};
use super::{
    adapters, beams,
    prompt::{Prompt, Truncation, truncation},
    response_head::{ResponseHead, UsageReports},
    sampling::{Sampling, applicable},
    stream::{Answer, AnswerStream, ChoicePrelude, Echo, ID_BYTES, MAX_ANSWER_BYTES, REPORTED_BYTES},
    submission::{Submission, Submitted, Usage},
    thinking::{ModelThoughts, Thinking},
};
use crate::api::{
    error::ApiError,
    guard::{
        options::PromptLog,
        preparation::{AdmissionWait, Deadline, WorkClass},
    },
    tools::structured::Structure,
    wire::{
        fields::{Fields, at_most_strings},
        ignored_params,
        request_log::{Asked, RequestLog},
        state::AppState,
        text_input::TextOrIds,
        unsupported_params,
    },
};

/// Maximum number of answers to one prompt.
const MAX_N: usize = 128;

/// Maximum number of stop strings per request: each is searched for after every token.
const MAX_STOP_STRINGS: usize = 128;

/// A parsed request without the prompt; types and ranges are checked.
#[derive(Clone, Debug)]
pub(crate) struct GenerateParams {
    pub(crate) n: usize,
    /// `None`: not streamed.
    pub(crate) stream: Option<UsageReports>,
    /// Number of alternatives to report per generated token. `None`: no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Number of alternatives to report per prompt token (`prompt_logprobs`).
    pub(crate) prompt_logprobs: Option<usize>,
    /// Whether to report token ids (`return_token_ids`).
    pub(crate) returns_token_ids: bool,
    model: Option<String>,
    /// Number of candidates per prompt; the best `n` are returned.
    best_of: usize,
    strategy: Strategy,
    structure: Option<Arc<Structure>>,
    sampling: Sampling,
    stop: StopConditions,
    /// Whether only the request's own stop tokens end the answer (`ignore_eos`).
    ignores_eos: bool,
    text: TextOptions,
    logprobs_mode: LogprobsMode,
    truncation: Option<Truncation>,
    /// The parameter that has the prompt, for error messages.
    prompt_param: &'static str,
    /// Whether data about the prompt is reported once, not in each choice.
    reports_prompt_once: bool,
    priority: i32,
    prefix_salt: Option<PrefixSalt>,
    tenant: TenantId,
    deadline: Option<Duration>,
    /// Number of answer tokens that [`Truncation::Fitting`] leaves room for.
    wanted_tokens: usize,
    /// Paths of the fields that were not read.
    ignored: Vec<String>,
    /// Size of the request's body in bytes.
    n_bytes: usize,
    log: RequestLog,
    thinking: Thinking,
    /// The thoughts of the model, if the endpoint has a chat template.
    thoughts: Option<ModelThoughts>,
}

/// A submitted request, with the data for writing its answer.
#[derive(Debug)]
pub(crate) struct RunningAnswer {
    pub(crate) head: ResponseHead,
    pub(crate) deltas: AnswerStream,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) prompt_ids: Vec<Arc<[TokenId]>>,
}

impl GenerateParams {
    /// Reads the fields that both completion endpoints share. The endpoint reads its own fields first: all that remain
    /// unread are reported as ignored. `defaults` are the served model's.
    pub(crate) fn from_fields(
        mut fields: Fields,
        max_tokens: usize,
        defaults: SamplingParams,
    ) -> Result<Self, ApiError> {
        unsupported_params::refuse(&mut fields)?;
        let given = &mut fields;
        let n = given.count_or("n", 1..=MAX_N, 1)?;
        let best_of = given.count_or("best_of", 1..=MAX_N, n)?;
        let stream = UsageReports::from_fields(given)?;
        let sampling = Sampling::from_fields(given, applicable(defaults, given))?;
        let strategy = beams::strategy(given, [n, best_of])?;
        check_best_of([n, best_of], strategy, stream)?;
        let prompt_logprobs = given.count("prompt_logprobs", 0..=MAX_LOGPROBS)?;
        if prompt_logprobs.is_some() && stream.is_some() {
            let message = "`prompt_logprobs` cannot be combined with `stream`\nhint: `echo` with `logprobs` can";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        let choices = Choices {
            n,
            best_of,
            stream,
            strategy,
            prompt_logprobs,
            returns_token_ids: given.flag_or("return_token_ids", false)?,
            structure: Structure::from_fields(given)?,
            stop_strings: ("stop", given.strings("stop")?),
            prompt_param: "prompt",
        };
        Self::with_choices(fields, max_tokens, sampling, choices)
    }

    /// As [`from_fields`](Self::from_fields), for an endpoint with one answer per request, which has read `answer`
    /// itself.
    ///
    /// # Errors
    /// Also 400 for fields of the completion endpoints that would change the answer.
    pub(crate) fn of_one_answer(
        mut fields: Fields,
        max_tokens: usize,
        defaults: SamplingParams,
        answer: OneAnswer,
    ) -> Result<Self, ApiError> {
        unsupported_params::refuse(&mut fields)?;
        refuse_choices(&mut fields)?;
        let sampling = Sampling::from_fields(&mut fields, defaults)?;
        let OneAnswer { streams, structure, stop_strings, prompt_param } = answer;
        let choices = Choices {
            n: 1,
            best_of: 1,
            stream: streams.then_some(UsageReports::Nowhere),
            strategy: Strategy::Sample,
            prompt_logprobs: None,
            returns_token_ids: false,
            structure,
            stop_strings,
            prompt_param,
        };
        Self::with_choices(fields, max_tokens, sampling, choices)
    }

    /// Reads the fields that all endpoints share.
    fn with_choices(
        mut fields: Fields,
        max_tokens: usize,
        sampling: Sampling,
        choices: Choices,
    ) -> Result<Self, ApiError> {
        let given = &mut fields;
        let (stop_param, stop_strings) = choices.stop_strings;
        let stop = StopConditions {
            max_tokens,
            min_tokens: given.count_or("min_tokens", 0..=usize::MAX, 0)?,
            stop_strings: at_most_strings(MAX_STOP_STRINGS, stop_param, stop_strings)?.into(),
            stop_token_ids: Arc::new(given.token_ids("stop_token_ids")?.unwrap_or_default().into_iter().collect()),
        };
        let generation = Self {
            n: choices.n,
            stream: choices.stream,
            logprobs: None,
            prompt_logprobs: choices.prompt_logprobs,
            returns_token_ids: choices.returns_token_ids,
            model: given.string("model")?,
            best_of: choices.best_of,
            strategy: choices.strategy,
            structure: choices.structure.map(Arc::new),
            sampling,
            stop,
            ignores_eos: given.flag_or("ignore_eos", false)?,
            text: text_options(given)?,
            logprobs_mode: given.one_of_or(
                "logprobs_mode",
                &[("raw_logprobs", LogprobsMode::Raw), ("processed_logprobs", LogprobsMode::Processed)],
                LogprobsMode::default(),
            )?,
            truncation: truncation(given)?,
            prompt_param: choices.prompt_param,
            reports_prompt_once: false,
            priority: priority(given)?,
            prefix_salt: prefix_salt(given)?,
            tenant: given.sender().tenant,
            deadline: deadline(given)?,
            wanted_tokens: max_tokens,
            ignored: Vec::new(),
            n_bytes: given.n_bytes(),
            log: given.log().clone(),
            thinking: Thinking::default(),
            thoughts: None,
        };
        for name in ignored_params::WITHOUT_EFFECT {
            fields.ignore(name);
        }
        Ok(Self { ignored: fields.all_unread(), ..generation })
    }

    /// Reports log-probabilities with this number of alternatives per token.
    pub(crate) fn with_logprobs(self, logprobs: Option<usize>) -> Self {
        Self { logprobs, ..self }
    }

    /// Sets how the model thinks.
    pub(crate) fn with_thinking(self, thinking: Thinking) -> Self {
        Self { thinking, ..self }
    }

    /// How the model thinks.
    pub(crate) fn thinking(&self) -> Thinking {
        self.thinking
    }

    /// How the model writes thoughts.
    pub(crate) fn thoughts(&self) -> Option<ModelThoughts> {
        self.thoughts
    }

    /// Sets how the model writes thoughts.
    pub(crate) fn with_thoughts(self, thoughts: ModelThoughts) -> Self {
        Self { thoughts: Some(thoughts), ..self }
    }

    /// Names the parameter that has the prompt.
    pub(crate) fn with_prompt_param(self, prompt_param: &'static str) -> Self {
        Self { prompt_param, ..self }
    }

    /// The parameter that has the prompt.
    pub(crate) fn prompt_param(&self) -> &'static str {
        self.prompt_param
    }

    /// Reports data about the prompt once, not in each choice.
    pub(crate) fn with_prompt_reported_once(self) -> Self {
        Self { reports_prompt_once: true, ..self }
    }

    /// The structure that constrains the answer.
    pub(crate) fn structure(&self) -> Option<&Structure> {
        self.structure.as_deref()
    }

    /// Constrains the answer to `structure`.
    pub(crate) fn with_structure(self, structure: Structure) -> Self {
        Self { structure: Some(Arc::new(structure)), ..self }
    }

    /// Keeps special tokens in the text.
    pub(crate) fn showing_special_tokens(mut self) -> Self {
        self.text.special_tokens = SpecialTokens::Show;
        self
    }

    /// Checks the number of answers.
    ///
    /// # Errors
    /// 400 with both counts if the request has too many.
    pub(crate) fn check_answers(&self, n_prompts: usize) -> Result<(), ApiError> {
        if n_prompts * self.best_of <= MAX_CHOICES {
            return Ok(());
        }
        let each = self.best_of;
        let message = format!("`prompt` times `n` must be at most {MAX_CHOICES} answers, got {n_prompts} times {each}");
        Err(ApiError::invalid("prompt", message))
    }

    /// Rejects `echo` in a beam search if log-probabilities are requested, which a beam search does not compute for the
    /// prompt, or if `max_tokens` is 0, so that there is nothing to search.
    ///
    /// # Errors
    /// 400 with both names.
    pub(crate) fn check_echo(&self) -> Result<(), ApiError> {
        match self.strategy {
            Strategy::Beams { kind, .. } if self.logprobs.is_some() || self.stop.max_tokens == 0 => {
                Err(ValidationError::NotWithBeams { param: "echo", kind }.into())
            }
            _ => Ok(()),
        }
    }

    /// A prompt, truncated if the request asks for it. For an encoder-decoder, the prompt becomes the source, and the
    /// answer begins with the model's start tokens.
    pub(crate) fn prompt(&self, ids: Vec<TokenId>, model: &ServedModel) -> Prompt {
        Prompt::cut(ids, self.truncation, [self.wanted_tokens, model.limits.max_seq_len])
    }

    /// A text of a parameter as a source, see [`Prompt::source`].
    pub(crate) fn source(
        &self,
        text: &TextOrIds,
        named: (&'static str, EncodeOptions),
        model: &ServedModel,
    ) -> Result<Prompt, ApiError> {
        Prompt::source(text, self.truncation, named, model)
    }

    /// Whether a prompt that does not fit into the context is rejected, not truncated.
    pub(crate) fn keeps_whole_prompt(&self) -> bool {
        self.truncation.is_none()
    }

    /// How the request waits for its turn to be prepared.
    pub(crate) fn turn_wait(&self) -> AdmissionWait {
        let deadline = self.deadline.and_then(|limit| Deadline::new(self.log.arrived(), limit));
        AdmissionWait { tenant: self.tenant, submits: true, deadline }
    }

    /// When the request arrived.
    pub(crate) fn arrived(&self) -> Instant {
        self.log.arrived()
    }

    /// The sampling parameters, except those that depend on the tokenizer.
    pub(crate) fn sampling_params(&self) -> &SamplingParams {
        self.sampling.params()
    }

    /// Maximum number of tokens of an answer; `None`: the rest of the context.
    pub(crate) fn max_tokens(&self) -> Option<usize> {
        Some(self.stop.max_tokens).filter(|max_tokens| *max_tokens < usize::MAX)
    }

    /// Size of the request's body in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Checks the model's name, prepares the prompts and submits them.
    ///
    /// # Errors
    /// 404 for an unknown model, 400 for unsupported requests, 429 and 503 if the engine does not accept work, 504 if the
    /// deadline passes while the request waits for its turn.
    pub(crate) async fn start<Prepare>(
        &self,
        state: &AppState,
        id_prefix: &str,
        (preparation, prepare): (WorkClass, Prepare),
    ) -> Result<RunningAnswer, ApiError>
    where
        Prepare: FnOnce(&Self, &ServedModel) -> Result<Vec<Prompt>, ApiError> + Send + 'static,
    {
        let chosen = adapters::choose(state, self.model.as_deref())?;
        let (arrived, wait) = (self.log.arrived(), self.turn_wait());
        let engine = state.engine_for(arrived)?.clone();
        let adapter = chosen.adapter(state, &engine, wait).await?;
        let tokenizer = engine.model().tokenizer.clone();
        let fingerprint = match &adapter {
            Some(adapter) => adapter.fingerprint(&engine.model().fingerprint),
            None => engine.model().fingerprint.clone(),
        };
        let generation = self.clone();
        let preparation = match (preparation, &self.structure) {
            (WorkClass::Short | WorkClass::LongBody, Some(_)) => WorkClass::Grammar,
            _ => preparation,
        };
        let prepare = move || {
            let prompts = prepare(&generation, engine.model())?;
            generation.check_repeated(&prompts)?;
            let n_cut = generation.truncation.map(|_| prompts.iter().map(|prompt| prompt.n_cut).sum());
            let (openings, param) = (generation.openings(&prompts), generation.answers_param());
            let requests = generation.requests(&prompts, engine.model(), adapter)?;
            let submitted = engine.submit_at(requests, arrived);
            let events = submitted.map_err(|error| ApiError::not_submitted(error, param))?;
            Ok((prompts, n_cut, openings, events))
        };
        let (prompts, n_cut, openings, events) = state.prepare(preparation, wait, prepare).await?;
        let head = ResponseHead::new(id_prefix, chosen.name(state), fingerprint);
        self.log.work(|work| {
            (work.id, work.model) = (Some(head.id.clone()), Some(head.model.clone()));
            work.asked = Some(self.asked());
            if state.options().prompt_log == PromptLog::Whole {
                let options = DecodeOptions { skip_special_tokens: false };
                let texts = prompts.iter().map(|prompt| tokenizer.decode(prompt.read_ids(), options));
                work.prompts = Some(json!(texts.collect::<Vec<_>>()).to_string());
            }
        });
        let n_prompt = prompts.iter().map(Prompt::n_tokens).sum();
        let prompt_ids: Vec<Arc<[TokenId]>> = prompts.iter().map(|prompt| Arc::clone(prompt.read_ids())).collect();
        let submitted = Submitted { events, n_answers: openings.len(), arrived, n_prompt, n_truncated: n_cut };
        let deltas = AnswerStream::new(Submission::new(self.log.clone(), submitted), tokenizer.clone(), openings);
        Ok(RunningAnswer { head, deltas, tokenizer, prompt_ids })
    }

    /// Collects the `n` best answers to each prompt.
    pub(crate) async fn fold(&self, deltas: AnswerStream) -> Result<(Vec<Answer>, Usage), ApiError> {
        let (mut answers, usage) = deltas.fold().await?;
        let n_answers = self.n_answers();
        if n_answers > self.n {
            answers.chunks_mut(n_answers).for_each(sort_best_first);
            let ranked = answers.into_iter().enumerate();
            answers = ranked.filter(|(index, _)| index % n_answers < self.n).map(|(_, answer)| answer).collect();
            if self.logprobs.is_none() {
                answers.iter_mut().for_each(|answer| answer.logprobs = None);
            }
        }
        Ok((answers, usage))
    }

    /// The stop string or the request's own stop token that ended a choice, as vLLM reports it. `None` for the model's
    /// end-of-sequence token.
    pub(crate) fn stop_reason(&self, cause: Option<StopCause>) -> Option<Value> {
        match cause? {
            StopCause::Text(text) => Some(json!(text)),
            StopCause::Token(id) => self.stop.stop_token_ids.contains(&id).then(|| json!(id)),
        }
    }

    /// Adds the response header that lists ignored parameters.
    pub(crate) fn add_ignored(&self, response: Response) -> Response {
        ignored_params::add_header(ignored_params::header(self.ignored.clone()), response)
    }

    /// Adds paths to the list of ignored parameters.
    pub(crate) fn ignoring(mut self, paths: impl IntoIterator<Item = String>) -> Self {
        self.ignored.extend(paths);
        self
    }

    fn asked(&self) -> Asked {
        let params = self.sampling.params();
        Asked {
            max_tokens: self.max_tokens(),
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            n: self.n,
            streams: self.stream.is_some(),
        }
    }

    /// Number of answers that the engine generates for each prompt.
    fn n_answers(&self) -> usize {
        match self.strategy {
            Strategy::Sample => self.best_of,
            // A beam search returns only the `n` best.
            Strategy::Beams { .. } | Strategy::Embed { .. } => self.n,
        }
    }

    /// The parameter that has the number of answers.
    fn answers_param(&self) -> &'static str {
        match self.n_answers() {
            1 => "prompt",
            n_answers if n_answers > self.n => "best_of",
            _ => "n",
        }
    }

    fn openings(&self, prompts: &[Prompt]) -> Vec<ChoicePrelude> {
        let openings = prompts.iter().flat_map(|prompt| {
            let echo = prompt.echo.as_ref().map(|text| Echo {
                text: Arc::clone(text),
                prompt_ids: Arc::clone(&prompt.ids),
                logprobs: self.logprobs,
            });
            vec![ChoicePrelude { echo, prompt_logprobs: self.prompt_logprobs }; self.n_answers()]
        });
        openings.collect()
    }

    /// The engine's requests: one per choice, the first prompt's choices first. A beam search is one request.
    fn requests(
        self,
        prompts: &[Prompt],
        model: &ServedModel,
        adapter: Option<Arc<ServedAdapter>>,
    ) -> Result<Vec<EngineRequest>, ApiError> {
        let n_requests = if self.strategy == Strategy::Sample { self.best_of } else { 1 };
        let mut sampling = self.sampling.resolve(&model.tokenizer, &model.default_breakers)?;
        if self.structure.is_some() && !self.sampling.bans_words() {
            // Those of the model's files give way to a grammar.
            sampling.bad_words = Arc::default();
        }
        let (constraint, watch) = self.grammars(model, &sampling)?;
        // The best answers are chosen by log-probability.
        let logprobs = self.logprobs.or((n_requests > self.n).then_some(0));
        let mut requests = Vec::with_capacity(prompts.len() * n_requests);
        let mut last_stop: Option<(&[TokenId], StopConditions)> = None;
        for prompt in prompts {
            let echoed = self.logprobs.filter(|_| prompt.echo.is_some());
            // Usually the same for all prompts, and then shared.
            let stop = match last_stop.take() {
                Some((end_ids, stop)) if end_ids == prompt.end_ids => stop,
                _ => self.stop_with(model.eos_token_ids.iter().chain(&prompt.end_ids)),
            };
            last_stop = Some((&prompt.end_ids, stop.clone()));
            let seed = self.sampling.draw_seed();
            let parts = RequestParts {
                prompt_ids: Arc::clone(&prompt.ids),
                source_ids: prompt.source.clone().unwrap_or_default(),
                sampling: SamplingParams { seed, ..sampling.clone() },
                stop,
                choice: 0,
                logprobs,
                logprobs_mode: self.logprobs_mode,
                logprobs_of: None,
                prompt_logprobs: echoed.max(self.prompt_logprobs),
                text: self.text,
                strategy: beams::seeded(self.strategy, seed),
                constraint: constraint.clone(),
                watch: watch.clone(),
                thinking: match self.thoughts {
                    Some(thoughts) => {
                        let whole = self.structure.as_deref().filter(|structure| !structure.is_in_text());
                        Some(thoughts.rules(self.thinking, &prompt.ids, model, whole)?)
                    }
                    None => None,
                },
                priority: self.priority,
                prefix_salt: self.prefix_salt,
                tenant: self.tenant,
                adapter: adapter.clone(),
                deadline: self.deadline,
                ..RequestParts::default()
            };
            let request =
                EngineRequest::new(parts, &model.limits).map_err(|error| error.with_prompt_param(self.prompt_param))?;
            requests.extend((0..n_requests).map(|choice| request.for_choice(choice as u32)));
        }
        Ok(requests)
    }

    /// The stop conditions, with `end_ids` unless the request has `ignore_eos`.
    fn stop_with<'a>(&self, end_ids: impl Iterator<Item = &'a TokenId>) -> StopConditions {
        let mut stop = self.stop.clone();
        if !self.ignores_eos {
            Arc::make_mut(&mut stop.stop_token_ids).extend(end_ids);
        }
        stop
    }

    /// Rejects requests whose answers would repeat too much of their prompts.
    fn check_repeated(&self, prompts: &[Prompt]) -> Result<(), ApiError> {
        let n_times = if self.reports_prompt_once { 1 } else { self.n_answers() };
        let reported = |n_top: usize| (1 + n_top) * REPORTED_BYTES;
        let n_bytes: usize = prompts
            .iter()
            .map(|prompt| {
                let per_token = usize::from(self.returns_token_ids) * ID_BYTES
                    + self.logprobs.filter(|_| prompt.echo.is_some()).map_or(0, reported)
                    + self.prompt_logprobs.map_or(0, reported);
                n_times * (2 * prompt.echo.as_ref().map_or(0, |text| text.len()) + per_token * prompt.n_tokens())
            })
            .sum();
        if n_bytes <= MAX_ANSWER_BYTES {
            return Ok(());
        }
        let message = format!(
            "the answers would repeat about {n_bytes} bytes of prompts and per-token data, more than the limit of \
             {MAX_ANSWER_BYTES}\nhint: lower `n` or the number of log-probabilities, or send fewer prompts at \
             once"
        );
        Err(ApiError::bad_request(message))
    }
}

/// Sorts by the mean log-probability per token, largest first.
fn sort_best_first(answers: &mut [Answer]) {
    answers.sort_by(|a, b| b.mean_logprob().partial_cmp(&a.mean_logprob()).unwrap_or(Ordering::Equal));
}
