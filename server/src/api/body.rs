//! The bodies of requests: JSON objects, limited in size and in the time that they may take to arrive.

use std::time::Duration;

use axum::{
    RequestExt,
    body::Bytes,
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use serde_json::Value;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::{
    bounded_json::{self, BadJson},
    endpoint::Policy,
    error::ApiError,
    fields::{Fields, shown},
    request_log::RequestLog,
    state::{AppState, Preparation, TurnWait},
};
use crate::engine::prefix_cache::PrefixSalt;

/// The body of a request, not parsed yet.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Bytes,
    max_bytes: usize,
    log: RequestLog,
    key_salt: Option<PrefixSalt>,
    /// Whether the request will be submitted to the engine.
    submits: bool,
}

impl FromRequest<AppState> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let options = state.options();
        let log = request.extensions().get().cloned().unwrap_or_default();
        let key_salt = request.extensions().get().copied();
        let submits = matches!(request.extensions().get(), Some(Policy::Inference(_)));
        require_json(request.headers())?;
        if let Some(given) = request.headers().get(header::CONTENT_ENCODING).filter(|given| *given != "identity") {
            let given = String::from_utf8_lossy(given.as_bytes());
            let message = format!("the body must not be compressed, got the content encoding `{given}`");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message));
        }
        let too_large = || format!("the body must be at most {} bytes", options.max_body_bytes);
        // Rejected before the body is sent, if the client sends its length.
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|given| given.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: u64| length > options.max_body_bytes as u64) {
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", too_large()));
        }
        if submits && let Err(full) = state.require_room() {
            discard(request, options.body_timeout).await;
            return Err(full);
        }
        let body = timeout(options.body_timeout, Bytes::from_request(request, state)).await.map_err(|_| {
            let message = format!("the body must arrive within {} s", options.body_timeout.as_secs_f64());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
        })?;
        let body = body.map_err(|rejection| {
            let message = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => too_large(),
                _ => rejection.body_text(),
            };
            ApiError::new(rejection.status(), "invalid_request_error", message)
        })?;
        Ok(Self { bytes: body, max_bytes: options.max_body_bytes, log, key_salt, submits })
    }
}

impl Body {
    /// Parses the body and reads its fields. Long bodies are parsed on a blocking thread.
    ///
    /// # Errors
    /// 400 if the body is not a JSON object or has too many values, 429 if too many long bodies wait to be parsed, and
    /// errors of `read`.
    pub(crate) async fn read<Read, T>(self, state: &AppState, read: Read) -> Result<T, ApiError>
    where
        Read: FnOnce(Fields) -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        let wait = TurnWait { submits: self.submits, deadline: None };
        state.prepare_long(Preparation::of_body(self.bytes.len()), wait, move || read(self.parse()?)).await
    }

    fn parse(self) -> Result<Fields, ApiError> {
        let Self { bytes, max_bytes, log, key_salt, submits: _ } = self;
        match bounded_json::parse(&bytes, max_bytes) {
            Ok(Value::Object(entries)) => Ok(Fields::of_body(entries, log, bytes.len(), key_salt)),
            Ok(other) => Err(ApiError::bad_request(format!("the body must be a JSON object, got {}", shown(&other)))),
            Err(BadJson::Malformed(error)) => {
                let error = error.to_string();
                // Only the text distinguishes these errors from others.
                let hint = match error.contains("hex escape") {
                    true => "\nhint: a string has half of a surrogate pair, as when text is cut within an emoji",
                    false => "",
                };
                Err(ApiError::bad_request(format!("the body must be a JSON object: {error}{hint}")))
            }
            Err(BadJson::TooManyValues(most)) => Err(ApiError::bad_request(format!(
                "the body has too many values: its {} bytes would take more than {most} in memory\n\
                 hint: send fewer, or raise `--max-body-bytes`, with which the limit grows",
                bytes.len()
            ))),
        }
    }
}

/// Receives the body of a rejected request without storing it: if the connection were closed while the client still
/// sends, the client could lose the response. Not needed if the client waits for permission to send (`Expect`).
async fn discard(request: Request, time_limit: Duration) {
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    let mut body = request.with_limited_body().into_body().into_data_stream();
    let received = async { while let Some(Ok(_)) = body.next().await {} };
    let _ = timeout(time_limit, received).await;
}

/// Rejects a body whose content type is missing or not JSON: a web page can send such bodies to any server, while
/// browsers ask the server first whether a page may send JSON (CORS preflight).
fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).map(|given| String::from_utf8_lossy(given.as_bytes()));
    let media_type = given.map(|given| given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let subtype = media_type.as_ref().and_then(|media_type| media_type.strip_prefix("application/"));
    if subtype.is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json")) {
        return Ok(());
    }
    let given = media_type.map_or_else(|| "none".to_owned(), |media_type| format!("`{media_type}`"));
    let message = format!(
        "the body's content type must be `application/json`, got {given}\n\
         hint: send the header `content-type: application/json`"
    );
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: impl Into<Bytes>) -> Result<Fields, ApiError> {
        let (bytes, log) = (bytes.into(), RequestLog::default());
        Body { bytes, max_bytes: 1 << 20, log, key_salt: None, submits: false }.parse()
    }

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        for body in ["", "[]", "3", "{", "{\"a\": \u{1}}", &"[".repeat(100_000)] {
            assert!(parse(body.to_owned()).is_err(), "{body:.20}");
        }
        assert!(parse(&b"{\"a\": \"\xff\"}"[..]).is_err());
    }

    #[test]
    fn half_of_a_surrogate_pair_is_explained() {
        for text in [r"cut \ud83d", r"\ud83d and", r"\ud83d\u0041", r"\ude00"] {
            let error = parse(format!("{{\"a\": \"{text}\"}}")).err();
            assert!(error.is_some_and(|error| error.message().contains("half of a surrogate pair")), "{text}");
        }
    }
}
