//! The GPU that tests run on: the software adapter, which every machine can have, or a real one. Shared by all three crates.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a skipped test says so")]

use std::sync::OnceLock;

use burn::tensor::Device;
use hearth_model::system::device::{DeviceChoice, choose};

/// The device that `HEARTH_TEST_WGPU` names; `1` is the software adapter. None, with a line that says so, if it is not set.
pub(crate) fn gpu() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let Some(name) = std::env::var("HEARTH_TEST_WGPU").ok() else {
            println!("skipped: set HEARTH_TEST_WGPU=1 to run on the software adapter, HEARTH_TEST_WGPU=gpu on a GPU");
            return None;
        };
        let choice = if name == "1" { DeviceChoice::WgpuSoftware } else { name.parse().unwrap() };
        Some(choose(choice).unwrap().device)
    });
    device.clone()
}
