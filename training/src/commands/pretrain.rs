//! `hearth-train pretrain`: prepared data to a model.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use hearth_model::weights::model_dir;
use hearth_training::{
    shard::{Dataset, Split},
    trainer::Data,
};

use super::session::{RunArgs, Session};

/// Trains a model on prepared data
///
/// The run's folder holds its configuration, metrics, checkpoints, and in `model/` the model with the lowest loss on the
/// validation split, for `hearth serve --model RUN` and for `transformers`. A run that was stopped goes on with `--resume`
/// and ends with the very same weights as one that was not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder that `hearth-train prepare` wrote; sets `data.path`
    #[arg(long, value_name = "DATA")]
    data: Option<PathBuf>,

    /// Start from the weights of this model instead of random ones: a model dir, or a model of the Hugging Face hub
    /// (`ORG/NAME[@REVISION]`); sets `model.init`
    #[arg(long, value_name = "MODEL")]
    init: Option<PathBuf>,

    #[command(flatten)]
    run: RunArgs,
}

/// Opens the data, trains, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let mut session = Session::new(args.run, None)?;
    let config = &mut session.config;
    config.data.path = args.data.or(config.data.path.take());
    config.model.init = args.init.or(config.model.init.take());
    let path = config.data.path.as_deref().context(
        "no training data: `data.path` is not set\nhint: use `--data DATA` with a folder made by `hearth-train prepare`",
    )?;
    let dataset = Dataset::open(path)?;
    let data = Data {
        tokenizer: dataset.open_tokenizer()?,
        tokenizer_files: model_dir::files_beside_weights(&dataset.tokenizer_dir())?,
        train: dataset.split(Split::Train).clone(),
        val: dataset.split(Split::Val).clone(),
        hash: dataset.hash(),
        tokenizer_hash: dataset.tokenizer_hash(),
    };
    session.train(&data)
}
