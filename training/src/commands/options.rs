//! Options shared by all commands: settings and device.

use std::path::PathBuf;

use anyhow::Result;
use hearth_model::system::device::DeviceChoice;
use hearth_training::config::{Layers, PRESETS, Resolved};

/// Settings come from the defaults, then the preset, then the file, then `--set`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = presets_help())]
pub(crate) struct Options {
    /// Settings to start from, see below
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,

    /// A TOML file with settings, such as the `config.toml` of a run
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// One setting, such as `--set schedule.max_steps=200`; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub(crate) sets: Vec<String>,

    /// Where to run: `auto` takes a GPU if there is one
    #[arg(long, env = "HEARTH_DEVICE", default_value = "auto")]
    pub(crate) device: DeviceChoice,

    /// Print the result as one JSON object, the last line on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// The settings for a command, layered over the command's own.
    pub(crate) fn resolve(&self, command: Layers) -> Result<Resolved> {
        let layers =
            Layers { preset: self.preset.clone(), file: self.config.clone(), sets: self.sets.clone(), ..command };
        layers.resolve_all()
    }
}

fn presets_help() -> String {
    let rows: Vec<_> = PRESETS.iter().map(|preset| format!("  {:<22}{}", preset.name, preset.about())).collect();
    format!(
        "Presets:\n{}\n\nAll settings, with their defaults: docs/settings.md. The `config.toml` of a run has those that it used.",
        rows.join("\n")
    )
}
