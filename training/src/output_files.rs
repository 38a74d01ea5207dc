//! Files and folders that are complete or absent: others never find a half-written one under its name.

use std::{io::Write, path::Path};

use anyhow::{Context, Result};
use hearth_model::{Error, files::partial_file::PartialFile, weights::StagedDir};

/// Stages a new folder at `path`, which must be missing or empty; see [`StagedDir::creating`].
///
/// # Errors
/// `path` is not empty, or it cannot be written to.
pub fn stage(path: &Path) -> Result<StagedDir> {
    StagedDir::creating(path).map_err(|error| match error {
        Error::Io { .. } => anyhow::Error::from(error).context(unwritable(path)),
        error => error.into(),
    })
}

/// The context of an error about the folder `path`.
pub(crate) fn unwritable(path: &Path) -> String {
    format!("cannot write to `{}`\nhint: give a folder as `--out` that this user may write to", path.display())
}

/// Writes a file under a temporary name and renames it, so that readers find the old or the new contents.
///
/// # Errors
/// The file cannot be written; the partial file is removed.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = PartialFile::create(path)?;
        file.write_all(bytes)?;
        file.finish()
    };
    write().with_context(|| format!("cannot write `{}`", path.display()))
}
