//! Writes GGUF files: a header with metadata and the list of tensors, then the tensors.

use std::io::Write;

use super::super::files::DiskDtype;
use crate::{
    error::{Error, Result},
    files::partial_file::PartialFile,
    ops::{BLOCK_SIZE, Dtype},
};

/// Tensors begin at multiples of this.
const ALIGNMENT: u64 = 32;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Entry {
    Unsigned(u32),
    Float(f32),
    Flag(bool),
    Text(String),
    Flags(Vec<bool>),
    Ints(Vec<i32>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
}

impl Entry {
    /// Its number among the types of values, and its bytes.
    pub(in super::super) fn put(&self, out: &mut Vec<u8>) {
        const LIST: u32 = 9;
        let list = |out: &mut Vec<u8>, kind: u32, len: usize| {
            out.extend(LIST.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Self::Unsigned(number) => {
                out.extend(4u32.to_le_bytes());
                out.extend(number.to_le_bytes());
            }
            Self::Float(number) => {
                out.extend(6u32.to_le_bytes());
                out.extend(number.to_le_bytes());
            }
            Self::Flag(flag) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*flag));
            }
            Self::Text(text) => {
                out.extend(8u32.to_le_bytes());
                put_text(out, text);
            }
            Self::Flags(flags) => {
                list(out, 7, flags.len());
                out.extend(flags.iter().map(|flag| u8::from(*flag)));
            }
            Self::Ints(numbers) => {
                list(out, 5, numbers.len());
                out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Self::Floats(numbers) => {
                list(out, 6, numbers.len());
                out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Self::Texts(texts) => {
                list(out, 8, texts.len());
                texts.iter().for_each(|text| put_text(out, text));
            }
        }
    }
}

/// Writes a length, then the text's bytes.
fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TensorForm {
    Floats(DiskDtype),
    /// In blocks of this dtype.
    Blocks(Dtype),
}

impl TensorForm {
    pub(in super::super) const F32: Self = Self::Floats(DiskDtype::F32);

    /// The form for `dtype`. Block formats need whole blocks per row.
    pub(in super::super) fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => Self::Floats(DiskDtype::F16),
            Dtype::Bf16 => Self::Floats(DiskDtype::Bf16),
            _ if dtype.is_quantized() => Self::Blocks(dtype),
            _ => Self::F32,
        }
    }

    /// GGML's number of the type.
    fn number(self) -> u32 {
        match self {
            Self::Floats(DiskDtype::F32) => 0,
            Self::Floats(DiskDtype::F16) => 1,
            Self::Floats(DiskDtype::Bf16) => 30,
            Self::Blocks(Dtype::Q4) => 2,
            Self::Blocks(Dtype::Q4_1) => 3,
            Self::Blocks(Dtype::Q5_1) => 7,
            Self::Blocks(_) => 8,
        }
    }

    fn n_bytes(self, n_values: usize) -> u64 {
        let of_block = |bits: usize, minimum: bool| 2 + usize::from(minimum) * 2 + bits * BLOCK_SIZE / 8;
        let bytes = match self {
            Self::Floats(DiskDtype::F32) => 4 * n_values,
            Self::Floats(DiskDtype::F16 | DiskDtype::Bf16) => 2 * n_values,
            Self::Blocks(Dtype::Q4) => n_values / BLOCK_SIZE * of_block(4, false),
            Self::Blocks(Dtype::Q4_1) => n_values / BLOCK_SIZE * of_block(4, true),
            Self::Blocks(Dtype::Q5_1) => n_values / BLOCK_SIZE * of_block(5, true),
            Self::Blocks(_) => n_values / BLOCK_SIZE * of_block(8, false),
        };
        bytes as u64
    }
}

/// A tensor that is to be written.
pub(in super::super) trait FileTensor {
    fn name(&self) -> &str;
    /// Outermost dimension first.
    fn shape(&self) -> &[usize];
    fn form(&self) -> TensorForm;
    /// Made when it is their turn, so that one tensor is in memory at a time.
    fn bytes(&self) -> Result<Vec<u8>>;
}

/// Writes and finishes `file`.
///
/// # Errors
/// [`Error::Io`] if it cannot be written.
pub(in super::super) fn write(
    mut file: PartialFile,
    pairs: &[(String, Entry)],
    tensors: &[&dyn FileTensor],
) -> Result<()> {
    let path = file.path().to_owned();
    let failed = Error::io("write", &path);
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((pairs.len() as u64).to_le_bytes());
    for (key, entry) in pairs {
        put_text(&mut header, key);
        entry.put(&mut header);
    }
    let mut offset = 0;
    for &tensor in tensors {
        put_text(&mut header, tensor.name());
        header.extend((tensor.shape().len() as u32).to_le_bytes());
        for dim in tensor.shape().iter().rev() {
            header.extend((*dim as u64).to_le_bytes());
        }
        header.extend(tensor.form().number().to_le_bytes());
        header.extend(u64::to_le_bytes(offset));
        offset = (offset + n_bytes(tensor)).next_multiple_of(ALIGNMENT);
    }
    let padding = |n_bytes: u64| vec![0; (n_bytes.next_multiple_of(ALIGNMENT) - n_bytes) as usize];
    file.write_all(&header).map_err(failed)?;
    file.write_all(&padding(header.len() as u64)).map_err(failed)?;
    for &tensor in tensors {
        let bytes = tensor.bytes()?;
        debug_assert_eq!(bytes.len() as u64, n_bytes(tensor), "{}", tensor.name());
        file.write_all(&bytes).map_err(failed)?;
        file.write_all(&padding(bytes.len() as u64)).map_err(failed)?;
    }
    file.finish().map_err(failed)
}

fn n_bytes(tensor: &dyn FileTensor) -> u64 {
    tensor.form().n_bytes(tensor.shape().iter().product())
}
