//! Decoder-only language models: tensors and tokens.
//!
//! Shared by training and serving: the architecture ([`gpt`]), weight files ([`weights`]), operations ([`ops`]), the
//! paged KV cache ([`kv_cache`]), tokenizers, chat templates, sampling and a simple generation loop. Does not depend on
//! tokio, axum or clap, and prints nothing.
//!
//! # Layout
//! - [`config`]: [`GptConfig`](config::GptConfig), the one architecture struct
//! - [`gpt`]: the model; [`attention`]: attention layers; [`position`]: position encodings
//! - [`ops`]: operations with fast implementations, one file per operation
//! - [`recompute`]: training passes that keep only the input of each block
//! - [`kv_cache`]: pages of keys and values; [`model_runner`]: a model and its pages, step by step
//! - [`lora`]: low-rank adapters; [`adapted`]: models with one
//! - [`weights`]: model dirs, adapters and GGUF files, and checkpoints of other training programs
//! - [`tokenizer`], [`chat`], [`infill`]: text to ids and back
//! - [`constraint`]: grammars for structured output
//! - [`hub`]: models and data sets of the Hugging Face hub, by name; [`model_source`]: a model by path or by name
//! - [`sampling`]: from logits to tokens
//! - [`target_logprobs`]: log-probabilities of given tokens; [`pooling`]: hidden states to embeddings
//! - [`device`]: which device to run on; [`memory`]: how much memory there is; [`byte_size`]: sizes for people;
//!   [`digest`]: SHA-256; [`decimal`]: decimal numbers in f32

// As tests outside this crate name it, for a file that both share.
#[cfg(test)]
extern crate self as hearth_model;

pub mod adapted;
pub mod attention;
pub mod byte_size;
pub mod chat;
pub mod config;
pub mod constraint;
pub mod decimal;
pub mod device;
pub mod digest;
pub mod error;
mod forward_pass;
pub mod gpt;
pub mod hub;
pub mod infill;
pub mod inspect;
pub mod kv_cache;
mod layers;
pub mod lora;
pub mod memory;
pub mod mmap;
pub mod model_runner;
pub mod model_source;
pub mod open_files;
pub mod ops;
pub mod panics;
mod param_specs;
mod params;
pub mod partial_file;
mod philox;
pub mod pooling;
pub mod position;
mod python_json;
pub mod read_logits;
pub mod recompute;
pub mod regular_file;
pub mod sampling;
pub mod signals;
mod state_size;
pub mod subcommands;
pub mod target_logprobs;
#[cfg(test)]
#[path = "../tests/test_gpu.rs"]
mod test_gpu;
pub mod token_ids;
pub mod tokenizer;
pub mod weights;

pub use error::{Error, Result};

/// The id of a token.
pub type TokenId = u32;
