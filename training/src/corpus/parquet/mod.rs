//! Reads text columns of a Parquet file.
//!
//! Hand-written instead of the crate `parquet`, of which this is a hundredth: that crate makes cargo compile Burn
//! again, with other features of shared crates. Unsupported features (nested columns, LZ4, Brotli, LZO, encryption) are
//! rejected, naming the feature.
//!
//! The format: <https://parquet.apache.org/docs/file-format/>.

mod bits;
mod footer;
mod page;
mod thrift;
mod values;

use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use anyhow::{Result, anyhow};

use self::{
    footer::{Column, Footer},
    page::PageReader,
};
use super::open::{BytesRead, open_file};

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
    let column = footer.find(column).map_err(name)?;
    read_values(path, &mut file, &column, &mut |text| text.map_or(Ok(()), &mut *sink), &mut |n| bytes_read.add(n))
}

/// The texts of those of `wanted` columns that the file has, by name, each with a text or `None` for every row.
///
/// # Errors
/// The file is damaged or of an unsupported kind; a column is not text; there is none of the columns.
pub(super) fn read_columns(
    path: &Path,
    wanted: &[&str],
    bytes_read: &BytesRead,
) -> Result<Vec<(String, Vec<Option<String>>)>> {
    let mut file = open_file(path)?;
    let name = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    let footer = Footer::read(&mut file).map_err(name)?;
    let names = footer.column_names().map_err(name)?;
    let found: Vec<&str> = wanted.iter().copied().filter(|wanted| names.contains(wanted)).collect();
    if found.is_empty() {
        return Err(name(format!(
            "has none of the columns `{}`; it has: `{}`\nhint: rename a column, or convert the file to jsonl",
            wanted.join("`, `"),
            names.join("`, `")
        )));
    }
    let mut columns = Vec::new();
    for (index, &wanted) in found.iter().enumerate() {
        let column = footer.find(wanted).map_err(|problem| {
            let what = problem.split('\n').next().unwrap_or_default();
            name(format!(
                "{what}\nhint: convert the file to jsonl, for example with `datasets`: `Dataset.from_parquet(...).to_json(...)`"
            ))
        })?;
        let mut texts = Vec::new();
        let mut push = |text: Option<&str>| {
            texts.push(text.map(str::to_owned));
            Ok(())
        };
        // The size of a row group is that of all columns.
        let mut add = |n| bytes_read.add(if index == 0 { n } else { 0 });
        read_values(path, &mut file, &column, &mut push, &mut add)?;
        columns.push((wanted.to_owned(), texts));
    }
    Ok(columns)
}

/// Calls `sink` with the value of each row, and `done` with the size of each row group.
fn read_values(
    path: &Path,
    file: &mut File,
    column: &Column,
    sink: &mut dyn FnMut(Option<&str>) -> Result<()>,
    done: &mut dyn FnMut(u64),
) -> Result<()> {
    let name = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    for (group, chunk) in column.chunks.iter().enumerate() {
        let in_group = |problem: Problem| name(format!("row group {group}: {problem}"));
        let source = chunk_source(file, chunk.start, chunk.n_bytes).map_err(in_group)?;
        let mut pages = PageReader::new(source, chunk, column.is_optional);
        let mut row = 0;
        while let Some(values) = pages.next_page().map_err(in_group)? {
            for value in values {
                let value = value.map_err(in_group)?;
                let text = value.map(std::str::from_utf8).transpose().map_err(|error| {
                    in_group(format!(
                        "row {row}: column `{}` is not UTF-8 text, at byte {}\nhint: if this is not the column of the \
                         text, set another one with `--text-field`",
                        column.name,
                        error.valid_up_to()
                    ))
                })?;
                sink(text)?;
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

/// The last part of error messages about truncated files.
const DAMAGED: &str = "the file is damaged or truncated\nhint: download or copy it again";
