//! The log's one line per request, written when the request has ended. What it says comes together on the way: the
//! status from the router, the counts and times from whatever answered. Prompts are in it only if the owner asked.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{Method, StatusCode};

use crate::metrics::Spans;

/// What is asked for by machines, often: logged at the level `debug`.
const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

/// What will be logged of a request; clones are the same line.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog(Arc<Mutex<Line>>);

#[derive(Debug)]
struct Line {
    request_id: String,
    method: Method,
    path: String,
    arrived: Instant,
    status: Option<StatusCode>,
    work: Work,
}

/// What the model did for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// The answer's own id.
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) prompt_tokens: Option<usize>,
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) completion_tokens: Option<usize>,
    /// Until the first token.
    pub(crate) ttft: Option<Duration>,
    /// Of the answer that took longest.
    pub(crate) spans: Option<Spans>,
    /// Why it ended.
    pub(crate) end: Option<String>,
    /// The prompts as JSON, if they are to be logged.
    pub(crate) prompts: Option<String>,
}

impl Default for RequestLog {
    /// Of a request that came from nowhere.
    fn default() -> Self {
        Self::new("", &Method::POST, "")
    }
}

impl RequestLog {
    pub(crate) fn new(request_id: &str, method: &Method, path: &str) -> Self {
        Self(Arc::new(Mutex::new(Line {
            request_id: request_id.to_owned(),
            method: method.clone(),
            path: path.to_owned(),
            arrived: Instant::now(),
            status: None,
            work: Work::default(),
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
        let Line { request_id, method, path, arrived, status, work } = &*self.0.line();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let spans = work.spans;
        // Without a status nobody was there to take the answer.
        let end = work.end.as_deref().or(status.is_none().then_some("cancelled"));
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    request_id,
                    id = work.id,
                    model = work.model,
                    status = status.map(|status| status.as_u16()),
                    end,
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
        } else {
            line!(info);
        }
    }
}
