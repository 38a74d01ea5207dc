//! `hearth doctor`: shows the machine's hardware, the device that a model would use, and a model's needs on it.

mod model;

use std::{
    fmt::{self, Write as _},
    fs,
};

use clap::Args;
use hearth_engine::memory;
use hearth_model::{
    ops,
    system::device::{self, DeviceChoice},
};
use serde::Serialize;

use self::model::ModelReport;
use super::output;

/// The arguments of `hearth doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Also report the memory use and estimated speed of this model: a model dir, a GGUF file, or a model of the
    /// Hugging Face hub by name, of which only the description is downloaded
    model: Option<String>,
    /// Report the device that this choice selects
    #[arg(long, env = "HEARTH_DEVICE", default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cpu: Option<String>,
    cpu_features: Vec<&'static str>,
    /// The instruction set of the CPU's kernels.
    kernels: &'static str,
    threads: usize,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    adapters: Vec<Adapter>,
    asked_for: String,
    chosen: Option<Chosen>,
    /// What the chosen device offers, if it is a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<Gpu>,
    /// Why no device could be chosen.
    problem: Option<String>,
    /// Set if a model was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelReport>,
}

#[derive(Debug, Serialize)]
struct Adapter {
    kind: String,
    software: bool,
}

#[derive(Debug, Serialize)]
struct Chosen {
    device: String,
    reason: String,
}

#[derive(Debug, Serialize)]
struct Gpu {
    interface: String,
    /// The fewest and the most lanes of a subgroup.
    subgroup: [u32; 2],
    shared_bytes: usize,
    largest_tensor_bytes: u64,
    has_f16: bool,
    matrix_instructions: Vec<String>,
    /// Those of them that prompts and training use.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_matrix_instructions: Option<String>,
    /// Why none is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_matrix_instructions: Option<String>,
}

impl From<ops::GpuFeatures> for Gpu {
    fn from(found: ops::GpuFeatures) -> Self {
        Self {
            interface: found.interface,
            subgroup: found.subgroup,
            shared_bytes: found.shared_bytes,
            largest_tensor_bytes: found.largest_tensor,
            has_f16: found.has_f16,
            matrix_instructions: found.matrix_instructions,
            used_matrix_instructions: found.products.clone().ok(),
            no_matrix_instructions: found.products.err(),
        }
    }
}

/// Prints the report to standard output; fails if the requested device is not available.
pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<()> {
    let report = Report::collect(args.device, args.model.as_deref())?;
    let text = if args.json { format!("{}\n", serde_json::to_string_pretty(&report)?) } else { report.to_string() };
    output::print(&text)?;
    match report.problem {
        Some(problem) => Err(anyhow::anyhow!(problem)),
        None => Ok(()),
    }
}

impl Report {
    fn collect(choice: DeviceChoice, model: Option<&str>) -> anyhow::Result<Self> {
        let adapters = device::adapters();
        let adapters = adapters.into_iter().map(|adapter| Adapter { kind: adapter.kind, software: adapter.software });
        let (chosen, gpu, problem, model) = match device::choose(choice) {
            Ok(chosen) => {
                let model = model.map(|name| ModelReport::collect(name, &chosen.device)).transpose()?;
                let gpu = ops::gpu_features(&chosen.device).map(Gpu::from);
                (Some(Chosen { device: device::name(&chosen.device), reason: chosen.reason }), gpu, None, model)
            }
            Err(error) => (None, None, Some(error.to_string()), None),
        };
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: field(&cpu, "model name").map(str::to_owned),
            cpu_features: cpu_features(),
            kernels: ops::instruction_set()?,
            threads: ops::n_threads(),
            memory_bytes: memory::total_bytes(),
            memory_available_bytes: memory::available_bytes(),
            adapters: adapters.collect(),
            asked_for: choice.to_string(),
            chosen,
            gpu,
            problem,
            model,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features = if self.cpu_features.is_empty() { "none known".to_owned() } else { self.cpu_features.join(" ") };
        writeln!(f, "hearth    {} on {} {}", self.version, self.os, self.arch)?;
        writeln!(f, "cpu       {}", self.cpu.as_deref().unwrap_or("unknown"))?;
        writeln!(f, "features  {features}")?;
        writeln!(f, "kernels   {}", self.kernels)?;
        writeln!(f, "threads   {}", self.threads)?;
        let total = self.memory_bytes.map_or("unknown".to_owned(), gibibytes);
        let available = self.memory_available_bytes.map_or("unknown".to_owned(), gibibytes);
        writeln!(f, "memory    {total}, {available} available")?;
        let adapters = self.adapters.iter().fold(String::new(), |mut line, adapter| {
            let separator = if line.is_empty() { "" } else { ", " };
            let name = if adapter.software { "emulated on the CPU" } else { &adapter.kind };
            // Writing to a string cannot fail.
            let _ = write!(line, "{separator}{name}");
            line
        });
        writeln!(f, "gpus      {}", if adapters.is_empty() { "none" } else { &adapters })?;
        match (&self.chosen, &self.problem) {
            (Some(chosen), _) => {
                writeln!(f, "device    {} (`--device {}`: {})", chosen.device, self.asked_for, chosen.reason)?;
            }
            (None, Some(_)) => writeln!(f, "device    none for `--device {}`", self.asked_for)?,
            (None, None) => {}
        }
        self.gpu.iter().try_for_each(|gpu| gpu.fmt(f))?;
        self.model.iter().try_for_each(|model| model.fmt(f))
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [least, most] = self.subgroup;
        let lanes = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let shared = self.shared_bytes >> 10;
        let largest = gibibytes(self.largest_tensor_bytes);
        writeln!(
            f,
            "gpu       {}: subgroups of {lanes}, {shared} KiB shared, tensors up to {largest}",
            self.interface
        )?;
        writeln!(
            f,
            "f16       {}",
            if self.has_f16 { "read as such" } else { "unpacked from integers: the GPU has none" }
        )?;
        match (&self.used_matrix_instructions, &self.no_matrix_instructions) {
            (Some(used), _) => writeln!(f, "matrix    {used}, for prompts of 128 tokens or more, and for training"),
            (None, Some(why)) => writeln!(f, "matrix    no matrix instructions: {why}"),
            (None, None) => Ok(()),
        }
    }
}

/// The instruction sets that the CPU kernels use, as far as this CPU has them.
fn cpu_features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(target_arch = "aarch64")]
    let known = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("fp16", std::arch::is_aarch64_feature_detected!("fp16")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let known: [(&str, bool); 0] = [];
    known.into_iter().filter_map(|(name, found)| found.then_some(name)).collect()
}

/// The value of `name:` in the format of `/proc`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
