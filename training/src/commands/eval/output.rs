//! Files that evaluations write beside their report.

use std::{fs, path::Path};

use anyhow::{Context, Result};
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

/// Writes a file.
pub(super) fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| unwritable(path))
}

pub(super) fn unwritable(path: &Path) -> String {
    format!(
        "cannot write `{}`\nhint: give a path in a folder that exists, which this user may write to",
        path.display()
    )
}
