//! Models and tokenizers of other programs' making: opened by path, or by name from the hub, with progress.

use std::path::PathBuf;

use anyhow::Result;
use hearth_model::{hub::ModelPart, model_source::ModelSource};

use super::status::Status;

/// The path of `source`; a model of the hub is downloaded unless the cache has it.
pub(crate) fn open(source: &ModelSource, part: ModelPart) -> Result<PathBuf> {
    let mut status = Status::new();
    let path = source.open(part, &mut |download| status.show(|_| download.to_string()))?;
    status.clear();
    Ok(path)
}
