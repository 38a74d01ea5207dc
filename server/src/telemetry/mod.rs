//! Exports one span per request to [OTLP](https://opentelemetry.io/docs/specs/otlp/) collectors over HTTP with JSON:
//! parameters, times and the reason for the end, never the text. Independent of the HTTP API and the model.
//!
//! Written by hand, because OpenTelemetry's crates would add another async runtime, protobuf and twenty more crates for
//! one fixed document.
//!
//! # Layout
//! - [`trace_context`]: the caller's trace, from the headers `traceparent` and `tracestate`
//! - [`span`]: a span, and its JSON
//! - [`sampler`]: which requests are exported
//! - [`exporter`]: a queue, and a thread that posts its spans

pub mod exporter;
pub mod sampler;
pub mod span;
pub mod trace_context;
