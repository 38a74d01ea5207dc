//! The server from outside: HTTP requests and engine submissions against a tiny model with random weights.
//!
//! One test binary, because each one links all of Burn.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod adapter_files;
mod adapters;
mod api;
mod beams;
mod chat;
mod cli;
mod combinations;
mod edges;
mod embeddings;
mod engine;
mod equivalence;
mod gpu;
mod infill;
mod inspect;
mod limits;
mod live;
mod memory;
mod metrics;
mod openapi;
mod origins;
mod parameters;
mod real;
mod settings;
mod sharing;
mod slow_grammars;
mod soak;
mod speculation;
#[path = "../../../model/tests/stand_in_hub.rs"]
#[expect(dead_code, reason = "the model's tests use the rest")]
mod stand_in_hub;
mod strategies;
mod streaming;
mod structured;
mod support;
#[path = "../../../model/tests/test_gpu.rs"]
mod test_gpu;
mod tokens;
mod tools;
mod traces;
