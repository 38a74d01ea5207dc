//! A reader of Python pickles that executes nothing: it knows the opcodes and the globals that `torch.save` and the
//! tokenizers of imported checkpoints need, and rejects all others, naming them. The opcodes are from Python's
//! `pickletools`, protocols 2 to 5.

mod reader;

use std::fmt;

use serde_json::{Map, Number, Value};

/// Larger pickles are rejected. Checkpoints' pickles have a few hundred bytes per tensor.
const MAX_BYTES: usize = 1 << 26;

/// An error in a pickle, and its position.
#[derive(Debug)]
pub(super) struct Problem {
    /// The offset of the opcode.
    pub(super) at: usize,
    pub(super) what: String,
}

type Result<T, E = Problem> = std::result::Result<T, E>;

/// The index of a value in [`Pickle::values`]. Containers refer to their items by it, so a value may be in several
/// containers, or in itself.
type Id = usize;

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    values: Vec<Node<'a>>,
    root: Id,
}

#[derive(Debug)]
enum Node<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// A tuple or a list.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage<'a>),
    Tensor(PickledTensor<'a>),
    /// A `tiktoken` encoding, and its attributes once they are set.
    Encoding(Option<Id>),
}

/// A global that a pickle may name. None of these is ever executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Storage(StorageType),
    /// A dtype, such as `torch.float32`.
    Dtype,
    Encoding,
}

/// The type of a storage's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageType {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl StorageType {
    /// Bytes of a number.
    pub(super) fn n_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }
}

const STORAGES: &[(&str, StorageType)] = &[
    ("DoubleStorage", StorageType::F64),
    ("FloatStorage", StorageType::F32),
    ("HalfStorage", StorageType::F16),
    ("BFloat16Storage", StorageType::Bf16),
    ("LongStorage", StorageType::I64),
    ("IntStorage", StorageType::I32),
    ("ShortStorage", StorageType::I16),
    ("CharStorage", StorageType::I8),
    ("ByteStorage", StorageType::U8),
    ("BoolStorage", StorageType::Bool),
];

const DTYPES: &[&str] =
    &["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"];

impl Global {
    fn named(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Some(Self::RebuildParameter),
            ("torch", "Size") => Some(Self::Size),
            ("torch", name) if DTYPES.contains(&name) => Some(Self::Dtype),
            ("torch", name) => STORAGES.iter().find(|(known, _)| *known == name).map(|&(_, kind)| Self::Storage(kind)),
            ("tiktoken.core" | "tiktoken", "Encoding") => Some(Self::Encoding),
            _ => None,
        }
    }
}

/// A file of numbers that tensors are views of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub(super) kind: StorageType,
    /// The name of the file in the archive, below `data/`.
    pub(super) key: Key<'a>,
    /// How many numbers.
    pub(super) len: usize,
}

/// The name of a storage: a string, and in LitGPT's files a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key<'a> {
    Text(&'a str),
    Number(i64),
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// A view of a storage. Offset and strides count numbers.
#[derive(Clone, Debug)]
pub(super) struct PickledTensor<'a> {
    pub(super) storage: Storage<'a>,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            let what = format!("has {} bytes, allowed are {MAX_BYTES}", bytes.len());
            return Err(Problem { at: 0, what });
        }
        reader::read(bytes)
    }

    /// The pickled value.
    pub(super) fn root(&self) -> Item<'_, 'a> {
        Item { pickle: self, id: self.root }
    }
}

/// A value of a pickle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'p, 'a> {
    pickle: &'p Pickle<'a>,
    id: Id,
}

impl<'p, 'a> Item<'p, 'a> {
    fn node(self) -> &'p Node<'a> {
        &self.pickle.values[self.id]
    }

    /// The kind of value, for error messages.
    pub(super) fn kind(self) -> &'static str {
        match self.node() {
            Node::None => "None",
            Node::Bool(_) => "a bool",
            Node::Int(_) => "an int",
            Node::Float(_) => "a float",
            Node::Text(_) => "a string",
            Node::Bytes(_) => "bytes",
            Node::List(_) => "a list",
            Node::Dict(_) => "a dict",
            Node::Global(_) => "a class or function",
            Node::Storage(_) => "a storage",
            Node::Tensor(_) => "a tensor",
            Node::Encoding(_) => "a tiktoken Encoding",
        }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        if let Node::Text(text) = self.node() { Some(text) } else { None }
    }

    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        if let Node::Bytes(bytes) = self.node() { Some(bytes) } else { None }
    }

    pub(super) fn int(self) -> Option<i64> {
        if let Node::Int(int) = self.node() { Some(*int) } else { None }
    }

    pub(super) fn tensor(self) -> Option<&'p PickledTensor<'a>> {
        if let Node::Tensor(tensor) = self.node() { Some(tensor) } else { None }
    }

    /// The entries of a dict, in the order in which they were added.
    pub(super) fn entries(self) -> Option<impl Iterator<Item = (Item<'p, 'a>, Item<'p, 'a>)>> {
        let Node::Dict(entries) = self.node() else { return None };
        let item = move |id| Item { id, ..self };
        Some(entries.iter().map(move |&(key, value)| (item(key), item(value))))
    }

    /// The value of `key` of a dict. Of several, the last.
    pub(super) fn get(self, key: &str) -> Option<Item<'p, 'a>> {
        self.entries()?.filter(|(name, _)| name.text() == Some(key)).last().map(|(_, value)| value)
    }

    /// The attributes of a `tiktoken` encoding.
    pub(super) fn encoding(self) -> Option<Item<'p, 'a>> {
        if let Node::Encoding(Some(id)) = *self.node() { Some(Item { id, ..self }) } else { None }
    }

    /// A dict of plain values as JSON.
    ///
    /// # Errors
    /// The key whose value is not plain.
    pub(super) fn to_map(self) -> Result<Map<String, Value>, String> {
        let entries = self.entries().ok_or_else(|| format!("is {}, not a dict", self.kind()))?;
        let plain = |(key, value): (Item<'_, '_>, Item<'_, '_>)| {
            let key = key.text().ok_or_else(|| format!("has a key that is {}, not a string", key.kind()))?;
            let value = match value.node() {
                Node::None => Value::Null,
                Node::Bool(bool) => (*bool).into(),
                Node::Int(int) => (*int).into(),
                Node::Float(float) => match Number::from_f64(*float) {
                    Some(number) => number.into(),
                    None => return Err(format!("has {float} for `{key}`")),
                },
                Node::Text(text) => (*text).into(),
                _ => return Err(format!("has {} for `{key}`, which is no plain value", value.kind())),
            };
            Ok((key.to_owned(), value))
        };
        entries.map(plain).collect()
    }
}
