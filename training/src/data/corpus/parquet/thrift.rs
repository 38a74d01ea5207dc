//! Thrift's compact protocol, the format of Parquet's metadata: structures of numbered fields.

use std::io::Read;

use super::{
    Problem,
    varint::{read_varint, zigzag},
};

/// Deeper than any structure of Parquet.
const MAX_DEPTH: usize = 24;

/// A value of any type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Number(i64),
    Double,
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Struct(Struct),
    Map,
}

/// A structure: its fields by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Struct(Vec<(i16, Value)>);

impl Struct {
    /// Reads one structure.
    pub(super) fn read(source: &mut impl Read) -> Result<Struct, Problem> {
        Reader { source }.structure(0)
    }

    pub(super) fn get(&self, field: i16) -> Option<&Value> {
        self.0.iter().find(|(number, _)| *number == field).map(|(_, value)| value)
    }

    pub(super) fn number(&self, field: i16) -> Option<i64> {
        match self.get(field)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn boolean(&self, field: i16) -> Option<bool> {
        match self.get(field)? {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn text(&self, field: i16) -> Option<&str> {
        self.get(field)?.as_text()
    }

    pub(super) fn list(&self, field: i16) -> Option<&[Value]> {
        match self.get(field)? {
            Value::List(values) => Some(values),
            _ => None,
        }
    }

    pub(super) fn structure(&self, field: i16) -> Option<&Struct> {
        self.get(field)?.as_struct()
    }
}

impl Value {
    pub(super) fn as_struct(&self) -> Option<&Struct> {
        match self {
            Value::Struct(fields) => Some(fields),
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

struct Reader<'a, R> {
    source: &'a mut R,
}

impl<R: Read> Reader<'_, R> {
    fn byte(&mut self) -> Result<u8, Problem> {
        let mut byte = [0];
        self.source.read_exact(&mut byte).map_err(|error| format!("cannot read the metadata: {error}"))?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64, Problem> {
        read_varint(|| self.byte())
    }

    fn zigzag(&mut self) -> Result<i64, Problem> {
        self.varint().map(zigzag)
    }

    fn structure(&mut self, depth: usize) -> Result<Struct, Problem> {
        if depth > MAX_DEPTH {
            return Err("metadata is nested too deeply".to_owned());
        }
        let mut fields = Vec::new();
        let mut number = 0_i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(Struct(fields));
            }
            number = match head >> 4 {
                0 => self.zigzag()? as i16,
                delta => number.wrapping_add(i16::from(delta)),
            };
            let value = match head & 0xf {
                1 => Value::Bool(true),
                2 => Value::Bool(false),
                kind => self.value(kind, depth)?,
            };
            fields.push((number, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<Value, Problem> {
        Ok(match kind {
            // Only in lists: a field's type includes its value.
            1 | 2 => Value::Bool(self.byte()? == 1),
            3 => Value::Number(i64::from(self.byte()? as i8)),
            4..=6 => Value::Number(self.zigzag()?),
            7 => {
                for _ in 0..8 {
                    self.byte()?;
                }
                Value::Double
            }
            8 => {
                let n_bytes = self.varint()?;
                let mut bytes = Vec::new();
                // Grows as bytes are read, so a damaged length does not allocate memory.
                let n_read = self.source.take(n_bytes).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
                if (n_read as u64) < n_bytes {
                    return Err("the metadata ends inside a string".to_owned());
                }
                Value::Bytes(bytes)
            }
            9 | 10 => {
                let head = self.byte()?;
                let n = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Every value takes at least one byte, so a damaged length fails at the end of the file.
                let mut values = Vec::new();
                for _ in 0..n {
                    values.push(self.nested(head & 0xf, depth)?);
                }
                Value::List(values)
            }
            11 => {
                let n = self.varint()?;
                let kinds = if n > 0 { self.byte()? } else { 0 };
                for _ in 0..n {
                    self.nested(kinds >> 4, depth)?;
                    self.nested(kinds & 0xf, depth)?;
                }
                Value::Map
            }
            12 => Value::Struct(self.structure(depth + 1)?),
            other => return Err(format!("metadata has a value of the unknown type {other}")),
        })
    }

    fn nested(&mut self, kind: u8, depth: usize) -> Result<Value, Problem> {
        if depth > MAX_DEPTH {
            return Err("metadata is nested too deeply".to_owned());
        }
        self.value(kind, depth + 1)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn thrift_struct_reads_each_value_type_and_rejects_truncated_bytes() {
        // 1: i32 -3; 2: "ab"; 3: true; 20 (a long header): list of two i32; 21: struct { 1: false }; 22: map of one.
        let bytes =
            [0x15, 5, 0x18, 2, b'a', b'b', 0x11, 0x09, 40, 0x25, 2, 4, 0x1c, 0x12, 0, 0x1b, 1, 0x85, 1, b'k', 6, 0, 99];
        let mut source = &bytes[..];
        let found = Struct::read(&mut source).unwrap();
        assert_eq!(found.number(1), Some(-3));
        assert_eq!(found.text(2), Some("ab"));
        assert_eq!(found.boolean(3), Some(true));
        assert_eq!(found.list(20), Some(&[Value::Number(1), Value::Number(2)][..]));
        assert_eq!(found.structure(21).unwrap().boolean(1), Some(false));
        assert_eq!(found.get(22), Some(&Value::Map));
        assert_eq!(source, [99], "nothing behind it is read");
        for n in 0..bytes.len() - 1 {
            assert!(Struct::read(&mut &bytes[..n]).is_err(), "cut at {n}");
        }
    }

    #[test]
    fn thrift_struct_rejects_huge_lengths_and_deep_nesting() {
        let huge = [0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(Struct::read(&mut &huge[..]).is_err());
        assert!(Struct::read(&mut &[0x19, 0xf9, 0xff, 0xff, 0xff, 0xff, 0x7f][..]).is_err());
        assert!(Struct::read(&mut &[0x1c; 1000][..]).is_err());
        assert!(Struct::read(&mut std::io::repeat(0x19)).is_err());
    }
}
