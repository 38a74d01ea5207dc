//! The bodies of requests: JSON objects, limited in size and in the time that they may take to arrive, so that stalled
//! uploads do not take the memory of others.

use std::time::{Duration, Instant};

use axum::{
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use serde_json::{Map, Value};
use tokio::time::timeout_at;
use tokio_stream::StreamExt;

use super::{
    endpoint::Policy,
    fields::{Fields, repeated, shown},
    request_log::RequestLog,
    state::AppState,
};
use crate::api::{
    error::ApiError,
    guard::{
        api_keys::Sender,
        body_memory::BodyReservation,
        bounded_json::{self, BadJson, MAX_DEPTH},
        options::ApiOptions,
        preparation::{AdmissionWait, WorkClass},
    },
};

/// A client must send its body at this rate in bytes per second, or faster.
const MIN_BYTES_PER_SEC: u64 = 1 << 10;

/// The body of a request. Its bytes and its parsed values count towards the memory limit for the bodies of all requests
/// ([`BodyReservation`]) until this is dropped.
#[derive(Debug)]
pub(crate) struct Body {
    /// Empty once it is parsed.
    bytes: Vec<u8>,
    room: BodyReservation,
    max_bytes: usize,
    log: RequestLog,
    sender: Sender,
    /// Whether the request will be submitted to the engine.
    submits: bool,
}

impl FromRequest<AppState> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let options = state.options();
        let log: RequestLog = request.extensions().get().cloned().unwrap_or_default();
        let tenant = request.extensions().get().copied().unwrap_or_default();
        let sender = Sender { tenant, salt: request.extensions().get().copied() };
        let submits = matches!(request.extensions().get(), Some(Policy::Inference(_)));
        state.require_open(log.arrived())?;
        require_json(request.headers())?;
        if let Some(given) = request.headers().get(header::CONTENT_ENCODING).filter(|given| *given != "identity") {
            let given = String::from_utf8_lossy(given.as_bytes());
            let message = format!("the body must not be compressed, got the content encoding `{given}`");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message));
        }
        // Rejected before the body is sent, if the client sends its length.
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|given| given.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: u64| length > options.max_body_bytes as u64) {
            return Err(too_large(options));
        }
        if submits && let Err(full) = state.require_room(tenant) {
            // Received without storing it, so that the connection can be kept. A client that waits for permission to
            // send (`Expect`) gets the answer instead.
            if !request.headers().contains_key(header::EXPECT) {
                let _ = receive(request, state, |_| Ok(())).await;
            }
            return Err(full);
        }
        let (mut bytes, mut room) = (Vec::new(), state.body_memory());
        receive(request, state, |piece| {
            room.grow(piece.len())?;
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .await?;
        Ok(Self { bytes, room, max_bytes: options.max_body_bytes, log, sender, submits })
    }
}

impl Body {
    /// When the request's head arrived. A server that began to drain later still answers the request.
    pub(crate) fn arrived(&self) -> Instant {
        self.log.arrived()
    }

    /// How a request that is not submitted to the engine waits for its turn to be prepared.
    pub(crate) fn turn_wait(&self) -> AdmissionWait {
        AdmissionWait { tenant: self.sender.tenant, ..AdmissionWait::default() }
    }

    /// Parses the body, once, and reads its fields. Long bodies are parsed on a blocking thread.
    ///
    /// # Errors
    /// 400 if the body is not a JSON object or has too many values, 429 if too many long bodies wait to be parsed or
    /// there is no room for its values, or an error of `read`.
    pub(crate) async fn read<Read, T>(&mut self, state: &AppState, read: Read) -> Result<T, ApiError>
    where
        Read: FnOnce(Fields) -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        // The deadline is a field of the body, so it is not known yet.
        let wait = AdmissionWait { submits: self.submits, ..self.turn_wait() };
        let (bytes, max_bytes) = (std::mem::take(&mut self.bytes), self.max_bytes);
        let (n_bytes, log, sender) = (bytes.len(), self.log.clone(), self.sender);
        let mut room = std::mem::replace(&mut self.room, state.body_memory());
        let work = move || {
            let (entries, n_value_bytes) = parse(&bytes, max_bytes)?;
            drop(bytes);
            room.grow(n_value_bytes)?;
            Ok((read(Fields::of_body(entries, log, n_bytes, sender))?, room))
        };
        let (read, room) = state.prepare_long(WorkClass::of_body(n_bytes), wait, work).await?;
        self.room = room;
        Ok(read)
    }
}

/// Receives a body within the limits, and passes it to `take` piece by piece.
///
/// # Errors
/// 408 if it is too slow, 413 if it is too long, 400 if it fails, 503 if the server stops receiving bodies, and errors of
/// `take`.
async fn receive(
    request: Request,
    state: &AppState,
    mut take: impl FnMut(&[u8]) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let options = state.options();
    let mut pieces = request.into_body().into_data_stream();
    let mut n_left = options.max_body_bytes;
    let mut pace = Pace::new(options, Instant::now());
    loop {
        let next = tokio::select! {
            next = timeout_at(pace.due.into(), pieces.next()) => next.map_err(|_| pace.too_slow(options))?,
            () = state.receiving_ended() => return Err(ApiError::shutting_down()),
        };
        let Some(piece) = next else { return Ok(()) };
        let piece = piece.map_err(|error| ApiError::bad_request(format!("the body cannot be received: {error}")))?;
        n_left = n_left.checked_sub(piece.len()).ok_or_else(|| too_large(options))?;
        take(&piece)?;
        pace.received(piece.len(), Instant::now());
    }
}

/// How fast a body arrives: as a whole within [`body_timeout`](ApiOptions::body_timeout), and, but for pauses of up to
/// [`body_pause`](ApiOptions::body_pause), at [`MIN_BYTES_PER_SEC`].
struct Pace {
    /// When the next piece must have arrived.
    due: Instant,
    /// When the whole body must have arrived. `None` if it is further away than the clock can express.
    end: Option<Instant>,
    pause: Duration,
}

impl Pace {
    fn new(options: &ApiOptions, begun: Instant) -> Self {
        let mut pace = Self { due: begun, end: begun.checked_add(options.body_timeout), pause: options.body_pause };
        pace.allow(None, begun);
        pace
    }

    /// Records that a piece arrived; it extends the client's time by the time allowed for as many bytes.
    fn received(&mut self, n_bytes: usize, now: Instant) {
        let earned = Duration::from_secs_f64(n_bytes as f64 / MIN_BYTES_PER_SEC as f64);
        self.allow(self.due.checked_add(earned), now);
    }

    /// Sets when the next piece is due: at `due`, or earlier where a limit requires it.
    fn allow(&mut self, due: Option<Instant>, now: Instant) {
        let limits = [due, now.checked_add(self.pause), self.end];
        self.due = limits.into_iter().flatten().min().unwrap_or(self.due);
    }

    /// The error once the next piece is overdue.
    fn too_slow(&self, options: &ApiOptions) -> ApiError {
        let message = if self.end == Some(self.due) {
            format!("the body must arrive within {} s", options.body_timeout.as_secs_f64())
        } else {
            let pause = self.pause.as_secs_f64();
            format!(
                "the body must arrive without pauses of {pause} s, and at {MIN_BYTES_PER_SEC} bytes per second or faster"
            )
        };
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
    }
}

fn too_large(options: &ApiOptions) -> ApiError {
    let message = format!("the body must be at most {} bytes", options.max_body_bytes);
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
}

/// The members of a body, and the memory that they take in bytes, without token ids.
fn parse(bytes: &[u8], max_bytes: usize) -> Result<(Map<String, Value>, usize), ApiError> {
    match bounded_json::parse(bytes, max_bytes) {
        Ok((Value::Object(entries), n_bytes)) => Ok((entries, n_bytes)),
        Ok((other, _)) => Err(ApiError::bad_request(format!("the body must be a JSON object, got {}", shown(&other)))),
        Err(BadJson::Malformed(error)) => {
            let error = bounded_json::problem(&error);
            Err(ApiError::bad_request(format!("the body must be a JSON object: {error}")))
        }
        Err(BadJson::Repeated(path)) => Err(repeated(path)),
        Err(BadJson::TooDeep(depth)) => Err(ApiError::bad_request(format!(
            "the body must nest lists and objects at most {MAX_DEPTH} deep, got {depth}\nhint: send data that are nested \
             deeper as text"
        ))),
        Err(BadJson::TooManyValues(most)) => Err(ApiError::bad_request(format!(
            "the body has too many values: its {} bytes would take more than {most} in memory\n\
             hint: send fewer, or raise `--max-body-bytes`, with which the limit grows",
            bytes.len()
        ))),
    }
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
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::convert::Infallible;

    use axum::response::IntoResponse;

    use super::*;
    use crate::api::guard::{body_memory::MAX_BODIES_BYTES, preparation::LONG_BODY_BYTES};

    fn parse(bytes: impl AsRef<[u8]>) -> Result<(Map<String, Value>, usize), ApiError> {
        super::parse(bytes.as_ref(), 1 << 20)
    }

    #[tokio::test]
    async fn body_memory_is_held_until_drop_and_exhaustion_is_429() {
        let state = AppState::loading("x");
        let received = async || {
            let request = Request::post("/tokenize").header(header::CONTENT_TYPE, "application/json");
            let request = request.body(format!("{{\"x\": [{}0]}}", "0,".repeat(9999)).into()).unwrap();
            Body::from_request(request, &state).await
        };
        let mut body = received().await.unwrap();
        assert!(body.read(&state, |fields| Ok(fields.has("x"))).await.unwrap());
        let taking = |n_bytes| {
            let mut room = state.body_memory();
            room.grow(n_bytes).map(|()| room)
        };
        assert!(taking(MAX_BODIES_BYTES).is_err());
        drop(body);
        let all = [taking(MAX_BODIES_BYTES), taking(LONG_BODY_BYTES)];
        let all = all.map(|room| room.unwrap());
        let more: Vec<_> = std::iter::from_fn(|| taking(LONG_BODY_BYTES).ok()).collect();
        let refused = received().await.unwrap_err();
        assert!(refused.message().contains("536870912 bytes"), "{}", refused.message());
        assert_eq!(refused.into_response().status(), StatusCode::TOO_MANY_REQUESTS);
        drop((all, more));
        // There is memory for the bytes of the body, but not for its values, with which it exceeds `LONG_BODY_BYTES`.
        let _others = taking(MAX_BODIES_BYTES - 100_000).unwrap();
        let refused = received().await.unwrap().read(&state, |_| Ok(())).await.unwrap_err();
        assert_eq!(refused.into_response().status(), StatusCode::TOO_MANY_REQUESTS);
    }

    #[tokio::test]
    async fn stalled_body_is_rejected_with_408_and_frees_its_memory() {
        let options = ApiOptions { body_pause: Duration::from_millis(20), ..ApiOptions::default() };
        let state = AppState::loading_with("x", options);
        let begun = tokio_stream::iter([Ok::<_, Infallible>("{\"prompt\": ")]);
        let request = Request::post("/tokenize").header(header::CONTENT_TYPE, "application/json");
        let request = request.body(axum::body::Body::from_stream(begun.chain(tokio_stream::pending()))).unwrap();
        let refused = Body::from_request(request, &state).await.unwrap_err();
        assert!(refused.message().contains("without pauses of 0.02 s"), "{}", refused.message());
        assert_eq!(refused.into_response().status(), StatusCode::REQUEST_TIMEOUT);
        // All memory is free: a byte still taken for short bodies would leave less for long ones.
        state.body_memory().grow(MAX_BODIES_BYTES).unwrap();
    }

    #[test]
    fn body_deadline_is_extended_only_at_the_minimum_byte_rate() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let (body_timeout, body_pause) = (Duration::from_secs(60), Duration::from_secs(10));
        let options = ApiOptions { body_timeout, body_pause, ..ApiOptions::default() };
        let mut slow = Pace::new(&options, begun);
        assert_eq!(slow.due, after(10));
        for second in 1..60 {
            slow.received(MIN_BYTES_PER_SEC as usize, after(second));
            assert_eq!(slow.due, after((10 + second).min(60)), "{second}");
        }
        let mut trickling = Pace::new(&options, begun);
        for second in 1..10 {
            trickling.received(1, after(second));
        }
        assert!(trickling.due < after(11));
        // A fast start does not allow a long pause.
        let mut stalled = Pace::new(&options, begun);
        stalled.received(1 << 20, after(1));
        assert_eq!(stalled.due, after(11));
        let unlimited = ApiOptions { body_timeout: Duration::MAX, ..options };
        assert_eq!(Pace::new(&unlimited, begun).due, after(10));
    }

    #[test]
    fn duplicate_body_keys_are_rejected_with_their_path() {
        for (text, name) in [
            (r#"{"model": "a", "model": "b"}"#, "model"),
            (r#"{"messages": [{"role": "user", "content": "x", "role": "system"}]}"#, "messages[0].role"),
            (r#"{"a": 1, "\u0061": 1}"#, "a"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.message(), format!("`{name}` must be given only once, got it twice"));
            assert_eq!(error.envelope()["error"]["param"], name);
        }
        let long = "x".repeat(1000);
        assert!(parse(format!("{{\"{long}\": 1, \"{long}\": 1}}")).unwrap_err().message().len() < 200);
    }

    #[test]
    fn body_that_is_not_a_json_object_is_rejected() {
        let deep = parse(format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200))).unwrap_err();
        assert!(deep.message().starts_with("the body must nest lists and objects at most 127 deep, got 201\nhint: "));
        for body in ["", "[]", "3", "{", "{\"a\": \u{1}}", &"[".repeat(100_000)] {
            assert!(parse(body).is_err(), "{body:.20}");
        }
        assert!(parse(&b"{\"a\": \"\xff\"}"[..]).is_err());
    }

    #[test]
    fn lone_surrogate_escape_is_rejected_with_an_explanation() {
        for text in [r"cut \ud83d", r"\ud83d and", r"\ud83d\u0041", r"\ude00"] {
            let error = parse(format!("{{\"a\": \"{text}\"}}")).err();
            assert!(error.is_some_and(|error| error.message().contains("half of a surrogate pair")), "{text}");
        }
    }
}
