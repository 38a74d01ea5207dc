//! The GPU's kernels without the rest of Hearth: `README.md` in the folder above has the commands.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "most callers are missing here")]

mod card;
mod ops;
#[path = "../../../src/philox.rs"]
mod philox;
#[cfg(feature = "sources")]
mod sources;

use std::path::PathBuf;

use burn::tensor::{Device, DeviceKind};
use clap::{Args, Parser, Subcommand, ValueEnum};

use ops::cube::bench::{Gpu, cases, show};

/// The names of the model's configuration that the kernels' files mention.
mod config {
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum NormKind {
        LayerNorm,
        RmsNorm,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum QkNormSpan {
        Head,
        AllHeads,
        EachHead,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Activation {
        Relu,
        ReluSquared,
        Gelu,
        GeluTanh,
        Silu,
    }
}

/// The errors that the kernels' files mention.
mod error {
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        #[error("`{name}` {what}")]
        Param { name: &'static str, what: String },
        #[error("the device failed: {what}")]
        Execution { what: String },
    }
    pub type Result<T, E = Error> = std::result::Result<T, E>;
}

/// Measures Hearth's GPU kernels, or shows how they are compiled.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Launch each kernel once, with a line on stderr before each, so that what a driver prints there can be told apart
    Launch(Choice),
    /// Write each kernel as CUDA C++, and a list of them, `kernels.jsonl`
    #[cfg(feature = "sources")]
    Sources {
        /// Folder to write to
        dir: PathBuf,
        #[arg(long, value_enum, default_value_t = Size::Full)]
        size: Size,
        /// Only the products of training and prompts, with all plans that `card` tries
        #[arg(long)]
        plans: bool,
    },
    /// Measure the card: JSON lines, one for each case
    Card(card::CardArgs),
    /// One chain of empty launches; `card` runs it for each number of launches in a submission
    Chain(card::ChainArgs),
}

/// Where and on what to run.
#[derive(Args, Clone)]
struct Choice {
    /// Device to use
    #[arg(long, value_enum, default_value_t = Target::Gpu)]
    device: Target,
    /// Shapes of the kernels' operands
    #[arg(long, value_enum, default_value_t = Size::Full)]
    size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The first GPU
    Gpu,
    /// The software adapter
    WgpuSoftware,
}

impl Target {
    /// Opens the device; `tasks` launches make a submission.
    ///
    /// # Errors
    /// If there is no such device.
    fn open(self, tasks: Option<usize>) -> anyhow::Result<Device> {
        let kind = match self {
            Self::Gpu => DeviceKind::DefaultDevice,
            Self::WgpuSoftware => DeviceKind::Cpu,
        };
        let options = Device::wgpu_options().device_kind(kind);
        let options = match tasks {
            Some(tasks) => options.tasks_max(tasks),
            None => options,
        };
        options.init().map_err(|error| anyhow::anyhow!("cannot open the device {self:?}: {error}"))
    }

    /// As the option says it.
    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::WgpuSoftware => "wgpu-software",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    /// Llama 1B and GPT-2 124M
    Full,
    /// Operands of some kilobytes, for tests
    Tiny,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Launch(Choice { device, size }) => {
            // Operands stay as they are: only the code matters.
            let gpu = Gpu::open(&device.open(None)?).without_values();
            cases::for_each(&gpu, size == Size::Tiny, |case| show::launch(&gpu, case))
        }
        #[cfg(feature = "sources")]
        Command::Sources { dir, size, plans } => sources::write(&dir, size == Size::Tiny, plans),
        Command::Card(args) => card::run(&args),
        Command::Chain(args) => card::run_chain(&args),
    }
}
