//! Trains the language models that Hearth serves: a text goes in, a model dir comes out that `hearth serve` and
//! `transformers` both open.
//!
//! # Layout
//! - [`config`]: every setting of a run with its default, and the presets
//! - [`corpus`]: a file of text becomes a training and a validation split, and those become token ids
//! - [`tokenizer_build`]: the tokenizer made from a text, character level or byte-level BPE
//! - [`loader`]: token ids become batches, each a pure function of the seed and the step
//! - [`schedule`]: the learning rate as a pure function of the step
//! - [`optim`]: gradients by parameter path, global-norm clipping, AdamW
//! - [`trainer`]: the loop, top to bottom
//! - [`eval`]: the loss over a whole split
//! - [`metrics`]: what a run says about itself, to people and to `metrics.jsonl`
//! - [`checkpoint`]: what a run leaves in its folder, and whose folder it may write to

pub mod checkpoint;
pub mod config;
pub mod corpus;
pub mod eval;
pub mod loader;
pub mod metrics;
pub mod optim;
pub mod schedule;
pub mod tokenizer_build;
pub mod trainer;
