//! The costs of a run on this machine.
//!
//! - [`estimate`]: memory and arithmetic of a run; [`memory_fit`]: checks the memory and finds the largest micro-batch
//! - [`data_defaults`]: settings that follow the data
//! - [`mod@bench`]: the speed of training, part by part; [`device_watch`]: peak memory of a run on a GPU

pub mod bench;
pub mod data_defaults;
pub mod device_watch;
pub mod estimate;
pub mod memory_fit;
