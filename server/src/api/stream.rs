//! From the engine's events to an answer: as server-sent events, or folded into one. Both go through [`Deltas`], so a
//! streamed answer and an unstreamed one cannot differ.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
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
use serde::Serialize;
use serde_json::Value;
use tokio_stream::Stream;

use super::error::ApiError;
use crate::engine::{Event, EventStream, FinishReason};

/// Comments are sent this often while a stream has nothing to say, so that proxies do not take it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The tokens of a whole answer, as clients are billed elsewhere.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
}

/// A token in an answer that reports log-probabilities.
#[derive(Clone, Debug)]
pub(crate) struct TokenEntry {
    /// Its text; `bytes:\x..` for bytes that are no text by themselves.
    pub(crate) token: String,
    /// `None` for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    /// Alternatives, the most likely first, the token itself among them. `None` for the first token of a prompt.
    pub(crate) top: Option<Vec<(String, f32)>>,
    /// Characters of the answer's text before the token's own.
    pub(crate) text_offset: usize,
}

/// What one choice of an answer grows by.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    pub(crate) index: usize,
    pub(crate) text: String,
    /// `None` where nobody asked.
    pub(crate) logprobs: Option<Vec<TokenEntry>>,
    /// Set once, with the choice's last delta.
    pub(crate) finish_reason: Option<&'static str>,
}

/// One choice as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) logprobs: Option<Vec<TokenEntry>>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// The prompt, where the answer is to start with it.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// As the client gave it, or decoded.
    pub(crate) text: String,
    pub(crate) prompt_ids: Vec<TokenId>,
    /// Wait for the engine to report the prompt's log-probabilities.
    pub(crate) with_logprobs: bool,
}

/// The events of a submission on their way to a client. Dropping it cancels what is not finished.
#[derive(Debug)]
pub(crate) struct Deltas {
    id: String,
    events: EventStream,
    tokenizer: Tokenizer,
    choices: Vec<Choice>,
    pending: VecDeque<Delta>,
    n_open: usize,
    usage: Usage,
    started: Instant,
    first_token_after: Option<Duration>,
}

#[derive(Debug)]
struct Choice {
    echo: Option<Echo>,
    /// Characters of the echoed prompt.
    text_start: usize,
}

impl Deltas {
    /// `id` is for the log; `echoes` has one entry per request of the submission.
    pub(crate) fn new(id: &str, events: EventStream, tokenizer: Tokenizer, echoes: Vec<Option<Echo>>) -> Self {
        let mut pending = VecDeque::new();
        let n_open = echoes.len();
        let choices = echoes.into_iter().enumerate().map(|(index, echo)| {
            let text_start = echo.as_ref().map_or(0, |echo| echo.text.chars().count());
            let echo = match echo {
                Some(Echo { text, with_logprobs: false, .. }) => {
                    pending.push_back(Delta { index, text, logprobs: None, finish_reason: None });
                    None
                }
                waits => waits,
            };
            Choice { echo, text_start }
        });
        let choices = choices.collect();
        Self {
            id: id.to_owned(),
            events,
            tokenizer,
            choices,
            pending,
            n_open,
            usage: Usage::default(),
            started: Instant::now(),
            first_token_after: None,
        }
    }

    /// Counts the prompts, each once however many choices it has.
    pub(crate) fn with_prompt_tokens(mut self, n_prompt: usize) -> Self {
        self.usage = Usage { prompt_tokens: n_prompt, completion_tokens: 0, total_tokens: n_prompt };
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
                answer.text.push_str(&delta.text);
                if let Some(entries) = delta.logprobs {
                    answer.logprobs.get_or_insert_default().extend(entries);
                }
                answer.finish_reason = delta.finish_reason.or(answer.finish_reason);
            }
        }
        Ok((answers, self.usage))
    }

    fn poll_delta(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, ApiError>>> {
        loop {
            if let Some(delta) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(delta)));
            }
            if self.n_open == 0 {
                return Poll::Ready(None);
            }
            let Some((index, event)) = ready!(self.events.poll_recv(context)) else {
                return Poll::Ready(Some(Err(self.failure("the engine has stopped"))));
            };
            match event {
                Event::Failed(message) => return Poll::Ready(Some(Err(self.failure(&message)))),
                event => self.take(index, event),
            }
        }
    }

    fn take(&mut self, index: usize, event: Event) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let text_start = choice.text_start;
        let delta = match event {
            Event::PromptLogprobs(logprobs) => choice.echo.take().map(|echo| {
                let entries = prompt_entries(&self.tokenizer, &echo, &logprobs);
                Delta { index, text: echo.text, logprobs: Some(entries), finish_reason: None }
            }),
            Event::Token { text, offset, logprobs, .. } => {
                self.usage.completion_tokens += 1;
                self.usage.total_tokens += 1;
                self.first_token_after.get_or_insert_with(|| self.started.elapsed());
                let entry = logprobs.map(|logprobs| vec![entry(&self.tokenizer, &logprobs, text_start + offset)]);
                let says_something = !text.is_empty() || entry.is_some();
                says_something.then_some(Delta { index, text, logprobs: entry, finish_reason: None })
            }
            Event::Finished { reason, text } => {
                self.n_open -= 1;
                if self.n_open == 0 {
                    self.log_end();
                }
                Some(Delta { index, text, logprobs: None, finish_reason: Some(wire_reason(reason)) })
            }
            // Told apart by the caller.
            Event::Failed(_) => None,
        };
        self.pending.extend(delta);
    }

    fn failure(&mut self, message: &str) -> ApiError {
        tracing::warn!(id = self.id, "completion failed: {message}");
        self.n_open = 0;
        ApiError::internal(message)
    }

    fn log_end(&self) {
        tracing::info!(
            id = self.id,
            prompt_tokens = self.usage.prompt_tokens,
            completion_tokens = self.usage.completion_tokens,
            ttft_ms = self.first_token_after.map(|after| after.as_millis() as u64),
            total_ms = self.started.elapsed().as_millis() as u64,
            "completion ended"
        );
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        if self.n_open > 0 {
            tracing::info!(
                id = self.id,
                completion_tokens = self.usage.completion_tokens,
                "completion cancelled: the client has gone"
            );
        }
    }
}

/// A part of a stream, for the endpoint to write in its own format.
#[derive(Debug)]
pub(crate) enum Part {
    Delta(Delta),
    /// After all deltas.
    Usage(Usage),
}

/// Streams the deltas. `write` gives the JSON of a part, or `None` to leave it out.
pub(crate) fn sse<Write>(deltas: Deltas, write: Write) -> Response
where
    Write: Fn(Part) -> Option<Value> + Send + Unpin + 'static,
{
    let body = SseBody { deltas, write, stage: Stage::Deltas };
    let mut response = Sse::new(body).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // nginx would otherwise collect the stream before it passes it on.
    let no_buffering = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.headers_mut().extend([no_buffering]);
    response
}

struct SseBody<Write> {
    deltas: Deltas,
    write: Write,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Deltas,
    Done,
    End,
}

impl<Write: Fn(Part) -> Option<Value> + Unpin> Stream for SseBody<Write> {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let part = match self.stage {
                Stage::End => return Poll::Ready(None),
                Stage::Done => {
                    self.stage = Stage::End;
                    return Poll::Ready(Some(Ok(sse::Event::default().data("[DONE]"))));
                }
                Stage::Deltas => match ready!(self.deltas.poll_delta(context)) {
                    Some(Ok(delta)) => Part::Delta(delta),
                    Some(Err(error)) => {
                        // The status has been sent; clients look for `error` in each event.
                        self.stage = Stage::End;
                        return Poll::Ready(Some(Ok(data(&error.envelope()))));
                    }
                    None => {
                        self.stage = Stage::Done;
                        Part::Usage(self.deltas.usage())
                    }
                },
            };
            if let Some(json) = (self.write)(part) {
                return Poll::Ready(Some(Ok(data(&json))));
            }
        }
    }
}

fn data(json: &Value) -> sse::Event {
    sse::Event::default().data(json.to_string())
}

fn wire_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn entry(tokenizer: &Tokenizer, logprobs: &TokenLogprobs, text_offset: usize) -> TokenEntry {
    let token = token_text(tokenizer, logprobs.id);
    let mut top: Vec<(String, f32)> =
        logprobs.top.iter().map(|&(id, logprob)| (token_text(tokenizer, id), finite(logprob))).collect();
    if logprobs.top.iter().all(|&(id, _)| id != logprobs.id) {
        top.push((token.clone(), finite(logprobs.logprob)));
    }
    TokenEntry { token, logprob: Some(finite(logprobs.logprob)), top: Some(top), text_offset }
}

fn prompt_entries(tokenizer: &Tokenizer, echo: &Echo, logprobs: &[Option<TokenLogprobs>]) -> Vec<TokenEntry> {
    let mut detokenizer = Detokenizer::new(tokenizer, DecodeOptions { skip_special_tokens: false });
    let mut text_offset = 0;
    let entries = echo.prompt_ids.iter().zip(logprobs).enumerate().map(|(position, (&id, logprobs))| {
        let token = token_text(tokenizer, id);
        let entry = match logprobs {
            Some(logprobs) => entry(tokenizer, logprobs, text_offset),
            None => TokenEntry { token: token.clone(), logprob: None, top: None, text_offset },
        };
        // A bos token that the tokenizer put in front is not in the text that the client gave.
        let is_added = position == 0 && tokenizer.is_special(id) && !echo.text.starts_with(&token);
        if !is_added {
            text_offset += detokenizer.push(id).chars().count();
        }
        entry
    });
    entries.collect()
}

/// A token as text. Tokens may end within a character; such bytes are written as OpenAI writes them.
fn token_text(tokenizer: &Tokenizer, id: TokenId) -> String {
    String::from_utf8(tokenizer.token_bytes(id)).unwrap_or_else(|error| {
        let bytes = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
        format!("bytes:{}", bytes.collect::<String>())
    })
}

/// JSON has no infinity; OpenAI writes -9999 for a token that cannot come.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
