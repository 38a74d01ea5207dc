//! The model of a run: how it is made or loaded, and in which form it is saved.

use anyhow::Result;
use burn::tensor::Device;
use hearth_model::{
    gpt::{Gpt, prediction_head::PredictionHead},
    ops::Dtype,
    weights::{
        DiskDtype, StagedDir, encoder_files,
        model_dir::{self, LoadOptions, SaveOptions},
    },
};

use super::Data;
use crate::{
    config::TrainConfig,
    run::{
        adapter::{self, Adapted, SavedAdapter},
        checkpoint::Checkpoint,
        init::initialize,
    },
};

/// The form in which the model of a run is saved.
#[derive(Clone, Debug)]
pub(crate) enum SavedForm {
    /// Whole, in the Hugging Face class of the initial model.
    Model { class: Option<String> },
    /// Only its adapter.
    Adapter(Box<SavedAdapter>),
}

/// The model that a run with `config` begins with, for a vocabulary of `vocab_size`.
///
/// # Errors
/// Settings that make no model, or a model that cannot be opened or does not train.
pub(crate) fn first_model(config: &TrainConfig, vocab_size: usize, device: &Device) -> Result<(Gpt, SavedForm)> {
    // Autodiff is set first: gradients flow through tensors created on this device, weights and inputs alike.
    let device = device.clone().autodiff();
    let trains_vectors = config.objective.objective().trains_vectors();
    match (&config.model.init, &config.lora) {
        (None, _) => {
            let mut gpt = Gpt::init(&config.gpt_config(vocab_size)?, config.seed, &device)?;
            if config.objective.mtp > 0.0 {
                let head = PredictionHead::init(&gpt, config.seed)?;
                gpt = gpt.with_prediction_head(head);
            }
            Ok((initialize(gpt, &config.model), SavedForm::Model { class: None }))
        }
        (Some(dir), Some(lora)) => {
            let Adapted { gpt, saved } = adapter::load(dir, (lora, config.seed), &device, (None, trains_vectors))?;
            Ok((gpt, SavedForm::Adapter(Box::new(saved))))
        }
        (Some(dir), None) => {
            adapter::require_trainable(dir)?;
            let options = LoadOptions { device: device.clone(), dtype: Some(Dtype::F32) };
            let gpt = model_dir::load_gpt(dir, &options)?.with_dropout(config.model.dropout).with_fixed_logit_bias();
            if trains_vectors {
                // A head for masked tokens would no longer fit the encoder.
                let class = encoder_files::load_class_without_head(dir)?.to_owned();
                return Ok((gpt.without_mlm_head(), SavedForm::Model { class: Some(class) }));
            }
            Ok((gpt, SavedForm::Model { class: model_dir::load_class(dir).ok().map(str::to_owned) }))
        }
    }
}

/// The model from which a run with `config` continues, on an autodiff device.
///
/// # Errors
/// The checkpoint, or the model of its adapter, cannot be opened.
pub(super) fn model_of_checkpoint(
    checkpoint: &Checkpoint,
    config: &TrainConfig,
    device: &Device,
) -> Result<(Gpt, SavedForm)> {
    let trains_vectors = config.objective.objective().trains_vectors();
    match (&config.lora, &config.model.init) {
        (Some(lora), Some(base)) => {
            let Adapted { gpt, saved } =
                adapter::load(base, (lora, config.seed), device, (Some(checkpoint.dir()), trains_vectors))?;
            Ok((gpt, SavedForm::Adapter(Box::new(saved))))
        }
        _ => {
            // Of a model with a head for classes, that of the encoder alone.
            let class = match trains_vectors {
                true => encoder_files::load_class_without_head(checkpoint.dir()),
                false => model_dir::load_class(checkpoint.dir()),
            };
            Ok((
                checkpoint.load_gpt(device)?.with_fixed_logit_bias(),
                SavedForm::Model { class: class.ok().map(str::to_owned) },
            ))
        }
    }
}

impl SavedForm {
    /// Writes `gpt`, which must be without autodiff, or its adapter alone, with the tokenizer's files.
    pub(super) fn write(&self, staged: &StagedDir, gpt: &Gpt, data: &Data, dtype: DiskDtype) -> Result<()> {
        match self {
            Self::Adapter(adapter) => adapter.write(staged, gpt, &data.tokenizer_files),
            Self::Model { class } => {
                let options = SaveOptions {
                    dtype,
                    class: class.clone(),
                    eos_token_ids: data.eos_token_ids.clone(),
                    decoder_start: data.decoder.start.clone(),
                    pad_token_id: data.decoder.pad,
                    extra_files: data.tokenizer_files.clone(),
                    ..SaveOptions::default()
                };
                Ok(model_dir::write(staged, gpt, &options)?)
            }
        }
    }
}
