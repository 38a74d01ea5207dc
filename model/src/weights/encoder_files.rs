//! Files of an encoder's model dir besides its weights: pooling, and a classification head.

use std::path::Path;

use super::{
    config_json::Fields,
    file_names::CONFIG_FILE,
    hf_schema::HfSchema,
    model_dir::{load_config_json, model_of, open},
    own_classifier, own_pooling,
};
use crate::{
    error::Result,
    gpt::pooling::{Classifier, OwnPooling, Pooling},
};

/// The class of the encoder in `dir` without a head.
///
/// # Errors
/// As [`load`](super::model_dir::load).
pub fn load_class_without_head(dir: &Path) -> Result<&'static str> {
    let (json, path) = load_config_json(&model_of(dir))?;
    Ok(HfSchema::of(&Fields::new(&json, &path))?.without_mlm_head().class())
}

/// The pooling of the model dir `dir` as its files state it, and how many tokens of a text it reads. A GGUF file states
/// neither here.
///
/// # Errors
/// A file cannot be read, or is not JSON.
pub fn load_pooling(dir: &Path) -> Result<(OwnPooling, Option<usize>)> {
    let of_dir = |dir: &Path| Ok((own_pooling::of_dir(dir)?, own_pooling::text_limit(dir)?));
    open(dir, |_| Ok((OwnPooling::Unstated, None)), of_dir)
}

/// The classification head of the encoder in `dir`, if it has one.
///
/// # Errors
/// As [`load`](super::model_dir::load).
pub fn load_classifier(dir: &Path) -> Result<Option<Classifier>> {
    let of_dir = |dir: &Path| {
        let (json, path) = load_config_json(dir)?;
        own_classifier::of_encoder(dir, &Fields::new(&json, &path))
    };
    open(dir, |_| Ok(None), of_dir)
}

/// A classification head with random weights for the classes `labels`, in the form of the family of the encoder in
/// `dir`.
///
/// # Errors
/// As [`load`](super::model_dir::load); or the family has no such heads.
pub fn fresh_classifier(dir: &Path, labels: &[String], pooling: Pooling, seed: u64) -> Result<Classifier> {
    let (json, path) = load_config_json(&model_of(dir))?;
    let fields = Fields::new(&json, &path);
    let config = HfSchema::of(&fields)?.read_config(&fields)?;
    own_classifier::fresh(&fields, &config, (labels, pooling), seed)
        .ok_or_else(|| crate::Error::file(model_of(dir).join(CONFIG_FILE), "is of a family without heads for classes"))
}
