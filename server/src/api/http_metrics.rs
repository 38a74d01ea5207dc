//! Counts every HTTP request when it ends, rejected or not.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};

use super::{guard::body_guard::drop_with_sent_body, wire::state::AppState};
use crate::metrics::HttpMetrics;

/// Counts the request once the response has been sent completely or the client has disconnected.
pub(crate) async fn count(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let mut counting = Counting {
        metrics: state.http_metrics().clone(),
        // The route template, not the path: clients could create any number of paths.
        route: request.extensions().get().cloned(),
        method: request.method().clone(),
        status: None,
        // The body of an answer to `HEAD` is never sent.
        is_sent: request.method() == Method::HEAD,
        started: Instant::now(),
    };
    let response = next.run(request).await;
    counting.status = Some(response.status());
    response.map(|body| drop_with_sent_body(body, counting, |counting| counting.is_sent = true))
}

/// Counts its request when dropped.
struct Counting {
    metrics: HttpMetrics,
    route: Option<MatchedPath>,
    method: Method,
    status: Option<StatusCode>,
    /// Whether the response has been sent completely.
    is_sent: bool,
    started: Instant,
}

impl Drop for Counting {
    fn drop(&mut self) {
        let route = self.route.as_ref().map(MatchedPath::as_str);
        let status = self.status.filter(|_| self.is_sent);
        self.metrics.ended(route, &self.method, status, self.started.elapsed());
    }
}
