//! What can be set, by flag or by environment variable. The doc comments here are the help texts, and the defaults are
//! here alone.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use hearth_model::{
    Result,
    device::{self, DeviceChoice},
    ops::{self, Dtype},
    weights::model_dir::{self, LoadOptions, LoadedModel},
};

use crate::{bundled, engine::EngineOptions};

/// How the server runs.
#[derive(Args, Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; 0.0.0.0 for all networks
    #[arg(long, env = "HEARTH_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// TCP port to listen on; 0 for any free one
    #[arg(long, env = "HEARTH_PORT", default_value_t = 8080)]
    pub port: u16,
    /// The model and where it runs.
    #[command(flatten)]
    pub model: ModelConfig,
    /// Requests that may wait; more are answered with 429
    #[arg(long, env = "HEARTH_MAX_QUEUE", value_name = "REQUESTS", default_value_t = 128)]
    pub max_queue: usize,
    /// Sequences that run at once
    #[arg(long, env = "HEARTH_MAX_BATCH_SIZE", value_name = "SEQUENCES", default_value_t = 32)]
    pub max_batch_size: usize,
    /// Tokens computed in one step: a long prompt delays other streams by one such step at a time
    #[arg(long, env = "HEARTH_MAX_BATCH_TOKENS", value_name = "TOKENS", default_value_t = 512)]
    pub max_batch_tokens: usize,
    /// Tokens whose keys and values are kept, over all sequences [default: what the running sequences can fill, within
    /// 1 GiB, and one full context at least]
    #[arg(long, env = "HEARTH_KV_CACHE_TOKENS", value_name = "TOKENS")]
    pub kv_cache_tokens: Option<usize>,
    /// Seconds that requests in flight get to finish after SIGTERM or ctrl-c; a second signal ends them at once
    #[arg(long, env = "HEARTH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: u64,
}

impl ServerConfig {
    /// The engine's part.
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            max_queue: self.max_queue,
            max_batch_size: self.max_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            kv_cache_tokens: self.kv_cache_tokens,
        }
    }

    /// How long draining may take.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_timeout)
    }
}

/// Which model, and where it runs.
#[derive(Args, Clone, Debug)]
pub struct ModelConfig {
    /// Model dir in Hugging Face's format [default: the bundled model]
    #[arg(long, env = "HEARTH_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Where to compute: `auto` (a real GPU if there is one, else the CPU), `gpu`, `cpu`, `wgpu-software`, and what else
    /// the build holds
    #[arg(long, env = "HEARTH_DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// How weight matrices are held: `f32`, `f16`, or rounded to `q8` or `q4` (on the CPU)
    #[arg(long, env = "HEARTH_DTYPE", default_value_t = Dtype::F32)]
    pub dtype: Dtype,
}

impl ModelConfig {
    /// The model's name for clients: that of its folder.
    pub fn model_id(&self) -> String {
        let Some(dir) = &self.model else { return bundled::NAME.to_owned() };
        // `.` and `models/..` have a name too, once resolved.
        let resolved = dir.canonicalize();
        let name = resolved.as_deref().unwrap_or(dir).file_name();
        name.map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// Opens the device and loads the model, on the thread that is to compute with it.
    ///
    /// # Errors
    /// No such device, or a broken model dir.
    pub fn load(&self) -> Result<LoadedModel> {
        // Before anything shares work: this thread takes part in it.
        ops::lead_threads();
        let chosen = device::choose(self.device)?;
        tracing::info!("device: {:?}: {}", chosen.device, chosen.reason);
        let options = LoadOptions { device: chosen.device, dtype: self.dtype };
        match &self.model {
            Some(dir) => model_dir::load(dir, &options),
            None => model_dir::load_embedded(&bundled::DIR, &options),
        }
    }
}
