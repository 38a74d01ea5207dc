//! HTTP requests by route, method and status, counted at the outermost layer, which also sees rejected requests.
//!
//! Names and labels are those of `prometheus-fastapi-instrumentator`, which vLLM uses: `handler`, `method`, and
//! `status` as a class (`4xx`). `code`, the exact status, is Hearth's own: 401 and 429 have different causes. The
//! number of label values is bounded, whatever clients send.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

use super::registered;

/// The label `handler` of a path that does not exist.
const NO_HANDLER: &str = "none";

/// The status of a request whose client disconnected before the end of the response: nginx's 499.
const CLIENT_CLOSED: &str = "499";

/// vLLM has 0.1, 0.5 and 1. Rejections are faster than that, and answers slower.
const DURATION_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Counts HTTP requests; clones share the counts.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
}

impl HttpMetrics {
    /// Starts at zero.
    pub fn new() -> Self {
        let registry = Registry::new();
        let requests = Opts::new("http_requests_total", "Number of HTTP requests by route, method and status.");
        let durations = HistogramOpts::new(
            "http_request_duration_seconds",
            "Time from an HTTP request's head to the end of its response in seconds.",
        );
        let durations = durations.buckets(DURATION_BUCKETS.to_vec());
        Self {
            requests: registered(&registry, IntCounterVec::new(requests, &["handler", "method", "status", "code"])),
            durations: registered(&registry, HistogramVec::new(durations, &["handler", "method"])),
            registry,
        }
    }

    /// Counts a request that has ended. `route` is its route template, `None` for a path that does not exist; `status`
    /// is `None` if the client disconnected before the end of the response.
    pub fn ended(&self, route: Option<&str>, method: &Method, status: Option<StatusCode>, duration: Duration) {
        let handler = route.unwrap_or(NO_HANDLER);
        let method = method_label(method);
        let code = status.as_ref().map_or(CLIENT_CLOSED, StatusCode::as_str);
        let class = format!("{}xx", code.get(..1).unwrap_or_default());
        self.requests.with_label_values(&[handler, method, &class, code]).inc();
        self.durations.with_label_values(&[handler, method]).observe(duration.as_secs_f64());
    }

    /// The metrics as text.
    ///
    /// # Errors
    /// None in practice: every gathered family has samples.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Clients can send any method name.
fn method_label(method: &Method) -> &str {
    const KNOWN: [Method; 9] = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
        Method::CONNECT,
        Method::PATCH,
        Method::TRACE,
    ];
    if KNOWN.contains(method) { method.as_str() } else { "other" }
}
