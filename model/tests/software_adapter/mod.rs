//! The GPU that every machine can have, for tests of what runs on one.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a skipped test says so")]

use std::sync::OnceLock;

use burn::tensor::Device;
use hearth_model::device::{DeviceChoice, choose};

/// The software adapter, if it is to be tested.
pub(crate) fn gpu() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        if std::env::var_os("HEARTH_TEST_WGPU").is_none() {
            println!("skipped: set HEARTH_TEST_WGPU=1 to run on the software wgpu adapter");
            return None;
        }
        Some(choose(DeviceChoice::WgpuSoftware).unwrap().device)
    });
    device.clone()
}
