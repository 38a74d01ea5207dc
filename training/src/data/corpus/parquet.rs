//! Reads text columns of a Parquet file.
//!
//! Hand-written instead of the crate `parquet`, of which this is a hundredth: that crate makes cargo compile Burn
//! again, with other features of shared crates. Unsupported features (nested columns other than lists of texts or of objects
//! with texts, LZ4, Brotli, LZO, encryption) are rejected, naming the feature.
//!
//! The format: <https://parquet.apache.org/docs/file-format/>.

mod bits;
mod footer;
mod lists;
mod page;
mod thrift;
mod values;
mod varint;

use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use anyhow::{Result, anyhow};
use serde_json::Value;

use self::{
    footer::{Column, Footer, Levels},
    page::{PageReader, Slot},
};
use super::{
    open::{BytesRead, open_file},
    record_kind::LABEL,
};

/// The description of an error; the caller adds the path.
type Problem = String;

/// Calls `sink` with each text of the column `column`, in order. Rows without a value are skipped.
///
/// # Errors
/// The file is damaged or of an unsupported kind; the column is missing or not text.
pub(super) fn read_column(
    path: &Path,
    column: &str,
    bytes_read: &BytesRead,
    sink: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let mut file = open_file(path)?;
    let name = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    let footer = Footer::read(&mut file).map_err(name)?;
    let column = footer.find(column, TEXT_HINT).map_err(name)?;
    read_values(path, &mut file, &column, &mut |_, text| text.map_or(Ok(()), &mut *sink), &mut |n| bytes_read.add(n))
}

/// The names of the columns, and whether each is nested.
///
/// # Errors
/// The file is damaged or of an unsupported kind.
pub(super) fn columns(path: &Path) -> Result<Vec<(String, bool)>> {
    let mut file = open_file(path)?;
    let name = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    let footer = Footer::read(&mut file).map_err(name)?;
    let names = footer.column_names().map_err(name)?;
    names.into_iter().map(|column| Ok((column.to_owned(), footer.is_nested(column).map_err(name)?))).collect()
}

/// The `wanted` columns that the file has: for each, a text, a list of objects or texts, or `None` for every row. And the
/// names of the other columns.
///
/// # Errors
/// The file is damaged or of an unsupported kind; a column is neither text nor a list; there is none of the columns; a column
/// says what is trained, and is neither text nor wanted.
pub(super) fn read_columns(
    path: &Path,
    wanted: &[&str],
    bytes_read: &BytesRead,
) -> Result<(Vec<ColumnValues>, Vec<String>)> {
    let mut file = open_file(path)?;
    let name = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    let footer = Footer::read(&mut file).map_err(name)?;
    let names = footer.column_names().map_err(name)?;
    let mut columns = Vec::new();
    let mut unread: Vec<String> =
        names.iter().filter(|name| !wanted.contains(name)).map(|&name| name.to_owned()).collect();
    for &wanted in wanted.iter().filter(|wanted| names.contains(wanted)) {
        if MAYBE_NUMBERS.contains(&wanted) && !footer.is_text_or_nested(wanted).map_err(name)? {
            // A label that is a number is the class of a text.
            if wanted == LABEL && !footer.is_flag(wanted).map_err(name)? {
                unread.push(wanted.to_owned());
                continue;
            }
            return Err(name(format!(
                "column `{wanted}` says what is trained, and is only read from JSON\nhint: {RECORDS_HINT}"
            )));
        }
        let values = if footer.is_nested(wanted).map_err(name)? {
            lists::read(path, &mut file, &footer, wanted, &mut unread)?
        } else {
            let column = footer.find(wanted, RECORDS_HINT).map_err(name)?;
            let mut values = Vec::new();
            let mut push = |text: Option<&str>| {
                values.push(text.map(Value::from));
                Ok(())
            };
            read_values(path, &mut file, &column, &mut |_, text| push(text), &mut |_| {})?;
            values
        };
        columns.push((wanted.to_owned(), values));
    }
    if columns.is_empty() {
        return Err(name(format!(
            "has none of the columns `{}`; it has: `{}`\nhint: rename a column, or convert the file to jsonl",
            wanted[..wanted.len().min(SHOWN)].join("`, `") + if wanted.len() > SHOWN { "`, `..." } else { "" },
            names.join("`, `")
        )));
    }
    bytes_read.add(file.metadata().map_or(0, |metadata| metadata.len()));
    Ok((columns, unread))
}

/// The most names of wanted columns in a message.
const SHOWN: usize = 8;

/// Columns whose numbers or flags say what is trained.
const MAYBE_NUMBERS: [&str; 7] = [LABEL, "train", "weight", "loss", "loss_mask", "trainable", "training"];

/// A column's name, and its value in each row.
pub(super) type ColumnValues = (String, Vec<Option<Value>>);

/// Calls `sink` with the levels and the text of each row, and `done` with the size of each row group.
fn read_values(
    path: &Path,
    file: &mut File,
    column: &Column,
    sink: &mut dyn FnMut(Levels, Option<&str>) -> Result<()>,
    done: &mut dyn FnMut(u64),
) -> Result<()> {
    let name = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    for (group, chunk) in column.chunks.iter().enumerate() {
        let in_group = |problem: Problem| name(format!("row group {group}: {problem}"));
        let source = chunk_source(file, chunk.start, chunk.n_bytes).map_err(in_group)?;
        let mut pages = PageReader::new(source, chunk, column.levels);
        let mut row = 0;
        while let Some(values) = pages.next_page().map_err(in_group)? {
            for slot in values {
                let Slot { levels, value } = slot.map_err(in_group)?;
                let text = value.map(std::str::from_utf8).transpose().map_err(|error| {
                    in_group(format!(
                        "row {row}: column `{}` is not UTF-8 text, at byte {}\nhint: {}",
                        column.name,
                        error.valid_up_to(),
                        column.hint
                    ))
                })?;
                sink(levels, text)?;
                row += 1;
            }
        }
        done(chunk.group_bytes);
    }
    Ok(())
}

fn chunk_source(file: &mut File, start: u64, n_bytes: u64) -> Result<BufReader<std::io::Take<&mut File>>, Problem> {
    file.seek(SeekFrom::Start(start)).map_err(|error| error.to_string())?;
    Ok(BufReader::with_capacity(1 << 16, file.take(n_bytes)))
}

/// Hints about a column that cannot be read: of one that the user chose, and of one with a fixed name.
const TEXT_HINT: &str = "set the column of the text with `--text-field`";
const RECORDS_HINT: &str =
    "convert the file to jsonl, for example with `datasets`: `Dataset.from_parquet(...).to_json(...)`";

/// The last part of error messages about truncated files.
const DAMAGED: &str = "the file is damaged or truncated\nhint: download or copy it again";
