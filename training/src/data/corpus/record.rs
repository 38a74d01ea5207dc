//! Files as records: JSON objects, rows of tables, and whole texts. All commands that read documents or examples read them here.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::{
    document_chunk::Cutting,
    files::{FileKind, SourceFile},
    json::{Objects, is_json},
    marks::Marks,
    notes::{Note, Notes},
    open::{BytesRead, open_stream},
    parquet::ParquetTable,
    table::read_table,
    text::{MAX_DOCUMENT_BYTES, NotUtf8, TextOptions, read_text},
};

/// Whether a file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It was read completely.
    Read,
    /// It was found in a folder and is not text.
    NotText,
}

/// One object of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its place in its file, such as "line 3"; empty for a whole file.
    pub place: String,
    /// Its members.
    pub members: Map<String, Value>,
}

/// How files are read.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions<'a> {
    /// The members of interest: only these columns are read from Parquet.
    pub members: &'a [&'a str],
    /// The member that the text of a text file becomes.
    pub text_member: &'a str,
    /// The required form of a JSON object, for messages.
    pub expected: &'a str,
    /// The marks that end a document in a text file.
    pub marks: &'a Marks,
}

/// Reads the records of a file and passes them to `sink`, in order. A text file that begins like JSON is read as JSON.
///
/// # Errors
/// The file cannot be read or is damaged; the message has its name and, if known, the line or row. Errors of `sink`.
pub fn read_records(
    file: &SourceFile,
    options: RecordOptions<'_>,
    bytes_read: &BytesRead,
    notes: &mut Notes,
    sink: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<RecordOutcome> {
    let path = &file.path;
    match kind_by_content(file)? {
        FileKind::Json => {
            let objects = Objects { path, expected: options.expected, max_bytes: MAX_DOCUMENT_BYTES };
            let reader = open_stream(path, bytes_read)?;
            objects.read(reader, &mut |place, members| sink(Record { place: place.in_file(), members }))?;
        }
        FileKind::Table(separator) => {
            let reader = open_stream(path, bytes_read)?;
            read_table(path, separator, reader, &mut |place, members| sink(Record { place, members }))?;
        }
        FileKind::Parquet => read_rows(path, options.members, bytes_read, notes, sink)?,
        FileKind::Text => {
            let mut text = String::new();
            let mut texts = Vec::new();
            let reader = open_stream(path, bytes_read)?;
            let text_options = TextOptions { separator: None, marks: options.marks, cutting: Cutting::Whole };
            let read = read_text(path, reader, text_options, notes, &mut |piece| {
                text.push_str(&piece.text);
                if piece.is_last {
                    texts.push(std::mem::take(&mut text));
                }
                Ok(())
            });
            match read {
                Err(error) if file.is_found && error.is::<NotUtf8>() => return Ok(RecordOutcome::NotText),
                read => read?,
            }
            let is_one = texts.len() == 1;
            for (index, text) in texts.into_iter().enumerate() {
                let place = if is_one { String::new() } else { format!("document {}", index + 1) };
                let members = Map::from_iter([(options.text_member.to_owned(), text.into())]);
                sink(Record { place, members })?;
            }
        }
        FileKind::Tokens => bail!(
            "`{}` has tokens, not text\nhint: fine-tune on text, conversations, or prompts with completions",
            path.display()
        ),
    }
    Ok(RecordOutcome::Read)
}

/// The format of a file by its contents: JSON, if the name shows text and it begins like JSON.
pub(super) fn kind_by_content(file: &SourceFile) -> Result<FileKind> {
    if file.kind != FileKind::Text {
        return Ok(file.kind);
    }
    let mut reader = match open_stream(&file.path, &BytesRead::default()) {
        // In a folder, it is skipped if it is not text.
        Err(_) if file.is_found => return Ok(FileKind::Text),
        reader => reader?,
    };
    let is_json = reader.fill_buf().is_ok_and(is_json);
    Ok(if is_json { FileKind::Json } else { FileKind::Text })
}

fn read_rows(
    path: &Path,
    members: &[&str],
    bytes_read: &BytesRead,
    notes: &mut Notes,
    sink: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    let unread = ParquetTable::open(path)?
        .read_records(members, bytes_read, &mut |row, members| sink(Record { place: format!("row {row}"), members }))?;
    unread.into_iter().for_each(|name| notes.add(Note::Unread(name), &format!("`{}`", path.display())));
    Ok(())
}
