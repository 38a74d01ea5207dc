//! Commands that moved to `hearth-lab`: their old names report where they are.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Result, bail};

/// Any arguments, none of which matter.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _ignored: Vec<OsString>,
}

/// Fails, naming the command `name` of `hearth-lab`.
pub(crate) fn run(name: &str) -> Result<ExitCode> {
    bail!("moved: `hearth-lab {name}`; build it with `cargo build --release --workspace`")
}
