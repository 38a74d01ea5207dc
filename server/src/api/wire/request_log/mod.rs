//! One log line per request, written when the request has ended, and its span if spans are exported. The data is
//! collected on the way: the status from the router, counts and times from the handlers. Prompts are logged only if the
//! operator enabled it, and never in spans.

mod span;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::Request,
    http::{Method, StatusCode},
};
use hearth_engine::PhaseTimes;

use super::endpoint::Policy;
use crate::telemetry::{exporter::SpanSender, trace_context::TraceContext};

/// The data for a request's log line; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog(Arc<Mutex<Line>>);

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) request_id: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    policy: Policy,
    pub(crate) arrived: Instant,
    pub(crate) status: Option<StatusCode>,
    pub(crate) work: Work,
    trace: Option<Trace>,
}

/// The trace that a request belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) context: TraceContext,
    /// `None`: the trace id is only logged.
    pub(crate) spans: Option<SpanSender>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Answered; holds the finish reasons.
    Complete(Vec<&'static str>),
    /// With an error of this kind.
    Failed(&'static str),
    /// The client disconnected.
    Cancelled,
}

/// The model's work for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// The id of the answer.
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) asked: Option<Asked>,
    pub(crate) prompt_tokens: Option<usize>,
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) completion_tokens: Option<usize>,
    /// Time to the first token.
    pub(crate) ttft: Option<Duration>,
    /// Times of the slowest answer.
    pub(crate) spans: Option<PhaseTimes>,
    pub(crate) end: Option<End>,
    /// The prompts as JSON, if prompts are logged.
    pub(crate) prompts: Option<String>,
}

/// Request parameters for the span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// `None`: no limit.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    /// 0: not used.
    pub(crate) top_k: usize,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) streams: bool,
}

impl Default for RequestLog {
    /// For tests and examples: no HTTP request.
    fn default() -> Self {
        Self::new("", &Request::default(), None)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete(reasons) => f.write_str(&reasons.join(",")),
            Self::Failed(kind) => f.write_str(kind),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl Line {
    /// How the request ended, if known beyond the status.
    pub(crate) fn end(&self) -> Option<End> {
        // No status was recorded, so the client disconnected before the response.
        self.work.end.clone().or(self.status.is_none().then_some(End::Cancelled))
    }
}

impl RequestLog {
    pub(crate) fn new(request_id: &str, request: &Request, trace: Option<Trace>) -> Self {
        Self(Arc::new(Mutex::new(Line {
            request_id: request_id.to_owned(),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            policy: request.extensions().get().copied().unwrap_or_default(),
            arrived: Instant::now(),
            status: None,
            work: Work::default(),
            trace,
        })))
    }

    /// When the request arrived.
    pub(crate) fn arrived(&self) -> Instant {
        self.line().arrived
    }

    /// Records the status of the response.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.line().status = Some(status);
    }

    /// Updates the model's work.
    pub(crate) fn work(&self, update: impl FnOnce(&mut Work)) {
        update(&mut self.line().work);
    }

    /// Writes the log line when dropped.
    pub(crate) fn ending(&self) -> LogOnEnd {
        LogOnEnd(self.clone())
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs a request when dropped.
#[derive(Debug)]
pub(crate) struct LogOnEnd(RequestLog);

impl Drop for LogOnEnd {
    fn drop(&mut self) {
        let line = &*self.0.line();
        let Line { request_id, method, path, policy, arrived, status, work, trace } = line;
        let ms = |time: Duration| time.as_micros() as f64 / 1e3;
        let spans = work.spans;
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    request_id,
                    trace_id = trace.as_ref().map(|trace| trace.context.trace_id.to_string()),
                    id = work.id,
                    model = work.model,
                    status = status.map(|status| status.as_u16()),
                    end = line.end().map(|end| end.to_string()),
                    prompt_tokens = work.prompt_tokens,
                    cached_tokens = work.cached_tokens,
                    completion_tokens = work.completion_tokens,
                    queue_ms = spans.map(|spans| ms(spans.queue)),
                    prefill_ms = spans.map(|spans| ms(spans.prefill)),
                    ttft_ms = work.ttft.map(ms),
                    decode_ms = spans.map(|spans| ms(spans.decode)),
                    total_ms = ms(arrived.elapsed()),
                    prompts = work.prompts,
                    "{method} {path}"
                )
            };
        }
        if *policy == Policy::Probe {
            line!(debug);
            return;
        }
        line!(info);
        if let Some(Trace { context, spans: Some(spans) }) = trace
            && context.is_sampled
        {
            spans.send(span::span(line, context));
        }
    }
}
