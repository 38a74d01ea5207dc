//! From text to batches.
//!
//! - [`corpus`]: reads text and converts it to token ids, with training and validation splits
//! - [`tokenizer_build`]: trains tokenizers: characters or byte-level BPE
//! - [`prepare`]: converts documents to a prepared data set; [`shard`]: prepared data, memory-mapped token shards
//! - [`examples`]: conversations, prompts with completions and texts as examples for fine-tuning; preference pairs; packing
//! - [`continuation`]: a prompt and its continuation, as token ids
//! - [`loader`]: batches of token ids, each a pure function of seed and step

pub mod continuation;
pub mod corpus;
pub mod examples;
pub mod loader;
pub mod prepare;
pub mod shard;
pub mod tokenizer_build;
