//! Files as records: JSON objects, rows of tables, and whole texts. For data with several members, such as a prompt and a
//! completion.

use std::{marker::PhantomData, path::Path};

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value};

use super::{
    files::{FileKind, SourceFile},
    json::Objects,
    open::{BytesRead, open_stream},
    parquet,
    piece::Cutting,
    source::Outcome,
    text::{NotUtf8, read_text},
};

/// One object of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its place in its file, such as "line 3"; empty for a whole file.
    pub place: String,
    /// Its members.
    pub members: Map<String, Value>,
}

/// What is read of files.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions<'a> {
    /// The members of interest: those columns are read from Parquet.
    pub members: &'a [&'a str],
    /// The member that the text of a text file becomes.
    pub text_member: &'a str,
    /// What a JSON object must be, for messages.
    pub expected: &'a str,
}

/// Reads the records of a file and passes them to `sink`, in order.
///
/// # Errors
/// The file cannot be read or is damaged; the message has its name and, if known, the line or row. Errors of `sink`.
pub fn read_records(
    file: &SourceFile,
    options: RecordOptions<'_>,
    bytes_read: &BytesRead,
    sink: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<Outcome> {
    let path = &file.path;
    match file.kind {
        FileKind::Json => {
            let seed = PhantomData::<Map<String, Value>>;
            let objects = Objects { path, seed, expected: options.expected };
            let reader = open_stream(path, bytes_read)?;
            objects.read(reader, &mut |place, members| sink(Record { place: place.in_file(), members }))?;
        }
        FileKind::Parquet => read_rows(path, options.members, bytes_read, sink)?,
        FileKind::Text => {
            let mut text = String::new();
            let reader = open_stream(path, bytes_read)?;
            let read = read_text(path, reader, None, Cutting::Whole, &mut |piece| {
                text.push_str(&piece.text);
                Ok(())
            });
            match read {
                Err(error) if file.is_found && error.is::<NotUtf8>() => return Ok(Outcome::NotText),
                read => read?,
            }
            if !text.is_empty() {
                let members = Map::from_iter([(options.text_member.to_owned(), text.into())]);
                sink(Record { place: String::new(), members })?;
            }
        }
        FileKind::Tokens => bail!(
            "`{}` has tokens, not text\nhint: fine-tune on text, conversations, or prompts with completions",
            path.display()
        ),
    }
    Ok(Outcome::Read)
}

fn read_rows(
    path: &Path,
    members: &[&str],
    bytes_read: &BytesRead,
    sink: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    let mut columns = parquet::read_columns(path, members, bytes_read)?;
    let n_rows = columns.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    for (name, values) in &columns {
        ensure!(
            values.len() == n_rows,
            "`{}`: column `{name}` has {} rows, another {n_rows}\nhint: the file is damaged; download or copy it again",
            path.display(),
            values.len()
        );
    }
    for row in 0..n_rows {
        let value = |(name, values): &mut (String, Vec<Option<Value>>)| {
            Some((name.clone(), values.get_mut(row).and_then(Option::take)?))
        };
        let members = columns.iter_mut().filter_map(value).collect();
        sink(Record { place: format!("row {row}"), members })?;
    }
    Ok(())
}
