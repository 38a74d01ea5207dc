//! What the server counts, and how [Prometheus](https://prometheus.io/docs/instrumenting/exposition_formats/) reads it.
//!
//! The names, labels and buckets are vLLM's, because routers, autoscalers and dashboards read those. The modules that
//! count depend on this one, and it on none of them.
//!
//! # Layout
//! - `engine`: what the engine counts; `http`: requests by route, method and status
//! - `timeline`: when things happened to a request

mod engine;
mod http;
mod timeline;

use prometheus::{Registry, core::Collector};

pub use self::{
    engine::{EngineMetrics, Outcome, Snapshot, Totals},
    http::HttpMetrics,
    timeline::{Spans, Timeline},
};

/// The content type of the text that `render` gives: version 0.0.4 of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Adds a metric family to the registry.
#[expect(
    clippy::expect_used,
    reason = "names, labels and buckets are constants, and every test that counts makes them all"
)]
fn registered<Family: Collector + Clone + 'static>(registry: &Registry, family: prometheus::Result<Family>) -> Family {
    let family = family.expect("a metric has a valid name, valid labels and increasing buckets");
    registry.register(Box::new(family.clone())).expect("a metric is registered once");
    family
}
