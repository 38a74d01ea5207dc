//! GPU devices: through wgpu, or through runtimes that are optional features of the build.

use std::path::Path;

use burn::{
    backend::{CubeDevice, DispatchDevice, WgpuDeviceKind},
    tensor::{Device, DeviceKind, DeviceType, wgpu::WgpuInitError},
};

use super::{Adapter, Chosen, DeviceChoice, absent, cpu};
use crate::error::{Error, Result};

/// Kernel launches per submission to the GPU: decoding launches many small kernels.
const TASKS_PER_SUBMIT: usize = 64;

/// wgpu's adapters, without opening them.
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

/// The name of a GPU; the CPU has none.
pub(super) fn name(device: &Device) -> Option<String> {
    device.identity().map(|identity| identity.name)
}

/// As [`choose_for`](super::choose_for).
pub(super) fn choose(choice: DeviceChoice, number: usize) -> Result<Chosen> {
    // Probed only if needed: drivers may be slow and print messages.
    let adapters = match choice {
        DeviceChoice::Auto if !has_device_file() => return Ok(cpu("no GPU found")),
        _ => adapters(),
    };
    let kind = || if number == 0 { DeviceKind::DefaultDevice } else { DeviceKind::DiscreteGpu(number) };
    let found = |software| adapters.iter().any(|adapter| adapter.software == software);
    match choice {
        DeviceChoice::Cpu => Ok(cpu("requested")),
        DeviceChoice::Auto if !found(false) => Ok(cpu(match found(true) {
            true => "the only GPU adapter is a software one (`wgpu-software` uses it)",
            false => "no GPU adapter found",
        })),
        DeviceChoice::Auto => Ok(open(kind(), "GPU adapter found")
            .unwrap_or_else(|error| cpu(&format!("a GPU adapter was found but cannot be opened: {error}")))),
        DeviceChoice::Gpu if found(false) => open(kind(), "requested").map_err(|error| does_not_open(choice, &error)),
        DeviceChoice::Gpu => Err(absent(
            choice,
            "no GPU adapter found",
            match found(true) {
                true => "use `cpu`, or the software adapter, `wgpu-software`",
                false => {
                    "install the GPU's Vulkan driver and loader, or use `cpu`; `hearth doctor` shows the adapters found"
                }
            },
        )),
        DeviceChoice::WgpuSoftware if found(true) => {
            open(DeviceKind::Cpu, "requested").map_err(|error| does_not_open(choice, &error))
        }
        DeviceChoice::WgpuSoftware => {
            Err(absent(choice, "no software adapter found", "on Debian, install `mesa-vulkan-drivers`"))
        }
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda => native(choice, DeviceType::Cuda, number),
    }
}

/// Whether the system has a GPU device file. Unknown, so true, on systems other than Linux.
fn has_device_file() -> bool {
    const DEVICE_FILES: [&str; 6] =
        ["/dev/dri", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kgsl-3d0", "/dev/mali0"];
    !cfg!(target_os = "linux") || DEVICE_FILES.iter().any(|file| Path::new(file).exists())
}

fn open(kind: DeviceKind, reason: &str) -> Result<Chosen, WgpuInitError> {
    let options = Device::wgpu_options().device_kind(kind.clone());
    // CubeCL reads its environment variable unless a number is given.
    let options = match std::env::var_os("CUBECL_WGPU_MAX_TASKS") {
        Some(_) => options,
        None => options.tasks_max(TASKS_PER_SUBMIT),
    };
    let device = match options.init() {
        // Already opened by this process.
        Err(WgpuInitError::Registration { .. }) => Device::wgpu(kind),
        opened => opened?,
    };
    Ok(Chosen { device, reason: reason.to_owned() })
}

/// The device with this number of CUDA, an optional feature of the build.
#[cfg(feature = "cuda")]
fn native(choice: DeviceChoice, kind: DeviceType, number: usize) -> Result<Chosen> {
    let devices = Device::enumerate(kind);
    // A launcher may show each process only its own GPU.
    let number = if devices.len() == 1 { 0 } else { number };
    match devices.iter().nth(number) {
        Some(device) => Ok(Chosen { device: device.clone(), reason: "requested".to_owned() }),
        None if number > 0 => Err(absent(
            choice,
            &format!("there are fewer than {} such devices", number + 1),
            "start no more processes on a machine than it has GPUs",
        )),
        None => Err(absent(choice, "no such device found", "`hearth doctor` shows the adapters found")),
    }
}

fn does_not_open(choice: DeviceChoice, error: &WgpuInitError) -> Error {
    absent(choice, &format!("cannot be opened: {error}"), "`hearth doctor` shows the adapters found")
}
