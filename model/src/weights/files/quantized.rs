//! Quantized matrices as tensors of a file: the numbers under the matrix's name, and scales and, in some formats,
//! minima under names derived from it.

use std::array;

use half::f16;
use safetensors::Dtype;

use super::{ElementType, StoredTensor, TensorPlan, TensorWriter, ValueKind};
use crate::{
    error::Result,
    ops::{self, BLOCK_SIZE, BlockLayout, MatrixRows, QuantizedBlock, QuantizedMatrix},
};

/// Bytes of the lower four bits of 32 numbers: two per byte, the first half of the block in the low bits.
const NIBBLES: usize = BLOCK_SIZE / 2;
/// Blocks converted to bytes at a time.
const BLOCKS_AT_ONCE: usize = 1 << 12;

/// The name of the scales of the matrix `name`.
pub(in super::super) fn scales_of(name: &str) -> String {
    format!("{name}.scales")
}

/// The name of the minima of the matrix `name`.
pub(in super::super) fn minima_of(name: &str) -> String {
    format!("{name}.minima")
}

impl<'a> StoredTensor<'a> {
    /// Whether the tensor has the numbers of a matrix in q8.
    pub(in super::super) fn is_q8(&self) -> bool {
        self.kind == ValueKind::Other(Dtype::I8)
    }

    /// Whether the tensor has the numbers of a quantized matrix.
    pub(in super::super) fn is_quantized(&self) -> bool {
        matches!(self.kind, ValueKind::Other(Dtype::I8 | Dtype::U8))
    }

    /// The matrix `[d_out, d_in]` of this tensor with its scales and minima, in blocks of a dtype: see
    /// [`TensorPlan::quantized`].
    pub(in super::super) fn to_blocks(
        &self,
        scales: &StoredTensor<'a>,
        minima: Option<&StoredTensor<'a>>,
        dims: [usize; 2],
    ) -> Result<(ops::Dtype, MatrixRows<'a, QuantizedBlock>)> {
        let [d_out, n_blocks] = [dims[0], dims[1].div_ceil(BLOCK_SIZE)];
        let is_kind = |layout: &BlockLayout| {
            self.is_quantized()
                && self.kind == ValueKind::Other(dtype_of(*layout))
                && layout.has_minimum == minima.is_some()
        };
        let has_width = |layout: &BlockLayout| self.shape.last() == Some(&(n_blocks * layout.n_bytes()));
        let found = ops::Dtype::with_layout(|layout| is_kind(&layout) && has_width(&layout));
        let found = found.or_else(|| ops::Dtype::with_layout(|layout| is_kind(&layout)));
        let Some((dtype, layout)) = found.and_then(|dtype| Some((dtype, dtype.layout()?))) else {
            let with = if minima.is_some() { " beside minima" } else { "" };
            let what =
                format!("has type {:?}{with}; supported are I8 (q8) and U8 (q4; with minima q4_1, q5_1)", self.kind);
            return Err(self.error(what));
        };
        let width = layout.n_bytes();
        self.require_shape(&[d_out, n_blocks * width])?;
        let scales = scales.halves([d_out, n_blocks])?;
        let minima = minima.map(|minima| minima.halves([d_out, n_blocks])).transpose()?;
        let numbers = self.bytes;
        let read = move |row: usize, out: &mut [QuantizedBlock]| {
            let first = row * n_blocks;
            for (n, (out, bytes)) in out.iter_mut().zip(numbers[first * width..].chunks_exact(width)).enumerate() {
                let half = |halves: &[[u8; 2]]| f16::from_le_bytes(halves[first + n]);
                let minimum = minima.map_or(f16::ZERO, half);
                *out = QuantizedBlock { scale: half(scales), minimum, values: unpack(bytes, layout) };
            }
        };
        Ok((dtype, MatrixRows::new(dims, n_blocks, read)))
    }

    /// The bytes of a tensor of f16.
    fn halves(&self, dims: [usize; 2]) -> Result<&'a [[u8; 2]]> {
        self.require_shape(&dims)?;
        if self.kind != ValueKind::Weights(ElementType::F16) {
            return Err(self.error(format!("has type {:?}; scales and minima must be F16", self.kind)));
        }
        Ok(self.bytes.as_chunks().0)
    }
}

impl TensorPlan {
    /// The tensors of a matrix `[d_out, d_in]` in blocks of `dtype`: its scales, its minima if the format has them, and
    /// its numbers under its own name.
    pub(in super::super) fn quantized(name: &str, [d_out, d_in]: [usize; 2], dtype: ops::Dtype) -> Vec<Self> {
        let n_blocks = d_in.div_ceil(BLOCK_SIZE);
        let halves = |name: String| Self { name, dtype: Dtype::F16, shape: vec![d_out, n_blocks] };
        let Some(layout) = dtype.layout() else { unreachable!("`{dtype}` has no blocks") };
        let mut plan = vec![halves(scales_of(name))];
        plan.extend(layout.has_minimum.then(|| halves(minima_of(name))));
        let shape = vec![d_out, n_blocks * layout.n_bytes()];
        plan.push(Self { name: name.to_owned(), dtype: dtype_of(layout), shape });
        plan
    }
}

impl TensorWriter<'_> {
    /// Writes the tensors of [`TensorPlan::quantized`].
    pub(in super::super) fn write_quantized(&mut self, name: &str, matrix: &QuantizedMatrix) -> Result<()> {
        let Some(layout) = matrix.dtype().layout() else { unreachable!("a quantized matrix has blocks") };
        let blocks = || matrix.blocks().chunks(BLOCKS_AT_ONCE);
        let halves = |half: fn(&QuantizedBlock) -> f16| {
            blocks().map(move |blocks| Ok(blocks.iter().flat_map(|block| half(block).to_le_bytes()).collect()))
        };
        self.write(&scales_of(name), halves(|block| block.scale))?;
        if layout.has_minimum {
            self.write(&minima_of(name), halves(|block| block.minimum))?;
        }
        let numbers =
            |blocks: &[QuantizedBlock]| Ok(blocks.iter().flat_map(|block| pack(&block.values, layout)).collect());
        self.write(name, blocks().map(numbers))
    }
}

/// The element type of the tensor of numbers.
fn dtype_of(layout: BlockLayout) -> Dtype {
    if layout.bits == 8 { Dtype::I8 } else { Dtype::U8 }
}

/// The bytes of a block's numbers in a file: 8 bits unchanged; otherwise the lower four bits, then all fifth bits, the
/// first number lowest.
fn pack(values: &[i8; BLOCK_SIZE], layout: BlockLayout) -> Vec<u8> {
    if layout.bits == 8 {
        return values.map(i8::cast_unsigned).to_vec();
    }
    let stored = values.map(|value| (value + layout.offset as i8).cast_unsigned());
    let (left, right) = stored.split_at(NIBBLES);
    let mut bytes: Vec<u8> = left.iter().zip(right).map(|(left, right)| left & 15 | right << 4).collect();
    if layout.bits == 5 {
        let high = stored.iter().rev().fold(0u32, |bits, value| bits << 1 | u32::from(value >> 4));
        bytes.extend(high.to_le_bytes());
    }
    bytes
}

/// The inverse of [`pack`].
fn unpack(bytes: &[u8], layout: BlockLayout) -> [i8; BLOCK_SIZE] {
    if layout.bits == 8 {
        return array::from_fn(|n| bytes[n].cast_signed());
    }
    let high = bytes[NIBBLES..].as_chunks().0.first().map_or(0, |&bytes| u32::from_le_bytes(bytes));
    array::from_fn(|n| {
        let low = bytes[n % NIBBLES] >> (n / NIBBLES * 4) & 15;
        (low | ((high >> n & 1) << 4) as u8).cast_signed() - layout.offset as i8
    })
}
