//! The log's one line per request, written when the request has ended, and its span where spans are exported. What they
//! say comes together on the way: the status from the router, the counts and times from whatever answered. Prompts are in
//! the line only if the owner asked, and never in the span.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{Method, StatusCode};

use super::request_span;
use crate::{
    metrics::Spans,
    telemetry::{exporter::SpanSender, trace_context::TraceContext},
};

/// What is asked for by machines, often: logged at the level `debug`, and in no trace.
const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

/// What will be logged of a request; clones are the same line.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog(Arc<Mutex<Line>>);

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) request_id: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) arrived: Instant,
    pub(crate) status: Option<StatusCode>,
    pub(crate) work: Work,
    trace: Option<Trace>,
}

/// The trace that a request is part of.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) context: TraceContext,
    /// `None`: its name is logged, and that is all.
    pub(crate) spans: Option<SpanSender>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Answered: what its answers ended by.
    Complete(Vec<&'static str>),
    /// By an error of this kind.
    Failed(&'static str),
    /// Nobody waits for the answer any more.
    Cancelled,
}

/// What the model did for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// The answer's own id.
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) asked: Option<Asked>,
    pub(crate) prompt_tokens: Option<usize>,
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) completion_tokens: Option<usize>,
    /// Until the first token.
    pub(crate) ttft: Option<Duration>,
    /// Of the answer that took longest.
    pub(crate) spans: Option<Spans>,
    pub(crate) end: Option<End>,
    /// The prompts as JSON, if they are to be logged.
    pub(crate) prompts: Option<String>,
}

/// What a span tells of a request for text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// `None`: as many as there is room for.
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
    /// Of a request that came from nowhere.
    fn default() -> Self {
        Self::new("", &Method::POST, "", None)
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
    /// How it ended, where that is known beside the status.
    pub(crate) fn end(&self) -> Option<End> {
        // Without a status nobody was there to take the answer.
        self.work.end.clone().or(self.status.is_none().then_some(End::Cancelled))
    }
}

impl RequestLog {
    pub(crate) fn new(request_id: &str, method: &Method, path: &str, trace: Option<Trace>) -> Self {
        Self(Arc::new(Mutex::new(Line {
            request_id: request_id.to_owned(),
            method: method.clone(),
            path: path.to_owned(),
            arrived: Instant::now(),
            status: None,
            work: Work::default(),
            trace,
        })))
    }

    /// The head of the answer is there.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.line().status = Some(status);
    }

    /// Adds what the model did.
    pub(crate) fn work(&self, tell: impl FnOnce(&mut Work)) {
        tell(&mut self.line().work);
    }

    /// Writes the line when it is dropped.
    pub(crate) fn ending(&self) -> Ending {
        Ending(self.clone())
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a request.
#[derive(Debug)]
pub(crate) struct Ending(RequestLog);

impl Drop for Ending {
    fn drop(&mut self) {
        let line = &*self.0.line();
        let Line { request_id, method, path, arrived, status, work, trace } = line;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
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
        if PROBES.contains(&path.as_str()) {
            line!(debug);
            return;
        }
        line!(info);
        if let Some(Trace { context, spans: Some(spans) }) = trace
            && context.is_sampled
        {
            spans.send(request_span::span(line, context));
        }
    }
}
