//! Errors for clients: OpenAI's envelope, `{"error": {"message", "type", "param", "code"}}`, with the status from which
//! OpenAI's libraries decide whether to retry.

use std::{borrow::Cow, time::Duration};

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hearth_engine::{Failure, SubmitError, request::ValidationError};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// An error for the client.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
    context: Option<ContextSizes>,
}

/// The JSON body.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct Envelope {
    error: ErrorBody,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ErrorBody {
    /// Description of the error for people.
    message: String,
    /// Kind of error.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The parameter that caused the error.
    param: Option<Cow<'static, str>>,
    /// Error code for programs.
    code: Option<&'static str>,
    /// Number of tokens of the prompt, which exceeds the context; a lower bound if the prompt was not tokenized.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// Context length in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<usize>,
}

/// Further members of the `error` object, which clients read to shorten their prompt.
#[derive(Clone, Copy, Debug)]
struct ContextSizes {
    n_prompt_tokens: usize,
    n_ctx: usize,
}

/// `Retry-After` of a 429 in seconds. Short, because each request that starts frees a place in the queue.
const RETRY_AFTER_QUEUE: HeaderValue = HeaderValue::from_static("2");

/// `Retry-After` of a 503 in seconds. Longer, because a model is loading or the server restarts.
const RETRY_AFTER_LOADING: HeaderValue = HeaderValue::from_static("5");

/// Tells OpenAI's libraries whether to retry, whatever the status is.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

impl ApiError {
    /// 400: the parameter `param` is invalid. `message` names it, the value given and the values allowed.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad_request(message) }
    }

    /// 400: the request as a whole is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 401: the API key is missing or wrong. `message` does not contain it.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message).with_code("invalid_api_key")
    }

    /// 403: the origin or host is not allowed, or the server's settings do not allow the operation; `code` is for
    /// programs.
    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).with_code(code)
    }

    /// 404: the path does not exist.
    pub fn unknown_path(path: &str) -> Self {
        let hint = match path.starts_with("/v1/responses/") {
            true => {
                "this server stores no responses: send the items of earlier turns as `input` of `POST /v1/responses`"
            }
            false => "completions are at `POST /v1/completions` and `POST /v1/chat/completions`",
        };
        let message = format!("`{path}` does not exist\nhint: {hint}");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url")
    }

    /// 404: the model does not exist.
    pub fn unknown_model(name: &str, served: &[String]) -> Self {
        let message = format!("the model `{name}` does not exist; this server has `{}`", served.join("`, `"));
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("model_not_found");
        Self { param: Some("model".into()), ..error }
    }

    /// 503: try again later; `message` gives the reason.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// 503: `what`, the kind of work, has made no progress for `time`, which exceeds the step timeout `limit`.
    pub(crate) fn stalled(what: &str, time: Duration, limit: Duration) -> Self {
        Self::unavailable(format!(
            "{what} has made no progress for {} s: the server or its device may hang\n\
             hint: `--step-timeout` sets the limit of {} s",
            time.as_secs(),
            limit.as_secs()
        ))
    }

    /// 503: the server shuts down before the request has finished.
    pub fn shutting_down() -> Self {
        Self::unavailable("the server is shutting down")
    }

    /// 429: the queue is full.
    pub(crate) fn queue_full(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).with_code("queue_full")
    }

    /// The engine did not accept a submission. `param` has the number of answers.
    pub(crate) fn not_submitted(error: SubmitError, param: &'static str) -> Self {
        match error {
            SubmitError::TooManyAnswers { .. } => Self::invalid(param, error.to_string()),
            error => error.into(),
        }
    }

    /// 504: the request's own deadline has passed.
    pub fn timed_out(deadline: Duration) -> Self {
        let message = format!("the request's deadline of {} ms has passed", deadline.as_millis());
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message).with_code("deadline_exceeded")
    }

    /// 408: the client reads a stream too slowly.
    pub fn overrun() -> Self {
        let message = "the client reads the stream too slowly: too much unsent data";
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
    }

    /// 500: a server error.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// An error with another status.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, context: None }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same for an endpoint without `truncate_prompt_tokens`, which a hint must not name.
    pub(crate) fn without_truncation(mut self) -> Self {
        if let Some((message, _)) = self.message.split_once("\nhint: `truncate_prompt_tokens`") {
            self.message = format!("{message}\nhint: shorten the text");
        }
        self
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The tokens of a prompt that does not fit, at least, and the context length.
    pub(crate) fn context_sizes(&self) -> Option<(usize, usize)> {
        self.context.map(|context| (context.n_prompt_tokens, context.n_ctx))
    }

    /// The message that the client gets.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The kind of error: `type` in the envelope.
    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// The JSON envelope; streams that have begun send it as an event.
    pub fn envelope(&self) -> Value {
        let Self { message, kind, param, code, context, .. } = self;
        let message = message.clone();
        let n_prompt_tokens = context.map(|context| context.n_prompt_tokens);
        let n_ctx = context.map(|context| context.n_ctx);
        json!(Envelope {
            error: ErrorBody { message, kind, param: param.clone(), code: *code, n_prompt_tokens, n_ctx }
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let header = match self.status {
            StatusCode::TOO_MANY_REQUESTS => Some((header::RETRY_AFTER, RETRY_AFTER_QUEUE)),
            StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, RETRY_AFTER_LOADING)),
            // The client no longer needs the answer.
            StatusCode::GATEWAY_TIMEOUT => Some((X_SHOULD_RETRY, HeaderValue::from_static("false"))),
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            _ => None,
        };
        let mut response = (self.status, Json(self.envelope())).into_response();
        response.headers_mut().extend(header);
        // For endpoints whose errors have another shape.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::TimedOut(after) => Self::timed_out(after),
            Failure::Refused { param, message } => Self::invalid(param, message),
            Failure::Failed(message) => Self::internal(message),
            Failure::Stopped => Self::shutting_down(),
            Failure::Overrun => Self::overrun(),
        }
    }
}

impl From<ValidationError> for ApiError {
    fn from(error: ValidationError) -> Self {
        let refusal = Self { param: error.param().map(Cow::Borrowed), ..Self::bad_request(error.to_string()) };
        match error {
            ValidationError::ContextLength { n_prompt, max_seq_len, .. }
            | ValidationError::InputLength { n_tokens: n_prompt, max_seq_len, .. }
            | ValidationError::TextLength { n_tokens: n_prompt, max_seq_len, .. } => {
                let context = Some(ContextSizes { n_prompt_tokens: n_prompt, n_ctx: max_seq_len });
                Self { context, ..refusal.with_code("context_length_exceeded") }
            }
            _ => refusal,
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull { .. } => Self::queue_full(message),
            SubmitError::TooManyAnswers { .. } => Self::bad_request(message),
            SubmitError::Stopped => Self::unavailable(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_failures_map_to_http_status_and_message() {
        let refused = Failure::Refused { param: "input", message: "`input` is wrong".into() };
        for (failure, status, message) in [
            (refused, StatusCode::BAD_REQUEST, "`input` is wrong"),
            (Failure::TimedOut(Duration::from_millis(7)), StatusCode::GATEWAY_TIMEOUT, "deadline of 7 ms"),
            (Failure::Failed("broken".into()), StatusCode::INTERNAL_SERVER_ERROR, "broken"),
            (Failure::Stopped, StatusCode::SERVICE_UNAVAILABLE, "shutting down"),
            (Failure::Overrun, StatusCode::REQUEST_TIMEOUT, "too slowly"),
        ] {
            let error = ApiError::from(failure);
            assert_eq!(error.status, status, "{message}");
            assert!(error.message.contains(message), "{}", error.message);
        }
    }
}
