//! Interprets the opcodes of a pickle: a stack machine that builds values and calls nothing.

use std::collections::HashMap;

use super::{Global, Id, Key, Node, Pickle, PickledTensor, Problem, Result, Storage};

/// Maximum number of values of a pickle, including the sizes and strides of its tensors. A tokenizer has two values per
/// token.
const MAX_VALUES: usize = 1 << 22;

/// Reads the values of a pickle.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle<'_>> {
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
    Ok(Pickle { values: reader.values, root })
}

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
    /// Number of sizes and strides over all tensors.
    n_sizes: usize,
}

impl<'a> Reader<'a> {
    fn run(&mut self) -> Result<Id> {
        loop {
            self.op_at = self.at;
            let op = self.byte()?;
            match op {
                b'.' => return self.pop(),
                // PROTO, FRAME: their arguments are not needed.
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

    /// An unsigned number of `n` bytes, at most 8.
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
        // these copies count.
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

    /// An integer of any length, little-endian in two's complement.
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

    /// `items` are alternating keys and values.
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

    /// Sets the attributes of an object. The attributes of an `OrderedDict` describe the modules that its tensors come
    /// from.
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
