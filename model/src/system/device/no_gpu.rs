//! Stands in for [`gpu`](super::gpu) in builds without the feature `gpu`.

use burn::tensor::Device;

use super::{Adapter, Chosen, DeviceChoice, absent, cpu};
use crate::error::Result;

/// None.
pub(super) fn adapters() -> Vec<Adapter> {
    Vec::new()
}

/// The CPU has none.
pub(super) fn name(_: &Device) -> Option<String> {
    None
}

/// The CPU, unless a GPU is demanded.
pub(super) fn choose(choice: DeviceChoice, _number: usize) -> Result<Chosen> {
    match choice {
        DeviceChoice::Auto => Ok(cpu("this build has no GPU support")),
        choice => Err(absent(
            choice,
            "this build has no GPU support",
            "build with the feature `gpu`, which is enabled by default",
        )),
    }
}
