//! Settings of LoRA adapters.

use std::path::PathBuf;

use clap::Args;
use hearth_engine::{
    StartError,
    adapters::{AdapterOptions, NamedDir},
};

use super::at_least_1;

/// LoRA adapters.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "LoRA adapters")]
pub struct AdapterConfig {
    /// Serve the LoRA adapter in the folder DIR (in PEFT's format, or the output folder of `hearth-train finetune`) under
    /// NAME: requests choose it by `model` (repeatable or comma-separated)
    #[arg(long, env = "HEARTH_LORA", value_name = "NAME=DIR", value_delimiter = ',', value_parser = named_dir)]
    pub lora: Vec<NamedDir>,
    /// Maximum number of different adapters among running requests; requests for others wait. Also how many adapters stay
    /// in memory that no request uses
    #[arg(long, env = "HEARTH_MAX_LORAS", value_name = "ADAPTERS", default_value_t = 8, value_parser = at_least_1)]
    pub max_loras: usize,
    /// Maximum rank of an adapter
    #[arg(long, env = "HEARTH_MAX_LORA_RANK", value_name = "RANK", default_value_t = 64, value_parser = at_least_1)]
    pub max_lora_rank: usize,
    /// Allow every client to load adapters from below this folder, and to unload any adapter, while the server runs
    /// (`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`) [default: not allowed]
    #[arg(long, env = "HEARTH_LORA_ROOT", value_name = "DIR")]
    pub lora_root: Option<PathBuf>,
}

impl AdapterConfig {
    /// The engine's settings.
    pub fn options(&self) -> AdapterOptions {
        AdapterOptions {
            given: self.lora.clone(),
            max_loaded: self.max_loras,
            max_rank: self.max_lora_rank,
            root: self.lora_root.clone(),
        }
    }

    /// Checks the settings; `model_id` is the name of the model.
    ///
    /// # Errors
    /// Names the setting and what is wrong with it.
    pub fn check(&self, model_id: &str) -> Result<(), StartError> {
        let refuse = |what: String| Err(StartError::Options(what));
        for (number, NamedDir { name, .. }) in self.lora.iter().enumerate() {
            if name == model_id {
                return refuse(format!("`--lora` must not use the name of the model, got `{name}`"));
            }
            if self.lora.iter().take(number).any(|before| before.name == *name) {
                return refuse(format!("`--lora` must use each name once, got `{name}` twice"));
            }
        }
        match &self.lora_root {
            Some(root) if !root.is_dir() => refuse(format!("`--lora-root` must be a folder, got `{}`", root.display())),
            _ => Ok(()),
        }
    }
}

fn named_dir(text: &str) -> Result<NamedDir, String> {
    match text.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => {
            Ok(NamedDir { name: name.to_owned(), dir: dir.into() })
        }
        _ => Err("it must be a name and a folder, such as `support=adapters/support`".to_owned()),
    }
}
