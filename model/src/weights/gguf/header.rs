//! The header of a GGUF file: metadata and the list of tensors, fully checked before use.
//!
//! Counts, lengths and offsets are checked against the file's size, so that a damaged file does not allocate memory.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
};

use super::super::{
    files::TRUNCATED,
    ggml_types::ElementType,
    tensor_table::{StoredTensor, ValueKind},
};
use crate::error::{Error, Result};

/// See [`StoredTensor`].
pub(super) const ASKED_BY: &str = "the metadata";
const MAGIC: &[u8; 4] = b"GGUF";
/// Alignment of offsets if `general.alignment` is absent.
const ALIGNMENT: u64 = 32;
/// No key uses nested arrays; deeper nesting could only serve to exhaust the stack.
const MAX_DEPTH: usize = 4;
/// GGML's limit.
const MAX_DIMS: usize = 4;
const MAX_NAME_BYTES: usize = 64;
/// Minimum size of a tensor's entry: name, number of dimensions, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Minimum size of a metadata pair: key, type, one byte.
const MIN_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;

/// A file's metadata and tensors.
#[derive(Debug)]
pub(super) struct Header<'a> {
    pub(super) metadata: Metadata<'a>,
    /// In the order of the file. Shapes begin with the outermost dimension, unlike in the file.
    pub(super) tensors: Vec<StoredTensor<'a>>,
}

/// The metadata pairs of a file.
#[derive(Debug)]
pub(super) struct Metadata<'a> {
    pub(super) path: &'a Path,
    entries: HashMap<&'a str, Value<'a>>,
}

/// A metadata value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Flag(bool),
    Text(&'a str),
    Array(Array<'a>),
}

/// A metadata list whose items have been checked.
#[derive(Clone, Copy)]
pub(super) struct Array<'a> {
    kind: Kind,
    pub(super) len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Its items, if they are numbers or flags.
    pub(super) fn scalars(self) -> Option<impl Iterator<Item = Value<'a>>> {
        let Self { kind, len, bytes } = self;
        kind.width()?;
        let mut reader = Reader { bytes, at: 0, path: Path::new("") };
        // Checked when the list was read.
        Some((0..len).filter_map(move |_| reader.value("", kind, 0).ok()))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {} times {:?}", self.len, self.kind)
    }
}

/// Value types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

/// By their numbers in the file.
const KINDS: [Kind; 13] = [
    Kind::U8,
    Kind::I8,
    Kind::U16,
    Kind::I16,
    Kind::U32,
    Kind::I32,
    Kind::F32,
    Kind::Bool,
    Kind::Text,
    Kind::Array,
    Kind::U64,
    Kind::I64,
    Kind::F64,
];

impl<'a> Header<'a> {
    /// Parses the header of the file with these `bytes`. `path` is for messages.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Tensor`] if the file is invalid.
    pub(super) fn parse(bytes: &'a [u8], path: &'a Path) -> Result<Self> {
        let mut reader = Reader { bytes, at: 0, path };
        let (n_tensors, n_pairs) = reader.counts()?;
        let metadata = reader.metadata(n_pairs)?;
        let alignment = alignment(&metadata)?;
        let entries = (0..n_tensors).map(|_| reader.tensor()).collect::<Result<Vec<_>>>()?;
        let data_start = (reader.at as u64).next_multiple_of(alignment).min(bytes.len() as u64);
        let data = &bytes[data_start as usize..];
        Ok(Self { metadata, tensors: place(entries, data, alignment, path)? })
    }
}

fn alignment(metadata: &Metadata<'_>) -> Result<u64> {
    let alignment = metadata.unsigned("general.alignment")?.unwrap_or(ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= 1 << 20 {
        return Ok(alignment);
    }
    Err(metadata.error(format!("`general.alignment` must be a power of two up to 2^20, got {alignment}")))
}

/// An entry of the tensor list.
struct Entry<'a> {
    name: &'a str,
    shape: Vec<usize>,
    element: ElementType,
    offset: u64,
    n_bytes: u64,
}

/// Assigns the tensors their bytes; rejects duplicate names, and tensors that overlap or lie outside the file.
fn place<'a>(entries: Vec<Entry<'a>>, data: &'a [u8], alignment: u64, path: &'a Path) -> Result<Vec<StoredTensor<'a>>> {
    let mut names = HashSet::with_capacity(entries.len());
    for entry in &entries {
        if !names.insert(entry.name) {
            return Err(Error::tensor(path, entry.name, "occurs twice"));
        }
        let end = entry.offset.checked_add(entry.n_bytes).filter(|&end| end <= data.len() as u64);
        if end.is_none() {
            let Entry { n_bytes, offset, .. } = entry;
            let left = data.len();
            let what = format!("has {n_bytes} bytes from byte {offset} on, but the file has {left} bytes of values");
            return Err(Error::tensor(path, entry.name, what).with_hint(TRUNCATED));
        }
        if !entry.offset.is_multiple_of(alignment) {
            let what = format!("starts at byte {}, which is not a multiple of {alignment}", entry.offset);
            return Err(Error::tensor(path, entry.name, what));
        }
    }
    let mut in_order: Vec<&Entry<'_>> = entries.iter().collect();
    in_order.sort_unstable_by_key(|entry| entry.offset);
    if let Some([before, entry]) = in_order.array_windows().find(|[a, b]| a.offset + a.n_bytes > b.offset) {
        let what = format!("starts at byte {}, inside `{}`", entry.offset, before.name);
        return Err(Error::tensor(path, entry.name, what));
    }
    let stored = |Entry { name, shape, element, offset, n_bytes }| {
        let bytes = &data[offset as usize..][..n_bytes as usize];
        StoredTensor { path, name, shape, kind: ValueKind::Weights(element), asked_by: ASKED_BY, bytes }
    };
    Ok(entries.into_iter().map(stored).collect())
}

impl<'a> Metadata<'a> {
    pub(super) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.entries.get(key).copied()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) => Ok(Some(number)),
            Some(Value::Signed(number)) if number >= 0 => Ok(Some(number.cast_unsigned())),
            Some(other) => Err(self.wrong(key, "a whole number, 0 or more", other)),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(number)) => Ok(Some(number.into())),
            Some(Value::F64(number)) => Ok(Some(number)),
            Some(other) => Err(self.wrong(key, "a number with a fraction", other)),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(flag)),
            // Some programs write flags as numbers.
            Some(Value::Unsigned(number @ (0 | 1))) => Ok(Some(number == 1)),
            Some(Value::Signed(number @ (0 | 1))) => Ok(Some(number == 1)),
            Some(other) => Err(self.wrong(key, "true or false", other)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    /// The strings of a list.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.kind == Kind::Text => {
                let mut reader = Reader { bytes: array.bytes, at: 0, path: self.path };
                (0..array.len).map(|_| reader.text()).collect::<Result<_>>().map(Some)
            }
            Some(other) => Err(self.wrong(key, "a list of strings", other)),
        }
    }

    /// The numbers of a list of floats.
    pub(super) fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.list(key, "a list of f32", |item| match item {
            Value::F32(number) => Some(number),
            Value::F64(number) => Some(number as f32),
            _ => None,
        })
    }

    /// The numbers of a list of integers of up to 32 bits.
    pub(super) fn ints(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.list(key, "a list of i32", |item| match item {
            Value::Unsigned(number) => i32::try_from(number).ok(),
            Value::Signed(number) => i32::try_from(number).ok(),
            _ => None,
        })
    }

    /// The items of a list, all of which `read` must accept; `expected` describes them in the error.
    fn list<T>(&self, key: &str, expected: &str, read: fn(Value<'a>) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = if let Value::Array(array) = value { array.scalars() } else { None };
        let items = items.and_then(|items| items.map(read).collect::<Option<Vec<_>>>());
        items.map(Some).ok_or_else(|| self.wrong(key, expected, value))
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        self.error(format!("`{key}` is missing"))
    }

    pub(super) fn wrong(&self, key: &str, expected: &str, found: Value<'_>) -> Error {
        self.error(format!("`{key}` must be {expected}, got {found}"))
    }

    pub(super) fn error(&self, what: impl Into<String>) -> Error {
        Error::file(self.path, what)
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::F32(number) => write!(f, "{number}"),
            Self::F64(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) if text.len() > 100 => write!(f, "a string of {} bytes", text.len()),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Array(array) => write!(f, "{array:?}"),
        }
    }
}

/// Reads values from the front of a file.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> Reader<'a> {
    /// Magic, version and the two counts.
    fn counts(&mut self) -> Result<(u64, u64)> {
        if self.bytes.get(..4) != Some(MAGIC) {
            return Err(self
                .error("is not a GGUF file: it does not start with `GGUF`")
                .with_hint("use a GGUF file, or a model dir: a folder with `config.json`"));
        }
        self.at = 4;
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            let is_big = (2..=3).contains(&version.swap_bytes());
            let what = if is_big {
                "is a big-endian GGUF file; only little-endian files are supported".to_owned()
            } else {
                format!("has GGUF version {version}; supported are 2 and 3")
            };
            let hint = "convert the model again with a current version of llama.cpp";
            return Err(self.error(what).with_hint(hint));
        }
        let (n_tensors, n_pairs) = (self.u64()?, self.u64()?);
        let left = (self.bytes.len() - self.at) as u64;
        for (what, n, bytes) in [("tensors", n_tensors, MIN_TENSOR_BYTES), ("metadata", n_pairs, MIN_PAIR_BYTES)] {
            if n > left / bytes {
                return Err(self.cut_short(format!("declares {n} {what}, which do not fit into {left} bytes")));
            }
        }
        Ok((n_tensors, n_pairs))
    }

    fn metadata(&mut self, n_pairs: u64) -> Result<Metadata<'a>> {
        let mut entries = HashMap::new();
        for _ in 0..n_pairs {
            let key = self.text()?;
            let kind = self.kind(key)?;
            let value = self.value(key, kind, 0)?;
            if entries.insert(key, value).is_some() {
                return Err(self.error(format!("`{key}` occurs twice")));
            }
        }
        Ok(Metadata { path: self.path, entries })
    }

    fn tensor(&mut self) -> Result<Entry<'a>> {
        let (path, name) = (self.path, self.text()?);
        let refuse = |what: String| Error::tensor(path, name, what);
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(self.error(format!("a tensor's name has {} bytes; 1 to 64 are allowed", name.len())));
        }
        let n_dims = self.u32()? as usize;
        if !(1..=MAX_DIMS).contains(&n_dims) {
            return Err(refuse(format!("has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed")));
        }
        let mut dims = (0..n_dims).map(|_| self.u64()).collect::<Result<Vec<u64>>>()?;
        let element = ElementType::from_number(self.u32()?).map_err(refuse)?;
        let offset = self.u64()?;
        let (block_len, inner) = (element.block_len() as u64, dims[0]);
        if dims.contains(&0) || !inner.is_multiple_of(block_len) {
            return Err(refuse(format!(
                "has the shape {dims:?}, whose rows of {inner} values are not a whole number of blocks of {block_len}"
            )));
        }
        let n_values = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let n_bytes = n_values.and_then(|n| (n / block_len).checked_mul(element.block_bytes() as u64));
        let n_bytes = n_bytes.ok_or_else(|| refuse(format!("is too large: {dims:?} values")))?;
        dims.reverse();
        let shape = dims.iter().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| refuse(format!("is too large: {dims:?} values")))?;
        Ok(Entry { name, shape, element, offset, n_bytes })
    }

    fn kind(&mut self, key: &str) -> Result<Kind> {
        let number = self.u32()?;
        let kind = KINDS.get(number as usize).copied();
        kind.ok_or_else(|| self.error(format!("`{key}` has the unknown type {number}")))
    }

    fn value(&mut self, key: &str, kind: Kind, depth: usize) -> Result<Value<'a>> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(self.number(u8::from_le_bytes)?.into()),
            Kind::I8 => Value::Signed(self.number(i8::from_le_bytes)?.into()),
            Kind::U16 => Value::Unsigned(self.number(u16::from_le_bytes)?.into()),
            Kind::I16 => Value::Signed(self.number(i16::from_le_bytes)?.into()),
            Kind::U32 => Value::Unsigned(self.u32()?.into()),
            Kind::I32 => Value::Signed(self.number(i32::from_le_bytes)?.into()),
            Kind::F32 => Value::F32(self.number(f32::from_le_bytes)?),
            Kind::Bool => Value::Flag(self.number(u8::from_le_bytes)? != 0),
            Kind::Text => Value::Text(self.text()?),
            Kind::U64 => Value::Unsigned(self.u64()?),
            Kind::I64 => Value::Signed(self.number(i64::from_le_bytes)?),
            Kind::F64 => Value::F64(self.number(f64::from_le_bytes)?),
            Kind::Array => Value::Array(self.array(key, depth)?),
        })
    }

    /// Checks all items of a list, so that reading them later cannot fail.
    fn array(&mut self, key: &str, depth: usize) -> Result<Array<'a>> {
        if depth == MAX_DEPTH {
            return Err(self.error(format!("`{key}` is a list more than {MAX_DEPTH} deep")));
        }
        let (kind, len) = (self.kind(key)?, self.u64()?);
        let width = kind.width();
        let left = (self.bytes.len() - self.at) as u64;
        if len > left / width.unwrap_or(kind.min_width()) {
            return Err(self.cut_short(format!(
                "`{key}` is declared as a list of {len} items, which do not fit into {left} bytes"
            )));
        }
        let start = self.at;
        match width {
            Some(width) => drop(self.take((len * width) as usize)?),
            None => {
                for _ in 0..len {
                    self.value(key, kind, depth + 1)?;
                }
            }
        }
        Ok(Array { kind, len: len as usize, bytes: &self.bytes[start..self.at] })
    }

    fn text(&mut self) -> Result<&'a str> {
        let len = self.u64()?;
        let len = usize::try_from(len).ok().filter(|&len| len <= self.bytes.len() - self.at);
        let Some(len) = len else {
            return Err(self.cut_short("has a string that extends beyond the end of the file"));
        };
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
            self.error(format!("has a string that is not UTF-8: `{}`", shown.escape_debug()))
        })
    }

    fn u32(&mut self) -> Result<u32> {
        self.number(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.number(u64::from_le_bytes)
    }

    fn number<const N: usize, T>(&mut self, from_bytes: impl Fn([u8; N]) -> T) -> Result<T> {
        match self.bytes[self.at..].first_chunk() {
            Some(&bytes) => {
                self.at += N;
                Ok(from_bytes(bytes))
            }
            None => Err(self.cut_short("ends inside its header")),
        }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..n);
        self.at += n;
        taken.ok_or_else(|| self.cut_short("ends inside its header"))
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::file(self.path, what)
    }

    fn cut_short(&self, what: impl Into<String>) -> Error {
        self.error(what).with_hint(TRUNCATED)
    }
}

impl Kind {
    /// Size of a value in bytes, if it is the same for all values of the type.
    fn width(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }

    /// Minimum size of a string or a list in bytes.
    fn min_width(self) -> u64 {
        if self == Self::Array { 12 } else { 8 }
    }
}
