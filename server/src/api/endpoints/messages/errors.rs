//! Errors in the shape of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`.

use std::borrow::Cow;

use axum::{
    Json,
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::error::ApiError;

/// The header that every client of Anthropic's API sends.
const VERSION: &str = "anthropic-version";

/// The status of an error because of load.
const OVERLOADED: u16 = 529;

/// Whether a request is one for Anthropic's API: by its path or its headers.
pub(crate) fn is_asked(request: &Request) -> bool {
    let path = request.uri().path();
    let is_under = path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_under || request.headers().contains_key(VERSION)
}

/// Rewrites the errors of Anthropic's endpoints.
pub(crate) async fn errors_in_own_shape(request: Request, next: Next) -> Response {
    let is_asked = is_asked(&request);
    let mut response = next.run(request).await;
    if !is_asked {
        return response;
    }
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let (status, _) = status_and_kind(error.status());
    let mut rewritten = (status, Json(envelope(&error))).into_response();
    for (name, value) in response.headers() {
        if !rewritten.headers().contains_key(name) {
            rewritten.headers_mut().insert(name, value.clone());
        }
    }
    rewritten
}

/// The JSON of an error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageError")]
pub(super) struct WireError<'a> {
    /// `error`.
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorBody<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageErrorBody")]
struct ErrorBody<'a> {
    /// Kind of error.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Description of the error for people.
    message: Cow<'a, str>,
}

/// The JSON of an error; streams that have begun send it as an event.
pub(super) fn envelope(error: &ApiError) -> Value {
    let (_, kind) = status_and_kind(error.status());
    json!(WireError { kind: "error", error: ErrorBody { kind, message: message(error) } })
}

/// The message. That of a prompt that does not fit begins with the words of Anthropic's API: agents read them, and shorten
/// the conversation.
fn message(error: &ApiError) -> Cow<'_, str> {
    match error.context_sizes() {
        Some((n_tokens, most)) => {
            format!("prompt is too long: {n_tokens} tokens > {most} maximum\n{}", error.message()).into()
        }
        None => error.message().into(),
    }
}

/// Anthropic's status and kind of error for a status of OpenAI's API.
fn status_and_kind(status: StatusCode) -> (StatusCode, &'static str) {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::TOO_MANY_REQUESTS => {
            return (StatusCode::from_u16(OVERLOADED).unwrap_or(status), "overloaded_error");
        }
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    (status, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_is_an_overload_and_a_bad_parameter_an_invalid_request() {
        let shape = |error: &ApiError| (status_and_kind(error.status()).0.as_u16(), envelope(error));
        let (status, json) = shape(&ApiError::queue_full("full"));
        assert_eq!(status, 529);
        assert_eq!(json, json!({ "type": "error", "error": { "type": "overloaded_error", "message": "full" } }));
        let (status, json) = shape(&ApiError::invalid("x", "`x` is wrong"));
        assert_eq!((status, &json["error"]["type"]), (400, &json!("invalid_request_error")));
        assert_eq!(shape(&ApiError::unavailable("loading")).1["error"]["type"], "api_error");
    }
}
