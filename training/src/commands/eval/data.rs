//! Evaluation data as JSON lines, and the output file with the result for each line: shared options of evaluation
//! commands.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use hearth_training::cli::{unwritable, write_lines};
use serde::Serialize;

/// The data, and where details go.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DataArgs {
    /// JSON lines, or CSV or TSV with a row of names
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    #[command(flatten)]
    out: OutArgs,
}

/// Output file for details.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct OutArgs {
    /// Write the result for each text or item to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl DataArgs {
    /// The file with the data. Also checks, before any work, that `--out` can be written and is not one of the files
    /// that are read: the data and `others`.
    ///
    /// # Errors
    /// `--out` cannot be written, or is read.
    pub(super) fn path(&self, others: &[&PathBuf]) -> Result<&Path> {
        let read: Vec<PathBuf> = others.iter().copied().chain([&self.data]).cloned().collect();
        self.out.check(&read)?;
        Ok(&self.data)
    }

    /// Writes the lines of `--out`, if it was given.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write<T: Serialize>(&self, lines: &[T]) -> Result<()> {
        self.out.write(lines)
    }
}

impl OutArgs {
    /// Checks, before any work, that `--out` can be written and is not one of the files `read`.
    ///
    /// # Errors
    /// `--out` cannot be written, or is read.
    pub(super) fn check(&self, read: &[PathBuf]) -> Result<()> {
        if let Some(out) = &self.out {
            for read in read {
                ensure!(
                    !is_same_file(read, out),
                    "`--out {}` would replace what is read, `{}`\nhint: write to another file",
                    out.display(),
                    read.display()
                );
            }
            // Opened for appending, since the old contents stay until the new ones are complete.
            let opened = OpenOptions::new().append(true).create(true).open(out);
            opened.map_err(|error| unwritable(out, &error))?;
        }
        Ok(())
    }

    /// Writes the lines of `--out`, if it was given.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write<T: Serialize>(&self, lines: &[T]) -> Result<()> {
        self.out.as_ref().map_or(Ok(()), |out| write_lines(out, lines))
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// A text of the command line, in which `\n` stands for a line break.
pub(super) fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n")
}
