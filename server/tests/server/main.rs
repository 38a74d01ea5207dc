//! The server from outside: HTTP requests and engine submissions against a tiny model with random weights.
//!
//! One test binary, because each one links all of Burn.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod adapter_files;
mod adapters;
mod api;
mod beams;
mod bound_calls;
mod cache_changes;
mod chat;
mod cli;
mod connections;
mod conversations;
mod decisions;
mod embeddings;
mod engine;
mod every_kind;
mod fairness;
mod gpu;
mod infill;
mod inspect;
mod layer_kinds;
mod limits;
mod live_server;
mod memory;
mod messages;
mod metrics;
mod openapi;
mod origins;
mod other_models;
mod parameter_combinations;
mod parameters;
#[path = "../../../model/tests/plain_generation.rs"]
mod plain_generation;
mod position_models;
mod prediction_head;
mod prefix_sharing;
mod responses;
mod sampling_parameters;
mod seq2seq;
mod settings;
mod slow_grammars;
mod soak;
mod speculation;
#[path = "../../../model/tests/stand_in_hub.rs"]
#[expect(dead_code, reason = "the model's tests use the rest")]
mod stand_in_hub;
mod stream_equivalence;
mod streaming;
mod structured;
mod support;
#[path = "../../../model/tests/test_gpu.rs"]
mod test_gpu;
mod thinking;
mod tokens;
mod tools;
mod traces;
mod vectors;
mod written_calls;
