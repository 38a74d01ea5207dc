//! Which device to run on: a real GPU if there is one, else the CPU. Nothing here panics on a machine without a GPU,
//! without a Vulkan loader, or with a software adapter only.

use std::{fmt, path::Path, str::FromStr};

use burn::{
    backend::{CubeDevice, DispatchDevice, WgpuDeviceKind},
    tensor::{Device, DeviceKind, DeviceType, wgpu::WgpuInitError},
};

use crate::error::{Error, Result};

/// Kernel launches that are sent to the GPU together: decoding launches many small ones.
const TASKS_PER_SUBMIT: usize = 64;

/// The device a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A real GPU through wgpu if there is one, else the CPU.
    #[default]
    Auto,
    /// A real GPU through wgpu.
    Gpu,
    /// The CPU.
    Cpu,
    /// A GPU that the CPU pretends to be, such as lavapipe: slow, for tests.
    WgpuSoftware,
    /// The first CUDA device.
    #[cfg(feature = "cuda")]
    Cuda,
    /// The first ROCm device.
    #[cfg(feature = "rocm")]
    Rocm,
    /// The first Metal device.
    #[cfg(feature = "metal")]
    Metal,
}

impl DeviceChoice {
    /// Every choice of this build, with its name.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("gpu", Self::Gpu),
        ("cpu", Self::Cpu),
        ("wgpu-software", Self::WgpuSoftware),
        #[cfg(feature = "cuda")]
        ("cuda", Self::Cuda),
        #[cfg(feature = "rocm")]
        ("rocm", Self::Rocm),
        #[cfg(feature = "metal")]
        ("metal", Self::Metal),
    ];
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, choice)| choice == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!("must be one of {}, got `{name}`", names.join(", "))
        })
    }
}

/// A device, and why it is this one.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Ready for tensors.
    pub device: Device,
    /// One sentence for a person.
    pub reason: String,
}

/// An adapter that wgpu sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its kind and number, as Burn tells it apart.
    pub kind: String,
    /// Whether the CPU pretends to be it.
    pub software: bool,
}

/// The adapters that wgpu sees; none without a driver or a Vulkan loader. Opens none of them.
pub fn adapters() -> Vec<Adapter> {
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

/// What the device calls itself.
pub fn name(device: &Device) -> String {
    device.identity().map_or_else(|| "CPU".to_owned(), |identity| identity.name)
}

/// Opens the device that `choice` asks for.
///
/// # Errors
/// [`Error::Device`] when there is none of that kind, or when it does not open. [`DeviceChoice::Auto`] never fails: it
/// ends at the CPU.
pub fn choose(choice: DeviceChoice) -> Result<Chosen> {
    // Not without need: drivers may take their time over it, and print what they like.
    let adapters = match choice {
        DeviceChoice::Cpu => Vec::new(),
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

fn cpu(reason: &str) -> Chosen {
    Chosen { device: Device::flex(), reason: reason.to_owned() }
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

fn absent(choice: DeviceChoice, what: &str, hint: &str) -> Error {
    Error::Device { name: choice.to_string(), what: what.to_owned(), hint: hint.to_owned() }
}

fn does_not_open(choice: DeviceChoice, error: &WgpuInitError) -> Error {
    absent(choice, &format!("does not open: {error}"), "`hearth doctor` shows what is found")
}
