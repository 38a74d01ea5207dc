//! Counts every request once it has ended, refused or not.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};

use super::{guarded::guarded, state::AppState};
use crate::metrics::HttpMetrics;

/// Counts the request when the last of its response is sent, or when the client goes away.
pub(crate) async fn count(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let mut counting = Counting {
        metrics: state.http_metrics().clone(),
        // The template, never the path: clients could make up any number of those.
        route: request.extensions().get().cloned(),
        method: request.method().clone(),
        status: None,
        started: Instant::now(),
    };
    let response = next.run(request).await;
    counting.status = Some(response.status());
    response.map(|body| guarded(body, counting))
}

/// A request that is counted when this is dropped.
struct Counting {
    metrics: HttpMetrics,
    route: Option<MatchedPath>,
    method: Method,
    status: Option<StatusCode>,
    started: Instant,
}

impl Drop for Counting {
    fn drop(&mut self) {
        let route = self.route.as_ref().map(MatchedPath::as_str);
        self.metrics.ended(route, &self.method, self.status, self.started.elapsed());
    }
}
