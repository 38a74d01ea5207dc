//! Reads one text column of a Parquet file.
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

use self::{footer::Footer, page::PageReader};
use super::open::{BytesRead, open_file};

/// The description of an error; the caller adds the path.
type Problem = String;

/// Calls `sink` with each text of the column `column` and its row number from 0, in order. Rows without a value are
/// skipped.
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
    for (group, chunk) in column.chunks.iter().enumerate() {
        let in_group = |problem: Problem| name(format!("row group {group}: {problem}"));
        let source = chunk_source(&mut file, chunk.start, chunk.n_bytes).map_err(in_group)?;
        let mut pages = PageReader::new(source, chunk, column.is_optional);
        let mut row = 0;
        while let Some(values) = pages.next_page().map_err(in_group)? {
            for value in values {
                let value = value.map_err(in_group)?;
                if let Some(bytes) = value {
                    let text = std::str::from_utf8(bytes).map_err(|error| {
                        in_group(format!(
                            "row {row}: column `{}` is not UTF-8 text, at byte {}\nhint: if this is not the column of the \
                             text, set another one with `--text-field`",
                            column.name,
                            error.valid_up_to()
                        ))
                    })?;
                    sink(text)?;
                }
                row += 1;
            }
        }
        bytes_read.add(chunk.group_bytes);
    }
    Ok(())
}

fn chunk_source(file: &mut File, start: u64, n_bytes: u64) -> Result<BufReader<std::io::Take<&mut File>>, Problem> {
    file.seek(SeekFrom::Start(start)).map_err(|error| error.to_string())?;
    Ok(BufReader::with_capacity(1 << 16, file.take(n_bytes)))
}

/// The last part of error messages about truncated files.
const DAMAGED: &str = "the file is damaged or truncated\nhint: download or copy it again";
