//! Wraps the event stream of one HTTP request: counts tokens, measures times, and fills in the request's log line when
//! it ends.

use std::{
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use hearth_engine::{Event, EventStream, Failure, FinishReason, PhaseTimes};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::task::coop;

use crate::api::{
    error::ApiError,
    wire::request_log::{End, RequestLog, Work},
};

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    /// Only for conversations, and complete when the answers are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_tokens_details: Option<CompletionDetails>,
}

/// Details of the tokens of answers.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct CompletionDetails {
    /// Number of tokens of thoughts, without their marks and the words that end them at a budget.
    pub(crate) reasoning_tokens: usize,
}

/// Details of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct PromptDetails {
    /// Number of prompt tokens found in the prefix cache (OpenAI's field).
    pub(crate) cached_tokens: usize,
    /// Number of tokens removed from the front by `truncate_prompt_tokens`; not counted as prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) truncated_tokens: Option<usize>,
}

impl Usage {
    /// The counts of two submissions together.
    pub(crate) fn and(self, other: Self) -> Self {
        let details = [self, other].map(|usage| usage.prompt_tokens_details);
        let truncated = details.iter().filter_map(|details| details.truncated_tokens).reduce(|sum, more| sum + more);
        Self {
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            completion_tokens: self.completion_tokens + other.completion_tokens,
            total_tokens: self.total_tokens + other.total_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: details.iter().map(|details| details.cached_tokens).sum(),
                truncated_tokens: truncated,
            },
            completion_tokens_details: self.completion_tokens_details.or(other.completion_tokens_details),
        }
    }

    /// Number of tokens of thoughts.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.completion_tokens_details.map_or(0, |details| details.reasoning_tokens)
    }
}

/// The events of requests that were submitted together. Dropping it cancels unfinished requests.
#[derive(Debug)]
pub(crate) struct Submission {
    log: RequestLog,
    events: EventStream,
    n_open: usize,
    usage: Usage,
    arrived: Instant,
    first_token_after: Option<Duration>,
    /// Times of the slowest answer.
    spans: Option<PhaseTimes>,
    finish_reasons: Vec<&'static str>,
}

/// The data of submitted requests.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) events: EventStream,
    pub(crate) n_answers: usize,
    /// When the HTTP request arrived. The time to the first token counts from here.
    pub(crate) arrived: Instant,
    /// Number of tokens of the prompts, each counted once however many answers it has.
    pub(crate) n_prompt: usize,
    /// Number of tokens removed from the prompts, if truncation was requested.
    pub(crate) n_truncated: Option<usize>,
}

impl Submission {
    /// Counts and times are recorded in `log`.
    pub(crate) fn new(log: RequestLog, submitted: Submitted) -> Self {
        let Submitted { events, n_answers, arrived, n_prompt, n_truncated } = submitted;
        let prompt_tokens_details = PromptDetails { cached_tokens: 0, truncated_tokens: n_truncated };
        let (prompt_tokens, total_tokens) = (n_prompt, n_prompt);
        let usage = Usage { prompt_tokens, total_tokens, prompt_tokens_details, ..Usage::default() };
        let (first_token_after, spans, finish_reasons) = (None, None, Vec::new());
        Self { log, events, n_open: n_answers, usage, arrived, first_token_after, spans, finish_reasons }
    }

    /// The token counts so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// The next event and the index of its answer; `None` after the last.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, Event), ApiError>>> {
        if self.n_open == 0 {
            return Poll::Ready(None);
        }
        let gone = || (0, Err(Failure::Failed("the engine has stopped".into())));
        // Yields to other tasks from time to time: events may arrive as fast as they are read.
        let turn = ready!(coop::poll_proceed(context));
        let (index, event) = ready!(self.events.poll_recv(context)).unwrap_or_else(gone);
        turn.made_progress();
        Poll::Ready(Some(match event {
            Ok(event) => {
                self.count(&event);
                Ok((index, event))
            }
            Err(failure) => Err(self.fail(failure.into())),
        }))
    }

    /// Ends all answers with an error.
    pub(crate) fn fail(&mut self, error: ApiError) -> ApiError {
        self.log_end(End::Failed(error.kind()));
        self.n_open = 0;
        error
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::PromptLogprobs(_) | Event::Embedding(_) => {}
            Event::Token { .. } => {
                self.usage.completion_tokens += 1;
                self.usage.total_tokens += 1;
                self.first_token_after.get_or_insert_with(|| self.arrived.elapsed());
            }
            Event::Finished { reason, cached_tokens, thought_tokens, spans, .. } => {
                if let Some(n_tokens) = thought_tokens {
                    let details = self.usage.completion_tokens_details.get_or_insert_default();
                    details.reasoning_tokens += n_tokens;
                }
                self.usage.prompt_tokens_details.cached_tokens += cached_tokens;
                self.spans = Some(self.spans.map_or(*spans, |others| others.and(*spans)));
                let reason = wire_reason(*reason);
                if !self.finish_reasons.contains(&reason) {
                    self.finish_reasons.push(reason);
                }
                self.n_open -= 1;
                if self.n_open == 0 {
                    self.log_end(End::Complete(self.finish_reasons.clone()));
                }
            }
        }
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

impl Drop for Submission {
    fn drop(&mut self) {
        if self.n_open > 0 {
            self.log_end(End::Cancelled);
        }
    }
}

/// The finish reason in answers.
pub(crate) fn wire_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
