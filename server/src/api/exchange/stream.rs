//! Converts the engine's events to an answer: server-sent events, or one response. Both use [`AnswerStream`], so streamed and
//! unstreamed answers cannot differ.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    http::{HeaderName, HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use hearth_engine::{Event, StopCause};
use hearth_model::{
    TokenId,
    decode::sampling::TokenLogprobs,
    text::tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
};
use tokio_stream::Stream;

use super::submission::{Submission, Usage, wire_reason};
use crate::api::{error::ApiError, guard::options::ApiOptions};

/// Approximate limit in bytes of JSON for the answers to one request that is not streamed, and for prompt data that
/// answers repeat. Memory use is up to eight times as much.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Approximate size of a token id as JSON in bytes.
pub(crate) const ID_BYTES: usize = 8;

/// Approximate size of a log-probability with its token as JSON in bytes.
pub(crate) const REPORTED_BYTES: usize = 80;

/// A token's text and bytes.
#[derive(Clone, Debug)]
pub(crate) struct TokenText {
    /// The text; `bytes:\x..` for bytes that are not valid UTF-8 on their own.
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
}

/// A token with its log-probability and alternatives.
#[derive(Clone, Debug)]
pub(crate) struct TokenEntry {
    pub(crate) token: TokenText,
    /// `None` for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    /// The requested number of alternatives, most likely first. `None` for the first token of a prompt.
    pub(crate) top: Option<Vec<(TokenText, f32)>>,
    /// Offset in characters of the token in the answer's text.
    pub(crate) text_offset: usize,
}

impl TokenEntry {
    /// Approximate size as JSON in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        (1 + self.top.as_ref().map_or(0, Vec::len)) * REPORTED_BYTES
    }
}

/// A piece of one choice.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(crate) index: usize,
    /// The new text since the last delta.
    pub(crate) piece: Answer,
}

/// One complete choice, or a piece of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) token_ids: Vec<TokenId>,
    /// `None` if not requested.
    pub(crate) logprobs: Option<Vec<TokenEntry>>,
    /// Sum of the log-probabilities of the sampled tokens, if the engine computes them.
    logprob_sum: f64,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    /// Only in the last piece.
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_cause: Option<StopCause>,
}

/// The log-probabilities of a prompt, shared by the choices.
#[derive(Clone, Debug)]
pub(crate) struct PromptLogprobs {
    /// One entry per token; the first is empty.
    pub(crate) entries: Arc<Vec<Option<TokenLogprobs>>>,
    /// Maximum number of alternatives to report.
    pub(crate) n_top: usize,
}

/// How a choice starts, before any token is sampled.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChoicePrelude {
    /// The answer starts with the prompt.
    pub(crate) echo: Option<Echo>,
    /// Report the prompt's log-probabilities, with this many alternatives.
    pub(crate) prompt_logprobs: Option<usize>,
}

/// The prompt at the start of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// As the client sent it, or decoded.
    pub(crate) text: Arc<str>,
    pub(crate) prompt_ids: Arc<[TokenId]>,
    /// Report the prompt's log-probabilities, with this many alternatives. The echo waits for them.
    pub(crate) logprobs: Option<usize>,
}

/// The answers of a submission, piece by piece. Dropping it cancels unfinished requests.
#[derive(Debug)]
pub(crate) struct AnswerStream {
    submission: Submission,
    tokenizer: Tokenizer,
    choices: Vec<Choice>,
    /// Number of choices whose opening has been handled.
    n_opened: usize,
    pending: VecDeque<Delta>,
    /// Approximate size of the answers so far in bytes.
    n_bytes: usize,
}

#[derive(Debug)]
struct Choice {
    opening: ChoicePrelude,
    /// Characters of the echoed prompt.
    text_start: usize,
    /// Tokens that have produced no text yet.
    silent: Vec<TokenId>,
}

impl AnswerStream {
    /// `openings` has one entry per answer of the submission.
    pub(crate) fn new(submission: Submission, tokenizer: Tokenizer, openings: Vec<ChoicePrelude>) -> Self {
        let choices = openings.into_iter().map(|opening| {
            let text_start = opening.echo.as_ref().map_or(0, |echo| echo.text.chars().count());
            Choice { opening, text_start, silent: Vec::new() }
        });
        let choices = choices.collect();
        Self { submission, tokenizer, choices, n_opened: 0, pending: VecDeque::new(), n_bytes: 0 }
    }

    /// The token counts so far.
    pub(crate) fn usage(&self) -> Usage {
        self.submission.usage()
    }

    /// Collects all choices until they are complete.
    ///
    /// # Errors
    /// A choice failed, the answers are too long, or the engine has stopped.
    pub(crate) async fn fold(self) -> Result<(Vec<Answer>, Usage), ApiError> {
        let mut answers = vec![Answer::default(); self.choices.len()];
        let take = |Delta { index, piece }| {
            if let Some(answer) = answers.get_mut(index) {
                answer.extend(piece);
            }
        };
        let usage = self.for_each(take).await?;
        Ok((answers, usage))
    }

    /// Passes all deltas to `take`, and returns the token counts.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    pub(crate) async fn for_each(mut self, mut take: impl FnMut(Delta)) -> Result<Usage, ApiError> {
        while let Some(delta) = poll_fn(|context| self.poll_delta(context)).await {
            take(delta?);
            if self.n_bytes > MAX_ANSWER_BYTES {
                let message = format!(
                    "the answers exceed {MAX_ANSWER_BYTES} bytes, the limit for responses that are not \
                     streamed\nhint: use `stream`, or lower `max_tokens`, `n` or the number of log-probabilities"
                );
                return Err(self.submission.fail(ApiError::bad_request(message)));
            }
        }
        Ok(self.usage())
    }

    fn poll_delta(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, ApiError>>> {
        loop {
            if let Some(delta) = self.next_echo() {
                return Poll::Ready(Some(Ok(delta)));
            }
            if let Some(delta) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(delta)));
            }
            match ready!(self.submission.poll_event(context)) {
                Some(Ok((index, event))) => self.take(index, event),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// The prompt of the next choice with `echo`, if it does not need the engine's log-probabilities.
    fn next_echo(&mut self) -> Option<Delta> {
        while let Some(choice) = self.choices.get_mut(self.n_opened) {
            let index = self.n_opened;
            self.n_opened += 1;
            if let Some(echo) = choice.opening.echo.take_if(|echo| echo.logprobs.is_none()) {
                let piece = Answer { text: echo.text.as_ref().into(), ..Answer::default() };
                return Some(Delta { index, piece });
            }
        }
        None
    }

    fn take(&mut self, index: usize, event: Event) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let text_start = choice.text_start;
        let piece = match event {
            Event::PromptLogprobs(logprobs) => {
                let ChoicePrelude { echo, prompt_logprobs } = std::mem::take(&mut choice.opening);
                let entries = echo.as_ref().map(|echo| prompt_entries(&self.tokenizer, echo, &logprobs));
                Some(Answer {
                    text: echo.map_or_else(String::new, |echo| echo.text.as_ref().into()),
                    logprobs: entries,
                    prompt_logprobs: prompt_logprobs.map(|n_top| PromptLogprobs { entries: logprobs, n_top }),
                    ..Answer::default()
                })
            }
            Event::Token { id, text, offset, logprobs } => {
                choice.silent.push(id);
                let n_reported = logprobs.as_ref().map_or(0, |logprobs| 1 + logprobs.top.len());
                self.n_bytes += 2 * text.len() + ID_BYTES + n_reported * REPORTED_BYTES;
                let logprob_sum = logprobs.as_ref().map_or(0.0, |logprobs| f64::from(logprobs.logprob));
                let entry = logprobs.map(|logprobs| vec![entry(&self.tokenizer, &logprobs, text_start + offset)]);
                let has_content = !text.is_empty() || entry.is_some();
                has_content.then(|| Answer {
                    text,
                    token_ids: std::mem::take(&mut choice.silent),
                    logprobs: entry,
                    logprob_sum,
                    ..Answer::default()
                })
            }
            Event::Finished { reason, cause, text, .. } => {
                let token_ids = std::mem::take(&mut choice.silent);
                let finish_reason = Some(wire_reason(reason));
                Some(Answer { text, token_ids, finish_reason, stop_cause: cause, ..Answer::default() })
            }
            // Embeddings have no deltas.
            Event::Embedding(_) => None,
        };
        self.pending.extend(piece.map(|piece| Delta { index, piece }));
    }
}

impl Answer {
    fn extend(&mut self, piece: Answer) {
        self.text.push_str(&piece.text);
        self.token_ids.extend(piece.token_ids);
        if let Some(entries) = piece.logprobs {
            self.logprobs.get_or_insert_default().extend(entries);
        }
        self.logprob_sum += piece.logprob_sum;
        self.prompt_logprobs = piece.prompt_logprobs.or(self.prompt_logprobs.take());
        self.finish_reason = piece.finish_reason.or(self.finish_reason);
        self.stop_cause = piece.stop_cause.or(self.stop_cause.take());
    }

    /// Approximate size as JSON in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        let of_prompt = |logprobs: &PromptLogprobs| logprobs.entries.len() * (1 + logprobs.n_top) * REPORTED_BYTES;
        self.text.len()
            + self.token_ids.len() * ID_BYTES
            + self.logprobs.iter().flatten().map(TokenEntry::n_bytes).sum::<usize>()
            + self.prompt_logprobs.as_ref().map_or(0, of_prompt)
    }

    /// Mean log-probability per token, if the engine computes log-probabilities.
    pub(crate) fn mean_logprob(&self) -> f64 {
        self.logprob_sum / self.token_ids.len().max(1) as f64
    }
}

/// A part of a stream, for the endpoint to format.
#[derive(Debug)]
pub(crate) enum StreamItem {
    /// A piece of a choice, and the usage so far.
    Delta(Delta, Usage),
    /// After all deltas.
    End(Usage),
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// `None`: without a name.
    pub(crate) event: Option<&'static str>,
    pub(crate) data: String,
}

/// Formats a stream.
pub(crate) trait WriteEvents: Send + Unpin + 'static {
    /// The events before any item.
    fn start(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    /// The events for an item.
    fn item(&mut self, part: StreamItem) -> Vec<Frame>;

    /// The events that end the stream after an error. The status has already been sent.
    fn failure(&mut self, error: ApiError) -> Vec<Frame>;

    /// The event that keeps an idle connection open. `None`: a comment.
    fn keep_alive(&self) -> Option<Frame> {
        None
    }
}

/// A stream of completions or chat completions: events without names, then `[DONE]`. The function returns the data of
/// each event for a part.
struct Chunks<Write>(Write);

impl<Write: FnMut(StreamItem) -> Vec<String> + Send + Unpin + 'static> WriteEvents for Chunks<Write> {
    fn item(&mut self, part: StreamItem) -> Vec<Frame> {
        let done = matches!(part, StreamItem::End(_)).then(|| "[DONE]".to_owned());
        let data = (self.0)(part).into_iter().chain(done);
        data.map(|data| Frame { event: None, data }).collect()
    }

    /// Clients check each event for `error`.
    fn failure(&mut self, error: ApiError) -> Vec<Frame> {
        vec![Frame { event: Some("error"), data: error.envelope().to_string() }]
    }
}

/// Streams the deltas as server-sent events without names. `write` returns the data of each event for a part.
pub(crate) fn sse<Write>(deltas: AnswerStream, options: &ApiOptions, write: Write) -> Response
where
    Write: FnMut(StreamItem) -> Vec<String> + Send + Unpin + 'static,
{
    sse_of(deltas, options, Chunks(write))
}

/// Streams the deltas as the server-sent events that `writer` produces.
pub(crate) fn sse_of(deltas: AnswerStream, options: &ApiOptions, mut writer: impl WriteEvents) -> Response {
    let mut keep_alive = KeepAlive::new().interval(options.keep_alive);
    if let Some(frame) = writer.keep_alive() {
        keep_alive = keep_alive.event(frame.into());
    }
    let written = writer.start().into();
    let body = SseBody { deltas, writer, is_over: false, written };
    let mut response = Sse::new(body).keep_alive(keep_alive).into_response();
    // Some clients interpret text without a charset as ISO-8859-1.
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    // Disables nginx's response buffering.
    let no_buffering = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.headers_mut().extend([no_buffering]);
    response
}

struct SseBody<Writer> {
    deltas: AnswerStream,
    writer: Writer,
    /// Whether all parts have been written.
    is_over: bool,
    written: VecDeque<Frame>,
}

impl<Writer: WriteEvents> Stream for SseBody<Writer> {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.written.pop_front() {
                return Poll::Ready(Some(Ok(frame.into())));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let next = ready!(self.deltas.poll_delta(context));
            let usage = self.deltas.usage();
            self.is_over = !matches!(next, Some(Ok(_)));
            let frames = match next {
                Some(Ok(delta)) => self.writer.item(StreamItem::Delta(delta, usage)),
                Some(Err(error)) => self.writer.failure(error),
                None => self.writer.item(StreamItem::End(usage)),
            };
            self.written.extend(frames);
        }
    }
}

impl From<Frame> for sse::Event {
    fn from(frame: Frame) -> Self {
        // The name first, as clients that read line by line expect it.
        let event = frame.event.map_or_else(Self::default, |name| Self::default().event(name));
        event.data(frame.data)
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
        // A BOS token added by the tokenizer is not part of the client's text.
        let is_added = position == 0 && tokenizer.is_special(id) && !echo.text.starts_with(&entry.token.text);
        if !is_added {
            text_offset += detokenizer.push(id).chars().count();
        }
        entry
    });
    entries.collect()
}

impl TokenText {
    /// Tokens may end within a character; such bytes are formatted as at OpenAI.
    pub(crate) fn new(tokenizer: &Tokenizer, id: TokenId) -> Self {
        let bytes = tokenizer.token_bytes(id);
        let text = str::from_utf8(&bytes).map_or_else(
            |_| format!("bytes:{}", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>()),
            str::to_owned,
        );
        Self { text, bytes }
    }
}

/// JSON has no infinity; OpenAI writes -9999 for impossible tokens.
pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
