//! `hearth quantize`: writes a quantized copy of a model, which is smaller and loads without quantizing.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_model::{
    model_source::ModelSource,
    ops::Dtype,
    system::device::{self, DeviceChoice},
    weights::model_dir::{self, LoadOptions, SaveOptions},
};

use super::{
    download,
    new_model::{megabytes, stage, whole_model, without_head},
    output,
};

/// The arguments of `hearth quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// Model to read: model dir, GGUF file, or name of a model of the Hugging Face hub
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,
    /// Model dir to write: a new or an empty folder. It is created only when it is complete
    out: PathBuf,
    /// Format of weight matrices: `q8` (8.5 bits per weight), `q5_1` (6 bits), `q4_1` (5 bits) or `q4` (4.5 bits, the least
    /// accurate); embeddings are always q8
    #[arg(long, value_name = "DTYPE", default_value_t = Dtype::Q8, value_parser = |name: &str| Dtype::parse(name, Dtype::is_quantized))]
    quantize: Dtype,
}

/// Writes the new model dir and prints its size.
pub(crate) fn run(args: QuantizeArgs) -> anyhow::Result<()> {
    hearth_model::ops::start_threads();
    let QuantizeArgs { model, out, quantize } = args;
    let model = download::open(&model)?;
    let staged = stage(&out)?;
    let device = device::choose(DeviceChoice::Cpu)?.device;
    let loaded = model_dir::load(&model, &LoadOptions { device: device.clone(), dtype: Some(quantize) })?;
    let options = SaveOptions {
        eos_token_ids: loaded.eos_token_ids,
        decoder_start: loaded.decoder_start,
        extra_files: model_dir::files_beside_weights(&model)?,
        ..SaveOptions::default()
    };
    let gpt = match &loaded.classifier {
        Some(classifier) if classifier.is_of_tokens() => {
            anyhow::bail!(
                "`{}` has a head for the classes of tokens, which is not quantized\nhint: serve it as it is",
                model.display()
            )
        }
        Some(classifier) => loaded.gpt.with_classifier(classifier, &device)?,
        None => loaded.gpt,
    };
    model_dir::write(&staged, &gpt, &options)?;
    staged.commit()?;
    let whole = whole_model(&model)?;
    output::print(&format!(
        "`{0}`: {1:.1} MB of weights in {quantize}, from {2:.1} MB{3}; serve it with `hearth serve --model {0}`\n",
        out.display(),
        megabytes(&out)?,
        megabytes(&whole)?,
        without_head(&whole)?,
    ))
}
