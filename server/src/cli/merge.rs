//! `hearth merge`: writes a model with a LoRA adapter added to its matrices.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_model::{
    device::{self, DeviceChoice},
    model_source::ModelSource,
    ops::Dtype,
    weights::{
        DiskDtype,
        adapter::{Adapter, AdapterModel},
        model_dir::{self, LoadOptions, SaveOptions},
    },
};

use super::{
    download,
    new_model::{megabytes, stage},
    output,
};

/// The arguments of `hearth merge`.
#[derive(Args, Debug)]
pub(crate) struct MergeArgs {
    /// The model that the adapter updates: model dir, GGUF file with float weights, or name of a model of the Hugging Face hub
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,
    /// Adapter: folder in PEFT's format, run of `hearth-train finetune --lora`, or GGUF file
    adapter: PathBuf,
    /// Model dir to write: a new or an empty folder. It is created only when it is complete
    out: PathBuf,
    /// Dtype of the weights on disk: `f32`, `f16` or `bf16`. The adapter is added in f32
    #[arg(long, value_name = "DTYPE", default_value = "f32")]
    dtype: DiskDtype,
}

/// Writes the new model dir and prints its size.
pub(crate) fn run(args: MergeArgs) -> anyhow::Result<()> {
    hearth_model::ops::lead_threads();
    let MergeArgs { model, adapter, out, dtype } = args;
    let model = download::open(&model)?;
    let class = model_dir::load_class(&model).ok().map(str::to_owned);
    let config = model_dir::load_config(&model)?;
    let adapter_dir = model_dir::model_of(&adapter);
    let adapter = Adapter::open(&adapter_dir, AdapterModel::new(&config, class.as_deref())?)?;
    let staged = stage(&out)?;
    let device = device::choose(DeviceChoice::Cpu)?.device;
    let options = LoadOptions { device, dtype: Some(Dtype::F32) };
    let gpt = model_dir::load_gpt_merged(&model, &options, Some(&adapter.values))?;
    // The tokenizer and the chat template that the adapter was trained with, where they were saved.
    let has_own_text = adapter_dir.join("tokenizer.json").exists();
    let text = if has_own_text { &*adapter_dir } else { &*model };
    let options = SaveOptions {
        dtype,
        class,
        eos_token_ids: model_dir::load_text(&model)?.eos_token_ids,
        extra_files: model_dir::files_beside_weights(text)?,
        ..SaveOptions::default()
    };
    model_dir::write(&staged, &gpt, &options)?;
    staged.commit()?;
    output::print(&format!(
        "`{0}`: {1:.1} MB of weights; serve it with `hearth serve --model {0}`\n",
        out.display(),
        megabytes(&out)?
    ))
}
