//! What a client is told when something is refused or fails: always OpenAI's envelope,
//! `{"error": {"message", "type", "param", "code"}}`, with the status that tells its library whether to try again.

use std::{borrow::Cow, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::{Event, SubmitError, request::ValidationError};

/// An error on its way to a client.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
    context: Option<ContextSizes>,
}

/// What is sent.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct Envelope {
    error: Refusal,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ErrorBody")]
struct Refusal {
    /// What is wrong, for a person to read.
    message: String,
    /// What kind of error it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The parameter to blame.
    param: Option<Cow<'static, str>>,
    /// What is wrong, for a program to read.
    code: Option<&'static str>,
    /// Tokens of a prompt that the context has no room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// Tokens that the context has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<usize>,
}

/// Two more members of the `error` object, which clients read to shorten their prompt.
#[derive(Clone, Copy, Debug)]
struct ContextSizes {
    n_prompt_tokens: usize,
    n_ctx: usize,
}

/// Seconds after which a client may try again: a place in the queue comes free with every request that starts.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl ApiError {
    /// 400: the parameter `param` cannot be served. `message` names it, what was given and what is allowed.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad_request(message) }
    }

    /// 400: the request as a whole cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 401: who asks has no key, or a wrong one. `message` does not repeat it.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message).with_code("invalid_api_key")
    }

    /// 403: not from there; `code` says so to programs.
    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).with_code(code)
    }

    /// 404: no such path.
    pub fn unknown_path(path: &str) -> Self {
        let hint = match path {
            "/v1/responses" => "let your client use chat completions, `POST /v1/chat/completions`",
            _ => "completions are at `POST /v1/completions` and `POST /v1/chat/completions`",
        };
        let message = format!("`{path}` does not exist\nhint: {hint}");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url")
    }

    /// 404: no such model.
    pub fn unknown_model(name: &str, served: &str) -> Self {
        let message = format!("the model `{name}` does not exist, this server has `{served}`");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("model_not_found");
        Self { param: Some("model".into()), ..error }
    }

    /// 503: not now; `message` says why.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// 503: the server ends before the request does.
    pub fn shutting_down() -> Self {
        Self::unavailable("the server is shutting down")
    }

    /// 504: the request's own deadline has passed.
    pub fn timed_out(deadline: Duration) -> Self {
        let message = format!("the request's deadline of {} ms has passed", deadline.as_millis());
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message).with_code("deadline_exceeded")
    }

    /// 408: a stream's client takes it so slowly that too much of it waits.
    pub fn overrun() -> Self {
        let message = "the answer was taken more slowly than it was generated, until too much of it had to wait";
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
    }

    /// 500: not the client's fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The next event of a request, or why there is none: it has ended without an answer, or the engine is gone.
    ///
    /// # Errors
    /// What the client is told of that.
    pub(crate) fn or_event<Index>(next: Option<(Index, Event)>) -> Result<(Index, Event), Self> {
        match next {
            Some((_, Event::TimedOut(after))) => Err(Self::timed_out(after)),
            Some((_, Event::Refused { param, message })) => Err(Self::invalid(param, message)),
            Some((_, Event::Failed(message))) => Err(Self::internal(message)),
            Some((_, Event::Stopped)) => Err(Self::shutting_down()),
            Some((_, Event::Overrun)) => Err(Self::overrun()),
            None => Err(Self::internal("the engine has stopped")),
            Some(event) => Ok(event),
        }
    }

    /// An error of another status.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, context: None }
    }

    fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same for a parameter that stands within another.
    pub(crate) fn within(self, outer: &str) -> Self {
        let param = self.param.map(|param| Cow::Owned(format!("{outer}.{param}")));
        Self { param, ..self }
    }

    /// What the client is told.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Its kind, as the envelope's `type` says it.
    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// The envelope, as it also goes into a stream that has begun.
    pub fn envelope(&self) -> Value {
        let Self { message, kind, param, code, context, .. } = self;
        let message = message.clone();
        let n_prompt_tokens = context.map(|context| context.n_prompt_tokens);
        let n_ctx = context.map(|context| context.n_ctx);
        json!(Envelope { error: Refusal { message, kind, param: param.clone(), code: *code, n_prompt_tokens, n_ctx } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status;
        let may_retry = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let mut response = (status, Json(self.envelope())).into_response();
        if may_retry {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<ValidationError> for ApiError {
    fn from(error: ValidationError) -> Self {
        let refusal = Self { param: error.param().map(Cow::Borrowed), ..Self::bad_request(error.to_string()) };
        match error {
            ValidationError::ContextLength { n_prompt, max_seq_len }
            | ValidationError::InputLength { n_tokens: n_prompt, max_seq_len } => {
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
            SubmitError::QueueFull { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).with_code("queue_full")
            }
            SubmitError::TooManyAnswers { .. } => Self::bad_request(message),
            SubmitError::Stopped => Self::unavailable(message),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_end_without_an_answer_is_told_as_what_it_is() {
        let refused = Event::Refused { param: "input", message: "`input` is wrong".into() };
        for (next, status, message) in [
            (Some(refused), StatusCode::BAD_REQUEST, "`input` is wrong"),
            (Some(Event::TimedOut(Duration::from_millis(7))), StatusCode::GATEWAY_TIMEOUT, "deadline of 7 ms"),
            (Some(Event::Failed("broken".into())), StatusCode::INTERNAL_SERVER_ERROR, "broken"),
            (Some(Event::Stopped), StatusCode::SERVICE_UNAVAILABLE, "shutting down"),
            (None, StatusCode::INTERNAL_SERVER_ERROR, "the engine has stopped"),
        ] {
            let error = ApiError::or_event(next.map(|event| (0, event))).unwrap_err();
            assert_eq!(error.status, status, "{message}");
            assert!(error.message.contains(message), "{}", error.message);
        }
        let event = ApiError::or_event(Some((3, Event::Embedding(vec![1.0])))).unwrap();
        assert!(matches!(event, (3, Event::Embedding(vector)) if vector == [1.0]));
    }
}
