//! Serves language models over HTTP and in the terminal.
//!
//! The binary `hearth` is a thin shell around this library, so that tests drive the same code with their own sockets
//! and models.
//!
//! # Layout
//! - [`cli`]: the command line, one file per subcommand
//! - [`config`]: flags and `HEARTH_*` variables
//! - [`api`]: HTTP and OpenAI's wire format
//! - [`engine`]: scheduling, the inference thread, text assembly
//! - [`metrics`]: Prometheus metrics; [`telemetry`]: OpenTelemetry traces
//! - [`serve`](mod@serve): a listener, the API and graceful shutdown; [`connection`]: one client; [`tls`]: certificates
//! - [`bundled`]: the model in the binary
//! - [`tenant`]: who sends requests, and queues that they share; `work_clock`: work that makes no progress
//!
//! Dependencies point one way: `cli -> serve -> api -> engine -> hearth_model`.

pub mod api;
pub mod bundled;
pub mod cli;
mod clock;
pub mod config;
pub mod connection;
pub mod engine;
mod memory;
pub mod metrics;
mod random;
pub mod serve;
pub mod telemetry;
pub mod tenant;
#[cfg(all(test, feature = "gpu"))]
#[path = "../../model/tests/test_gpu.rs"]
mod test_gpu;
pub mod tls;
mod work_clock;
