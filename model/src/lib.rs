//! Language models: tensors and tokens.
//!
//! Shared by training and serving. Does not depend on tokio, axum or clap, and prints nothing.
//!
//! # Layout
//! - [`config`]: [`GptConfig`](config::GptConfig), the one architecture struct
//! - [`gpt`]: the model: its layers, parameters and forward pass
//! - [`ops`]: operations with fast implementations, one file per operation
//! - [`decode`]: running a model step by step: rows in, chosen tokens out; grammars, sampling
//! - [`text`]: text to ids and back: tokenizers, chat templates
//! - [`weights`]: model dirs, adapters and GGUF files, and checkpoints of other training programs
//! - [`hub`]: models and data sets of the Hugging Face hub, by name; [`model_source`]: a model by path or by name
//! - [`files`]: safe reading and writing of any file
//! - [`system`]: devices, memory, signals

// As tests outside this crate name it, for a file that both share.
#[cfg(test)]
extern crate self as hearth_model;

pub mod config;
pub mod decode;
pub mod error;
pub mod files;
pub mod gpt;
pub mod hub;
pub mod model_source;
pub mod ops;
mod philox;
pub mod subcommands;
pub mod system;
#[cfg(test)]
#[path = "../tests/test_gpu.rs"]
mod test_gpu;
pub mod text;
pub mod weights;

pub use error::{Error, Result};

/// The id of a token.
pub type TokenId = u32;
