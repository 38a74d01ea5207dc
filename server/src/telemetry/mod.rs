//! One span per request, for collectors that speak [OTLP](https://opentelemetry.io/docs/specs/otlp/) over HTTP, with JSON:
//! what a request was, where its time went and why it ended, never what it said. It knows nothing of HTTP's other side or
//! of the model: spans come in, documents go out.
//!
//! Written by hand, because OpenTelemetry's crates would bring a second runtime of threads, protobuf and twenty more
//! crates for one document of a fixed form.
//!
//! # Layout
//! - [`trace_context`]: who called, as the headers `traceparent` and `tracestate` say it
//! - [`span`]: a span, and its JSON
//! - [`exporter`]: a queue and a thread that posts what is in it

pub mod exporter;
pub mod span;
pub mod trace_context;
