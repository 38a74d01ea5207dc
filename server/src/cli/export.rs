//! `hearth export`: writes a model or an adapter as a GGUF file.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_model::{
    files::partial_file::PartialFile,
    model_source::ModelSource,
    ops::Dtype,
    system::device::{self, DeviceChoice},
    weights::{
        DiskDtype,
        adapter::{Adapter, AdapterModel},
        gguf::export::{ExportOptions, export},
        model_dir::{self, LoadOptions},
    },
};

use super::{download, new_model, output};

/// The arguments of `hearth export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Model to read: model dir, run, adapter with its model, GGUF file, or name of a model of the Hugging Face hub
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,
    /// GGUF file to write; it must not be there. It is created only when it is complete
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Dtype of weight matrices: `f32`, `f16` or `bf16` [default: blocks as the model has them, else f32; adapters in f32]
    #[arg(long, value_name = "DTYPE", conflicts_with = "quantize", value_parser = |name: &str| Dtype::parse(name, |dtype| !dtype.is_quantized()))]
    dtype: Option<Dtype>,
    /// Quantize weight matrices to `q8` (Q8_0), `q5_1`, `q4_1` or `q4` (Q4_0)
    #[arg(long, value_name = "DTYPE", value_parser = |name: &str| Dtype::parse(name, Dtype::is_quantized))]
    quantize: Option<Dtype>,
    /// Write not the model but this adapter of it: a folder in PEFT's format, or a run of `hearth-train finetune`
    #[arg(long, value_name = "ADAPTER", conflicts_with = "quantize")]
    adapter: Option<PathBuf>,
}

/// Writes the file and prints its size.
pub(crate) fn run(args: ExportArgs) -> anyhow::Result<()> {
    hearth_model::ops::start_threads();
    let ExportArgs { model, out, dtype, quantize, adapter } = args;
    ensure!(!out.exists(), "`{}` already exists\nhint: give the name of a new file", out.display());
    let model = download::open(&model)?;
    let file = new_model::create_file(&out)?;
    let use_it = match adapter {
        Some(adapter) => {
            export_adapter(&model, &adapter, file, dtype)?;
            format!("serve it with `hearth serve --model {} --lora NAME={}`", model.display(), out.display())
        }
        None => {
            export_model(&model, file, quantize.or(dtype))?;
            let head = new_model::without_head(&new_model::whole_model(&model)?)?;
            format!("serve it with `hearth serve --model {}`{head}", out.display())
        }
    };
    let size = out.metadata()?.len() as f64 / 1e6;
    output::print(&format!("`{}`: {size:.1} MB; {use_it}\n", out.display()))
}

fn export_model(model: &Path, file: PartialFile, dtype: Option<Dtype>) -> anyhow::Result<()> {
    let device = device::choose(DeviceChoice::Cpu)?.device;
    let loaded = model_dir::load(model, &LoadOptions { device, dtype: None })?;
    anyhow::ensure!(
        loaded.classifier.is_none(),
        "`{}` has a head for classes, which GGUF files do not have here",
        model.display()
    );
    let options = ExportOptions {
        dtype,
        name: model.file_stem().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned()),
        class: model_dir::load_class(model).ok().map(str::to_owned),
        extra_files: model_dir::files_beside_weights(model)?,
    };
    Ok(export(file, &loaded, &options)?)
}

fn export_adapter(model: &Path, adapter: &Path, file: PartialFile, dtype: Option<Dtype>) -> anyhow::Result<()> {
    let (config, class) = (model_dir::load_config(model)?, model_dir::load_class(model).ok());
    let model = AdapterModel::new(&config, class)?;
    let dtype = match dtype {
        Some(Dtype::F16) => DiskDtype::F16,
        Some(Dtype::Bf16) => DiskDtype::Bf16,
        _ => DiskDtype::F32,
    };
    Ok(Adapter::open(&model_dir::model_of(adapter), model)?.write_gguf(file, model, dtype)?)
}
