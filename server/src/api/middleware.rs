//! What happens to every request: it gets an id and a line in the log, and it needs a key where keys are set.

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    error::ApiError,
    guarded::guarded,
    request_log::{RequestLog, Trace},
    state::AppState,
};
use crate::{random::fresh_id, telemetry::trace_context::TraceContext};

/// Names a request in logs here and at the client; OpenAI's libraries show it with errors.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken over from a client.
const MAX_ID_BYTES: usize = 128;

/// What needs no key: what probes, scrapers and browsers ask for before they could have one. It tells nothing that was
/// ever sent to the model.
const OPEN_PATHS: [&str; 9] =
    ["/", "/app.js", "/style.css", "/docs", "/docs.js", "/openapi.json", "/health", "/ready", "/metrics"];

/// Gives the answer the request's `x-request-id`, or a new one, and logs the request when it has ended, as a part of its
/// caller's trace if it has one.
pub(crate) async fn identify(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    // What others could forge lines with, or could not print, is not taken over.
    let is_fit =
        |id: &&HeaderValue| (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    let given = request.headers().get(&X_REQUEST_ID).filter(is_fit).and_then(|id| id.to_str().ok());
    let id = given.map_or_else(|| fresh_id("req-"), str::to_owned);
    let spans = state.options().spans.clone();
    let context = TraceContext::below_caller(request.headers()).or_else(|| spans.is_some().then(TraceContext::root));
    let trace = context.map(|context| Trace { context, spans });
    let log = RequestLog::new(&id, request.method(), request.uri().path(), trace);
    request.extensions_mut().insert(log.clone());
    // Told when the last of the answer is sent, or when nobody waits for it any more.
    let ending = log.ending();
    let mut response = next.run(request).await;
    log.answered(response.status());
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(X_REQUEST_ID, id);
    }
    response.map(|body| guarded(body, ending))
}

/// Refuses whoever has none of the keys, if there are keys.
pub(crate) async fn authorize(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let keys = &state.options().keys;
    if keys.is_open() || OPEN_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let given = request.headers().get(header::AUTHORIZATION);
    match given.and_then(bearer) {
        Some(key) if keys.contain(key) => {
            if let Some(salt) = state.options().salt_of_key(key) {
                request.extensions_mut().insert(salt);
            }
            next.run(request).await
        }
        Some(_) => ApiError::unauthorized("Incorrect API key provided: it is none of this server's").into_response(),
        None => ApiError::unauthorized("an API key is required\nhint: send the header `authorization: Bearer KEY`")
            .into_response(),
    }
}

/// The key of an `authorization` header.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}
