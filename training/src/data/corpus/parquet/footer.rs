//! The footer of a Parquet file: its schema, and the positions of each column.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use super::{
    DAMAGED, Problem, RECORDS_HINT,
    thrift::{Struct, Value},
};

const MAGIC: &[u8; 4] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";

/// Parquet's physical type for flags.
const BOOLEAN: i64 = 0;
/// Parquet's physical type for byte arrays.
const BYTE_ARRAY: i64 = 6;

/// The field of Parquet's union of logical types for values that are all null.
const NULL_TYPE: i16 = 11;

/// Compression of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
}

impl Codec {
    fn of(number: i64) -> Result<Codec, Problem> {
        let unsupported = |name: &str| {
            Err(format!(
                "its pages are compressed with {name}\nhint: write the file again with snappy, gzip, zstd or no compression"
            ))
        };
        match number {
            0 => Ok(Codec::None),
            1 => Ok(Codec::Snappy),
            2 => Ok(Codec::Gzip),
            6 => Ok(Codec::Zstd),
            3 => unsupported("LZO"),
            4 => unsupported("Brotli"),
            5 | 7 => unsupported("LZ4"),
            other => unsupported(&format!("the unknown codec {other}")),
        }
    }
}

/// The parts of the footer that Hearth uses.
#[derive(Debug)]
pub(super) struct Footer {
    metadata: Struct,
    n_bytes: u64,
}

/// A text column, or the text field of a nested column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Largest levels of its values.
    pub(super) levels: Levels,
    /// One part per row group.
    pub(super) chunks: Vec<Chunk>,
    /// What to do if it cannot be read.
    pub(super) hint: &'static str,
}

/// A field of a nested column.
#[derive(Debug)]
pub(super) struct Leaf {
    /// The names from the column to the field.
    pub(super) path: Vec<String>,
    pub(super) levels: Levels,
    /// The innermost list: its index in the path, and the definition level from which on it has an element.
    pub(super) list: Option<(usize, u32)>,
    /// Whether it is of the null type.
    pub(super) is_null: bool,
    /// Its values, if they are text.
    pub(super) column: Option<Column>,
}

/// A field while the schema is walked.
#[derive(Clone, Copy, Default)]
struct OuterField<'a> {
    name: &'a str,
    levels: Levels,
    list: Option<(usize, u32)>,
}

/// Levels say which values exist: <https://parquet.apache.org/docs/file-format/nestedencoding/>.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    /// Of repetition: the number of lists outer_fields a value.
    pub(super) repetition: u32,
    /// Of definition: the number of fields outer_fields a value, and itself, that may be missing.
    pub(super) definition: u32,
}

/// The values of a column in one row group.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) codec: Codec,
    pub(super) n_values: u64,
    pub(super) start: u64,
    pub(super) n_bytes: u64,
    /// Bytes of all columns of the row group, for progress.
    pub(super) group_bytes: u64,
}

impl Footer {
    pub(super) fn read(file: &mut File) -> Result<Footer, Problem> {
        let io = |error: std::io::Error| format!("cannot read the file: {error}");
        let n_bytes = file.seek(SeekFrom::End(0)).map_err(io)?;
        if n_bytes < 12 {
            return Err(format!("is not a Parquet file: it has {n_bytes} bytes; {DAMAGED}"));
        }
        let mut magic = [0; 4];
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut magic)).map_err(io)?;
        let mut tail = [0; 8];
        file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut tail)).map_err(io)?;
        let (length, end) = tail.split_at(4);
        match end {
            _ if end == ENCRYPTED_MAGIC => {
                return Err("is encrypted\nhint: write the file again without encryption".to_owned());
            }
            _ if &magic != MAGIC => {
                return Err(format!(
                    "is not a Parquet file: it starts with {magic:02x?}, expected {MAGIC:02x?} (`PAR1`)\nhint: \
                                    its name ends in `.parquet`; rename it if it is text"
                ));
            }
            _ if end != MAGIC => {
                return Err(format!("ends with {end:02x?}, expected {MAGIC:02x?} (`PAR1`): {DAMAGED}"));
            }
            _ => {}
        }
        let length = u64::from(u32::from_le_bytes([length[0], length[1], length[2], length[3]]));
        if length + 12 > n_bytes {
            return Err(format!("has a footer of {length} bytes, but {n_bytes} bytes in all: {DAMAGED}"));
        }
        file.seek(SeekFrom::Start(n_bytes - 8 - length)).map_err(io)?;
        let mut footer = Vec::new();
        file.take(length).read_to_end(&mut footer).map_err(io)?;
        let metadata = Struct::read(&mut footer.as_slice()).map_err(|problem| format!("{problem}: {DAMAGED}"))?;
        Ok(Footer { metadata, n_bytes })
    }

    /// The columns, in order, each with its name. Fields of nested columns are not among them, nor are columns of the null type,
    /// which Arrow writes if no row has a value.
    fn columns(&self) -> Result<Vec<(&str, &Struct)>, Problem> {
        let elements = self.elements()?;
        // The first element is the table; the fields follow depth first.
        let mut columns = Vec::new();
        let mut at = 1;
        while let Some(element) = elements.get(at) {
            if !is_null(element) {
                columns.push((element.text(4).unwrap_or_default(), *element));
            }
            at = end_of(&elements, at);
        }
        Ok(columns)
    }

    /// The elements of the schema.
    fn elements(&self) -> Result<Vec<&Struct>, Problem> {
        let schema = self.metadata.list(2).ok_or_else(|| format!("has no schema in its metadata: {DAMAGED}"))?;
        Ok(schema.iter().filter_map(Value::as_struct).collect())
    }

    /// Whether there is a column of this name that has fields.
    pub(super) fn is_nested(&self, name: &str) -> Result<bool, Problem> {
        let has_fields = |element: &Struct| element.number(5).unwrap_or(0) > 0;
        Ok(self.columns()?.iter().any(|(column, element)| *column == name && has_fields(element)))
    }

    /// Whether the column of this name is a text or has fields.
    pub(super) fn is_text_or_nested(&self, name: &str) -> Result<bool, Problem> {
        Ok(self.is_nested(name)? || self.physical_type(name)? == Some(BYTE_ARRAY))
    }

    /// Whether the values of the column of this name are true or false.
    pub(super) fn is_flag(&self, name: &str) -> Result<bool, Problem> {
        Ok(self.physical_type(name)? == Some(BOOLEAN))
    }

    fn physical_type(&self, name: &str) -> Result<Option<i64>, Problem> {
        let found = self.columns()?.into_iter().find(|(column, _)| *column == name);
        Ok(found.and_then(|(_, element)| element.number(1)))
    }

    /// The fields of a nested column that have no fields themselves, in order.
    pub(super) fn leaves(&self, name: &str) -> Result<Vec<Leaf>, Problem> {
        let elements = self.elements()?;
        let mut start = 1;
        while elements.get(start).is_some_and(|element| element.text(4) != Some(name)) {
            start = end_of(&elements, start);
        }
        let mut leaves = Vec::new();
        // The fields outer_fields the current one, and itself, each with the index behind it.
        let mut outer_fields: Vec<(usize, OuterField<'_>)> = Vec::new();
        for (at, element) in elements.iter().enumerate().take(end_of(&elements, start)).skip(start) {
            while outer_fields.last().is_some_and(|(end, _)| *end <= at) {
                outer_fields.pop();
            }
            let mut field = outer_fields.last().map_or_else(OuterField::default, |(_, outer)| *outer);
            field.name = element.text(4).unwrap_or_default();
            let repetition = element.number(3).unwrap_or(0);
            field.levels.definition += u32::from(repetition != 0);
            if repetition == 2 {
                field.levels.repetition += 1;
                field.list = Some((outer_fields.len(), field.levels.definition));
            }
            outer_fields.push((end_of(&elements, at), field));
            if element.number(5).unwrap_or(0) > 0 {
                continue;
            }
            let path: Vec<&str> = outer_fields.iter().map(|(_, field)| field.name).collect();
            let column = match element.number(1) {
                Some(BYTE_ARRAY) => {
                    let chunks = self.chunks(&path)?;
                    Some(Column { name: path.join("."), levels: field.levels, chunks, hint: RECORDS_HINT })
                }
                _ => None,
            };
            let path = path.into_iter().map(str::to_owned).collect();
            leaves.push(Leaf { path, levels: field.levels, list: field.list, is_null: is_null(element), column });
        }
        Ok(leaves)
    }

    /// The names of the columns, in order.
    pub(super) fn column_names(&self) -> Result<Vec<&str>, Problem> {
        Ok(self.columns()?.into_iter().map(|(name, _)| name).collect())
    }

    /// The text column named `name`; `hint` is what to do if there is none, or it cannot be read.
    pub(super) fn find(&self, name: &str, hint: &'static str) -> Result<Column, Problem> {
        let columns = self.columns()?;
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let found = columns.iter().rev().find(|(field, _)| *field == name);
        let Some((_, element)) = found else {
            return Err(format!("has no column `{name}`; it has: `{}`\nhint: {hint}", names.join("`, `")));
        };
        let is_text = element.number(1) == Some(BYTE_ARRAY) && element.number(5).unwrap_or(0) == 0;
        let levels = match element.number(3) {
            Some(0) => Levels::default(),
            Some(1) => Levels { repetition: 0, definition: 1 },
            _ => {
                return Err(format!("column `{name}` is repeated, expected one text per row\nhint: {hint}"));
            }
        };
        if !is_text {
            return Err(format!("column `{name}` is not text\nhint: {hint}; the file has: `{}`", names.join("`, `")));
        }
        Ok(Column { name: name.to_owned(), levels, chunks: self.chunks(&[name])?, hint })
    }

    /// The parts of the column with this path.
    fn chunks(&self, path: &[&str]) -> Result<Vec<Chunk>, Problem> {
        let damaged = |what: &str| format!("has no {what} in its metadata: {DAMAGED}");
        let groups = self.metadata.list(4).ok_or_else(|| damaged("row groups"))?;
        let mut chunks = Vec::new();
        for group in groups {
            let columns = group.as_struct().and_then(|group| group.list(1)).ok_or_else(|| damaged("columns"))?;
            let metadata = |column: &Value| column.as_struct()?.structure(3).cloned();
            let all: Vec<Struct> = columns.iter().filter_map(metadata).collect();
            let is_named = |column: &&Struct| {
                column
                    .list(3)
                    .is_some_and(|names| names.iter().map(Value::as_text).eq(path.iter().map(|name| Some(*name))))
            };
            let column =
                all.iter().find(is_named).ok_or_else(|| damaged(&format!("part of column `{}`", path.join("."))))?;
            let group_bytes = all.iter().filter_map(|column| column.number(7)).map(|n| n.max(0) as u64).sum();
            chunks.push(self.chunk(column, group_bytes)?);
        }
        Ok(chunks)
    }

    fn chunk(&self, column: &Struct, group_bytes: u64) -> Result<Chunk, Problem> {
        let number = |field: i16| column.number(field).and_then(|number| u64::try_from(number).ok());
        let (Some(codec), Some(n_values), Some(n_bytes), Some(data)) =
            (column.number(4), number(5), number(7), number(9))
        else {
            return Err(format!("has no position of a column in its metadata: {DAMAGED}"));
        };
        let start = number(11).filter(|&dictionary| dictionary > 0 && dictionary < data).unwrap_or(data);
        if start.checked_add(n_bytes).is_none_or(|end| end > self.n_bytes) {
            return Err(format!(
                "a column ends at byte {} according to its metadata, beyond the end of the file: {DAMAGED}",
                start.saturating_add(n_bytes)
            ));
        }
        Ok(Chunk { codec: Codec::of(codec)?, n_values, start, n_bytes, group_bytes })
    }
}

/// Whether a field is of the null type, as Arrow writes one of which no row has a value.
fn is_null(element: &Struct) -> bool {
    element.structure(10).is_some_and(|logical_type| logical_type.structure(NULL_TYPE).is_some())
}

/// The index after the field at `at` and all fields nested in it; `elements` are in depth-first order.
fn end_of(elements: &[&Struct], at: usize) -> usize {
    let (mut left, mut at) = (1_i64, at);
    while left > 0
        && let Some(element) = elements.get(at)
    {
        left += element.number(5).unwrap_or(0).max(0) - 1;
        at += 1;
    }
    at
}
