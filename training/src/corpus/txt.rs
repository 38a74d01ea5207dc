//! A plain text file as one document.

use std::path::Path;

use anyhow::{Result, ensure};

use super::open::read_to_string;

/// The text of a UTF-8 file, without a byte order mark. Bytes that are not UTF-8 are rejected with their offset; empty files
/// are rejected.
pub fn read_text(path: &Path) -> Result<String> {
    let text = read_to_string(path)?;
    ensure!(!text.is_empty(), "the text `{}` is empty\nhint: give a file with text in it", path.display());
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    #[test]
    fn text_file_error_names_the_offset_of_an_invalid_utf8_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        fs::write(&path, b"caf\xe9 noir").unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("0xe9 at offset 3") && error.contains("latin1.txt"), "{error}");
        fs::write(&path, b"\x28\xb5\x2f\xfd").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("\nhint: decompress it first"));
    }

    #[test]
    fn text_file_is_read_without_its_byte_order_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("windows.txt");
        fs::write(&path, "\u{feff}caf\u{e9}").unwrap();
        assert_eq!(read_text(&path).unwrap(), "caf\u{e9}");
    }

    #[test]
    fn empty_missing_and_non_regular_text_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nothing.txt");
        assert!(read_text(&path).unwrap_err().to_string().contains("nothing.txt"));
        fs::write(&path, "").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("is empty"));
        #[cfg(unix)]
        {
            let pipe = dir.path().join("pipe.txt");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let error = format!("{:#}", read_text(&pipe).unwrap_err());
            assert!(error.contains("pipe.txt") && error.contains("it is not a regular file"), "{error}");
        }
    }
}
