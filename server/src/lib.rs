//! Serves language models over HTTP and in the terminal.
//!
//! The binary `hearth` is a thin shell around this library, so that tests drive the same code with their own sockets
//! and models.
//!
//! # Layout
//! - [`cli`]: the command line, one file per subcommand
//! - [`config`]: flags and `HEARTH_*` variables
//! - [`api`]: HTTP and OpenAI's wire format
//! - [`engine`]: `hearth_engine` with metrics
//! - [`metrics`]: Prometheus metrics; [`telemetry`]: OpenTelemetry traces; `kv_events`: the prefix cache's changes for routers, with
//!   the feature `kv-events`
//! - [`serve`](mod@serve): a listener, the API and graceful shutdown; [`connection`]: one client; [`tls`]: certificates
//! - [`bundled`]: the model in the binary
//!
//! Dependencies point one way: `cli -> serve -> api -> engine -> hearth_engine -> hearth_model`.

pub mod api;
pub mod bundled;
pub mod cli;
pub mod config;
pub mod connection;
pub mod engine;
#[cfg(feature = "kv-events")]
pub mod kv_events;
pub mod metrics;
mod random;
pub mod serve;
pub mod telemetry;
pub mod tls;
