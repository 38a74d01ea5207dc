//! The pages of a column: headers, decompression, and missing values.

use std::io::Read;

use flate2::{Crc, read::MultiGzDecoder};
use ruzstd::decoding::StreamingDecoder;

use super::{
    DAMAGED, Problem,
    bits::read_hybrid,
    footer::{Chunk, Codec},
    thrift::Struct,
    values::{Texts, Values},
};

/// Reads the pages of one column in one row group.
pub(super) struct PageReader<'a, R> {
    source: R,
    chunk: &'a Chunk,
    is_optional: bool,
    n_read: u64,
    dictionary: Texts,
    page: Page,
}

/// The values of a page, and which rows have one.
#[derive(Default)]
struct Page {
    /// 1 for a row with a value; empty if all rows have one.
    levels: Vec<u32>,
    values: Option<Values>,
    n_rows: usize,
}

/// Maximum number of rows per page, so that a damaged count does not allocate memory. Writers use thousands.
const MAX_PAGE_ROWS: u64 = 1 << 24;

/// Page types.
const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

impl<'a, R: Read> PageReader<'a, R> {
    pub(super) fn new(source: R, chunk: &'a Chunk, is_optional: bool) -> Self {
        PageReader { source, chunk, is_optional, n_read: 0, dictionary: Texts::default(), page: Page::default() }
    }

    /// The values of the next page, in order; `None` after the last. A row without a value is `Ok(None)`.
    #[expect(clippy::type_complexity, reason = "an iterator of borrowed texts")]
    pub(super) fn next_page(
        &mut self,
    ) -> Result<Option<impl Iterator<Item = Result<Option<&[u8]>, Problem>>>, Problem> {
        while self.n_read < self.chunk.n_values {
            let header = Struct::read(&mut self.source).map_err(|problem| format!("{problem}: {DAMAGED}"))?;
            if self.read_page(&header).map_err(|problem| format!("{problem}: {DAMAGED}"))? {
                self.n_read += self.page.n_rows as u64;
                return Ok(Some(self.rows()));
            }
        }
        Ok(None)
    }

    fn rows(&self) -> impl Iterator<Item = Result<Option<&[u8]>, Problem>> {
        let mut n_values = 0;
        (0..self.page.n_rows).map(move |row| {
            if self.page.levels.get(row) == Some(&0) {
                return Ok(None);
            }
            let Some(values) = &self.page.values else { return Ok(None) };
            n_values += 1;
            values.get(n_values - 1, &self.dictionary).map(Some)
        })
    }

    /// Reads the page after a header. Returns whether it has values.
    fn read_page(&mut self, header: &Struct) -> Result<bool, Problem> {
        let size = |field: i16| header.number(field).and_then(|number| usize::try_from(number).ok());
        let (Some(kind), Some(n_plain), Some(n_stored)) = (header.number(1), size(2), size(3)) else {
            return Err("a page's header has no size".to_owned());
        };
        let mut stored = Vec::new();
        let n_read =
            self.source.by_ref().take(n_stored as u64).read_to_end(&mut stored).map_err(|error| error.to_string())?;
        if n_read < n_stored {
            return Err(format!("a page has {n_read} of {n_stored} bytes"));
        }
        if let Some(expected) = header.number(4) {
            let mut crc = Crc::new();
            crc.update(&stored);
            if crc.sum() != expected as u32 {
                return Err(format!("a page has the checksum {:08x}, expected {:08x}", crc.sum(), expected as u32));
            }
        }
        match kind {
            DATA => self.data_page(header, &stored, n_plain).map(|()| true),
            DATA_V2 => self.data_page_v2(header, &stored, n_plain).map(|()| true),
            DICTIONARY => {
                let n = header.structure(7).and_then(|header| header.number(1)).ok_or("a dictionary has no length")?;
                let plain = decompress(self.chunk.codec, &stored, n_plain)?;
                self.dictionary = Texts::plain(&plain, usize::try_from(n).unwrap_or(0))?;
                Ok(false)
            }
            INDEX => Ok(false),
            other => Err(format!("a page has the unknown type {other}")),
        }
    }

    fn data_page(&mut self, header: &Struct, stored: &[u8], n_plain: usize) -> Result<(), Problem> {
        let header = header.structure(5).ok_or("a page has no header")?;
        let (n_rows, encoding) = self.rows_and_encoding(header.number(1), header.number(2))?;
        let plain = decompress(self.chunk.codec, stored, n_plain)?;
        let mut values = plain.as_slice();
        let mut levels = Vec::new();
        if self.is_optional {
            if header.number(3) != Some(3) {
                return Err("a page has its levels in an encoding other than RLE".to_owned());
            }
            let (length, rest) = values.split_first_chunk().ok_or("a page ends inside its levels")?;
            let (packed, rest) =
                rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or("a page ends inside its levels")?;
            levels = read_hybrid(packed, 1, n_rows)?;
            values = rest;
        }
        self.set_page(n_rows, levels, encoding, values)
    }

    fn data_page_v2(&mut self, header: &Struct, stored: &[u8], n_plain: usize) -> Result<(), Problem> {
        let header = header.structure(8).ok_or("a page has no header")?;
        let (n_rows, encoding) = self.rows_and_encoding(header.number(1), header.number(4))?;
        let length = |field: i16| header.number(field).and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
        let (n_def, n_rep) = (length(5), length(6));
        let (levels, body) =
            n_rep.checked_add(n_def).and_then(|n| stored.split_at_checked(n)).ok_or("a page ends inside its levels")?;
        let levels = if self.is_optional { read_hybrid(&levels[n_rep..], 1, n_rows)? } else { Vec::new() };
        let n_plain = n_plain.saturating_sub(n_def + n_rep);
        let codec = if header.boolean(7) == Some(false) { Codec::None } else { self.chunk.codec };
        let plain = decompress(codec, body, n_plain)?;
        self.set_page(n_rows, levels, encoding, &plain)
    }

    fn rows_and_encoding(&self, n_rows: Option<i64>, encoding: Option<i64>) -> Result<(usize, i64), Problem> {
        let n_rows = n_rows.and_then(|n| u64::try_from(n).ok()).ok_or("a page has no number of values")?;
        let left = self.chunk.n_values - self.n_read;
        if n_rows > left.min(MAX_PAGE_ROWS) {
            return Err(format!(
                "a page has {n_rows} values, but only {left} remain (and {MAX_PAGE_ROWS} are allowed)"
            ));
        }
        Ok((n_rows as usize, encoding.ok_or("a page has no encoding")?))
    }

    fn set_page(&mut self, n_rows: usize, levels: Vec<u32>, encoding: i64, values: &[u8]) -> Result<(), Problem> {
        let n_values = if self.is_optional { levels.iter().filter(|&&level| level > 0).count() } else { n_rows };
        let values = Some(Values::decode(encoding, values, n_values)?);
        self.page = Page { levels, values, n_rows };
        Ok(())
    }
}

/// Decompresses `stored` to `n_plain` bytes.
fn decompress(codec: Codec, stored: &[u8], n_plain: usize) -> Result<Vec<u8>, Problem> {
    let broken = |error: &dyn std::fmt::Display| format!("a page cannot be decompressed: {error}");
    let mut plain = Vec::new();
    // Grows as bytes are decoded; one byte too many is detected.
    let limit = n_plain as u64 + 1;
    match codec {
        Codec::None => plain.extend_from_slice(stored),
        // Empty pages are not decompressed: some writers omit even snappy's length.
        _ if stored.is_empty() => {}
        Codec::Snappy => plain = snap::raw::Decoder::new().decompress_vec(stored).map_err(|error| broken(&error))?,
        Codec::Gzip => {
            MultiGzDecoder::new(stored).take(limit).read_to_end(&mut plain).map_err(|error| broken(&error))?;
        }
        Codec::Zstd => {
            let decoder = StreamingDecoder::new(stored).map_err(|error| broken(&error))?;
            decoder.take(limit).read_to_end(&mut plain).map_err(|error| broken(&error))?;
        }
    }
    if plain.len() != n_plain {
        return Err(format!("a page has {} bytes, expected {n_plain}", plain.len()));
    }
    Ok(plain)
}
