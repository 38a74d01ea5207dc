//! Metrics of the server, in [Prometheus' format](https://prometheus.io/docs/instrumenting/exposition_formats/).
//!
//! Names, labels and buckets are vLLM's, because routers, autoscalers and dashboards read those.
//!
//! # Layout
//! - `engine`: metrics of the engine; `adapters`: metrics of LoRA adapters; `http`: requests by route, method and
//!   status

mod adapters;
mod engine;
mod http;

use prometheus::{Registry, core::Collector};

pub use self::{
    adapters::AdapterSnapshot,
    engine::{EngineMetrics, Snapshot},
    http::HttpMetrics,
};

/// The content type of the text from `render`: version 0.0.4 of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Registers a metric family.
#[expect(
    clippy::expect_used,
    reason = "names, labels and buckets are constants, and every test that counts makes them all"
)]
fn registered<Family: Collector + Clone + 'static>(registry: &Registry, family: prometheus::Result<Family>) -> Family {
    let family = family.expect("a metric has a valid name, valid labels and increasing buckets");
    registry.register(Box::new(family.clone())).expect("a metric is registered once");
    family
}
