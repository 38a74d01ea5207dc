//! What the machine has, and how the process behaves on it.

pub mod device;
pub mod memory;
pub mod panics;
pub mod signals;
