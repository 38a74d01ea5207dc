//! Reading files that someone else wrote: regular ones only, and texts only up to a size that texts have.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use crate::error::{Error, Result};

/// No configuration, tokenizer or template comes near.
const MAX_TEXT_BYTES: u64 = 1 << 28;

/// Opens the file at `path`. A named pipe would wait for its writer, and a device may never end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?;
    if !kind.is_file() {
        let what = if kind.is_dir() { "is a folder" } else { "is not a regular file" };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    File::open(path)
}

/// The whole text at `path`.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // One byte more than allowed, so that a file that grows while it is read is noticed too.
    open(path)?.take(MAX_TEXT_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_TEXT_BYTES {
        let what = format!("has more than {MAX_TEXT_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(text)
}

/// Rejects `bytes`, the beginning of the file at `path`, if they stand for a file in Git's storage of large files.
pub(crate) fn refuse_lfs_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    if !bytes.starts_with(b"version https://git-lfs") {
        return Ok(());
    }
    Err(Error::File {
        path: path.to_owned(),
        what: "is a Git LFS pointer, not the file itself".to_owned(),
        hint: "run `git lfs pull` in that folder, or download the file again".to_owned(),
    })
}

/// The whole text at `path`, which must be UTF-8.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}
