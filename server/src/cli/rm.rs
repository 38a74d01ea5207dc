//! `hearth rm`: removes a model from the cache of the Hugging Face hub.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, ensure};
use clap::Args;
use hearth_model::{
    files::byte_size::ByteSize,
    hub::{HubOptions, removal::Removal},
};

use super::{output, pull::named};

/// The arguments of `hearth rm`.
#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// Name of the model, as `hearth list` shows it
    name: String,
    /// Remove without asking
    #[arg(long, short)]
    yes: bool,
}

/// Removes the model and prints what became free.
pub(crate) fn run(args: RmArgs) -> anyhow::Result<()> {
    let model = named(&args.name)?;
    let cache = HubOptions::from_env()?.cache;
    let removal = Removal::plan(&cache, &model)?;
    let (n_files, freed) = (removal.n_files(), ByteSize(removal.freed_bytes()));
    let files = if n_files == 1 { "1 file".to_owned() } else { format!("{n_files} files") };
    if !args.yes && !is_confirmed(&format!("remove `{model}` ({files}, {freed})? [y/N] "))? {
        return output::print("nothing was removed\n");
    }
    removal.run()?;
    output::print(&format!("removed `{model}`: {files}, {freed} are free again\n"))
}

fn is_confirmed(question: &str) -> anyhow::Result<bool> {
    ensure!(
        io::stdin().is_terminal(),
        "removing a model needs a confirmation, but standard input is not a terminal\nhint: `--yes` removes it without asking"
    );
    let mut stderr = io::stderr();
    stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).context("cannot ask")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
