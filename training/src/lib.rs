//! Trains language models on text. `hearth serve` and `transformers` open the resulting model dir.
//!
//! # Layout
//! - [`config`]: every setting of a run with its default, and the presets
//! - [`corpus`]: reads text and converts it to token ids, with training and validation splits
//! - [`tokenizer_build`]: trains tokenizers: characters or byte-level BPE
//! - [`prepare`]: converts documents to a prepared data set
//! - [`shard`]: prepared data: memory-mapped token shards
//! - [`loader`]: batches of token ids, each a pure function of seed and step
//! - [`schedule`]: learning rate, momentum and decay as pure functions of the step
//! - [`objective`]: what a run learns: rows, loss and score of each objective
//! - [`learner`]: gradients and updates; [`combine`]: sums of gradients in a fixed order
//! - [`optim`]: gradients by parameter path, global-norm clipping, AdamW, Muon
//! - [`trainer`]: the training loop; [`guard`]: skips bad steps; [`interrupt`]: signals
//! - [`examples`]: conversations, prompts with completions and texts as examples for fine-tuning; preference pairs; packing
//! - [`eval`]: measures models: the loss, multiple choice, translation, classification
//! - [`progress`]: progress output and metrics files
//! - [`output_files`]: files and folders that are complete or absent
//! - [`run_dir`]: the folder of a run; [`checkpoint`]: saves and restores a run
//! - [`estimate`]: memory and arithmetic of a run; [`fit`]: checks the memory and finds the largest micro-batch
//! - [`device_watch`]: the most memory that a run holds on a GPU
//! - [`utilization`]: which share of the device's arithmetic a run uses; [`mod@bench`]: how fast it is, part by part

pub mod adapter;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod combine;
pub mod config;
pub mod continuation;
pub mod corpus;
pub mod data_defaults;
pub mod device_watch;
pub mod estimate;
pub mod eval;
pub mod examples;
pub mod fit;
pub mod guard;
mod init;
pub mod interrupt;
pub mod learner;
pub mod loader;
pub mod objective;
pub mod optim;
pub mod output_files;
pub mod prepare;
pub mod progress;
pub mod run_dir;
pub mod schedule;
pub mod shard;
pub mod subsequence;
pub mod svg_plot;
pub mod tokenizer_build;
pub mod trainer;
pub mod utilization;
