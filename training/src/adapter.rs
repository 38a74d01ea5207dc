//! Training an adapter: the model that it updates, loaded for that, and the adapter's own files.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use hearth_model::{
    adapted::Training,
    config::GptConfig,
    gpt::Gpt,
    ops::Dtype,
    weights::{
        StagedDir,
        adapter::{Adapter, AdapterConfig, AdapterModel, Targets},
        model_dir::{self, LoadOptions},
    },
};

use crate::config::{LoraSettings, TrainConfig};

/// The name that stands for all linear layers of the blocks.
const ALL_LINEAR: &str = "all-linear";

impl LoraSettings {
    /// The configuration of an adapter for the model `base`.
    fn adapter(&self, base: &Path) -> AdapterConfig {
        let is_all = self.targets.iter().any(|target| target == ALL_LINEAR);
        AdapterConfig {
            rank_stabilized: self.rslora,
            dropout: self.dropout,
            targets: if is_all { Targets::AllLinear } else { Targets::Named(self.targets.clone()) },
            layers: self.layers.clone(),
            base: Some(base.display().to_string()),
            ..AdapterConfig::all_linear(self.r, self.alpha)
        }
    }

    /// Values that train, for a model of `gpt` whose modules are named as in `class`.
    ///
    /// # Errors
    /// Targets that the model does not have.
    pub fn n_values(&self, gpt: &GptConfig, class: Option<&str>) -> Result<usize> {
        let adapter = Adapter::new(AdapterModel::new(gpt, class)?, self.adapter(Path::new("")), 0)?;
        Ok(adapter.values.0.values().map(|update| update.values.len()).sum())
    }
}

/// Refuses an adapter where a model is wanted.
///
/// # Errors
/// `dir` is the folder of an adapter, or of its run.
pub fn require_model(dir: &Path) -> Result<()> {
    ensure!(
        !Adapter::is_in(&model_dir::model_of(dir)),
        "`{}` is an adapter, not a model\nhint: give the model that it updates, or merge them with `hearth merge`",
        dir.display()
    );
    Ok(())
}

/// A model with an adapter that trains, and how to save the adapter.
#[derive(Debug)]
pub(crate) struct Adapted {
    pub(crate) gpt: Gpt,
    pub(crate) saved: SavedAdapter,
}

/// What an adapter's files say beside its values.
#[derive(Clone, Debug)]
pub(crate) struct SavedAdapter {
    config: AdapterConfig,
    class: Option<String>,
}

/// Loads the model `base` with a new adapter, or with the one in the folder `trained`. On a CPU, the model's matrices are in
/// the form of serving, as the files have them or as `lora.base` says.
///
/// # Errors
/// The model cannot be opened, or the adapter does not fit it.
pub(crate) fn load(base: &Path, config: &TrainConfig, device: &Device, trained: Option<&Path>) -> Result<Adapted> {
    let Some(lora) = &config.lora else { unreachable!("the caller trains an adapter") };
    let is_cpu = *device == Device::flex();
    ensure!(
        is_cpu || lora.base.is_none(),
        "`lora.base` is only supported on the CPU so far\nhint: leave it out, or use `--device cpu`"
    );
    let options = if is_cpu {
        let device = if device.is_autodiff() { device.clone().inner() } else { device.clone() };
        LoadOptions { device, dtype: lora.base.map(|base| base.dtype()) }
    } else {
        LoadOptions { device: device.clone().autodiff(), dtype: Some(Dtype::F32) }
    };
    let gpt = model_dir::load_gpt(base, &options)?;
    let class = model_dir::load_class(base).ok().map(str::to_owned);
    let gpt_config = gpt.config().clone();
    let model = AdapterModel::new(&gpt_config, class.as_deref())?;
    let absolute =
        fs::canonicalize(model_dir::model_of(base)).with_context(|| format!("cannot read `{}`", base.display()))?;
    let adapter = match trained {
        Some(dir) => Adapter::open(dir, model)?,
        None => Adapter::new(model, lora.adapter(&absolute), config.seed)?,
    };
    let gpt = gpt.with_lora(&adapter.values, lora.dropout, Training::Yes)?;
    Ok(Adapted { gpt, saved: SavedAdapter { config: adapter.config, class } })
}

impl SavedAdapter {
    /// Writes the adapter of `gpt` to a staged folder, with further files.
    pub(crate) fn write(&self, staged: &StagedDir, gpt: &Gpt, extra: &[(String, Vec<u8>)]) -> Result<()> {
        let values = gpt.lora()?.context("the model has no adapter")?;
        let adapter = Adapter { config: self.config.clone(), values };
        Ok(adapter.write(staged, AdapterModel::new(gpt.config(), self.class.as_deref())?, extra)?)
    }
}

/// Bytes that the model in `base` takes while an adapter of it is trained on the CPU.
pub fn frozen_bytes(base: &Path, gpt: &GptConfig, lora: &LoraSettings) -> u64 {
    let n_params = gpt.n_params() as u64;
    if let Some(base) = lora.base {
        return n_params * base.bits() / 8;
    }
    let dir = model_dir::model_of(base);
    let is_weights = |path: &Path| path.extension().is_some_and(|ending| ending == "safetensors" || ending == "gguf");
    let size = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    if dir.is_file() {
        return size(&dir);
    }
    let files = fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| is_weights(path)).map(|path| size(&path)).sum()
}
