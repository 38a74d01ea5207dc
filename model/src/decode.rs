//! Decoding: a model and its pages, step by step, and how logits become tokens.

pub mod constraint;
pub mod infill;
pub mod inspect;
pub mod model_runner;
pub mod read_logits;
pub mod sampling;
pub(crate) mod state_size;
pub mod target_logprobs;
