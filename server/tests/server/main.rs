//! The server from outside: HTTP requests and engine submissions against a tiny model with random weights.
//!
//! One test binary, because each one links all of Burn.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod api;
mod chat;
mod cli;
mod engine;
mod parameters;
mod beams;
mod metrics;
mod real;
mod sharing;
mod soak;
mod streaming;
mod support;
mod tokens;
