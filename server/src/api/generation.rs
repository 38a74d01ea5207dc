//! What both generation endpoints share: the fields besides the prompt, the way from prompts to a running submission,
//! and the parts of an answer that both write alike. One prompt is `prompt`.

use std::{
    cmp::Ordering,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::response::Response;
use hearth_model::{
    TokenId,
    sampling::SamplingParams,
    tokenizer::{DecodeOptions, Tokenizer},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    beams,
    error::ApiError,
    fields::{Fields, at_most_strings},
    options::PromptLog,
    prompt::{Prompt, Truncation, truncation},
    remarks,
    request_log::{Asked, RequestLog},
    sampling::{Sampling, applicable},
    state::{AppState, Preparation, unix_seconds},
    stream::{Answer, Deltas, Echo, ID_BYTES, MAX_ANSWER_BYTES, Opening, REPORTED_BYTES, Usage},
    structured::Structure,
};
use crate::{
    engine::{
        ServedModel, StopCause,
        prefix_cache::PrefixSalt,
        request::{
            GenerateRequest, LogprobsMode, MAX_CHOICES, MAX_LOGPROBS, PRIORITIES, RequestParts, SpecialTokens,
            StopConditions, StopText, Strategy, TextOptions, ValidationError,
        },
    },
    random::fresh_id,
};

/// Most answers to one prompt.
const MAX_N: usize = 128;

/// Most stop strings in one request: each is looked for behind every token.
const MAX_STOP_STRINGS: usize = 128;

/// Longest `cache_salt`; vLLM's.
const MAX_SALT_CHARS: usize = 1024;

/// Fields that would change the answer and that are not served: a clear no instead of another answer.
const UNSUPPORTED: [&str; 5] = ["grammar", "json_schema", "functions", "function_call", "logits_processors"];

/// What a client asks for besides the prompt, its types and ranges checked.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) n: usize,
    /// `None`: the answer comes as a whole.
    pub(crate) stream: Option<UsageReports>,
    /// Alternatives per generated token to report. `None`: no log-probabilities at all.
    pub(crate) logprobs: Option<usize>,
    /// The same for the prompt, in an answer's `prompt_logprobs`.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Whether token ids are told.
    pub(crate) token_ids: Option<WithTokenIds>,
    model: Option<String>,
    /// Answers that are generated or followed, of which `n` are given.
    best_of: usize,
    strategy: Strategy,
    structure: Option<Arc<Structure>>,
    sampling: Sampling,
    stop: StopConditions,
    ends_on: EndsOn,
    text: TextOptions,
    logprobs_mode: LogprobsMode,
    truncation: Option<Truncation>,
    prompt_reports: PromptReports,
    priority: i32,
    prefix_salt: Option<PrefixSalt>,
    deadline: Option<Duration>,
    /// Of `truncation`: how many tokens an answer needs.
    wanted_tokens: usize,
    /// The paths of fields that nobody has read.
    ignored: Vec<String>,
    /// Bytes of the body that all this came in.
    n_bytes: usize,
    log: RequestLog,
}

/// Where a stream tells its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageReports {
    Nowhere,
    AtTheEnd,
    /// In every event.
    Everywhere,
}

/// How often an answer tells what there is to tell of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromptReports {
    InEachChoice,
    Once,
}

/// `return_token_ids` was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WithTokenIds;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndsOn {
    /// The model's end-of-sequence tokens, and those of the request.
    EosToo,
    /// Only what the request says.
    StopTokens,
}

/// A submission on its way, and what its answer needs besides.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) head: Head,
    pub(crate) deltas: Deltas,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) prompt_ids: Vec<Arc<[TokenId]>>,
}

/// What every part of an answer repeats.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Head {
    pub(crate) id: String,
    object: &'static str,
    created: u64,
    model: String,
    /// Changes with what answers are computed with.
    system_fingerprint: String,
}

impl Head {
    /// The same, of another kind.
    pub(crate) fn with_object(self, object: &'static str) -> Self {
        Self { object, ..self }
    }
}

impl Generation {
    /// Reads all fields that both endpoints have. The endpoint has read its own before: what is left then is ignored.
    /// `defaults` are the served model's.
    pub(crate) fn from_fields(
        mut fields: Fields,
        max_tokens: usize,
        defaults: SamplingParams,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(&mut fields)?;
        let given = &mut fields;
        let n = given.count_or("n", 1..=MAX_N, 1)?;
        let best_of = given.count_or("best_of", 1..=MAX_N, n)?;
        let stream = stream_options(given)?;
        let sampling = Sampling::from_fields(given, applicable(defaults, given))?;
        let strategy = beams::strategy(given, [n, best_of])?;
        check_best_of([n, best_of], strategy, stream)?;
        let stop = StopConditions {
            max_tokens,
            min_tokens: given.count_or("min_tokens", 0..=usize::MAX, 0)?,
            stop_strings: at_most_strings(MAX_STOP_STRINGS, "stop", given.strings("stop")?)?.into(),
            stop_token_ids: Arc::new(given.token_ids("stop_token_ids")?.unwrap_or_default().into_iter().collect()),
        };
        let prompt_logprobs = given.count("prompt_logprobs", 0..=MAX_LOGPROBS)?;
        if prompt_logprobs.is_some() && stream.is_some() {
            let message = "`prompt_logprobs` cannot be combined with `stream`\nhint: `echo` with `logprobs` can";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        let generation = Self {
            n,
            stream,
            logprobs: None,
            prompt_logprobs,
            token_ids: given.flag_or("return_token_ids", false)?.then_some(WithTokenIds),
            model: given.string("model")?,
            best_of,
            strategy,
            structure: Structure::from_fields(given)?.map(Arc::new),
            sampling,
            stop,
            ends_on: if given.flag_or("ignore_eos", false)? { EndsOn::StopTokens } else { EndsOn::EosToo },
            text: text_options(given)?,
            logprobs_mode: given.one_of_or(
                "logprobs_mode",
                &[("raw_logprobs", LogprobsMode::Raw), ("processed_logprobs", LogprobsMode::Processed)],
                LogprobsMode::default(),
            )?,
            truncation: truncation(given)?,
            prompt_reports: PromptReports::InEachChoice,
            priority: priority(given)?,
            prefix_salt: prefix_salt(given)?,
            deadline: deadline(given)?,
            wanted_tokens: max_tokens,
            ignored: Vec::new(),
            n_bytes: given.n_bytes(),
            log: given.log().clone(),
        };
        for name in remarks::WITHOUT_EFFECT {
            fields.ignore(name);
        }
        Ok(Self { ignored: fields.all_unread(), ..generation })
    }

    /// Reports log-probabilities, with so many alternatives per token.
    pub(crate) fn with_logprobs(self, logprobs: Option<usize>) -> Self {
        Self { logprobs, ..self }
    }

    /// Tells what there is to tell of the prompt once, not in each choice.
    pub(crate) fn telling_prompt_once(self) -> Self {
        Self { prompt_reports: PromptReports::Once, ..self }
    }

    /// What the answer must look like.
    pub(crate) fn structure(&self) -> Option<&Structure> {
        self.structure.as_deref()
    }

    /// Gives the answer another form.
    pub(crate) fn with_structure(self, structure: Structure) -> Self {
        Self { structure: Some(Arc::new(structure)), ..self }
    }

    /// Writes special tokens out.
    pub(crate) fn showing_special_tokens(mut self) -> Self {
        self.text.special_tokens = SpecialTokens::Show;
        self
    }

    /// Refuses more answers than one request may have.
    ///
    /// # Errors
    /// 400 with both counts.
    pub(crate) fn check_answers(&self, n_prompts: usize) -> Result<(), ApiError> {
        if n_prompts * self.best_of <= MAX_CHOICES {
            return Ok(());
        }
        let each = self.best_of;
        let message = format!("`prompt` times `n` must be at most {MAX_CHOICES} answers, got {n_prompts} times {each}");
        Err(ApiError::invalid("prompt", message))
    }

    /// Refuses to start answers with the prompt where that needs what a beam search does not compute.
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

    /// A prompt, cut where the request asks for it.
    pub(crate) fn prompt(&self, ids: Vec<TokenId>, model: &ServedModel) -> Prompt {
        Prompt::cut(ids, self.truncation, [self.wanted_tokens, model.limits.max_seq_len])
    }

    /// Bytes of the body that all this came in.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Checks the model's name, prepares the prompts and submits them.
    ///
    /// # Errors
    /// 404 for another model, 400 for what the model cannot serve, 429 and 503 for an engine that takes nothing.
    pub(crate) async fn start<Prepare>(
        &self,
        state: &AppState,
        id_prefix: &str,
        (preparation, prepare): (Preparation, Prepare),
    ) -> Result<Started, ApiError>
    where
        Prepare: FnOnce(&Self, &ServedModel) -> Result<Vec<Prompt>, ApiError> + Send + 'static,
    {
        if let Some(name) = self.model.as_deref().filter(|name| *name != state.model_id()) {
            return Err(ApiError::unknown_model(name, state.model_id()));
        }
        let arrived = Instant::now();
        let engine = state.working_engine()?.clone();
        let (tokenizer, fingerprint) = (engine.model().tokenizer.clone(), engine.model().fingerprint.clone());
        let generation = self.clone();
        let preparation = match (preparation, &self.structure) {
            (Preparation::Short | Preparation::LongBody, Some(_)) => Preparation::Grammar,
            _ => preparation,
        };
        let prepare = move || {
            let prompts = prepare(&generation, engine.model())?;
            generation.check_repeated(&prompts)?;
            let n_cut = generation.truncation.map(|_| prompts.iter().map(|prompt| prompt.n_cut).sum());
            let openings = generation.openings(&prompts);
            let events = engine.submit(generation.requests(&prompts, engine.model())?)?;
            Ok((prompts, n_cut, openings, events))
        };
        let (prompts, n_cut, openings, events) = state.prepare(preparation, prepare).await?;
        let head = Head {
            id: fresh_id(id_prefix),
            object: "",
            created: unix_seconds(),
            model: state.model_id().to_owned(),
            system_fingerprint: fingerprint,
        };
        self.log.work(|work| {
            (work.id, work.model) = (Some(head.id.clone()), Some(head.model.clone()));
            work.asked = Some(self.asked());
            if state.options().prompt_log == PromptLog::Whole {
                let options = DecodeOptions { skip_special_tokens: false };
                let texts = prompts.iter().map(|prompt| tokenizer.decode(&prompt.ids, options));
                work.prompts = Some(json!(texts.collect::<Vec<_>>()).to_string());
            }
        });
        let prompt_ids: Vec<Arc<[TokenId]>> = prompts.into_iter().map(|prompt| prompt.ids).collect();
        let n_prompt = prompt_ids.iter().map(|ids| ids.len()).sum();
        let deltas = Deltas::new(self.log.clone(), events, tokenizer.clone(), openings)
            .since(arrived)
            .with_prompt_tokens(n_prompt, n_cut);
        Ok(Started { head, deltas, tokenizer, prompt_ids })
    }

    /// The `n` answers to each prompt, as a whole: of more, the best.
    pub(crate) async fn fold(&self, deltas: Deltas) -> Result<(Vec<Answer>, Usage), ApiError> {
        let (mut answers, usage) = deltas.fold().await?;
        if self.n_answers() > self.n {
            answers = answers.chunks(self.n_answers()).flat_map(|of_one_prompt| best(of_one_prompt, self.n)).collect();
            if self.logprobs.is_none() {
                answers.iter_mut().for_each(|answer| answer.logprobs = None);
            }
        }
        Ok((answers, usage))
    }

    /// What stopped a choice, as vLLM tells it: the stop string, or the request's own stop token. The model's
    /// end-of-sequence token goes without saying.
    pub(crate) fn stop_reason(&self, cause: Option<StopCause>) -> Option<Value> {
        match cause? {
            StopCause::Text(text) => Some(json!(text)),
            StopCause::Token(id) => self.stop.stop_token_ids.contains(&id).then(|| json!(id)),
        }
    }

    /// Puts what the client should know besides into the answer's headers.
    pub(crate) fn remark(&self, response: Response) -> Response {
        remarks::told(remarks::header(self.ignored.clone()), response)
    }

    /// Tells of more that nobody reads.
    pub(crate) fn ignoring(mut self, paths: impl IntoIterator<Item = String>) -> Self {
        self.ignored.extend(paths);
        self
    }

    fn asked(&self) -> Asked {
        let params = self.sampling.params();
        Asked {
            max_tokens: Some(self.stop.max_tokens).filter(|max_tokens| *max_tokens < usize::MAX),
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            n: self.n,
            streams: self.stream.is_some(),
        }
    }

    /// Answers that the engine gives to each prompt.
    fn n_answers(&self) -> usize {
        match self.strategy {
            Strategy::Sample => self.best_of,
            // The search itself gives its best only.
            Strategy::Beams { .. } => self.n,
        }
    }

    /// A form says itself where the answer ends.
    fn check_ends(&self, structure: &Structure) -> Result<(), ApiError> {
        let param = if self.ends_on == EndsOn::StopTokens {
            "ignore_eos"
        } else if !self.stop.stop_token_ids.is_empty() {
            "stop_token_ids"
        } else {
            return Ok(());
        };
        let form = structure.param();
        let message = format!("`{param}` cannot be combined with `{form}`: the answer ends where it is complete");
        Err(ApiError::invalid(param, message))
    }

    fn openings(&self, prompts: &[Prompt]) -> Vec<Opening> {
        let openings = prompts.iter().flat_map(|prompt| {
            let echo = prompt.echo.as_ref().map(|text| Echo {
                text: Arc::clone(text),
                prompt_ids: Arc::clone(&prompt.ids),
                logprobs: self.logprobs,
            });
            vec![Opening { echo, prompt_logprobs: self.prompt_logprobs }; self.n_answers()]
        });
        openings.collect()
    }

    /// One request per choice: the first prompt's choices, then the second's. A beam search is one request.
    fn requests(self, prompts: &[Prompt], model: &ServedModel) -> Result<Vec<GenerateRequest>, ApiError> {
        let n_requests = if self.strategy == Strategy::Sample { self.best_of } else { 1 };
        let constraint = match &self.structure {
            Some(structure) => {
                self.check_ends(structure)?;
                Some(structure.compile(model)?)
            }
            None => None,
        };
        let sampling = self.sampling.clone().resolve(&model.tokenizer)?;
        // The best ones are told by their log-probabilities.
        let logprobs = self.logprobs.or((n_requests > self.n).then_some(0));
        let mut requests = Vec::with_capacity(prompts.len() * n_requests);
        let mut last_stop: Option<(&[TokenId], StopConditions)> = None;
        for prompt in prompts {
            let echoed = self.logprobs.filter(|_| prompt.echo.is_some());
            // As a rule the same for all prompts, and then shared by them.
            let stop = match last_stop.take() {
                Some((end_ids, stop)) if end_ids == prompt.end_ids => stop,
                _ => self.stop_with(model.eos_token_ids.iter().chain(&prompt.end_ids)),
            };
            last_stop = Some((&prompt.end_ids, stop.clone()));
            let seed = self.sampling.draw_seed();
            let parts = RequestParts {
                prompt_ids: Arc::clone(&prompt.ids),
                sampling: SamplingParams { seed, ..sampling.clone() },
                stop,
                choice: 0,
                logprobs,
                logprobs_mode: self.logprobs_mode,
                prompt_logprobs: echoed.max(self.prompt_logprobs),
                text: self.text,
                strategy: beams::seeded(self.strategy, seed),
                constraint: constraint.clone(),
                priority: self.priority,
                prefix_salt: self.prefix_salt,
                deadline: self.deadline,
            };
            let request = GenerateRequest::new(parts, &model.limits)?;
            requests.extend((0..n_requests).map(|choice| request.for_choice(choice as u32)));
        }
        Ok(requests)
    }

    /// When to end, at these tokens too unless the request says otherwise.
    fn stop_with<'a>(&self, end_ids: impl Iterator<Item = &'a TokenId>) -> StopConditions {
        let mut stop = self.stop.clone();
        if self.ends_on == EndsOn::EosToo {
            Arc::make_mut(&mut stop.stop_token_ids).extend(end_ids);
        }
        stop
    }

    /// Refuses answers that would be too long by what they repeat of their prompts.
    fn check_repeated(&self, prompts: &[Prompt]) -> Result<(), ApiError> {
        let n_times = match self.prompt_reports {
            PromptReports::InEachChoice => self.n_answers(),
            PromptReports::Once => 1,
        };
        let reported = |n_top: usize| (1 + n_top) * REPORTED_BYTES;
        let n_bytes: usize = prompts
            .iter()
            .map(|prompt| {
                let per_token = self.token_ids.map_or(0, |_| ID_BYTES)
                    + self.logprobs.filter(|_| prompt.echo.is_some()).map_or(0, reported)
                    + self.prompt_logprobs.map_or(0, reported);
                n_times * (2 * prompt.echo.as_ref().map_or(0, |text| text.len()) + per_token * prompt.ids.len())
            })
            .sum();
        if n_bytes <= MAX_ANSWER_BYTES {
            return Ok(());
        }
        let message = format!(
            "the answers would repeat about {n_bytes} bytes of their prompts, with what is reported of each token, and may \
             repeat at most {MAX_ANSWER_BYTES}\nhint: lower `n` or the number of log-probabilities, or send fewer prompts at \
             once"
        );
        Err(ApiError::bad_request(message))
    }
}

/// The smallest request, and some with the objects whose fields are to be seen.
pub(crate) fn examples(smallest: &Value) -> Vec<Value> {
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": {} } });
    let objects = [
        ("stream_options", json!({})),
        ("response_format", schema),
        ("structured_outputs", json!({ "regex": "x" })),
        ("chat_template_kwargs", json!({})),
    ];
    let with = objects.into_iter().map(|(name, object)| {
        let mut example = smallest.clone();
        example[name] = object;
        example
    });
    [smallest.clone()].into_iter().chain(with).collect()
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for name in UNSUPPORTED {
        if fields.take(name).is_some() {
            return Err(ApiError::invalid(name, format!("`{name}` is not supported")));
        }
    }
    Ok(())
}

/// `None` if the answer is to come as a whole. Its options are checked all the same.
fn stream_options(fields: &mut Fields) -> Result<Option<UsageReports>, ApiError> {
    let streams = fields.flag_or("stream", false)?;
    let mut reports = UsageReports::Nowhere;
    if let Some(mut options) = fields.object("stream_options")? {
        let usage = options.flag_or("include_usage", false)?;
        reports = match (usage, options.flag_or("continuous_usage_stats", false)?) {
            (true, true) => UsageReports::Everywhere,
            (true, false) => UsageReports::AtTheEnd,
            (false, true) => {
                let message = "`continuous_usage_stats` must come with `include_usage`";
                return Err(ApiError::invalid("continuous_usage_stats", message));
            }
            (false, false) => UsageReports::Nowhere,
        };
    }
    Ok(streams.then_some(reports))
}

fn check_best_of([n, best_of]: [usize; 2], strategy: Strategy, stream: Option<UsageReports>) -> Result<(), ApiError> {
    if best_of < n {
        let message = format!("`best_of` must be at least `n`, got {best_of} and {n}");
        return Err(ApiError::invalid("best_of", message));
    }
    if best_of > n && stream.is_some() && strategy == Strategy::Sample {
        let message = format!(
            "`best_of` must be equal to `n` with `stream`, got {best_of} and {n}\nhint: which answers are best is known \
             only when all are complete"
        );
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(())
}

fn text_options(fields: &mut Fields) -> Result<TextOptions, ApiError> {
    let skips = fields.flag_or("skip_special_tokens", true)?;
    let keeps = fields.flag_or("include_stop_str_in_output", false)?;
    Ok(TextOptions {
        special_tokens: if skips { SpecialTokens::Skip } else { SpecialTokens::Show },
        stop_text: if keeps { StopText::Keep } else { StopText::Cut },
    })
}

/// The request's own salt, or else that of its key.
fn prefix_salt(fields: &mut Fields) -> Result<Option<PrefixSalt>, ApiError> {
    const NAME: &str = "cache_salt";
    let Some(salt) = fields.string(NAME)? else { return Ok(fields.key_salt()) };
    let n_chars = salt.chars().count();
    if n_chars > MAX_SALT_CHARS {
        let message = format!("`{NAME}` must have at most {MAX_SALT_CHARS} characters, got {n_chars}");
        return Err(ApiError::invalid(NAME, message));
    }
    Ok(Some(PrefixSalt::of_request(&salt)))
}

pub(crate) fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    let range = i64::from(*PRIORITIES.start())..=i64::from(*PRIORITIES.end());
    Ok(i32::try_from(fields.integer_or("priority", range, 0)?).unwrap_or(0))
}

pub(crate) fn deadline(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    Ok(fields.count("deadline_ms", 1..=usize::MAX)?.map(|ms| Duration::from_millis(ms as u64)))
}

/// The `n` answers with the largest mean log-probability per token, the best first.
fn best(answers: &[Answer], n: usize) -> Vec<Answer> {
    let mut ranked = answers.to_vec();
    ranked.sort_by(|a, b| b.mean_logprob().partial_cmp(&a.mean_logprob()).unwrap_or(Ordering::Equal));
    ranked.truncate(n);
    ranked
}
