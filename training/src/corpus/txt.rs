//! A plain text file as one document.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

use super::open::{BYTE_ORDER_MARK, is_compressed, read_bytes};

/// The text of a UTF-8 file, without a byte order mark. Bytes that are not UTF-8 are rejected with their offset; empty files
/// are rejected.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = read_bytes(path).with_context(|| {
        format!("cannot read the text `{}`\nhint: give a text file that is on this machine", path.display())
    })?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes().get(offset).copied().unwrap_or_default();
        let hint = match error.as_bytes() {
            bytes if is_compressed(bytes) => "decompress it first; `prepare` reads compressed files too",
            _ => "convert it first, for example with `iconv -f LATIN1 -t UTF-8`",
        };
        anyhow!("`{}` is not UTF-8 text: byte 0x{byte:02x} at offset {offset}\nhint: {hint}", path.display())
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    ensure!(!text.is_empty(), "the text `{}` is empty\nhint: give a file with text in it", path.display());
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_are_named_with_their_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        fs::write(&path, b"caf\xe9 noir").unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("0xe9 at offset 3") && error.contains("latin1.txt"), "{error}");
        fs::write(&path, b"\x28\xb5\x2f\xfd").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("\nhint: decompress it first"));
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("windows.txt");
        fs::write(&path, "\u{feff}caf\u{e9}").unwrap();
        assert_eq!(read_text(&path).unwrap(), "caf\u{e9}");
    }

    #[test]
    fn empty_and_missing_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nothing.txt");
        assert!(read_text(&path).unwrap_err().to_string().contains("nothing.txt"));
        fs::write(&path, "").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("is empty"));
        let pipe = dir.path().join("pipe.txt");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = format!("{:#}", read_text(&pipe).unwrap_err());
        assert!(error.contains("pipe.txt") && error.contains("it is not a regular file"), "{error}");
    }
}
