//! Reads Parquet files: a column of texts, or columns of records with the same values that `to_json` of `datasets` writes.

use std::{fs::File, path::Path, sync::Arc};

use anyhow::{Result, anyhow, bail};
use hearth_model::system::panics::caught;
use parquet::{
    basic::{ConvertedType, LogicalType, Type as PhysicalType},
    errors::ParquetError,
    file::{metadata::ParquetMetaData, reader::FileReader, serialized_reader::SerializedFileReader},
    record::Field,
    schema::types::Type,
};
use serde_json::{Map, Number, Value};

use super::{
    open::{BytesRead, open_file},
    text::MAX_DOCUMENT_BYTES,
};

/// Maximum number of wanted columns in a message.
const SHOWN: usize = 8;

const LARGE_TEXT: &str = "a text of more than 256 MiB";

/// The end of error messages about unreadable data.
const DAMAGED: &str = "the file is damaged or truncated\nhint: download or copy it again";

/// The columns of a file.
pub(super) struct ParquetTable<'a> {
    path: &'a Path,
    reader: SerializedFileReader<File>,
}

impl<'a> ParquetTable<'a> {
    /// # Errors
    /// The file cannot be opened, or is not a whole Parquet file.
    pub(super) fn open(path: &'a Path) -> Result<ParquetTable<'a>> {
        let file = open_file(path)?;
        let reader = read(path, "", || SerializedFileReader::new(file))?;
        Ok(ParquetTable { path, reader })
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    fn fields(&self) -> &[Arc<Type>] {
        self.metadata().file_metadata().schema_descr().root_schema().get_fields()
    }

    /// The names of the columns, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields().iter().map(|field| field.name())
    }

    /// Whether there is a column `name` that is not nested.
    pub(super) fn has_flat(&self, name: &str) -> bool {
        self.fields().iter().any(|field| field.name() == name && field.is_primitive())
    }

    /// Calls `sink` with each text of the column `column`, in order. Rows without a value are skipped.
    ///
    /// # Errors
    /// The file is damaged; the column is missing or not text; errors of `sink`.
    pub(super) fn read_texts(
        &self,
        column: &str,
        bytes_read: &BytesRead,
        sink: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let path = self.path.display();
        let hint = "set the column of the text with `--text-field`";
        let Some(field) = self.fields().iter().find(|field| field.name() == column) else {
            bail!("`{path}`: no column `{column}`; it has: {}\nhint: {hint}", self.shown_names());
        };
        if !is_text(field) {
            bail!("`{path}`: column `{column}` is not text\nhint: {hint}");
        }
        self.read_columns(vec![field.clone()], bytes_read, &mut |_, members| match members.get(column) {
            Some(Value::String(text)) => sink(text),
            _ => Ok(()),
        })
    }

    /// Calls `sink` with the number and the members of each row: the `wanted` columns that the file has. Null and empty
    /// lists are left out. Returns the names of the other columns.
    ///
    /// # Errors
    /// The file is damaged; it has none of the columns; a value has no form in JSON; errors of `sink`.
    pub(super) fn read_records(
        &self,
        wanted: &[&str],
        bytes_read: &BytesRead,
        sink: &mut dyn FnMut(usize, Map<String, Value>) -> Result<()>,
    ) -> Result<Vec<String>> {
        let (found, unread): (Vec<_>, Vec<_>) =
            self.fields().iter().cloned().partition(|field| wanted.contains(&field.name()));
        if found.is_empty() {
            bail!(
                "`{}`: has none of the columns `{}`; it has: {}\nhint: rename a column, or convert the file to jsonl",
                self.path.display(),
                wanted[..wanted.len().min(SHOWN)].join("`, `") + if wanted.len() > SHOWN { "`, `..." } else { "" },
                self.shown_names()
            );
        }
        self.read_columns(found, bytes_read, sink)?;
        Ok(unread.iter().map(|field| field.name().to_owned()).collect())
    }

    fn shown_names(&self) -> String {
        format!("`{}`", self.names().collect::<Vec<_>>().join("`, `"))
    }

    fn read_columns(
        &self,
        fields: Vec<Arc<Type>>,
        bytes_read: &BytesRead,
        sink: &mut dyn FnMut(usize, Map<String, Value>) -> Result<()>,
    ) -> Result<()> {
        let path = self.path;
        let root = self.metadata().file_metadata().schema_descr().root_schema().name();
        let projection = read(path, "", || Type::group_type_builder(root).with_fields(fields).build())?;
        let mut row = 0;
        for (index, metadata) in self.metadata().row_groups().iter().enumerate() {
            let place = format!("row group {index}: ");
            let group = read(path, &place, || self.reader.get_row_group(index))?;
            let mut rows = read(path, &place, || group.get_row_iter(Some(projection.clone())))?;
            while let Some(found) = read(path, &place, || rows.next().transpose())? {
                let mut members = Map::new();
                for (name, field) in found.into_columns() {
                    let value = json(field).map_err(|what| {
                        anyhow!(
                            "`{}`: row {row}: column `{name}` has {what}\nhint: write it as text or finite numbers, at most 256 MiB a value",
                            path.display()
                        )
                    })?;
                    if !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()) {
                        members.insert(name, value);
                    }
                }
                sink(row, members)?;
                row += 1;
            }
            bytes_read.add(metadata.compressed_size().try_into().unwrap_or_default());
        }
        Ok(())
    }
}

/// Calls the library, which may panic on damaged files.
fn read<T>(path: &Path, place: &str, run: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    let what = match caught(run) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(ParquetError::NYI(what))) => format!("{what}, which is not supported\nhint: convert the file to jsonl"),
        Ok(Err(ParquetError::General(what))) if what.starts_with("Disabled feature") => {
            format!("{what}: this compression is not supported\nhint: write the file with snappy, gzip, lz4 or zstd")
        }
        Ok(Err(error)) => format!("{error}; {DAMAGED}"),
        Err(panic) => format!("{panic}; {DAMAGED}"),
    };
    Err(anyhow!("`{}`: {place}{what}", path.display()))
}

fn is_text(field: &Type) -> bool {
    if !field.is_primitive() || field.get_physical_type() != PhysicalType::BYTE_ARRAY {
        return false;
    }
    let info = field.get_basic_info();
    match info.logical_type_ref() {
        Some(logical) => matches!(logical, LogicalType::String | LogicalType::Enum | LogicalType::Json),
        None => !matches!(info.converted_type(), ConvertedType::DECIMAL | ConvertedType::BSON),
    }
}

/// The value that JSON lines of the same table have. Members of objects that are null are left out. Dates and decimals become
/// their texts.
///
/// # Errors
/// A value has no form in JSON.
fn json(field: Field) -> Result<Value, &'static str> {
    let float = |number: f64| Number::from_f64(number).map(Value::Number).ok_or("a number that is not finite");
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(flag) => flag.into(),
        Field::Byte(number) => number.into(),
        Field::Short(number) => number.into(),
        Field::Int(number) => number.into(),
        Field::Long(number) => number.into(),
        Field::UByte(number) => number.into(),
        Field::UShort(number) => number.into(),
        Field::UInt(number) => number.into(),
        Field::ULong(number) => number.into(),
        Field::Float16(number) => float(number.into())?,
        Field::Float(number) => float(number.into())?,
        Field::Double(number) => float(number)?,
        Field::Str(text) if text.len() > MAX_DOCUMENT_BYTES => return Err(LARGE_TEXT),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) if bytes.len() > MAX_DOCUMENT_BYTES => return Err(LARGE_TEXT),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).map_err(|_| "bytes that are not UTF-8 text")?.into(),
        Field::Group(row) => {
            let mut members = Map::new();
            for (name, field) in row.into_columns() {
                let value = json(field)?;
                if !value.is_null() {
                    members.insert(name, value);
                }
            }
            members.into()
        }
        Field::ListInternal(list) => list.elements().iter().cloned().map(json).collect::<Result<Vec<_>, _>>()?.into(),
        Field::MapInternal(map) => {
            let mut members = Map::new();
            for (key, value) in map.entries() {
                let Field::Str(key) = key else { return Err("a map whose keys are not text") };
                members.insert(key.clone(), json(value.clone())?);
            }
            members.into()
        }
        Field::Decimal(_)
        | Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => field.to_string().into(),
    })
}

#[cfg(test)]
mod tests {
    use parquet::data_type::ByteArray;

    use super::*;

    #[test]
    fn text_in_a_parquet_file_has_the_limit_of_a_document() {
        // Zeros are characters, and take no memory until they are written.
        let zeros = |len: usize| String::from_utf8(vec![0; len]).unwrap_or_default();
        assert_eq!(json(Field::Str(zeros(MAX_DOCUMENT_BYTES + 1))), Err(LARGE_TEXT));
        assert_eq!(json(Field::Bytes(ByteArray::from(vec![0; MAX_DOCUMENT_BYTES + 1]))), Err(LARGE_TEXT));
        assert!(json(Field::Str(zeros(MAX_DOCUMENT_BYTES))).is_ok());
    }
}
