//! The machine's resources, and the process's behaviour on it.

pub mod device;
pub mod memory;
pub mod panics;
pub mod signals;
