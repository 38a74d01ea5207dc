//! A reader of Python pickles that runs nothing: it knows the opcodes and the globals that `torch.save` and the tokenizers of
//! imported checkpoints need, and refuses every other by name. The opcodes are those of Python's `pickletools`, protocols 2
//! to 5.

use std::{collections::HashMap, fmt};

use serde_json::{Map, Number, Value};

/// Pickles beyond this many bytes are refused. Those of checkpoints have a few hundred bytes for each tensor.
const MAX_BYTES: usize = 1 << 26;
/// Values that a pickle may have, with the sizes and strides of its tensors. A tokenizer has two values for each token.
const MAX_VALUES: usize = 1 << 22;

/// What is wrong with a pickle, and where.
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
    /// A `tiktoken` encoding, and its attributes once they are there.
    Encoding(Option<Id>),
}

/// What a pickle may name. None of these is ever run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Storage(StorageType),
    /// A type of numbers, such as `torch.float32`.
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
        let mut reader = Reader {
            bytes,
            at: 0,
            op_at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            n_sizes: 0,
        };
        let root = reader.run()?;
        Ok(Self { values: reader.values, root })
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

    /// What it is, for messages.
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
    /// The key whose value is no plain one.
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

/// The machine that a pickle is a program for.
struct Reader<'a> {
    bytes: &'a [u8],
    /// The next byte.
    at: usize,
    /// The opcode that is being read.
    op_at: usize,
    values: Vec<Node<'a>>,
    stack: Vec<Id>,
    /// The length of the stack at each `MARK` that is still open.
    marks: Vec<usize>,
    memo: HashMap<usize, Id>,
    /// Sizes and strides of all tensors.
    n_sizes: usize,
}

impl<'a> Reader<'a> {
    fn run(&mut self) -> Result<Id> {
        loop {
            self.op_at = self.at;
            let op = self.byte()?;
            match op {
                b'.' => return self.pop(),
                // PROTO, FRAME: what they announce is not needed.
                0x80 => {
                    let version = self.byte()?;
                    if !(2..=5).contains(&version) {
                        return Err(self.error(format!("is of protocol {version}, supported are 2 to 5")));
                    }
                }
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.above_mark()?),
                b'N' => self.push(Node::None)?,
                0x88 => self.push(Node::Bool(true))?,
                0x89 => self.push(Node::Bool(false))?,
                b'K' => {
                    let int = self.unsigned(1)?;
                    self.push_int(int)?;
                }
                b'M' => {
                    let int = self.unsigned(2)?;
                    self.push_int(int)?;
                }
                b'J' => {
                    let int = i32::from_le_bytes(self.array()?);
                    self.push(Node::Int(int.into()))?;
                }
                0x8a => self.long()?,
                b'G' => {
                    let float = f64::from_be_bytes(self.array()?);
                    self.push(Node::Float(float))?;
                }
                0x8c => self.text(1)?,
                b'X' => self.text(4)?,
                0x8d => self.text(8)?,
                b'C' => self.byte_string(1)?,
                b'B' => self.byte_string(4)?,
                0x8e => self.byte_string(8)?,
                b')' => self.push(Node::List(Vec::new()))?,
                0x85 => self.tuple(1)?,
                0x86 => self.tuple(2)?,
                0x87 => self.tuple(3)?,
                b't' | b'l' => {
                    let items = self.above_mark()?;
                    self.push(Node::List(items))?;
                }
                b']' => self.push(Node::List(Vec::new()))?,
                b'a' => {
                    let item = self.pop()?;
                    self.extend_list(vec![item])?;
                }
                b'e' => {
                    let items = self.above_mark()?;
                    self.extend_list(items)?;
                }
                b'}' => self.push(Node::Dict(Vec::new()))?,
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.extend_dict(vec![key, value])?;
                }
                b'u' => {
                    let items = self.above_mark()?;
                    self.extend_dict(items)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(module, name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    match (&self.values[module], &self.values[name]) {
                        (&Node::Text(module), &Node::Text(name)) => self.global(module, name)?,
                        _ => return Err(self.error("names a global by something other than strings".to_owned())),
                    }
                }
                b'R' | 0x81 => self.reduce()?,
                b'b' => self.build()?,
                b'Q' => self.storage()?,
                b'q' | b'r' => {
                    let place = self.unsigned(if op == b'q' { 1 } else { 4 })?;
                    self.memoize(place)?;
                }
                0x94 => self.memoize(self.memo.len())?,
                b'h' | b'j' => {
                    let place = self.unsigned(if op == b'h' { 1 } else { 4 })?;
                    let Some(&id) = self.memo.get(&place) else {
                        return Err(self.error(format!("reads place {place} of the memo, where nothing is")));
                    };
                    self.stack.push(id);
                }
                other => return Err(self.error(format!("has opcode {other:#04x}, which is not supported"))),
            }
        }
    }

    fn error(&self, what: String) -> Problem {
        Problem { at: self.op_at, what }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n).ok_or_else(|| {
            self.error(format!("ends after {} bytes, in the middle of a value of {n}", self.bytes.len()))
        })?;
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// A number of `n` bytes, at most 8.
    fn unsigned(&mut self, n: usize) -> Result<usize> {
        let number = self.take(n)?.iter().rev().fold(0, |number: u64, &byte| number << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| self.error(format!("has a length of {number}")))
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.bytes[self.at..];
        let Some(n) = rest.iter().position(|&byte| byte == b'\n') else {
            return Err(self.error("has a name without an end".to_owned()));
        };
        let line = self.take(n + 1)?;
        self.utf8(&line[..n])
    }

    fn utf8(&self, bytes: &'a [u8]) -> Result<&'a str> {
        std::str::from_utf8(bytes).map_err(|_| self.error("has a string that is not UTF-8".to_owned()))
    }

    fn push(&mut self, value: Node<'a>) -> Result<()> {
        // Each tensor has its own copy of its shape and strides, even if the pickle uses one tuple for many tensors, so
        // these count.
        if let Node::Tensor(tensor) = &value {
            self.n_sizes += tensor.shape.len() + tensor.strides.len();
        }
        if self.values.len() + self.n_sizes >= MAX_VALUES {
            return Err(self.error(format!("has more than {MAX_VALUES} values")));
        }
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    /// Pushes a number that has one or two bytes in the pickle.
    fn push_int(&mut self, int: usize) -> Result<()> {
        self.push(Node::Int(int as i64))
    }

    /// A whole number of any length, little-endian in two's complement.
    fn long(&mut self) -> Result<()> {
        let n = self.unsigned(1)?;
        let bytes = self.take(n)?;
        if n > 8 {
            return Err(self.error(format!("has a whole number of {n} bytes, supported are 8")));
        }
        let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { u64::MAX } else { 0 };
        let number = bytes.iter().rev().fold(sign, |number, &byte| number << 8 | u64::from(byte));
        self.push(Node::Int(number.cast_signed()))
    }

    /// A string whose length has `n` bytes.
    fn text(&mut self, n: usize) -> Result<()> {
        let len = self.unsigned(n)?;
        let bytes = self.take(len)?;
        let text = self.utf8(bytes)?;
        self.push(Node::Text(text))
    }

    fn byte_string(&mut self, n: usize) -> Result<()> {
        let len = self.unsigned(n)?;
        let bytes = self.take(len)?;
        self.push(Node::Bytes(bytes))
    }

    fn pop(&mut self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => Err(self.error("takes a value from an empty stack".to_owned())),
        }
    }

    fn above_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => Err(self.error("ends a list that has no beginning".to_owned())),
        }
    }

    fn tuple(&mut self, n: usize) -> Result<()> {
        let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push(Node::List(items))
    }

    /// The value on top of the stack, which stays there.
    fn top(&mut self) -> Result<&mut Node<'a>> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(&mut self.values[id])
    }

    fn extend_list(&mut self, items: Vec<Id>) -> Result<()> {
        match self.top()? {
            Node::List(list) => list.extend(items),
            _ => return Err(self.error("adds items to something other than a list".to_owned())),
        }
        Ok(())
    }

    /// `items` are keys and values in turns.
    fn extend_dict(&mut self, items: Vec<Id>) -> Result<()> {
        let (pairs, rest) = items.as_chunks();
        match self.top()? {
            Node::Dict(dict) if rest.is_empty() => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            _ => return Err(self.error("adds entries to something other than a dict".to_owned())),
        }
        Ok(())
    }

    fn memoize(&mut self, place: usize) -> Result<()> {
        let id = self.pop()?;
        self.stack.push(id);
        self.memo.insert(place, id);
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        match Global::named(module, name) {
            Some(global) => self.push(Node::Global(global)),
            None => {
                Err(self.error(format!("asks for `{module}.{name}`, which is not known: nothing of a pickle is run")))
            }
        }
    }

    /// A call of a global, or an object of a class.
    fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let (Node::List(arguments), &Node::Global(callee)) = (&self.values[arguments], &self.values[callee]) else {
            return Err(self.error("calls something other than a class or function with a tuple".to_owned()));
        };
        let made = match (callee, &arguments[..]) {
            (Global::OrderedDict, []) => Some(Node::Dict(Vec::new())),
            (Global::Encoding, []) => Some(Node::Encoding(None)),
            // The rest of the arguments is about gradients.
            (Global::RebuildTensor, &[storage, offset, shape, strides, ..]) => {
                self.rebuilt(storage, offset, shape, strides).map(Node::Tensor)
            }
            (Global::RebuildParameter, &[tensor, ..]) if matches!(self.values[tensor], Node::Tensor(_)) => {
                self.stack.push(tensor);
                return Ok(());
            }
            (Global::Size, &[sizes]) if self.sizes(sizes).is_some() => {
                self.stack.push(sizes);
                return Ok(());
            }
            _ => None,
        };
        match made {
            Some(made) => self.push(made),
            None => Err(self.error(format!("calls {callee:?} with arguments that it does not take"))),
        }
    }

    fn rebuilt(&self, storage: Id, offset: Id, shape: Id, strides: Id) -> Option<PickledTensor<'a>> {
        let (&Node::Storage(storage), &Node::Int(offset)) = (&self.values[storage], &self.values[offset]) else {
            return None;
        };
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        let offset = usize::try_from(offset).ok()?;
        (shape.len() == strides.len()).then_some(PickledTensor { storage, offset, shape, strides })
    }

    fn list(&self, id: Id) -> &[Id] {
        if let Node::List(list) = &self.values[id] { list } else { &[] }
    }

    /// A tuple of sizes. Tensors have at most 64 dimensions (PyTorch's own limit).
    fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        let Node::List(items) = &self.values[id] else { return None };
        let size = |&id: &Id| match self.values[id] {
            Node::Int(size) => usize::try_from(size).ok(),
            _ => None,
        };
        if items.len() > 64 { None } else { items.iter().map(size).collect() }
    }

    /// Sets the attributes of an object. Those of an `OrderedDict` are about the modules that its tensors come from.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        match self.top()? {
            Node::Dict(_) => Ok(()),
            Node::Encoding(attributes @ None) => {
                *attributes = Some(state);
                Ok(())
            }
            _ => Err(self.error("sets attributes of something that has none".to_owned())),
        }
    }

    /// A storage, by the tuple that `torch.save` names it with.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let nodes: Vec<_> = self.list(id).iter().map(|&id| &self.values[id]).collect();
        let known = match nodes[..] {
            [Node::Text("storage"), &Node::Global(Global::Storage(kind)), key, _, &Node::Int(len)] => match *key {
                Node::Text(text) => Some((kind, Key::Text(text), len)),
                Node::Int(number) => Some((kind, Key::Number(number), len)),
                _ => None,
            },
            _ => None,
        };
        let Some((kind, key, len)) = known else {
            return Err(self.error("has a persistent id that is no storage of numbers".to_owned()));
        };
        let Ok(len) = usize::try_from(len) else {
            return Err(self.error(format!("has a storage of {len} numbers")));
        };
        self.push(Node::Storage(Storage { kind, key, len }))
    }
}
