//! Checks that must hold when a run continues from a checkpoint, or starts from a model.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use hearth_model::{text::tokenizer::Tokenizer, weights::model_dir};

use super::Data;
use crate::{
    config::{TrainConfig, differences},
    run::{adapter, checkpoint::Checkpoint},
};

/// Refuses a configuration, data or a model that the checkpoint was not made with.
pub(super) fn require_same_run(checkpoint: &Checkpoint, config: &TrainConfig, data: &Data) -> Result<()> {
    let (state, shown) = (&checkpoint.state, checkpoint.dir().display());
    let found = differences(&checkpoint.config, config)?;
    ensure!(
        found.is_empty(),
        "the checkpoint `{shown}` was made with another configuration: {}\nhint: use the settings of the run; only `schedule`, \
         `eval`, `sample`, `checkpoint`, `optim.recompute`, and the micro-batches of a step of the same size may change",
        found.join("; ")
    );
    for (what, then, now) in [("tokenizer", state.tokenizer, data.tokenizer_hash), ("data", state.data, data.hash)] {
        ensure!(
            then == now,
            "the checkpoint `{shown}` was made with other data: the {what} had the hash {}, but this has {}\nhint: use the data \
             that the run was started with",
            then.short(),
            now.short()
        );
    }
    if let (Some(then), Some(now)) = (state.base, adapter::base_digest(config)?) {
        ensure!(
            then == now,
            "the checkpoint `{shown}` was made with another model than `{}`: it had the hash {}, but this has {}\nhint: use the \
             model that the run was started with",
            config.model.init.as_deref().unwrap_or(Path::new("")).display(),
            then.short(),
            now.short()
        );
    }
    Ok(())
}

/// Rejects the data in the folder `data` if its tokens mean something else to the model in `dir`; checked if the
/// model's tokenizer is there.
pub(super) fn require_same_tokens(dir: &Path, of_data: &Tokenizer, data: Option<&Path>) -> Result<()> {
    if dir.is_dir() && !model_dir::model_of(dir).join("tokenizer.json").exists() {
        return Ok(());
    }
    let of_model = model_dir::load_tokenizer(dir)?;
    if let Some(id) = of_data.first_difference(&of_model) {
        let text = |tokenizer: &Tokenizer| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        bail!(
            "the data{} has another tokenizer than the model `{}`: token {id} is {:?} in the data and {:?} in the model\nhint: \
             prepare the data with `--tokenizer {}`",
            data.map_or_else(String::new, |data| format!(" `{}`", data.display())),
            dir.display(),
            text(of_data),
            text(&of_model),
            model_dir::model_of(dir).display()
        );
    }
    Ok(())
}
