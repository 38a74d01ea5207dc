//! A span, and the JSON that OTLP has for spans: 64-bit numbers as strings, ids in hexadecimal.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::trace_context::TraceContext;

/// One request.
#[derive(Clone, Debug)]
pub struct Span {
    /// Where it belongs.
    pub context: TraceContext,
    /// What was asked for; few requests have a name of their own.
    pub name: String,
    /// When it came.
    pub start: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// What there is to know of it.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Whether it went wrong.
    pub failure: Option<String>,
}

/// What an attribute may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// A whole number.
    Integer(i64),
    /// A number; seconds, where it is a time.
    Number(f64),
    /// Yes or no.
    Flag(bool),
}

/// `SPAN_KIND_SERVER`: it answers somebody elsewhere.
const KIND_SERVER: u32 = 2;

/// `STATUS_CODE_ERROR`. Otherwise the status is left unset, as servers do.
const STATUS_ERROR: u32 = 2;

/// Bits of a span's `flags`, above those of the trace: it is known where the parent is, and it is elsewhere.
const PARENT_IS_REMOTE: u32 = 0x300;

impl Span {
    fn to_json(&self) -> Value {
        let Self { context, name, start, duration, attributes, failure } = self;
        let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let attributes: Vec<_> = attributes.iter().map(|(key, value)| pair(key, value)).collect();
        let is_below = context.parent_id.is_some();
        let mut span = json!({
            "traceId": context.trace_id.to_string(),
            "spanId": context.span_id.to_string(),
            "flags": u32::from(context.is_sampled) | if is_below { PARENT_IS_REMOTE } else { 0 },
            "name": name,
            "kind": KIND_SERVER,
            "startTimeUnixNano": nanos(*start),
            "endTimeUnixNano": nanos(*start + *duration),
            "attributes": attributes,
            "status": failure.as_ref().map_or(json!({}), |what| json!({ "code": STATUS_ERROR, "message": what })),
        });
        if let Some(parent) = context.parent_id {
            span["parentSpanId"] = json!(parent.to_string());
        }
        if !context.state.is_empty() {
            span["traceState"] = json!(context.state);
        }
        span
    }
}

/// The body of an export: all spans of one service.
pub(crate) fn document(spans: &[Span], service_name: &str) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let text = |text: &str| Attribute::Text(text.to_owned());
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            pair("service.name", &text(service_name)),
            pair("service.version", &text(version)),
        ] },
        "scopeSpans": [{
            "scope": { "name": env!("CARGO_PKG_NAME"), "version": version },
            "spans": spans.iter().map(Span::to_json).collect::<Vec<_>>(),
        }],
    }] })
}

fn pair(key: &str, value: &Attribute) -> Value {
    json!({ "key": key, "value": value.to_json() })
}

impl Attribute {
    fn to_json(&self) -> Value {
        let text = |text: &String| json!({ "stringValue": text });
        match self {
            Self::Text(value) => text(value),
            Self::Texts(values) => json!({ "arrayValue": { "values": values.iter().map(text).collect::<Vec<_>>() } }),
            Self::Integer(value) => json!({ "intValue": value.to_string() }),
            Self::Number(value) => json!({ "doubleValue": value }),
            Self::Flag(value) => json!({ "boolValue": value }),
        }
    }
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<usize> for Attribute {
    fn from(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<f32> for Attribute {
    fn from(number: f32) -> Self {
        // As it is written: 0.7, not what 0.7 in single precision is in double.
        Self::Number(number.to_string().parse().unwrap_or_else(|_| f64::from(number)))
    }
}

impl From<Duration> for Attribute {
    fn from(time: Duration) -> Self {
        Self::Number(time.as_secs_f64())
    }
}
