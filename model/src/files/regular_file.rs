//! Reading files that someone else wrote: only regular files, and texts only up to a plausible size.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
    string::FromUtf8Error,
};

use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    files::python_json,
};

/// Maximum size of a text in bytes, far above any configuration, tokenizer or template.
const MAX_TEXT_BYTES: u64 = 1 << 28;

/// Opens the regular file at `path`. Others are rejected: opening a named pipe would wait for a writer, and a device
/// may never end.
///
/// # Errors
/// There is no file, it may not be read, or it is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?;
    if !kind.is_file() {
        let what = if kind.is_dir() { "it is a folder" } else { "it is not a regular file" };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    File::open(path)
}

/// The whole text at `path`.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    read_limited(path).map_err(Error::io("read", path))
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // One byte more than allowed, so that a file that grows while it is read is noticed too.
    open(path)?.take(MAX_TEXT_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_TEXT_BYTES {
        let what = format!("has more than {MAX_TEXT_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(text)
}

/// The whole text at `path`, which must be UTF-8.
pub(crate) fn read_to_string(path: &Path) -> Result<String> {
    let invalid = |error: FromUtf8Error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error());
    String::from_utf8(read(path)?).map_err(invalid).map_err(Error::io("read", path))
}

/// The JSON object in the file at `path`.
pub(crate) fn read_json_object(path: &Path) -> Result<Map<String, Value>> {
    parse_json_object(path, &read(path)?)
}

/// The JSON object `text`, the content of the file at `path`.
pub(crate) fn parse_json_object(path: &Path, text: &[u8]) -> Result<Map<String, Value>> {
    python_json::parse(text).map_err(|error| Error::file(path, format!("is not a JSON object: {error}")))
}

/// Rejects `bytes`, the beginning of the file at `path`, if the file is a Git LFS pointer instead of the actual
/// contents.
pub(crate) fn refuse_lfs_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    if !bytes.starts_with(b"version https://git-lfs") {
        return Ok(());
    }
    Err(Error::file(path, "is a Git LFS pointer, not the file itself")
        .with_hint("run `git lfs pull` in that folder, or download the file again"))
}
