//! Text files in UTF-8: one document per file, or several with a separator.

use std::{io::BufRead, path::Path};

use anyhow::{Context, Result, bail};

use super::{
    document_chunk::{Cutting, DocumentChunk, PIECE_BYTES, pieces, place_to_cut},
    marks::{Marks, TextKind},
    notes::{Note, Notes},
};

/// Receives the pieces of documents, in order.
pub(super) type Sink<'a> = &'a mut dyn FnMut(DocumentChunk) -> Result<()>;

/// The largest document that is held in memory as a whole, in bytes: a line of JSON, or a text for a tokenizer that
/// cannot encode it in pieces. Compressed files may have documents that are a thousand times as large as the file.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 256 << 20;

/// Bytes of a file that show whether it is a rendered chat.
const START_BYTES: usize = 1024;

/// How texts become documents.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextOptions<'a> {
    /// The separator that the user chose.
    pub(super) separator: Option<&'a str>,
    pub(super) marks: &'a Marks,
    pub(super) cutting: Cutting,
}

/// Reads the documents of a text file. Empty documents are skipped.
pub(super) fn read_text(
    path: &Path,
    mut reader: impl BufRead,
    options: TextOptions<'_>,
    notes: &mut Notes,
    sink: Sink<'_>,
) -> Result<()> {
    let mut cutter = Cutter::new(path, options, notes);
    // Bytes of a character that continues in the next block.
    let mut partial: Vec<u8> = Vec::new();
    let mut offset = 0;
    loop {
        let block = reader.fill_buf().with_context(|| damaged(path, offset))?;
        let n_bytes = block.len();
        let is_end = block.is_empty();
        partial.extend_from_slice(block);
        reader.consume(n_bytes);
        if let Some(at) = partial.iter().position(|&byte| byte == 0) {
            return Err(has_nul(path, offset + at as u64));
        }
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

/// Sends the documents of a text that is completely in memory: one, or several with the marks of ends between them. `place` is
/// for notes.
pub(super) fn send_text(
    text: &str,
    TextOptions { marks, cutting, .. }: TextOptions<'_>,
    place: &dyn Fn() -> String,
    notes: &mut Notes,
    sink: Sink<'_>,
) -> Result<()> {
    let kind = marks.kind(text);
    if let Some(note) = note_of_kind(kind).or_else(|| note_of_mark(marks, text)) {
        notes.add(note, &place());
    }
    if let TextKind::Chat(_) = kind {
        return send_document(text, true, cutting, sink);
    }
    let mut rest = text;
    while let Some((at, end)) = first_of(rest, marks.ends().iter().map(String::as_str)) {
        notes.add(note_of_end(end), &place());
        send_part(&rest[..at], cutting, sink)?;
        rest = &rest[at + end.len()..];
    }
    if rest.len() == text.len() { send_document(rest, false, cutting, sink) } else { send_part(rest, cutting, sink) }
}

/// Sends the text between marks, unless it is only white space.
fn send_part(text: &str, cutting: Cutting, sink: Sink<'_>) -> Result<()> {
    if text.trim().is_empty() { Ok(()) } else { send_document(text, false, cutting, sink) }
}

/// Sends a document that is completely in memory.
fn send_document(text: &str, is_rendered: bool, cutting: Cutting, sink: Sink<'_>) -> Result<()> {
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
        sink(DocumentChunk { is_rendered, ..DocumentChunk::text(now, part.is_none()) })?;
    }
    Ok(())
}

/// The first of `wanted` in a text: where it begins, and which.
fn first_of<'a>(text: &str, wanted: impl Iterator<Item = &'a str>) -> Option<(usize, &'a str)> {
    wanted.filter_map(|one| Some((text.find(one)?, one))).min_by_key(|(at, _)| *at)
}

/// The note about a mark that ends a document.
pub(crate) fn note_of_end(end: &str) -> Note {
    Note::Other(format!("`{end}` in a text ends a document there"))
}

/// The note about a text of this kind.
pub(crate) fn note_of_kind(kind: TextKind<'_>) -> Option<Note> {
    Some(Note::Other(match kind {
        TextKind::Plain => return None,
        TextKind::Chat(mark) => format!(
            "it is a chat that a template rendered (it begins with `{mark}`): special tokens in it become tokens, and all of it is \
             trained; with `messages`, `finetune` trains the answers only"
        ),
        TextKind::ForeignChat(mark) => format!(
            "it is a chat that a template rendered, but its `{mark}` is no token of the tokenizer: it is trained as plain \
             characters. Write the conversation as `messages`, or use a tokenizer with this token"
        ),
    }))
}

/// The note about a mark that stays text in a plain text.
pub(crate) fn note_of_mark(marks: &Marks, text: &str) -> Option<Note> {
    let mark = marks.in_plain(text)?;
    Some(Note::Other(format!("`{mark}` in a text is trained as plain characters")))
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

/// The error for a NUL character, which no text has.
pub(super) fn has_nul(path: &Path, offset: u64) -> anyhow::Error {
    NotUtf8(format!(
        "`{}` is not text: it has a NUL character at offset {offset}\nhint: if it is UTF-16, convert it with \
         `iconv -f UTF-16LE -t UTF-8`",
        path.display()
    ))
    .into()
}

/// The error for a document that is too large to be held in memory.
pub(super) fn too_large(place: &str, hint: &str) -> anyhow::Error {
    anyhow::anyhow!("{place} has a document of more than {} MiB\nhint: {hint}", MAX_DOCUMENT_BYTES >> 20)
}

/// Splits a stream of text into pieces of documents.
struct Cutter<'a> {
    path: &'a Path,
    options: TextOptions<'a>,
    notes: &'a mut Notes,
    /// The strings that end a document; known after the start of the text.
    separators: Option<Vec<&'a str>>,
    /// Whether the text is a rendered chat.
    is_rendered: bool,
    text: String,
    /// Line breaks before `text`.
    n_lines: usize,
    /// Whether a piece of the current document was sent.
    is_open: bool,
    /// Whether a mark that stays text was noted.
    has_noted: bool,
    /// Whether a mark ended a document.
    has_end: bool,
}

impl<'a> Cutter<'a> {
    fn new(path: &'a Path, options: TextOptions<'a>, notes: &'a mut Notes) -> Cutter<'a> {
        Cutter {
            path,
            options,
            notes,
            separators: None,
            is_rendered: false,
            text: String::new(),
            n_lines: 0,
            is_open: false,
            has_noted: false,
            has_end: false,
        }
    }

    fn place(&self, at: usize) -> String {
        let line = 1 + self.n_lines + self.text[..at].matches('\n').count();
        format!("`{}`, line {line}", self.path.display())
    }

    /// Determines the kind of the text from its start.
    fn begin(&mut self) {
        let TextOptions { separator, marks, .. } = self.options;
        let kind = marks.kind(&self.text);
        self.is_rendered = matches!(kind, TextKind::Chat(_));
        if let Some(note) = note_of_kind(kind) {
            self.notes.add(note, &format!("`{}`", self.path.display()));
        }
        let ends = if self.is_rendered { &[] } else { marks.ends() };
        self.separators = Some(separator.into_iter().chain(ends.iter().map(String::as_str)).collect());
    }

    fn push(&mut self, text: &str, sink: Sink<'_>) -> Result<()> {
        if self.separators.is_none() {
            self.text.push_str(text);
            if self.text.len() < START_BYTES {
                return Ok(());
            }
            self.begin();
            let text = std::mem::take(&mut self.text);
            return self.cut(&text, sink);
        }
        self.cut(text, sink)
    }

    fn cut(&mut self, text: &str, sink: Sink<'_>) -> Result<()> {
        let separators = self.separators.clone().unwrap_or_default();
        let longest = separators.iter().map(|separator| separator.len()).max().unwrap_or(0);
        // A separator may begin in the text already held, where it was not found yet.
        let mut searched = self.text.len().saturating_sub(longest.saturating_sub(1));
        searched = self.text.floor_char_boundary(searched);
        if !self.has_noted
            && !self.is_rendered
            && let Some(note) = note_of_mark(self.options.marks, text)
        {
            self.has_noted = true;
            let place = self.place(self.text.len());
            self.notes.add(note, &place);
        }
        self.text.push_str(text);
        let mut start = 0;
        while let Some((at, separator)) = first_of(&self.text[searched..], separators.iter().copied()) {
            let end = searched + at;
            if !self.has_end && Some(separator) != self.options.separator {
                self.has_end = true;
                let place = self.place(end);
                self.notes.add(note_of_end(separator), &place);
            }
            self.send(start, end, sink)?;
            (start, searched) = (end + separator.len(), end + separator.len());
        }
        if self.options.cutting == Cutting::Pieces {
            while self.text.len() - start > 2 * PIECE_BYTES + longest {
                // Keeps the text in which a separator may begin.
                let limit = self.text.floor_char_boundary(self.text.len() - longest);
                let Some(at) = place_to_cut(&self.text[start..limit], PIECE_BYTES) else { break };
                sink(DocumentChunk {
                    is_rendered: self.is_rendered,
                    ..DocumentChunk::text(&self.text[start..start + at], false)
                })?;
                self.is_open = true;
                start += at;
            }
        }
        self.n_lines += self.text[..start].matches('\n').count();
        self.text.drain(..start);
        if self.text.len() > MAX_DOCUMENT_BYTES {
            let hint = "cut it into several files, or into documents with `--separator`";
            return Err(too_large(&format!("`{}`", self.path.display()), hint));
        }
        Ok(())
    }

    /// Ends a document with `text[start..end]`.
    fn send(&mut self, start: usize, end: usize, sink: Sink<'_>) -> Result<()> {
        let text = &self.text[start..end];
        if self.is_open {
            self.is_open = false;
            return sink(DocumentChunk { is_rendered: self.is_rendered, ..DocumentChunk::text(text, true) });
        }
        if self.has_end && text.trim().is_empty() {
            // Between two marks, or after the last.
            return Ok(());
        }
        send_document(text, self.is_rendered, self.options.cutting, sink)
    }

    fn finish(mut self, sink: Sink<'_>) -> Result<()> {
        if self.separators.is_none() {
            self.begin();
            let text = std::mem::take(&mut self.text);
            self.cut(&text, sink)?;
        }
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
        let marks = Marks::default();
        let options = TextOptions { separator, marks: &marks, cutting };
        read_text(Path::new("a.txt"), reader, options, &mut Notes::default(), &mut |piece| {
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
