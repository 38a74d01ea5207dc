//! From the engine's events to an answer: as server-sent events, or folded into one. Both go through [`Deltas`], so a
//! streamed answer and an unstreamed one cannot differ.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use hearth_model::{
    TokenId,
    sampling::TokenLogprobs,
    tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio_stream::Stream;

use super::{
    error::ApiError,
    options::ApiOptions,
    request_log::{End, RequestLog, Work},
};
use crate::{
    engine::{Event, EventStream, FinishReason, StopCause},
    metrics::Spans,
};

/// Bytes that the answers to one request may take as JSON, roughly: where they are sent as a whole, and what each repeats
/// of its prompt in any case. In memory it is up to eight times as much on the way.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Bytes that a token id takes as JSON.
pub(crate) const ID_BYTES: usize = 8;

/// The same of a log-probability with its token.
pub(crate) const REPORTED_BYTES: usize = 80;

/// The tokens of a whole answer, as clients are billed elsewhere.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// What became of the prompts' tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct PromptDetails {
    /// Found in the cache. OpenAI's.
    pub(crate) cached_tokens: usize,
    /// Cut off in front, where the request asked for it: not among the prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) truncated_tokens: Option<usize>,
}

/// A token by its text.
#[derive(Clone, Debug)]
pub(crate) struct TokenText {
    /// Its text; `bytes:\x..` for bytes that are no text by themselves.
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
}

/// A token in an answer that reports log-probabilities.
#[derive(Clone, Debug)]
pub(crate) struct TokenEntry {
    pub(crate) token: TokenText,
    /// `None` for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    /// As many alternatives as were asked for, the most likely first. `None` for the first token of a prompt.
    pub(crate) top: Option<Vec<(TokenText, f32)>>,
    /// Characters of the answer's text before the token's own.
    pub(crate) text_offset: usize,
}

/// What one choice of an answer grows by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) index: usize,
    pub(crate) text: String,
    /// Tokens drawn since the delta before.
    pub(crate) token_ids: Vec<TokenId>,
    /// `None` where nobody asked.
    pub(crate) logprobs: Option<Vec<TokenEntry>>,
    /// The log-probabilities of the tokens drawn, summed up where the engine was asked for them.
    logprob_sum: f64,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    /// Set once, with the choice's last delta.
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_cause: Option<StopCause>,
}

/// One choice as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) token_ids: Vec<TokenId>,
    pub(crate) logprobs: Option<Vec<TokenEntry>>,
    logprob_sum: f64,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_cause: Option<StopCause>,
}

/// The log-probabilities of a prompt, shared by the choices.
#[derive(Clone, Debug)]
pub(crate) struct PromptLogprobs {
    /// One entry per token, the first one empty.
    pub(crate) entries: Arc<Vec<Option<TokenLogprobs>>>,
    /// How many of the alternatives are told, at most.
    pub(crate) n_top: usize,
}

/// How a choice starts, before any token is drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    /// The answer starts with the prompt.
    pub(crate) echo: Option<Echo>,
    /// Hand on the prompt's log-probabilities, with so many alternatives.
    pub(crate) prompt_logprobs: Option<usize>,
}

/// The prompt, where the answer is to start with it.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// As the client gave it, or decoded.
    pub(crate) text: Arc<str>,
    pub(crate) prompt_ids: Arc<[TokenId]>,
    /// Wait for the engine to report the prompt's log-probabilities, and tell so many alternatives.
    pub(crate) logprobs: Option<usize>,
}

/// The events of a submission on their way to a client. Dropping it cancels what is not finished.
#[derive(Debug)]
pub(crate) struct Deltas {
    log: RequestLog,
    events: EventStream,
    tokenizer: Tokenizer,
    choices: Vec<Choice>,
    /// Choices whose opening was looked at.
    n_opened: usize,
    pending: VecDeque<Delta>,
    /// What the answers generated so far take, roughly.
    n_bytes: usize,
    n_open: usize,
    usage: Usage,
    started: Instant,
    first_token_after: Option<Duration>,
    /// Of the answer that took longest.
    spans: Option<Spans>,
    finish_reasons: Vec<&'static str>,
}

#[derive(Debug)]
struct Choice {
    opening: Opening,
    /// Characters of the echoed prompt.
    text_start: usize,
    /// Tokens that have said nothing yet.
    silent: Vec<TokenId>,
}

impl Deltas {
    /// `log` is told the counts and times; `openings` has one entry per answer of the submission.
    pub(crate) fn new(log: RequestLog, events: EventStream, tokenizer: Tokenizer, openings: Vec<Opening>) -> Self {
        let n_open = openings.len();
        let choices = openings.into_iter().map(|opening| {
            let text_start = opening.echo.as_ref().map_or(0, |echo| echo.text.chars().count());
            Choice { opening, text_start, silent: Vec::new() }
        });
        let choices = choices.collect();
        Self {
            log,
            events,
            tokenizer,
            choices,
            n_opened: 0,
            pending: VecDeque::new(),
            n_bytes: 0,
            n_open,
            usage: Usage::default(),
            started: Instant::now(),
            first_token_after: None,
            spans: None,
            finish_reasons: Vec::new(),
        }
    }

    /// Counts from `arrived` on: when these come to be, the first token may be there already.
    pub(crate) fn since(mut self, arrived: Instant) -> Self {
        self.started = arrived;
        self
    }

    /// Counts the prompts, each once however many choices it has, and what was cut off them if that was asked for.
    pub(crate) fn with_prompt_tokens(mut self, n_prompt: usize, n_truncated: Option<usize>) -> Self {
        let prompt_tokens_details = PromptDetails { cached_tokens: 0, truncated_tokens: n_truncated };
        self.usage =
            Usage { prompt_tokens: n_prompt, completion_tokens: 0, total_tokens: n_prompt, prompt_tokens_details };
        self
    }

    /// The tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Collects every choice to its end.
    ///
    /// # Errors
    /// A choice failed, or the engine is gone.
    pub(crate) async fn fold(mut self) -> Result<(Vec<Answer>, Usage), ApiError> {
        let mut answers = vec![Answer::default(); self.choices.len()];
        while let Some(delta) = poll_fn(|context| self.poll_delta(context)).await {
            let delta = delta?;
            if let Some(answer) = answers.get_mut(delta.index) {
                answer.extend(delta);
            }
            if self.n_bytes > MAX_ANSWER_BYTES {
                let message = format!(
                    "the answers so far take more than {MAX_ANSWER_BYTES} bytes, which is the limit of what is sent as a \
                     whole\nhint: `stream` has none; else lower `max_tokens`, `n` or the number of log-probabilities"
                );
                return Err(self.failure(ApiError::bad_request(message)));
            }
        }
        Ok((answers, self.usage))
    }

    fn poll_delta(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, ApiError>>> {
        loop {
            if let Some(delta) = self.next_echo() {
                return Poll::Ready(Some(Ok(delta)));
            }
            if let Some(delta) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(delta)));
            }
            if self.n_open == 0 {
                return Poll::Ready(None);
            }
            match ApiError::or_event(ready!(self.events.poll_recv(context))) {
                Ok((index, event)) => self.take(index, event),
                Err(error) => return Poll::Ready(Some(Err(self.failure(error)))),
            }
        }
    }

    /// The prompt of the next choice that starts with it, where it needs nothing from the engine.
    fn next_echo(&mut self) -> Option<Delta> {
        while let Some(choice) = self.choices.get_mut(self.n_opened) {
            let index = self.n_opened;
            self.n_opened += 1;
            if let Some(echo) = choice.opening.echo.take_if(|echo| echo.logprobs.is_none()) {
                return Some(Delta { index, text: echo.text.as_ref().into(), ..Delta::default() });
            }
        }
        None
    }

    fn take(&mut self, index: usize, event: Event) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let text_start = choice.text_start;
        let delta = match event {
            Event::PromptLogprobs(logprobs) => {
                let Opening { echo, prompt_logprobs } = std::mem::take(&mut choice.opening);
                let entries = echo.as_ref().map(|echo| prompt_entries(&self.tokenizer, echo, &logprobs));
                Some(Delta {
                    index,
                    text: echo.map_or_else(String::new, |echo| echo.text.as_ref().into()),
                    logprobs: entries,
                    prompt_logprobs: prompt_logprobs.map(|n_top| PromptLogprobs { entries: logprobs, n_top }),
                    ..Delta::default()
                })
            }
            Event::Token { id, text, offset, logprobs } => {
                self.usage.completion_tokens += 1;
                self.usage.total_tokens += 1;
                self.first_token_after.get_or_insert_with(|| self.started.elapsed());
                choice.silent.push(id);
                let n_reported = logprobs.as_ref().map_or(0, |logprobs| 1 + logprobs.top.len());
                self.n_bytes += 2 * text.len() + ID_BYTES + n_reported * REPORTED_BYTES;
                let logprob_sum = logprobs.as_ref().map_or(0.0, |logprobs| f64::from(logprobs.logprob));
                let entry = logprobs.map(|logprobs| vec![entry(&self.tokenizer, &logprobs, text_start + offset)]);
                let says_something = !text.is_empty() || entry.is_some();
                says_something.then(|| Delta {
                    index,
                    text,
                    token_ids: std::mem::take(&mut choice.silent),
                    logprobs: entry,
                    logprob_sum,
                    ..Delta::default()
                })
            }
            Event::Finished { reason, cause, text, cached_tokens, spans } => {
                let token_ids = std::mem::take(&mut choice.silent);
                self.usage.prompt_tokens_details.cached_tokens += cached_tokens;
                self.spans = Some(self.spans.map_or(spans, |others| others.and(spans)));
                let reason = wire_reason(reason);
                if !self.finish_reasons.contains(&reason) {
                    self.finish_reasons.push(reason);
                }
                self.n_open -= 1;
                if self.n_open == 0 {
                    self.log_end(End::Complete(self.finish_reasons.clone()));
                }
                let finish_reason = Some(reason);
                Some(Delta { index, text, token_ids, finish_reason, stop_cause: cause, ..Delta::default() })
            }
            // Told apart by the caller; embeddings have no deltas.
            Event::Embedding(_)
            | Event::TimedOut(_)
            | Event::Refused { .. }
            | Event::Failed(_)
            | Event::Stopped
            | Event::Overrun => None,
        };
        self.pending.extend(delta);
    }

    fn failure(&mut self, error: ApiError) -> ApiError {
        self.log_end(End::Failed(error.kind()));
        self.n_open = 0;
        error
    }

    fn log_end(&self, end: End) {
        let Usage { prompt_tokens, completion_tokens, prompt_tokens_details, .. } = self.usage;
        self.log.work(|work| {
            *work = Work {
                prompt_tokens: Some(prompt_tokens),
                cached_tokens: Some(prompt_tokens_details.cached_tokens),
                completion_tokens: Some(completion_tokens),
                ttft: self.first_token_after,
                spans: self.spans,
                end: Some(end),
                ..std::mem::take(work)
            };
        });
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        if self.n_open > 0 {
            self.log_end(End::Cancelled);
        }
    }
}

impl Answer {
    fn extend(&mut self, delta: Delta) {
        self.text.push_str(&delta.text);
        self.token_ids.extend(delta.token_ids);
        if let Some(entries) = delta.logprobs {
            self.logprobs.get_or_insert_default().extend(entries);
        }
        self.logprob_sum += delta.logprob_sum;
        self.prompt_logprobs = delta.prompt_logprobs.or(self.prompt_logprobs.take());
        self.finish_reason = delta.finish_reason.or(self.finish_reason);
        self.stop_cause = delta.stop_cause.or(self.stop_cause.take());
    }

    /// Bytes that it takes as JSON, roughly.
    pub(crate) fn n_bytes(&self) -> usize {
        let reported = |entry: &TokenEntry| (1 + entry.top.as_ref().map_or(0, Vec::len)) * REPORTED_BYTES;
        let of_prompt = |logprobs: &PromptLogprobs| logprobs.entries.len() * (1 + logprobs.n_top) * REPORTED_BYTES;
        self.text.len()
            + self.token_ids.len() * ID_BYTES
            + self.logprobs.iter().flatten().map(reported).sum::<usize>()
            + self.prompt_logprobs.as_ref().map_or(0, of_prompt)
    }

    /// Log-probability per token, where the engine was asked for log-probabilities.
    pub(crate) fn mean_logprob(&self) -> f64 {
        self.logprob_sum / self.token_ids.len().max(1) as f64
    }
}

/// A part of a stream, for the endpoint to write in its own format.
#[derive(Debug)]
pub(crate) enum Part {
    /// What a choice grows by, and the tokens so far.
    Delta(Delta, Usage),
    /// After all deltas.
    End(Usage),
}

/// Streams the deltas. `write` gives the JSON of each event that a part becomes.
pub(crate) fn sse<Write>(deltas: Deltas, options: &ApiOptions, write: Write) -> Response
where
    Write: FnMut(Part) -> Vec<Value> + Send + Unpin + 'static,
{
    let body = SseBody { deltas, write, stage: Stage::Deltas, written: VecDeque::new() };
    let mut response = Sse::new(body).keep_alive(KeepAlive::new().interval(options.keep_alive)).into_response();
    // nginx would otherwise collect the stream before it passes it on.
    let no_buffering = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.headers_mut().extend([no_buffering]);
    response
}

struct SseBody<Write> {
    deltas: Deltas,
    write: Write,
    stage: Stage,
    written: VecDeque<Value>,
}

#[derive(Clone, Copy)]
enum Stage {
    Deltas,
    Done,
    End,
}

impl<Write: FnMut(Part) -> Vec<Value> + Unpin> Stream for SseBody<Write> {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(json) = self.written.pop_front() {
                return Poll::Ready(Some(Ok(data(sse::Event::default(), &json))));
            }
            let part = match self.stage {
                Stage::End => return Poll::Ready(None),
                Stage::Done => {
                    self.stage = Stage::End;
                    return Poll::Ready(Some(Ok(sse::Event::default().data("[DONE]"))));
                }
                Stage::Deltas => match ready!(self.deltas.poll_delta(context)) {
                    Some(Ok(delta)) => Part::Delta(delta, self.deltas.usage()),
                    Some(Err(error)) => {
                        // The status has been sent; clients look for `error` in each event.
                        self.stage = Stage::End;
                        return Poll::Ready(Some(Ok(data(sse::Event::default().event("error"), &error.envelope()))));
                    }
                    None => {
                        self.stage = Stage::Done;
                        Part::End(self.deltas.usage())
                    }
                },
            };
            let events = (self.write)(part);
            self.written.extend(events);
        }
    }
}

fn data(event: sse::Event, json: &Value) -> sse::Event {
    event.data(json.to_string())
}

fn wire_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn entry(tokenizer: &Tokenizer, logprobs: &TokenLogprobs, text_offset: usize) -> TokenEntry {
    let alternative = |&(id, logprob): &(TokenId, f32)| (TokenText::new(tokenizer, id), finite(logprob));
    TokenEntry {
        token: TokenText::new(tokenizer, logprobs.id),
        logprob: Some(finite(logprobs.logprob)),
        top: Some(logprobs.top.iter().map(alternative).collect()),
        text_offset,
    }
}

fn prompt_entries(tokenizer: &Tokenizer, echo: &Echo, logprobs: &[Option<TokenLogprobs>]) -> Vec<TokenEntry> {
    let n_top = echo.logprobs.unwrap_or(0);
    let mut detokenizer = Detokenizer::new(tokenizer, DecodeOptions { skip_special_tokens: false });
    let mut text_offset = 0;
    let entries = echo.prompt_ids.iter().zip(logprobs).enumerate().map(|(position, (&id, logprobs))| {
        let mut entry = match logprobs {
            Some(logprobs) => entry(tokenizer, logprobs, text_offset),
            None => TokenEntry { token: TokenText::new(tokenizer, id), logprob: None, top: None, text_offset },
        };
        if let Some(top) = &mut entry.top {
            top.truncate(n_top);
        }
        // A bos token that the tokenizer put in front is not in the text that the client gave.
        let is_added = position == 0 && tokenizer.is_special(id) && !echo.text.starts_with(&entry.token.text);
        if !is_added {
            text_offset += detokenizer.push(id).chars().count();
        }
        entry
    });
    entries.collect()
}

impl TokenText {
    /// Tokens may end within a character; such bytes are written as OpenAI writes them.
    pub(crate) fn new(tokenizer: &Tokenizer, id: TokenId) -> Self {
        let bytes = tokenizer.token_bytes(id);
        let text = str::from_utf8(&bytes).map_or_else(
            |_| format!("bytes:{}", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>()),
            str::to_owned,
        );
        Self { text, bytes }
    }
}

/// JSON has no infinity; OpenAI writes -9999 for a token that cannot come.
pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
