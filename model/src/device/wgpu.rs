//! GPUs: through wgpu, or the runtimes that are optional features of the build.

use std::path::Path;

use burn::{
    backend::{CubeDevice, DispatchDevice, WgpuDeviceKind},
    tensor::{Device, DeviceKind, DeviceType, wgpu::WgpuInitError},
};

use super::{Adapter, Chosen, DeviceChoice, absent, cpu};
use crate::error::{Error, Result};

/// Kernel launches that are sent to the GPU together: decoding launches many small ones.
const TASKS_PER_SUBMIT: usize = 64;

/// The adapters that wgpu sees; opens none of them.
pub(super) fn adapters() -> Vec<Adapter> {
    Device::enumerate(DeviceType::Wgpu)
        .iter()
        .filter_map(|device| match device.as_dispatch() {
            DispatchDevice::Cube(CubeDevice::Wgpu(wgpu)) => {
                Some(Adapter { kind: format!("{:?}", wgpu.kind), software: wgpu.kind == WgpuDeviceKind::Cpu })
            }
            _ => None,
        })
        .collect()
}

/// As [`choose`](super::choose).
pub(super) fn choose(choice: DeviceChoice) -> Result<Chosen> {
    // Not without need: drivers may take their time over it, and print what they like.
    let adapters = match choice {
        DeviceChoice::Auto if !has_device_file() => return Ok(cpu("there is no GPU")),
        _ => adapters(),
    };
    let found = |software| adapters.iter().any(|adapter| adapter.software == software);
    match choice {
        DeviceChoice::Cpu => Ok(cpu("the CPU was asked for")),
        DeviceChoice::Auto if !found(false) => Ok(cpu(match found(true) {
            true => "the only GPU adapter is a software one; ask for `wgpu-software` to use it",
            false => "no GPU adapter was found",
        })),
        DeviceChoice::Auto => Ok(open(DeviceKind::DefaultDevice, "a GPU adapter was found")
            .unwrap_or_else(|error| cpu(&format!("a GPU adapter was found but does not open: {error}")))),
        DeviceChoice::Gpu if found(false) => {
            open(DeviceKind::DefaultDevice, "a GPU was asked for").map_err(|error| does_not_open(choice, &error))
        }
        DeviceChoice::Gpu => Err(absent(
            choice,
            "no GPU adapter was found",
            match found(true) {
                true => "there is a software adapter: `wgpu-software`; or use `cpu`",
                false => {
                    "install the GPU's Vulkan driver and loader, or use `cpu`; `hearth doctor` shows what is found"
                }
            },
        )),
        DeviceChoice::WgpuSoftware if found(true) => {
            open(DeviceKind::Cpu, "the software adapter was asked for").map_err(|error| does_not_open(choice, &error))
        }
        DeviceChoice::WgpuSoftware => {
            Err(absent(choice, "no software adapter was found", "on Debian, install `mesa-vulkan-drivers`"))
        }
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda => native(choice, DeviceType::Cuda),
        #[cfg(feature = "rocm")]
        DeviceChoice::Rocm => native(choice, DeviceType::Rocm),
        #[cfg(feature = "metal")]
        DeviceChoice::Metal => native(choice, DeviceType::Metal),
    }
}

/// Whether the system shows anything that a GPU's driver could talk to. Elsewhere than on Linux nobody knows.
fn has_device_file() -> bool {
    const DEVICE_FILES: [&str; 6] =
        ["/dev/dri", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kgsl-3d0", "/dev/mali0"];
    !cfg!(target_os = "linux") || DEVICE_FILES.iter().any(|file| Path::new(file).exists())
}

fn open(kind: DeviceKind, reason: &str) -> Result<Chosen, WgpuInitError> {
    let device = match Device::wgpu_options().device_kind(kind.clone()).tasks_max(TASKS_PER_SUBMIT).init() {
        // This process has opened it before.
        Err(WgpuInitError::Registration { .. }) => Device::wgpu(kind),
        opened => opened?,
    };
    Ok(Chosen { device, reason: reason.to_owned() })
}

/// The first device of a runtime that is an optional feature of the build.
#[cfg(any(feature = "cuda", feature = "rocm", feature = "metal"))]
fn native(choice: DeviceChoice, kind: DeviceType) -> Result<Chosen> {
    match Device::enumerate(kind).iter().next() {
        Some(device) => Ok(Chosen { device: device.clone(), reason: format!("`{choice}` was asked for") }),
        None => Err(absent(choice, "no such device was found", "`hearth doctor` shows what is found")),
    }
}

fn does_not_open(choice: DeviceChoice, error: &WgpuInitError) -> Error {
    absent(choice, &format!("does not open: {error}"), "`hearth doctor` shows what is found")
}
