//! What happens to every request: it gets an id, a line in the log, and answers that browsers let their pages read.

use std::time::Instant;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::random::fresh_id;

/// Names a request in logs here and at the client; OpenAI's libraries show it with errors.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken over from a client.
const MAX_ID_BYTES: usize = 128;

/// Gives the answer the request's `x-request-id`, or a new one, and logs the outcome.
pub(crate) async fn identify(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let given = request.headers().get(&X_REQUEST_ID).filter(|id| id.len() <= MAX_ID_BYTES && id.to_str().is_ok());
    let id = given.cloned().or_else(|| HeaderValue::from_str(&fresh_id("req-")).ok());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    tracing::info!(
        request_id = id.as_ref().and_then(|id| id.to_str().ok()),
        status = response.status().as_u16(),
        // A stream goes on after its head; its own line follows when it ends.
        head_ms = started.elapsed().as_millis() as u64,
        "{method} {path}"
    );
    if let Some(id) = id {
        response.headers_mut().insert(X_REQUEST_ID, id);
    }
    response
}

/// Lets pages of other origins use the API (CORS), and answers the browser's question whether they may.
pub(crate) async fn allow_other_origins(request: Request, next: Next) -> Response {
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
        // `*` does not cover `authorization`, so what is asked for is what is allowed.
        let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
        headers.insert(header::VARY, HeaderValue::from_static("access-control-request-headers"));
        (StatusCode::NO_CONTENT, headers).into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, retry-after, x-ignored-params"),
    );
    response
}
