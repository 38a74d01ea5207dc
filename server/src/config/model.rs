//! Settings of the model: which one, on which device, in which dtypes.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::{
    Args, ValueEnum,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_engine::memory;
use hearth_model::{
    Error, Result,
    config::GptConfig,
    decode::sampling::SamplingParams,
    gpt::{Gpt, prediction_head::PredictionHead},
    hub::{Download, ModelPart},
    model_source::ModelSource,
    ops::{self, Dtype, KvDtype, Precision},
    system::device::{self, DeviceChoice},
    weights::{
        adapter::Adapter,
        model_dir::{self, LoadOptions, LoadedModel},
    },
};

use crate::bundled;

/// The model and its device.
#[derive(Args, Clone, Debug)]
pub struct ModelConfig {
    /// Model dir in Hugging Face's format, GGUF file, or name of a model of the Hugging Face hub, which is downloaded if
    /// needed: `ORG/NAME[@REVISION][:FILE or QUANTIZATION]` [default: the bundled model]
    #[arg(long, env = "HEARTH_MODEL", value_name = "DIR|FILE|NAME", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    pub model: Option<ModelSource>,
    /// Device: `auto` (a GPU if there is one, else the CPU), `gpu`, `cpu`, `wgpu-software`, or another device of this build
    #[arg(long, env = "HEARTH_DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Dtype of weight matrices: `f32`, `f16` or `bf16` [default: the files' dtype if it is bf16, quantized or GGUF,
    /// else f32]
    #[arg(long, env = "HEARTH_DTYPE", value_parser = |name: &str| dtype_of(name, false))]
    pub dtype: Option<Dtype>,
    /// Quantize weight matrices to `q8` (8.5 bits per weight), `q5_1` (6 bits), `q4_1` (5 bits) or `q4` (4.5 bits, the least
    /// accurate); embeddings are always q8
    #[arg(long, env = "HEARTH_QUANTIZE", value_name = "DTYPE", conflicts_with = "dtype",
        value_parser = |name: &str| dtype_of(name, true))]
    pub quantize: Option<Dtype>,
    /// Dtype of the KV cache: `f32`, `f16` (half the memory), `q8` (8 bits, on the CPU), or `auto`: `f16` if weight matrices are
    /// f16 or quantized and the device supports it, else `f32`
    #[arg(long, env = "HEARTH_KV_CACHE_DTYPE", value_name = "DTYPE", value_enum, default_value_t = KvCacheDtype::Auto, hide_possible_values = true)]
    pub kv_cache_dtype: KvCacheDtype,
    /// Context length in tokens, of prompt and answer together. Models with the rotary scaling `longrope` use their factors for
    /// short texts if it is at most their original context length [default: the model's]
    #[arg(long, env = "HEARTH_MAX_SEQ_LEN", value_name = "TOKENS")]
    pub max_seq_len: Option<usize>,
    /// Arithmetic of matrix products: `f32`, or for weights in bf16 `bf16`, which rounds activations, too: prompts are read up to
    /// twice as fast, on CPUs of AMD with AVX512_BF16
    #[arg(long, env = "HEARTH_PRECISION", value_name = "PRECISION", value_enum, default_value_t = ProductPrecision::F32, hide_possible_values = true)]
    pub precision: ProductPrecision,
}

/// The arithmetic of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProductPrecision {
    /// Activations in f32.
    F32,
    /// Weights and activations in bf16, sums in f32.
    Bf16,
}

/// Parses a value of `--quantize` or `--dtype`. The error has a hint if it is a value of the other flag.
fn dtype_of(name: &str, is_quantized: bool) -> Result<Dtype, String> {
    Dtype::parse(name, |dtype| dtype.is_quantized() == is_quantized).map_err(|what| {
        let other = if is_quantized { "dtype" } else { "quantize" };
        let is_other = Dtype::parse(name, |dtype| dtype.is_quantized() != is_quantized).is_ok();
        if is_other { format!("{what}\nhint: `--{other} {name}`") } else { what }
    })
}

/// The dtype of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// Chosen for the model.
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit numbers with a scale for each token and head.
    Q8,
}

impl KvCacheDtype {
    /// The dtype chosen by the user, if any.
    pub(crate) fn asked(self) -> Option<KvDtype> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(KvDtype::F32),
            Self::F16 => Some(KvDtype::F16),
            Self::Q8 => Some(KvDtype::Q8),
        }
    }
}

impl ModelConfig {
    /// The model's name for clients: the name of its folder, or of its file without `.gguf`; for a model of the hub,
    /// the given name.
    pub fn model_id(&self) -> String {
        let path = match &self.model {
            None => return bundled::NAME.to_owned(),
            Some(ModelSource::Hub(model)) => return model.to_string(),
            Some(ModelSource::Path(path)) => path,
        };
        // A link has its own name: in Hugging Face's cache, files are links to hashes. `.` has a name once resolved.
        let resolved = path.canonicalize();
        let name = path.file_name().or_else(|| resolved.as_deref().ok()?.file_name());
        let name = name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        name.strip_suffix(".gguf").map(str::to_owned).unwrap_or(name)
    }

    /// Opens the device and loads the model, which is downloaded if needed. Must run on the thread that computes with it.
    ///
    /// # Errors
    /// The device is not available, or the model cannot be downloaded or loaded.
    pub fn load(&self, progress: &mut dyn FnMut(Download)) -> Result<LoadedModel> {
        let path = self.model.as_ref().map(|source| source.open(ModelPart::Whole, progress)).transpose()?;
        let options = LoadOptions { device: self.device()?, dtype: self.held_as() };
        let loaded = match path {
            Some(path) => {
                self.require_memory(&path, &options.device)?;
                model_dir::load(&path, &options)?
            }
            None => model_dir::load_embedded(&bundled::DIR, &options)?,
        };
        let loaded = LoadedModel { gpt: self.with_max_seq_len(loaded.gpt)?, ..loaded };
        match self.precision {
            ProductPrecision::F32 => Ok(loaded),
            ProductPrecision::Bf16 => with_bf16_products(loaded),
        }
    }

    /// Loads the prediction head of `gpt`, which [`load`](Self::load) has loaded, if the files have one.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_prediction_head(
        &self,
        gpt: &Gpt,
        progress: &mut dyn FnMut(Download),
    ) -> Result<Option<PredictionHead>> {
        let Some(source) = &self.model else { return Ok(None) };
        let path = source.open(ModelPart::Whole, progress)?;
        let options = LoadOptions { device: gpt.device(), dtype: self.held_as() };
        model_dir::load_prediction_head(&path, &options, gpt)
    }

    /// `gpt` with the context length set on the command line, if any.
    ///
    /// # Errors
    /// The context is empty, or longer than the model's.
    pub(crate) fn with_max_seq_len(&self, gpt: Gpt) -> Result<Gpt> {
        let (Some(asked), most) = (self.max_seq_len, gpt.config().max_seq_len) else { return Ok(gpt) };
        if !(1..=most).contains(&asked) {
            let original = if gpt.config().is_extended_dynamically() {
                ", the original context: dynamic rotary scaling beyond it is not supported"
            } else {
                ""
            };
            let what = format!("must be from 1 to {most}, the model's context{original}, got {asked}");
            return Err(Error::Param { name: "--max-seq-len", what });
        }
        Ok(gpt.with_max_seq_len(asked))
    }

    /// The Hugging Face class of the model's files, which names the modules of adapters. `None` for the bundled model
    /// and GGUF files: modules are then named as in the first class that can express the architecture.
    ///
    /// # Errors
    /// The model cannot be downloaded, or is an adapter whose base model is not on this machine.
    pub(crate) fn class(&self) -> Result<Option<&'static str>> {
        Ok(self.without_adapter(&mut |_| {})?.and_then(|path| model_dir::load_class(&path).ok()))
    }

    /// The architecture, from the configuration alone. The model is downloaded if needed.
    ///
    /// # Errors
    /// As [`class`](Self::class), or the configuration is broken or not supported.
    pub(crate) fn gpt_config(&self, progress: &mut dyn FnMut(Download)) -> Result<GptConfig> {
        match self.without_adapter(progress)? {
            Some(path) => model_dir::load_config(&path),
            None => model_dir::load_embedded_config(&bundled::DIR),
        }
    }

    /// The path of the model, or of the model that an adapter updates. `None` for the bundled model.
    fn without_adapter(&self, progress: &mut dyn FnMut(Download)) -> Result<Option<PathBuf>> {
        let Some(source) = &self.model else { return Ok(None) };
        let path = source.open(ModelPart::Whole, progress)?;
        let dir = model_dir::model_of(&path);
        if Adapter::is_in(&dir) { model_dir::adapter_base(&dir).map(Some) } else { Ok(Some(dir.into_owned())) }
    }

    /// Rejects a model that does not fit into this machine's memory, before loading it. GPU memory is not checked: its
    /// size is not known.
    fn require_memory(&self, dir: &Path, device: &Device) -> Result<()> {
        // Errors in the files are reported by the loader.
        let (Ok(config), true) = (model_dir::load_config(dir), *device == Device::flex()) else { return Ok(()) };
        let held_as = self.held_as().or(model_dir::load_stored_dtype(dir).ok().flatten());
        let bits = match held_as {
            Some(dtype) if dtype.is_quantized() => memory::bits_of(dtype),
            // A GGUF file, or a model that another program quantized, whose dtypes are not read here: assume the
            // smallest.
            None if dir.is_file() || model_dir::is_quantized(dir).unwrap_or_default() => memory::bits_of(Dtype::Q2),
            // f32 weights may be stored in half the memory (see `ops/cpu/narrow_f32.rs`).
            _ => memory::bits_of(Dtype::Bf16),
        };
        let n_bytes = memory::least_weight_bytes(config.n_params(), bits);
        memory::require_possible(n_bytes, memory::limit_bytes()).map_err(|what| Error::File {
            path: dir.to_owned(),
            what,
            hint: "`--quantize q4` needs the least memory; otherwise use a smaller model or a larger machine"
                .to_owned(),
        })
    }

    /// The dtype of weight matrices, if set on the command line.
    pub(crate) fn held_as(&self) -> Option<Dtype> {
        self.quantize.or(self.dtype)
    }

    /// The dtype of a cache for the model.
    ///
    /// # Errors
    /// The model's device does not support it.
    pub(crate) fn kv_dtype(&self, gpt: &Gpt) -> Result<KvDtype> {
        KvDtype::choose(self.kv_cache_dtype.asked(), gpt.dtype(), &gpt.device())
    }

    /// Opens the device. Must run on the thread that computes with it.
    ///
    /// # Errors
    /// The device is not available.
    pub(crate) fn device(&self) -> Result<Device> {
        // Before anything is computed.
        ops::start_threads();
        let chosen = device::choose(self.device)?;
        tracing::info!("device: {} ({})", device::name(&chosen.device), chosen.reason);
        Ok(chosen.device)
    }
}

/// The model with [`ProductPrecision::Bf16`].
fn with_bf16_products(loaded: LoadedModel) -> Result<LoadedModel> {
    let refuse = |what: String| Err(Error::Param { name: "--precision", what });
    let (device, dtype) = (loaded.gpt.device(), loaded.gpt.dtype());
    if device != Device::flex() {
        return refuse(format!("is `bf16`, which is for the CPU; the device is {}", device::name(&device)));
    }
    if !ops::has_fast_bf16_products(&device) {
        let what =
            "is `bf16`, which this CPU multiplies no faster than f32 (AMD's with AVX512_BF16 do)\nhint: use `f32`";
        return refuse(what.to_owned());
    }
    if dtype != Dtype::Bf16 {
        return refuse(format!(
            "is `bf16`, which is for weights in bf16; they are in {dtype}\nhint: add `--dtype bf16`"
        ));
    }
    Ok(LoadedModel { gpt: loaded.gpt.with_precision(Precision::Bf16), ..loaded })
}

/// Defaults of sampling parameters.
#[derive(Args, Clone, Copy, Debug)]
pub struct SamplingConfig {
    /// Defaults of sampling parameters: `model` (the model's generation_config.json) or `openai` (OpenAI's defaults)
    #[arg(long, env = "HEARTH_SAMPLING_DEFAULTS", value_name = "WHOSE", value_enum, default_value_t = SamplingDefaults::Model)]
    pub sampling_defaults: SamplingDefaults,
}

/// The source of defaults of sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SamplingDefaults {
    /// The model's `generation_config.json`.
    Model,
    /// OpenAI's defaults, which are neutral.
    Openai,
}

impl SamplingDefaults {
    /// Applies the setting to a loaded model.
    pub fn of(self, model: LoadedModel) -> LoadedModel {
        match self {
            Self::Model => model,
            Self::Openai => LoadedModel { sampling_defaults: SamplingParams::default(), ..model },
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;

    use super::*;

    fn config(path: &Path) -> ModelConfig {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            model: ModelConfig,
        }
        Flags::try_parse_from(["hearth".as_ref(), "--model".as_ref(), path.as_os_str()]).unwrap().model
    }

    #[test]
    fn class_and_config_resolve_for_model_run_and_adapter_dirs() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama");
        let dir = tempfile::tempdir().unwrap();
        let folders = ["plain", "adapted"].map(|name| dir.path().join(name).join("model"));
        for folder in &folders {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("../config.toml"), "").unwrap();
        }
        std::fs::copy(model.join("config.json"), folders[0].join("config.json")).unwrap();
        let adapter = format!(
            "{{\"base_model_name_or_path\": {:?}, \"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 2, \
             \"target_modules\": [\"q_proj\"]}}",
            model.display().to_string()
        );
        std::fs::write(folders[1].join("adapter_config.json"), adapter).unwrap();
        for path in [&model, &dir.path().join("plain"), &dir.path().join("adapted"), &folders[1]] {
            let config = config(path);
            assert_eq!(config.class().unwrap(), Some("LlamaForCausalLM"), "{}", path.display());
            assert_eq!(config.gpt_config(&mut |_| {}).unwrap(), model_dir::load_config(&model).unwrap());
        }
    }

    #[test]
    fn max_seq_len_flag_shortens_the_context_of_the_model() {
        let options = LoadOptions { device: Device::flex(), dtype: None };
        let context_of = |case: &str, max_seq_len| {
            let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(case);
            let config = ModelConfig { max_seq_len, ..config(&model) };
            let gpt = config.with_max_seq_len(model_dir::load_gpt(&model, &options).unwrap());
            gpt.map(|gpt| gpt.config().max_seq_len).map_err(|error| error.to_string())
        };
        let context = |max_seq_len| context_of("phi3-longrope", max_seq_len);
        assert_eq!([None, Some(64), Some(12), Some(1)].map(context), [Ok(64), Ok(64), Ok(12), Ok(1)]);
        for wrong in [0, 65] {
            let message = format!("`--max-seq-len` must be from 1 to 64, the model's context, got {wrong}");
            assert_eq!(context(Some(wrong)), Err(message));
        }
        assert_eq!(context_of("rope-dynamic", None), Ok(24));
        let beyond = context_of("rope-dynamic", Some(48)).unwrap_err();
        assert!(beyond.contains("from 1 to 24") && beyond.contains("dynamic rotary scaling"), "{beyond}");
    }

    #[cfg(unix)]
    #[test]
    fn model_id_comes_from_the_path_not_from_the_symlink_target() {
        let dir = tempfile::tempdir().unwrap();
        let (blob, link) = (dir.path().join("5f0a"), dir.path().join("SmolLM2-Q4_1.gguf"));
        std::fs::write(&blob, "").unwrap();
        std::os::unix::fs::symlink(&blob, &link).unwrap();
        std::fs::create_dir_all(dir.path().join("my-model/inner")).unwrap();
        let name = |path: &Path| config(path).model_id();
        assert_eq!(name(&link), "SmolLM2-Q4_1");
        assert_eq!(name(&dir.path().join("my-model")), "my-model");
        assert_eq!(name(&dir.path().join("my-model/inner/..")), "my-model");
        assert_eq!(name(&dir.path().join("my-model/.")), "my-model");
    }
}
