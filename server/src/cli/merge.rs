//! `hearth merge`: writes a model with a LoRA adapter added to its matrices.

use std::path::{Path, PathBuf};

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_model::{
    TokenId,
    model_source::ModelSource,
    ops::Dtype,
    system::device::{self, DeviceChoice},
    text::tokenizer::Tokenizer,
    weights::{
        DiskDtype,
        adapter::{Adapter, AdapterModel},
        encoder_files,
        model_dir::{self, LoadOptions, SaveOptions},
    },
};

use super::{
    download,
    new_model::{megabytes, stage, without_head},
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
    hearth_model::ops::start_threads();
    let MergeArgs { model, adapter, out, dtype } = args;
    let model = download::open(&model)?;
    let class = model_dir::load_class(&model).ok().map(str::to_owned);
    let config = model_dir::load_config(&model)?;
    let adapter_dir = model_dir::model_of(&adapter);
    let adapter = Adapter::open(&adapter_dir, AdapterModel::new(&config, class.as_deref())?)?;
    let staged = stage(&out)?;
    let device = device::choose(DeviceChoice::Cpu)?.device;
    let options = LoadOptions { device: device.clone(), dtype: Some(Dtype::F32) };
    let mut gpt = model_dir::load_gpt_merged(&model, &options, Some(&adapter.values))?;
    if let Some(classifier) = encoder_files::load_classifier(&model)? {
        gpt = gpt.with_classifier(&classifier, &device)?;
    }
    let (eos_token_ids, extra_files) = text_of(&model, &adapter_dir)?;
    // GGUF files have no encoder-decoders.
    let (decoder_start, pad_token_id) = match model.is_dir() {
        true => model_dir::load_decoder_start(&model)?,
        false => (Vec::new(), None),
    };
    let options =
        SaveOptions { dtype, class, eos_token_ids, decoder_start, pad_token_id, extra_files, ..SaveOptions::default() };
    model_dir::write(&staged, &gpt, &options)?;
    staged.commit()?;
    output::print(&format!(
        "`{0}`: {1:.1} MB of weights{2}; serve it with `hearth serve --model {0}`\n",
        out.display(),
        megabytes(&out)?,
        without_head(&model)?,
    ))
}

/// Names and contents.
type TextFiles = Vec<(String, Vec<u8>)>;

/// The end-of-sequence tokens of the merged model, and its files besides the weights. If a tokenizer and a chat
/// template were saved with the adapter, they are used, and the base need not have its own. PEFT saves no
/// `generation_config.json` with an adapter, so the base's is used.
fn text_of(model: &Path, adapter: &Path) -> anyhow::Result<(Vec<TokenId>, TextFiles)> {
    if !adapter.join("tokenizer.json").exists() {
        return Ok((model_dir::load_text(model)?.eos_token_ids, model_dir::files_beside_weights(model)?));
    }
    let eos_token_ids = model_dir::load_eos_token_ids(model, &Tokenizer::from_dir(adapter)?)?;
    let mut files = model_dir::files_beside_weights(adapter)?;
    let is_generation_config = |(name, _): &(String, Vec<u8>)| name == "generation_config.json";
    if !files.iter().any(is_generation_config) {
        files.extend(model_dir::files_beside_weights(model)?.into_iter().filter(is_generation_config));
    }
    Ok((eos_token_ids, files))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    #[test]
    fn merge_takes_tokenizer_and_generation_config_from_the_adapter() {
        // It has `config.json` and `generation_config.json`, and no tokenizer.
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama");
        let adapter = tempfile::tempdir().unwrap();
        assert!(text_of(&base, adapter.path()).is_err());
        let tokenizer = r#"{"version": "1.0", "added_tokens": [],
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
            "decoder": {"type": "Fuse"}, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
        fs::write(adapter.path().join("tokenizer.json"), tokenizer).unwrap();
        let (eos_token_ids, files) = text_of(&base, adapter.path()).unwrap();
        assert_eq!(eos_token_ids, [2]);
        let generation = ("generation_config.json".to_owned(), fs::read(base.join("generation_config.json")).unwrap());
        assert_eq!(files, [("tokenizer.json".to_owned(), tokenizer.as_bytes().to_vec()), generation.clone()]);
        // The adapter's own file takes precedence.
        fs::write(adapter.path().join("generation_config.json"), "{}").unwrap();
        let (_, files) = text_of(&base, adapter.path()).unwrap();
        assert!(files.contains(&("generation_config.json".to_owned(), b"{}".to_vec())) && !files.contains(&generation));
    }
}
