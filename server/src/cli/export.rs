//! `hearth export`: writes a model as a GGUF file.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_model::{
    device::{self, DeviceChoice},
    model_source::ModelSource,
    ops::Dtype,
    weights::{
        gguf::export::{ExportOptions, export, partial_of},
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
    /// Dtype of weight matrices: `f32`, `f16` or `bf16` [default: blocks as the model has them, else f32]
    #[arg(long, value_name = "DTYPE", conflicts_with = "quantize", value_parser = |name: &str| Dtype::parse(name, |dtype| !dtype.is_quantized()))]
    dtype: Option<Dtype>,
    /// Quantize weight matrices to `q8` (Q8_0), `q5_1`, `q4_1` or `q4` (Q4_0)
    #[arg(long, value_name = "DTYPE", value_parser = |name: &str| Dtype::parse(name, Dtype::is_quantized))]
    quantize: Option<Dtype>,
}

/// Writes the file and prints its size.
pub(crate) fn run(args: ExportArgs) -> anyhow::Result<()> {
    let ExportArgs { model, out, dtype, quantize } = args;
    ensure!(!out.exists(), "`{}` already exists\nhint: give the name of a new file", out.display());
    let model = download::open(&model)?;
    let device = device::choose(DeviceChoice::Cpu)?.device;
    let loaded = model_dir::load(&model, &LoadOptions { device, dtype: None })?;
    let options = ExportOptions {
        dtype: quantize.or(dtype),
        name: model.file_stem().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned()),
        class: model_dir::load_class(&model).ok().map(str::to_owned),
        extra_files: model_dir::files_beside_weights(&model)?,
    };
    new_model::remove_file_when_interrupted(&partial_of(&out));
    export(&out, &loaded, &options)?;
    let size = out.metadata()?.len() as f64 / 1e6;
    output::print(&format!("`{0}`: {size:.1} MB; serve it with `hearth serve --model {0}`\n", out.display()))
}
