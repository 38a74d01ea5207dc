//! Runs for every request: assigns an id, logs the request, and checks origin, host and, if keys are set, the API key.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hearth_engine::tenant::TenantId;

use super::{
    endpoints::messages,
    error::ApiError,
    guard::{
        body_guard::drop_with_body,
        options::ApiOptions,
        origin::{CorsOrigins, Host, Malformed, Origin, Target},
    },
    wire::{
        endpoint::Policy,
        request_log::{RequestLog, Trace},
        state::AppState,
    },
};
use crate::{random::fresh_id, telemetry::trace_context::TraceContext};

/// Identifies a request in logs on both sides; OpenAI's libraries show it with errors.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The request id header of Anthropic's libraries.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The header in which Anthropic's clients send their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Maximum length of an id given by a client.
const MAX_ID_BYTES: usize = 128;

/// Maximum number of characters of a rejected header that are repeated to the client.
const MAX_SHOWN_CHARS: usize = 100;

/// The request header by which a browser asks whether a page of a public network may use a server of a private one
/// (Private Network Access).
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");

/// The response header that allows it.
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The policy of the endpoint that a request is for.
fn policy(request: &Request) -> Policy {
    request.extensions().get().copied().unwrap_or_default()
}

/// Sets the response's `x-request-id` to the client's or a new one, and logs the request when it ends, as part of the
/// caller's trace if it has one.
pub(crate) async fn identify(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    // Ids that could forge log lines or cannot be printed are replaced.
    let is_fit =
        |id: &&HeaderValue| (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    let given = request.headers().get(&X_REQUEST_ID).filter(is_fit).and_then(|id| id.to_str().ok());
    let id = given.map_or_else(|| fresh_id("req-"), str::to_owned);
    let spans = state.options().spans.clone();
    let mut context =
        TraceContext::below_caller(request.headers()).or_else(|| spans.is_some().then(TraceContext::root));
    if let (Some(context), Some(spans)) = (&mut context, &spans) {
        context.is_sampled = spans.sampler().samples(context);
    }
    let trace = context.map(|context| Trace { context, spans });
    let log = RequestLog::new(&id, &request, trace);
    let is_anthropic = messages::is_asked(&request);
    request.extensions_mut().insert(log.clone());
    // Logged once the response has been sent completely or the client has disconnected.
    let ending = log.ending();
    let mut response = next.run(request).await;
    log.answered(response.status());
    if let Ok(id) = HeaderValue::from_str(&id) {
        if is_anthropic {
            response.headers_mut().insert(REQUEST_ID, id.clone());
        }
        response.headers_mut().insert(X_REQUEST_ID, id);
    }
    response.map(|body| drop_with_body(body, ending))
}

/// Rejects requests without a valid API key, if keys are set.
pub(crate) async fn authorize(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let keys = &state.options().keys;
    if keys.is_open() || !policy(&request).needs_key() {
        return next.run(request).await;
    }
    let has_key = keys_of(request.headers()).next().is_some();
    let valid = keys_of(request.headers()).find(|key| keys.contain(key));
    let known = valid.map(|key| (TenantId::of_key(key), state.options().salt_of_key(key)));
    match known {
        Some((tenant, salt)) => {
            request.extensions_mut().insert(tenant);
            if let Some(salt) = salt {
                request.extensions_mut().insert(salt);
            }
            next.run(request).await
        }
        None if has_key => ApiError::unauthorized("Incorrect API key provided.").into_response(),
        None => {
            let message =
                "an API key is required\nhint: send the header `authorization: Bearer KEY`, or `x-api-key: KEY`";
            ApiError::unauthorized(message).into_response()
        }
    }
}

/// The keys of a request. Some clients send two headers, one of them with another service's key.
fn keys_of(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let own = headers.get(&X_API_KEY).map(|value| value.as_bytes().trim_ascii());
    headers.get(header::AUTHORIZATION).and_then(bearer).into_iter().chain(own)
}

/// The key of an `authorization` header.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Rejects requests that browsers send for other origins' pages, and tells browsers which pages may use the API (CORS).
pub(crate) async fn check_origin(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let options = state.options();
    let permitted = options.cors.permit(request.headers().get(header::ORIGIN));
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match check_headers(&request, options) {
        Err(refusal) => refusal.into_response(),
        Ok(()) if is_preflight && permitted.is_some() => {
            (StatusCode::NO_CONTENT, permission(request.headers())).into_response()
        }
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    if options.cors != CorsOrigins::Any {
        // Caches must not return one origin's response to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(permitted) = permitted {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, permitted);
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, request-id, retry-after, x-should-retry, x-ignored-params"),
        );
    }
    response
}

/// Rejects disallowed headers with 403. Not with 421, which is for misdirected requests: browsers repeat the request
/// after a 421.
fn check_headers(request: &Request, options: &ApiOptions) -> Result<(), ApiError> {
    if policy(request) == Policy::Probe {
        return Ok(());
    }
    let Some(host) = only(request.headers(), &header::HOST)? else {
        return Err(ApiError::bad_request("the request must have the header `Host`, got none"));
    };
    // HTTP/1.1: if the request line has the full URL, its host counts, not the header.
    let target = match request.uri().authority() {
        Some(authority) => Target::try_from(authority).map_err(|Malformed| cut(authority.as_str().as_bytes())),
        None => host.to_str().ok().and_then(|host| host.parse().ok()).ok_or_else(|| cut(host.as_bytes())),
    };
    let target = target.map_err(|given| {
        ApiError::bad_request(format!(
            "`Host` must be a host name or an IP address, with or without a port, got `{given}`"
        ))
    })?;
    if !options.hosts.contain(&target.host) {
        let given = match &target.host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => name.clone(),
        };
        let given = cut(given.as_bytes());
        let message = format!(
            "`Host` must be {}, got `{given}`\nhint: to serve under this host, start the server with `--allowed-host {given}`",
            options.hosts.describe()
        );
        return Err(ApiError::forbidden("host_not_allowed", message));
    }
    let Some(origin) = only(request.headers(), &header::ORIGIN)? else { return Ok(()) };
    let is_own = || {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Origin>().ok());
        origin.is_some_and(|origin| origin.is_of(&target, &options.scheme))
    };
    if options.cors.contain(origin) || is_own() {
        return Ok(());
    }
    let given = cut(origin.as_bytes());
    let message = format!(
        "`Origin` must be the server's own or one that `--cors-origin` names, got `{given}`\n\
         hint: to let pages of this origin use the API, start the server with `--cors-origin {given}`; if they are the \
         server's own, the proxy in between must pass on `Host` as the browser sends it"
    );
    Err(ApiError::forbidden("origin_not_allowed", message))
}

/// The header's value; an error if it occurs several times.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.count()) {
        (value, 0) => Ok(value),
        (_, others) => Err(ApiError::bad_request(format!(
            "the request must have the header `{name}` at most once, got it {} times",
            others + 1
        ))),
    }
}

/// A header's value for error messages, truncated.
fn cut(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(MAX_SHOWN_CHARS).collect()
}

/// The CORS response headers for a preflight request.
fn permission(asked: &HeaderMap) -> HeaderMap {
    // `*` does not cover `authorization`, so the requested headers are listed.
    let headers = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut permission = HeaderMap::from_iter([
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS")),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, headers.unwrap_or(HeaderValue::from_static("*"))),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400")),
        (header::VARY, HeaderValue::from_static("access-control-request-headers")),
    ]);
    if asked.get(REQUEST_PRIVATE_NETWORK).is_some_and(|asked| asked == "true") {
        permission.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    permission
}
