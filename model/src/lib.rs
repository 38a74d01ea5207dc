//! Decoder-only language models: tensors and tokens.
//!
//! What training and serving share lives here: the architecture ([`gpt`]), its weights as files ([`weights`]), the
//! operations it is made of ([`ops`]), the paged KV cache ([`kv_cache`]), tokenizers, chat templates, sampling and the
//! plain generation loop. No tokio, no axum, no clap, and nothing here prints.
//!
//! # Layout
//! - [`config`]: [`GptConfig`](config::GptConfig), the one architecture struct
//! - [`gpt`]: the model; [`attention`]: how rows attend; [`position`]: where they stand
//! - [`ops`]: the boundary to speed, one file per operation
//! - [`kv_cache`]: pages of keys and values; [`stepper`]: a model and its pages, step by step
//! - [`weights`]: model dirs in Hugging Face's format
//! - [`tokenizer`], [`chat`], [`infill`]: text to ids and back
//! - [`constraint`]: grammars that a text must follow
//! - [`sampling`], [`generate`](mod@generate): from logits to tokens
//! - [`device`]: which device to run on

pub mod attention;
pub mod chat;
pub mod config;
pub mod constraint;
pub mod device;
pub mod error;
pub mod generate;
pub mod gpt;
pub mod infill;
pub mod kv_cache;
mod layers;
mod mmap;
pub mod ops;
mod param_specs;
mod params;
pub mod position;
mod regular_file;
pub mod sampling;
#[cfg(all(test, feature = "gpu"))]
mod software_adapter;
pub mod stepper;
pub mod tokenizer;
pub mod weights;

pub use error::{Error, Result};

/// The number of a token in the vocabulary.
pub type TokenId = u32;
