//! A training run.
//!
//! - [`trainer`]: the training loop; [`spike_guard`]: skips bad steps
//! - [`learner`]: gradients and updates; [`tree_sum`]: sums of gradients in a fixed order
//! - [`sharding`]: which rank adds up and updates which parameter; [`replicas`]: models that train apart and meet
//! - [`optim`]: gradients by parameter path, global-norm clipping, AdamW, Muon
//! - [`schedule`]: learning rate, momentum and decay as pure functions of the step
//! - [`adapter`]: training a LoRA adapter
//! - [`run_dir`]: the folder of a run; [`checkpoint`]: saves and restores a run
//! - [`progress`]: progress output and metrics files; [`svg_plot`]: line plots
//! - [`utilization`]: which share of the device's arithmetic a run uses

pub mod adapter;
pub mod checkpoint;
mod init;
pub mod learner;
pub mod optim;
pub mod progress;
pub mod replicas;
pub mod run_dir;
pub mod schedule;
pub mod sharding;
pub mod spike_guard;
pub mod svg_plot;
pub mod trainer;
pub mod tree_sum;
pub mod utilization;
