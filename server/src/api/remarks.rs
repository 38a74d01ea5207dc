//! What a client is told of the fields that nobody has read: their names, in a header of the answer.

use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};

use super::fields::Fields;

/// Tells a client which of its fields nobody has read.
const X_IGNORED_PARAMS: HeaderName = HeaderName::from_static("x-ignored-params");

/// Longest list of ignored fields that is told.
const MAX_IGNORED_BYTES: usize = 512;

/// Fields that do nothing here and need no remark: they do not change the text at OpenAI either.
pub(crate) const WITHOUT_EFFECT: [&str; 7] =
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id"];

/// Tells in the headers of a response which fields were not read.
pub(crate) fn told(ignored: Option<HeaderValue>, mut response: Response) -> Response {
    if let Some(names) = ignored {
        response.headers_mut().insert(X_IGNORED_PARAMS, names);
    }
    response
}

/// The paths of what was not read, for a header.
pub(crate) fn ignored(fields: &Fields) -> Option<HeaderValue> {
    header(fields.all_unread())
}

/// Names for a header: what is not plain in one is percent-encoded.
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
