//! The pages of a column: headers, decompression, and missing values.

use std::io::Read;

use flate2::{Crc, read::MultiGzDecoder};
use ruzstd::decoding::StreamingDecoder;

use super::{
    DAMAGED, Problem,
    bits::read_hybrid,
    footer::{Chunk, Codec, Levels},
    thrift::Struct,
    values::{Texts, Values},
};

/// Reads the pages of one column in one row group.
pub(super) struct PageReader<'a, R> {
    source: R,
    chunk: &'a Chunk,
    levels: Levels,
    n_read: u64,
    dictionary: Texts,
    page: Page,
}

/// A value, or the place of a missing one.
pub(super) struct Slot<'a> {
    pub(super) levels: Levels,
    pub(super) value: Option<&'a [u8]>,
}

/// The values of a page, and which rows have one. For a field of a list, a row here is an element of a list.
#[derive(Default)]
struct Page {
    /// Levels of repetition; empty if all are 0.
    repetition: Vec<u32>,
    /// Levels of definition: the largest for a row with a value; empty if all rows have one.
    definition: Vec<u32>,
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

/// A problem without a hint of its own is damage.
fn with_hint(problem: Problem) -> Problem {
    if problem.contains("\nhint: ") { problem } else { format!("{problem}: {DAMAGED}") }
}

impl<'a, R: Read> PageReader<'a, R> {
    pub(super) fn new(source: R, chunk: &'a Chunk, levels: Levels) -> Self {
        PageReader { source, chunk, levels, n_read: 0, dictionary: Texts::default(), page: Page::default() }
    }

    /// The values of the next page, in order; `None` after the last.
    pub(super) fn next_page(&mut self) -> Result<Option<impl Iterator<Item = Result<Slot<'_>, Problem>>>, Problem> {
        while self.n_read < self.chunk.n_values {
            let header = Struct::read(&mut self.source).map_err(with_hint)?;
            if self.read_page(&header).map_err(with_hint)? {
                self.n_read += self.page.n_rows as u64;
                return Ok(Some(self.rows()));
            }
        }
        Ok(None)
    }

    fn rows(&self) -> impl Iterator<Item = Result<Slot<'_>, Problem>> {
        let mut n_values = 0;
        (0..self.page.n_rows).map(move |row| {
            let repetition = self.page.repetition.get(row).copied().unwrap_or(0);
            let definition = self.page.definition.get(row).copied().unwrap_or(self.levels.definition);
            let slot = Slot { levels: Levels { repetition, definition }, value: None };
            match &self.page.values {
                Some(values) if definition == self.levels.definition => {
                    n_values += 1;
                    Ok(Slot { value: Some(values.get(n_values - 1, &self.dictionary)?), ..slot })
                }
                _ => Ok(slot),
            }
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
        let mut read_levels = |largest: u32, encoding: Option<i64>| {
            if largest == 0 {
                return Ok(Vec::new());
            }
            if encoding != Some(3) {
                return Err("a page has its levels in an encoding other than RLE\n\
                     hint: write the file again with a current version of the program that wrote it"
                    .to_owned());
            }
            let (length, rest) = values.split_first_chunk().ok_or("a page ends inside its levels")?;
            let (packed, rest) =
                rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or("a page ends inside its levels")?;
            values = rest;
            read_hybrid(packed, width(largest), n_rows)
        };
        let repetition = read_levels(self.levels.repetition, header.number(4))?;
        let definition = read_levels(self.levels.definition, header.number(3))?;
        self.set_page(Page { repetition, definition, values: None, n_rows }, encoding, values)
    }

    fn data_page_v2(&mut self, header: &Struct, stored: &[u8], n_plain: usize) -> Result<(), Problem> {
        let header = header.structure(8).ok_or("a page has no header")?;
        let (n_rows, encoding) = self.rows_and_encoding(header.number(1), header.number(4))?;
        let length = |field: i16| header.number(field).and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
        let (n_def, n_rep) = (length(5), length(6));
        let (levels, body) =
            n_rep.checked_add(n_def).and_then(|n| stored.split_at_checked(n)).ok_or("a page ends inside its levels")?;
        let (repetition, definition) = levels.split_at(n_rep);
        let read_levels = |packed: &[u8], largest: u32| match largest {
            0 => Ok(Vec::new()),
            largest => read_hybrid(packed, width(largest), n_rows),
        };
        let repetition = read_levels(repetition, self.levels.repetition)?;
        let definition = read_levels(definition, self.levels.definition)?;
        let n_plain = n_plain.saturating_sub(n_def + n_rep);
        let codec = if header.boolean(7) == Some(false) { Codec::None } else { self.chunk.codec };
        let plain = decompress(codec, body, n_plain)?;
        self.set_page(Page { repetition, definition, values: None, n_rows }, encoding, &plain)
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

    fn set_page(&mut self, page: Page, encoding: i64, values: &[u8]) -> Result<(), Problem> {
        let n_values = match self.levels.definition {
            0 => page.n_rows,
            largest => page.definition.iter().filter(|&&level| level == largest).count(),
        };
        self.page = Page { values: Some(Values::decode(encoding, values, n_values)?), ..page };
        Ok(())
    }
}

/// Bits of a level.
fn width(largest: u32) -> u32 {
    u32::BITS - largest.leading_zeros()
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
        Codec::Snappy => {
            // This takes as much memory at once as the page claims.
            let n_claimed = snap::raw::decompress_len(stored).map_err(|error| broken(&error))?;
            if n_claimed != n_plain {
                return Err(format!("a page has {n_claimed} bytes, expected {n_plain}"));
            }
            plain = snap::raw::Decoder::new().decompress_vec(stored).map_err(|error| broken(&error))?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_hint_calls_a_page_damaged_only_if_the_error_has_no_hint() {
        let unsupported = "a page has the encoding 9\nhint: write the file again";
        assert_eq!(with_hint(unsupported.to_owned()), unsupported);
        assert_eq!(with_hint("a page has no header".to_owned()), format!("a page has no header: {DAMAGED}"));
    }
}
