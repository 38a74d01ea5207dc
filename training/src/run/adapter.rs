//! Training an adapter: the model that it updates, loaded for that, and the adapter's own files.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use hearth_model::{
    config::GptConfig,
    files::digest::{Digest, Digester},
    gpt::{Gpt, lora::Training},
    ops::Dtype,
    weights::{
        StagedDir,
        adapter::{Adapter, AdapterConfig, AdapterModel, Targets},
        encoder_files,
        model_dir::{self, LoadOptions},
    },
};

use crate::config::{ALL_LINEAR, LoraSettings, TrainConfig};

impl LoraSettings {
    /// The configuration of an adapter for the model `base`.
    fn adapter(&self, base: &Path) -> AdapterConfig {
        let is_all = self.targets.iter().any(|target| target == ALL_LINEAR);
        AdapterConfig {
            rank_stabilized: self.rslora,
            dropout: self.dropout,
            targets: if is_all { Targets::AllLinear } else { Targets::Named(self.targets.clone()) },
            parameters: self.target_parameters.clone(),
            layers: self.layers.clone(),
            base: Some(base.display().to_string()),
            ..AdapterConfig::all_linear(self.r, self.alpha)
        }
    }

    /// Number of trained values, for a model of `gpt` whose modules are named as in `class`.
    ///
    /// # Errors
    /// The model does not have the targets.
    pub fn n_values(&self, gpt: &GptConfig, class: Option<&str>) -> Result<usize> {
        // The number of values is proportional to the rank: counted for rank 1, so that a large rank allocates nothing.
        let one = AdapterConfig { rank: 1, ..self.adapter(Path::new("")) };
        let adapter = Adapter::new(AdapterModel::new(gpt, class)?, one, 0)?;
        let n_values: usize = adapter.values.0.values().map(|update| update.values.len()).sum();
        Ok(n_values.saturating_mul(self.r))
    }
}

/// Rejects an adapter if a model is needed.
///
/// # Errors
/// `dir` is the folder of an adapter, or of an adapter's run.
pub fn require_model(dir: &Path) -> Result<()> {
    ensure!(
        !Adapter::is_in(&model_dir::model_of(dir)),
        "`{}` is an adapter, not a model\nhint: give the model that it updates, or merge them with `hearth merge`",
        dir.display()
    );
    Ok(())
}

/// Rejects a model whose matrices cannot be trained.
///
/// # Errors
/// The model in `dir` is quantized, or cannot be opened.
pub fn require_trainable(dir: &Path) -> Result<()> {
    ensure!(
        !model_dir::is_quantized(dir)?,
        "`{}` has quantized matrices, which do not train\nhint: train an adapter (`--lora`), or use the model before \
         quantization",
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

/// The files of an adapter besides its values.
#[derive(Clone, Debug)]
pub(crate) struct SavedAdapter {
    config: AdapterConfig,
    class: Option<String>,
}

/// Loads the model `base` with a new adapter, or with the one in the folder `trained`, to learn vectors of texts if
/// `trains_vectors`. On a CPU, the model's matrices are held as in serving, in the dtype of `lora.base` if it is set; on a GPU
/// they are f32.
///
/// # Errors
/// The model cannot be opened, or the adapter does not fit it.
pub(crate) fn load(
    base: &Path,
    (lora, seed): (&LoraSettings, u64),
    device: &Device,
    (trained, trains_vectors): (Option<&Path>, bool),
) -> Result<Adapted> {
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
    let gpt = if trains_vectors { gpt.without_mlm_head() } else { gpt };
    let class = class_of(base, trains_vectors).ok().map(str::to_owned);
    let gpt_config = gpt.config().clone();
    let model = AdapterModel::new(&gpt_config, class.as_deref())?;
    let absolute =
        fs::canonicalize(model_dir::model_of(base)).with_context(|| format!("cannot read `{}`", base.display()))?;
    let config = lora.adapter(&absolute);
    let adapter = match trained {
        // Not the configuration in `dir`: the path of the model in it is outdated if the model has moved since.
        Some(dir) => Adapter { config, ..Adapter::open(dir, model)? },
        None => Adapter::new(model, config, seed)?,
    };
    let gpt = gpt.with_lora(&adapter.values, lora.dropout, Training::Yes)?;
    Ok(Adapted { gpt, saved: SavedAdapter { config: adapter.config, class } })
}

/// The class whose names an adapter of the model `base` has. A model that learns vectors has no head for masked tokens.
///
/// # Errors
/// `base` has no configuration of a supported model.
pub(crate) fn class_of(base: &Path, trains_vectors: bool) -> hearth_model::Result<&'static str> {
    if trains_vectors { encoder_files::load_class_without_head(base) } else { model_dir::load_class(base) }
}

impl SavedAdapter {
    /// Writes the adapter of `gpt` to a staged folder, with further files.
    pub(crate) fn write(&self, staged: &StagedDir, gpt: &Gpt, extra: &[(String, Vec<u8>)]) -> Result<()> {
        let values = gpt.lora()?.context("the model has no adapter")?;
        let adapter = Adapter { config: self.config.clone(), values };
        Ok(adapter.write(staged, AdapterModel::new(gpt.config(), self.class.as_deref())?, extra)?)
    }
}

/// Identifies the model that a run with `config` uses and does not train, by its configuration and weights: the base
/// model of an adapter, or the reference model of preferences. `None` if there is none.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn base_digest(config: &TrainConfig) -> Result<Option<Digest>> {
    let is_used = config.lora.is_some() || config.objective.objective().has_reference();
    let Some(base) = config.model.init.as_deref().filter(|_| is_used) else { return Ok(None) };
    let mut digester = Digester::new();
    let configuration = model_dir::model_of(base).join("config.json");
    for path in model_dir::weight_files(base)?.into_iter().chain(configuration.is_file().then_some(configuration)) {
        digester.update(&Digest::of_file(&path)?.0);
    }
    Ok(Some(digester.finish()))
}

/// Bytes that the model in `base` takes while an adapter of it is trained on the CPU.
///
/// # Errors
/// A file cannot be read.
pub fn frozen_bytes(base: &Path, gpt: &GptConfig, lora: &LoraSettings) -> Result<u64> {
    if let Some(base) = lora.base {
        return Ok(gpt.n_params() as u64 * base.bits() / 8);
    }
    let mut n_bytes = 0;
    for path in model_dir::weight_files(base)? {
        n_bytes += fs::metadata(&path).with_context(|| format!("cannot read `{}`", path.display()))?.len();
    }
    Ok(n_bytes)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::path::PathBuf;

    use hearth_model::config::Sizes;

    use super::*;

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests").join(name)
    }

    fn n_bytes(path: &Path) -> u64 {
        fs::metadata(path).unwrap().len()
    }

    /// The digest and the size in memory of `base`, as computed for a run that trains a LoRA adapter of it.
    fn digest_and_size(base: &Path) -> Result<(Option<Digest>, u64)> {
        let mut config = TrainConfig { lora: Some(LoraSettings::default()), ..TrainConfig::default() };
        config.model.init = Some(base.to_owned());
        // A base model in its stored dtype takes as many bytes as its files, whatever the configuration says.
        let sizes =
            Sizes { vocab_size: 1, max_seq_len: 1, n_layers: 1, n_heads: 1, n_kv_heads: 1, d_model: 2, d_ff: 1 };
        let size = frozen_bytes(base, &GptConfig::llama(sizes), &LoraSettings::default())?;
        Ok((base_digest(&config)?, size))
    }

    #[test]
    fn base_digest_and_size_cover_exactly_the_files_that_loading_reads() {
        let dir = tempfile::tempdir().unwrap();
        let copy = |name: String| {
            let to = dir.path().join(Path::new(&name).file_name().unwrap());
            fs::copy(golden(&name), &to).unwrap();
            to
        };
        // Shards with an index. Another copy of the weights next to them is ignored.
        let shards = [1, 2, 3, 4, 5].map(|n| copy(format!("golden/llama-sharded/model-{n:05}-of-00005.safetensors")));
        copy("golden/llama-sharded/config.json".to_owned());
        copy("golden/llama-sharded/model.safetensors.index.json".to_owned());
        let expected = digest_and_size(dir.path()).unwrap();
        assert_eq!(expected.1, shards.iter().map(|path| n_bytes(path)).sum::<u64>());
        fs::write(dir.path().join("consolidated.safetensors"), b"another copy").unwrap();
        assert_eq!(digest_and_size(dir.path()).unwrap(), expected);

        // A GGUF model of several files.
        let parts = [1, 2, 3].map(|n| copy(format!("gguf/split-{n:05}-of-00003.gguf")));
        let (digest, size) = digest_and_size(&parts[0]).unwrap();
        assert_eq!(size, parts.iter().map(|path| n_bytes(path)).sum::<u64>());
        let [first, _, last] = parts;
        let mut bytes = fs::read(&last).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&last, bytes).unwrap();
        assert_ne!(digest_and_size(&first).unwrap().0, digest);

        // Missing files are errors.
        fs::remove_file(&last).unwrap();
        assert!(digest_and_size(&first).is_err());
        assert!(digest_and_size(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn lora_n_values_equals_the_number_of_values_of_the_built_adapter() {
        let sizes =
            Sizes { vocab_size: 20, max_seq_len: 16, n_layers: 3, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 };
        let gpt = GptConfig::llama(sizes);
        let class = Some("LlamaForCausalLM");
        for (targets, layers) in [("all-linear", None), ("q_proj", None), ("down_proj", Some(vec![1]))] {
            let lora = LoraSettings { r: 5, targets: vec![targets.to_owned()], layers, ..LoraSettings::default() };
            let model = AdapterModel::new(&gpt, class).unwrap();
            let adapter = Adapter::new(model, lora.adapter(Path::new("")), 0).unwrap();
            let n_values: usize = adapter.values.0.values().map(|update| update.values.len()).sum();
            assert_eq!(lora.n_values(&gpt, class).unwrap(), n_values, "{targets}");
        }
        // Counting builds no adapter: with the largest rank, the count saturates.
        let lora = LoraSettings { r: usize::MAX, ..LoraSettings::default() };
        assert_eq!(lora.n_values(&gpt, class).unwrap(), usize::MAX);
        let lora = LoraSettings { targets: vec!["w_proj".to_owned()], ..LoraSettings::default() };
        assert!(lora.n_values(&gpt, class).unwrap_err().to_string().contains("`w_proj`"));
    }
}
