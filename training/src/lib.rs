//! Trains language models on text. `hearth serve` and `transformers` open the resulting model dir.
//!
//! # Layout
//! - [`config`]: every setting of a run with its default, and the presets
//! - [`data`]: from text to batches
//! - [`objective`]: training objectives: rows, loss and score of each
//! - [`run`]: a training run: the loop, gradients and updates, schedules, checkpoints, progress
//! - [`plan`]: the costs of a run on this machine: memory, time, settings that follow the data
//! - [`eval`]: measures models: the loss, multiple choice, translation, classification
//! - [`ranks`]: the processes of a run
//! - [`cli`]: code shared by the command line programs
//! - [`interrupt`]: signals; [`output_files`]: files and folders that are complete or absent

pub mod cli;
pub mod config;
pub mod data;
pub mod eval;
pub mod interrupt;
pub mod objective;
pub mod output_files;
pub mod plan;
pub mod ranks;
pub mod run;
