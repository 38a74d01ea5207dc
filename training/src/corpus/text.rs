//! Text files in UTF-8: one document per file, or several with a separator.

use std::{io::BufRead, path::Path};

use anyhow::{Context, Result, bail};

use super::piece::{Cutting, PIECE_BYTES, Piece, pieces, place_to_cut};

/// Receives the pieces of documents, in order.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Piece) -> Result<()>;

/// Reads the documents of a text file. Empty documents are skipped.
pub(super) fn read_text(
    path: &Path,
    mut reader: impl BufRead,
    separator: Option<&str>,
    cutting: Cutting,
    sink: Sink<'_>,
) -> Result<()> {
    let mut cutter = Cutter { separator, cutting, text: String::new(), is_open: false };
    // Bytes of a character that continues in the next block.
    let mut partial: Vec<u8> = Vec::new();
    let mut offset = 0;
    loop {
        let block = reader.fill_buf().with_context(|| damaged(path, offset))?;
        let n_bytes = block.len();
        let is_end = block.is_empty();
        partial.extend_from_slice(block);
        reader.consume(n_bytes);
        let n_valid = match std::str::from_utf8(&partial) {
            Ok(text) => {
                cutter.push(text, sink)?;
                partial.len()
            }
            Err(error) => {
                let n_valid = error.valid_up_to();
                if is_end || error.error_len().is_some() {
                    return Err(not_utf8(
                        path,
                        offset + n_valid as u64,
                        partial.get(n_valid).copied().unwrap_or_default(),
                    ));
                }
                cutter.push(std::str::from_utf8(&partial[..n_valid]).unwrap_or_default(), sink)?;
                n_valid
            }
        };
        offset += n_valid as u64;
        partial.drain(..n_valid);
        if is_end {
            return cutter.finish(sink);
        }
    }
}

/// Sends a document that is completely in memory.
pub(super) fn send_document(text: &str, cutting: Cutting, sink: Sink<'_>) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut parts: Box<dyn Iterator<Item = &str>> = match cutting {
        Cutting::Pieces => Box::new(pieces(text)),
        Cutting::Whole => Box::new(std::iter::once(text)),
    };
    let mut part = parts.next();
    while let Some(now) = part {
        part = parts.next();
        sink(Piece { text: now.to_owned(), is_last: part.is_none(), conversation: None })?;
    }
    Ok(())
}

/// The error for a stream that fails after some bytes.
pub(super) fn damaged(path: &Path, offset: u64) -> String {
    format!(
        "cannot read `{}` beyond {offset} bytes of text: it is truncated or damaged\nhint: download or copy the file again",
        path.display()
    )
}

/// The error for a byte that is not UTF-8.
pub(super) fn not_utf8(path: &Path, offset: u64, byte: u8) -> anyhow::Error {
    NotUtf8(format!(
        "`{}` is not UTF-8 text: byte 0x{byte:02x} at offset {offset}\nhint: convert it first, for example with \
         `iconv -f LATIN1 -t UTF-8`",
        path.display()
    ))
    .into()
}

/// The file is not text. Such files are skipped in folders.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotUtf8(String);

/// Splits a stream of text into pieces of documents.
struct Cutter<'a> {
    separator: Option<&'a str>,
    cutting: Cutting,
    text: String,
    /// Whether a piece of the current document was sent.
    is_open: bool,
}

impl Cutter<'_> {
    fn push(&mut self, text: &str, sink: Sink<'_>) -> Result<()> {
        // A separator may begin in the text already held, where it was not found yet.
        let mut searched = self.separator.map_or(0, |separator| self.text.len().saturating_sub(separator.len() - 1));
        searched = self.text.floor_char_boundary(searched);
        self.text.push_str(text);
        let mut start = 0;
        if let Some(separator) = self.separator {
            while let Some(at) = self.text[searched..].find(separator) {
                let end = searched + at;
                self.send(start, end, sink)?;
                (start, searched) = (end + separator.len(), end + separator.len());
            }
        }
        if self.cutting == Cutting::Pieces {
            let reserved = self.separator.map_or(0, str::len);
            while self.text.len() - start > 2 * PIECE_BYTES + reserved {
                // Keeps the text in which a separator may begin.
                let limit = self.text.floor_char_boundary(self.text.len() - reserved);
                let Some(at) = place_to_cut(&self.text[start..limit], PIECE_BYTES) else { break };
                sink(Piece { text: self.text[start..start + at].to_owned(), is_last: false, conversation: None })?;
                self.is_open = true;
                start += at;
            }
        }
        self.text.drain(..start);
        Ok(())
    }

    /// Ends a document with `text[start..end]`.
    fn send(&mut self, start: usize, end: usize, sink: Sink<'_>) -> Result<()> {
        let text = &self.text[start..end];
        if self.is_open {
            self.is_open = false;
            return sink(Piece { text: text.to_owned(), is_last: true, conversation: None });
        }
        send_document(text, self.cutting, sink)
    }

    fn finish(mut self, sink: Sink<'_>) -> Result<()> {
        self.send(0, self.text.len(), sink)
    }
}

/// Rejects an empty separator.
pub fn check_separator(separator: Option<&str>) -> Result<()> {
    if separator.is_some_and(str::is_empty) {
        bail!("the separator of documents is empty\nhint: omit `--separator` for one document per file");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::io::BufReader;

    use super::*;

    /// Documents of `bytes`, read in blocks of `block` bytes.
    fn documents(bytes: &[u8], block: usize, separator: Option<&str>, cutting: Cutting) -> Result<Vec<String>> {
        let mut documents = vec![String::new()];
        let reader = BufReader::with_capacity(block, bytes);
        read_text(Path::new("a.txt"), reader, separator, cutting, &mut |piece| {
            assert!(cutting == Cutting::Whole || piece.text.len() <= 3 * PIECE_BYTES);
            documents.last_mut().unwrap().push_str(&piece.text);
            if piece.is_last {
                documents.push(String::new());
            }
            Ok(())
        })?;
        assert_eq!(documents.pop().unwrap(), "", "the last document ends");
        Ok(documents)
    }

    #[test]
    fn text_file_is_one_document_for_any_read_block_size() {
        let long = "Ünïcode words, in many lines\n".repeat(20_000);
        for block in [1 << 10, 1 << 16, (1 << 16) + 1] {
            for cutting in [Cutting::Pieces, Cutting::Whole] {
                assert!(documents(long.as_bytes(), block, None, cutting).unwrap() == [long.as_str()], "{block}");
            }
        }
        for block in 1..9 {
            assert_eq!(documents("aßc\u{1f600}".as_bytes(), block, None, Cutting::Pieces).unwrap(), ["aßc\u{1f600}"]);
        }
        assert!(documents(b"", 8, None, Cutting::Pieces).unwrap().is_empty());
    }

    #[test]
    fn separators_across_blocks_are_found_and_empty_documents_skipped() {
        let text = "<|end|>one<|end|>two <|en d|><|end|><|end|>ß<|end|>";
        for block in 1..20 {
            for cutting in [Cutting::Pieces, Cutting::Whole] {
                let found = documents(text.as_bytes(), block, Some("<|end|>"), cutting).unwrap();
                assert_eq!(found, ["one", "two <|en d|>", "ß"], "{block}");
            }
        }
        let long = "some words and ".repeat(30_000);
        let text = format!("{long}--{long}--short--{long}");
        let found = documents(text.as_bytes(), 5000, Some("--"), Cutting::Pieces).unwrap();
        assert!(found == [long.as_str(), &long, "short", &long]);
        assert!(check_separator(Some("")).is_err());
    }

    #[test]
    fn streamed_text_error_names_the_offset_of_an_invalid_utf8_byte() {
        for block in [1, 3, 100] {
            let error = documents(b"caf\xe9 noir", block, None, Cutting::Pieces).unwrap_err().to_string();
            assert!(error.contains("0xe9 at offset 3") && error.contains("a.txt"), "{error}");
            let error = documents(b"caf\xc3", block, None, Cutting::Pieces).unwrap_err().to_string();
            assert!(error.contains("0xc3 at offset 3"), "{error}");
        }
    }
}
