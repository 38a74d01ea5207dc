//! A span, and its OTLP JSON: 64-bit numbers as strings, ids in hexadecimal.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hearth_model::files::decimal;
use serde_json::{Value, json};

use super::trace_context::TraceContext;

/// One request.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace, and the span's parent.
    pub context: TraceContext,
    /// The operation; few distinct values.
    pub name: String,
    /// Start time.
    pub start: SystemTime,
    /// Duration.
    pub duration: Duration,
    /// Attributes.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// The error message, if the request failed.
    pub failure: Option<String>,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// A whole number.
    Integer(i64),
    /// A number; times are in seconds.
    Number(f64),
    /// Yes or no.
    Flag(bool),
}

/// `SPAN_KIND_SERVER`: the server side of a call.
const KIND_SERVER: u32 = 2;

/// `STATUS_CODE_ERROR`. Otherwise the status is unset, as OpenTelemetry recommends for servers.
const STATUS_ERROR: u32 = 2;

/// Bits of a span's `flags` besides the trace's: the location of the parent is known, and it is remote.
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

/// The body of an export request: spans of one service.
pub(crate) fn document(spans: &[Span], resource: &[(String, String)]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let attribute = |(key, value): &(String, String)| pair(key, &Attribute::Text(value.clone()));
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource.iter().map(attribute).collect::<Vec<_>>() },
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
        Self::Number(decimal::to_f64(number))
    }
}

impl From<Duration> for Attribute {
    fn from(time: Duration) -> Self {
        Self::Number(time.as_secs_f64())
    }
}
