//! Device selection: a GPU if there is one, else the CPU. Nothing here panics without a GPU, without a Vulkan loader,
//! or with only a software adapter.

use std::{fmt, str::FromStr};

use burn::tensor::Device;

use crate::error::{Error, Result};

#[cfg(feature = "gpu")]
mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "device/no_gpu.rs"]
mod gpu;

/// A device setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU through wgpu if there is one, else the CPU.
    #[default]
    Auto,
    /// A GPU through wgpu.
    Gpu,
    /// The CPU.
    Cpu,
    /// A software GPU adapter such as lavapipe: slow, for tests.
    WgpuSoftware,
    /// The first CUDA device.
    #[cfg(feature = "cuda")]
    Cuda,
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

/// A device, and why it was chosen.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Initialized.
    pub device: Device,
    /// The reason, in one sentence.
    pub reason: String,
}

/// A wgpu adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its kind and number in Burn.
    pub kind: String,
    /// Whether it is a software adapter.
    pub software: bool,
}

/// wgpu's adapters; none without a driver or a Vulkan loader, or in a build without the feature `gpu`. Does not open
/// them.
pub fn adapters() -> Vec<Adapter> {
    gpu::adapters()
}

/// The device's name.
pub fn name(device: &Device) -> String {
    gpu::name(device).unwrap_or_else(|| "CPU".to_owned())
}

/// Opens the device for `choice`.
///
/// # Errors
/// [`Error::Device`] if there is no such device, or if it cannot be opened. [`DeviceChoice::Auto`] never fails: it
/// falls back to the CPU.
pub fn choose(choice: DeviceChoice) -> Result<Chosen> {
    choose_for(choice, 0)
}

/// Opens the device for `choice` for process `number` of a run with several processes on this machine: each uses its
/// own GPU.
///
/// # Errors
/// As [`choose`], or there are too few GPUs.
pub fn choose_for(choice: DeviceChoice, number: usize) -> Result<Chosen> {
    match choice {
        DeviceChoice::Cpu => Ok(cpu("requested")),
        _ => gpu::choose(choice, number),
    }
}

fn cpu(reason: &str) -> Chosen {
    Chosen { device: Device::flex(), reason: reason.to_owned() }
}

fn absent(choice: DeviceChoice, what: &str, hint: &str) -> Error {
    Error::Device { name: choice.to_string(), what: what.to_owned(), hint: hint.to_owned() }
}
