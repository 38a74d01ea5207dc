//! The endpoints, a module each: wire types, handler, conversion.
//!
//! `decisions`: questions about a text, answered with probabilities; `infill`: text between two texts; `tokens`: tokenizes,
//! detokenizes, and describes the tokenizer; `responses` and `messages`: OpenAI's and Anthropic's APIs for agents; `embed_forms`: vectors in the
//! shapes of Cohere and text-embeddings-inference.

pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod decisions;
pub(crate) mod embed_forms;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod infill;
pub(crate) mod inspect;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod page;
pub(crate) mod pooling;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod tokens;
