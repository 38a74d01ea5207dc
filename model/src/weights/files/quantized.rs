//! Matrices of blocks as tensors of a file: their numbers under the matrix's name, and under names of their own what the
//! numbers are multiplied by and, in formats that have such, what is added then.

use std::array;

use half::f16;
use safetensors::Dtype;

use super::{StoredTensor, TensorPlan, TensorWriter};
use crate::{
    error::Result,
    ops::{self, BLOCK_SIZE, MatrixRows, QuantizedBlock, QuantizedMatrix},
};

/// Bytes of 32 numbers of 4 bits: two in a byte, the first half of the block in the low bits.
const NIBBLES: usize = BLOCK_SIZE / 2;
/// Bytes of 32 numbers of 5 bits: behind the lower four, the fifth bits of all, the first lowest.
const FIVE_BITS: usize = NIBBLES + 4;
/// Blocks that are turned into bytes at a time.
const BLOCKS_AT_ONCE: usize = 1 << 12;

/// The name of the scales of the matrix of blocks called `name`.
pub(in super::super) fn scales_of(name: &str) -> String {
    format!("{name}.scales")
}

/// The name of the minima of the matrix of blocks called `name`.
pub(in super::super) fn minima_of(name: &str) -> String {
    format!("{name}.minima")
}

impl<'a> StoredTensor<'a> {
    /// Whether the tensor holds the numbers of a matrix in q8.
    pub(in super::super) fn is_q8(&self) -> bool {
        self.dtype == Dtype::I8
    }

    /// Whether the tensor holds the numbers of a matrix of blocks.
    pub(in super::super) fn is_quantized(&self) -> bool {
        matches!(self.dtype, Dtype::I8 | Dtype::U8)
    }

    /// The matrix `[d_out, d_in]` whose numbers this tensor holds, with its scales and minima, in blocks of a dtype: see
    /// [`TensorPlan::quantized`].
    pub(in super::super) fn to_blocks(
        &self,
        scales: &StoredTensor<'a>,
        minima: Option<&StoredTensor<'a>>,
        dims: [usize; 2],
    ) -> Result<(ops::Dtype, MatrixRows<'a, QuantizedBlock>)> {
        let [d_out, n_blocks] = [dims[0], dims[1].div_ceil(BLOCK_SIZE)];
        let has_width = |width: usize| self.shape.last() == Some(&(n_blocks * width));
        let (dtype, width) = match (self.dtype, minima) {
            (Dtype::I8, None) => (ops::Dtype::Q8, BLOCK_SIZE),
            (Dtype::U8, None) => (ops::Dtype::Q4, NIBBLES),
            (Dtype::U8, Some(_)) if has_width(FIVE_BITS) => (ops::Dtype::Q5_1, FIVE_BITS),
            (Dtype::U8, Some(_)) => (ops::Dtype::Q4_1, NIBBLES),
            (other, _) => {
                let with = if minima.is_some() { " beside minima" } else { "" };
                let what =
                    format!("has type {other:?}{with}, supported are I8 (q8) and U8 (q4; with minima q4_1, q5_1)");
                return Err(self.error(what));
            }
        };
        self.require_shape(&[d_out, n_blocks * width])?;
        let scales = scales.halves([d_out, n_blocks])?;
        let minima = minima.map(|minima| minima.halves([d_out, n_blocks])).transpose()?;
        let numbers = self.bytes;
        let read = move |row: usize, out: &mut [QuantizedBlock]| {
            let first = row * n_blocks;
            for (n, (out, bytes)) in out.iter_mut().zip(numbers[first * width..].chunks_exact(width)).enumerate() {
                let half = |halves: &[[u8; 2]]| f16::from_le_bytes(halves[first + n]);
                let minimum = minima.map_or(f16::ZERO, half);
                *out = QuantizedBlock { scale: half(scales), minimum, values: unpack(bytes, dtype) };
            }
        };
        Ok((dtype, MatrixRows::new(dims, n_blocks, read)))
    }

    /// The numbers of a tensor of f16, in bytes.
    fn halves(&self, dims: [usize; 2]) -> Result<&'a [[u8; 2]]> {
        self.require_shape(&dims)?;
        if self.dtype != Dtype::F16 {
            return Err(self.error(format!("has type {:?}, scales and minima are F16", self.dtype)));
        }
        Ok(self.bytes.as_chunks().0)
    }
}

impl TensorPlan {
    /// The tensors of a matrix `[d_out, d_in]` in blocks of `dtype`: its scales, its minima if it has such, and its numbers
    /// under its own name.
    pub(in super::super) fn quantized(name: &str, [d_out, d_in]: [usize; 2], dtype: ops::Dtype) -> Vec<Self> {
        let n_blocks = d_in.div_ceil(BLOCK_SIZE);
        let halves = |name: String| Self { name, dtype: Dtype::F16, shape: vec![d_out, n_blocks] };
        let (kind, width) = match dtype {
            ops::Dtype::Q8 => (Dtype::I8, BLOCK_SIZE),
            ops::Dtype::Q5_1 => (Dtype::U8, FIVE_BITS),
            _ => (Dtype::U8, NIBBLES),
        };
        let mut plan = vec![halves(scales_of(name))];
        plan.extend(dtype.has_minima().then(|| halves(minima_of(name))));
        plan.push(Self { name: name.to_owned(), dtype: kind, shape: vec![d_out, n_blocks * width] });
        plan
    }
}

impl TensorWriter<'_> {
    /// Writes the tensors that [`TensorPlan::quantized`] lists.
    pub(in super::super) fn write_quantized(&mut self, name: &str, matrix: &QuantizedMatrix) -> Result<()> {
        let dtype = matrix.dtype();
        let blocks = || matrix.blocks().chunks(BLOCKS_AT_ONCE);
        let halves = |half: fn(&QuantizedBlock) -> f16| {
            blocks().map(move |blocks| blocks.iter().flat_map(|block| half(block).to_le_bytes()).collect())
        };
        self.write(&scales_of(name), halves(|block| block.scale))?;
        if dtype.has_minima() {
            self.write(&minima_of(name), halves(|block| block.minimum))?;
        }
        let numbers = |blocks: &[QuantizedBlock]| blocks.iter().flat_map(|block| pack(&block.values, dtype)).collect();
        self.write(name, blocks().map(numbers))
    }
}

/// What is added to a number to store it in few bits.
fn offset(dtype: ops::Dtype) -> i8 {
    if dtype == ops::Dtype::Q4 { 8 } else { 0 }
}

fn pack(values: &[i8; BLOCK_SIZE], dtype: ops::Dtype) -> Vec<u8> {
    if dtype == ops::Dtype::Q8 {
        return values.map(i8::cast_unsigned).to_vec();
    }
    let stored = values.map(|value| (value + offset(dtype)).cast_unsigned());
    let (left, right) = stored.split_at(NIBBLES);
    let mut bytes: Vec<u8> = left.iter().zip(right).map(|(left, right)| left & 15 | right << 4).collect();
    if dtype == ops::Dtype::Q5_1 {
        let high = stored.iter().rev().fold(0u32, |bits, value| bits << 1 | u32::from(value >> 4));
        bytes.extend(high.to_le_bytes());
    }
    bytes
}

/// The numbers of a block: what [`pack`] made bytes of.
fn unpack(bytes: &[u8], dtype: ops::Dtype) -> [i8; BLOCK_SIZE] {
    if dtype == ops::Dtype::Q8 {
        return array::from_fn(|n| bytes[n].cast_signed());
    }
    let high = bytes[NIBBLES..].as_chunks().0.first().map_or(0, |&bytes| u32::from_le_bytes(bytes));
    array::from_fn(|n| {
        let low = bytes[n % NIBBLES] >> (n / NIBBLES * 4) & 15;
        (low | ((high >> n & 1) << 4) as u8).cast_signed() - offset(dtype)
    })
}
