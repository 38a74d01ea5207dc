//! Reports ignored fields of a request in the response header `x-ignored-params`.

use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};

use super::fields::Fields;

/// The response header that lists ignored parameters.
const X_IGNORED_PARAMS: HeaderName = HeaderName::from_static("x-ignored-params");

/// Maximum length of the list in bytes.
const MAX_IGNORED_BYTES: usize = 512;

/// Fields that are ignored silently: they do not change the text at OpenAI either.
pub(crate) const WITHOUT_EFFECT: [&str; 7] =
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id"];

/// Adds the header to a response.
pub(crate) fn add_header(ignored: Option<HeaderValue>, mut response: Response) -> Response {
    if let Some(names) = ignored {
        response.headers_mut().insert(X_IGNORED_PARAMS, names);
    }
    response
}

/// The header for the fields that were not read.
pub(crate) fn of(fields: &Fields) -> Option<HeaderValue> {
    header(fields.all_unread())
}

/// Formats names for a header; characters other than plain ASCII are percent-encoded.
pub(crate) fn header(mut names: Vec<String>) -> Option<HeaderValue> {
    names.retain(|name| !WITHOUT_EFFECT.contains(&name.as_str()));
    names.sort_unstable();
    let names = names.into_iter().map(|name| {
        let encoded = name.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'[' | b']' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        });
        encoded.collect::<String>()
    });
    let mut list = String::new();
    for name in names {
        let separator = if list.is_empty() { "" } else { ", " };
        if list.len() + separator.len() + name.len() > MAX_IGNORED_BYTES {
            list.push_str(if list.is_empty() { "..." } else { ", ..." });
            break;
        }
        list.push_str(separator);
        list.push_str(&name);
    }
    if list.is_empty() { None } else { HeaderValue::from_str(&list).ok() }
}
