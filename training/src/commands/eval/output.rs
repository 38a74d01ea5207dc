//! Files that evaluations write beside their report.

use std::{fs, io, path::Path};

use anyhow::Result;
use serde::Serialize;

/// Writes values to a file, one JSON object per line.
pub(super) fn write_lines<T: Serialize>(path: &Path, values: &[T]) -> Result<()> {
    let mut text = String::new();
    for value in values {
        text += &serde_json::to_string(value)?;
        text.push('\n');
    }
    write_file(path, &text)
}

/// Writes a file; what it had before stays until it is written whole.
pub(super) fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&partial);
        unwritable(path, &error)
    })
}

pub(super) fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room, or write elsewhere",
        _ => "give a path in a folder that exists, which this user may write to",
    };
    anyhow::anyhow!("cannot write `{}`: {error}\nhint: {hint}", path.display())
}
