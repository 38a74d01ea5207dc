//! Output of commands for the user: files, and JSON on stdout.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::output_files::write_whole;

/// Prints a result as one JSON object, the last line on stdout.
///
/// # Errors
/// Stdout cannot be written to.
pub fn print_json(report: &impl Serialize) -> Result<ExitCode> {
    writeln!(io::stdout(), "{}", serde_json::to_string(report)?).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes values to a file, one JSON object per line.
///
/// # Errors
/// The file cannot be written; the message names it.
pub fn write_lines<T: Serialize>(path: &Path, values: &[T]) -> Result<()> {
    let mut text = String::new();
    for value in values {
        text += &serde_json::to_string(value)?;
        text.push('\n');
    }
    write_file(path, &text)
}

/// Writes a file; the old contents stay until the new ones are complete.
///
/// # Errors
/// The file cannot be written; the message names it.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    write_whole(path, text.as_bytes()).map_err(|error| match error.downcast_ref() {
        Some(reason) => unwritable(path, reason),
        None => error,
    })
}

/// The error of a file that cannot be written.
pub fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room, or write elsewhere",
        _ => "give a path in a folder that exists, which this user may write to",
    };
    anyhow::anyhow!("cannot write `{}`: {error}\nhint: {hint}", path.display())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    #[test]
    fn write_file_names_an_unwritable_path_and_leaves_no_partial_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        write_file(&path, "old").unwrap();
        write_file(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        // A folder is not replaced by a file.
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let error = write_file(&folder, "text").unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write `{}`: ", folder.display())), "{error}");
        assert!(error.contains("\nhint: give a path in a folder"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the report and the folder");
    }
}
