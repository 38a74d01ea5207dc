//! Matrices in the layout of the GPU's kernels.

use burn::{
    backend::CubeDevice,
    tensor::{DType, Device, Shape},
};
use burn_cubecl::{
    cubecl::{
        ir::{ElemType, FloatKind, UIntKind},
        prelude::CubeElement,
    },
    tensor::CubeTensor,
};
use half::{bf16, f16};

use super::device::cube_device;
use crate::{
    error::{Error, Result},
    ops::{BLOCK_SIZE, BlockLayout, Dtype, QuantizedBlock, QuantizedMatrix},
};

/// The upper half of a word.
pub(super) const HIGH: u32 = 0xffff_0000;

/// How weights are stored in 32-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Format {
    F32,
    /// A buffer of f16, on devices that have f16.
    F16,
    /// Two per word, on other devices.
    F16Words,
    /// Two per word.
    Bf16,
    /// Quantized blocks. The lower four bits of 5-bit numbers are stored like 4-bit numbers; the fifth bits are a word
    /// per block, beside the scales.
    Blocks(BlockLayout),
}

impl Format {
    /// How weights of `dtype` are stored on `device`.
    fn of(dtype: Dtype, device: &CubeDevice) -> Self {
        match (dtype, dtype.layout()) {
            (_, Some(layout)) => Self::Blocks(layout),
            (Dtype::F16, _) if device.client().properties().supports_type(Self::F16.element()) => Self::F16,
            (Dtype::F16, _) => Self::F16Words,
            (Dtype::Bf16, _) => Self::Bf16,
            _ => Self::F32,
        }
    }

    /// Weights in a word of 32 bits.
    pub(super) fn per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::F16 | Self::F16Words | Self::Bf16 => 2,
            Self::Blocks(layout) if layout.bits == 8 => 4,
            Self::Blocks(_) => 8,
        }
    }

    /// Words that a lane reads at a time.
    pub(super) fn unit_words(self) -> usize {
        // More units per lane would move a lane's inputs too far from the next lane's inputs.
        if self == Self::F16 || self.per_word() == 8 { 2 } else { 4 }
    }

    /// Elements that a lane reads at a time: words, or weights if the buffer holds f16.
    pub(super) fn vector(self) -> usize {
        if self == Self::F16 { self.unit() } else { self.unit_words() }
    }

    /// The element type of the buffer of weights.
    pub(super) fn element(self) -> ElemType {
        if self == Self::F16 { ElemType::Float(FloatKind::F16) } else { ElemType::UInt(UIntKind::U32) }
    }

    /// Weights that a lane reads at a time: its unit.
    pub(super) fn unit(self) -> usize {
        self.per_word() * self.unit_words()
    }

    fn layout(self) -> Option<BlockLayout> {
        if let Self::Blocks(layout) = self { Some(layout) } else { None }
    }

    pub(super) fn is_quantized(self) -> bool {
        self.layout().is_some()
    }

    /// Whether blocks have a minimum.
    pub(super) fn has_minima(self) -> bool {
        self.layout().is_some_and(|layout| layout.has_minimum)
    }

    /// Whether blocks have fifth bits.
    pub(super) fn has_high_bits(self) -> bool {
        self.layout().is_some_and(|layout| layout.bits == 5)
    }

    /// Added to an integer to store it.
    pub(super) fn offset(self) -> i32 {
        self.layout().map_or(0, |layout| layout.offset)
    }

    /// Whether two blocks share a word of scales. Otherwise a block has a word with its scale and its minimum, and one
    /// with its fifth bits if it has those.
    pub(super) fn shares_scale_words(self) -> bool {
        !self.has_minima() && !self.has_high_bits()
    }

    /// Words of scales per block, if blocks do not share such words.
    pub(super) fn block_words(self) -> usize {
        if self.has_high_bits() { 2 } else { 1 }
    }

    /// Words of scales for `n_blocks` blocks.
    fn scale_words(self, n_blocks: usize) -> usize {
        if self.shares_scale_words() { n_blocks.div_ceil(2) } else { self.block_words() * n_blocks }
    }
}

/// A matrix `[d_out, d_in]` on a GPU, row after row, packed into 32-bit words. Rows are padded with zeros to whole
/// units; rows of integers to whole blocks.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Matrix {
    pub(super) d_out: usize,
    pub(super) d_in: usize,
    pub(super) dtype: Dtype,
    pub(super) format: Format,
    /// `[d_out * units * unit_words]`.
    pub(super) words: CubeTensor,
    /// Scales, minima and fifth bits of each row's blocks: `[d_out * scale_words]`; one unused word without blocks.
    pub(super) scales: CubeTensor,
    pub(super) device: Device,
}

impl Matrix {
    /// Lays out `values`, `[d_out, d_in]` in row order, as f32, f16 or bf16 on a GPU.
    pub(in crate::ops) fn new(values: &[f32], dims: [usize; 2], dtype: Dtype, device: &Device) -> Self {
        Self::with_format(values, dims, (dtype, Format::of(dtype, cube_device(device))), device)
    }

    fn with_format(values: &[f32], dims: [usize; 2], (dtype, format): (Dtype, Format), device: &Device) -> Self {
        let words = match format {
            Format::F16 | Format::F16Words => pack_halves(values, dims, format, |value| f16::from_f32(value).to_bits()),
            Format::Bf16 => pack_halves(values, dims, format, |value| bf16::from_f32(value).to_bits()),
            _ => pack_floats(values, dims),
        };
        Self::upload(&Packed { words, scales: vec![0] }, dims, (dtype, format), device)
    }

    /// Lays out a quantized matrix on a GPU.
    pub(in crate::ops) fn from_quantized(matrix: &QuantizedMatrix, device: &Device) -> Self {
        let format = Format::of(matrix.dtype(), cube_device(device));
        Self::upload(&pack_blocks(matrix, format), matrix.dims(), (matrix.dtype(), format), device)
    }

    fn upload(packed: &Packed, [d_out, d_in]: [usize; 2], (dtype, format): (Dtype, Format), device: &Device) -> Self {
        let cube = cube_device(device);
        let upload = |words: &[u32]| {
            let client = cube.client();
            let handle = client.create_from_slice(u32::as_bytes(words));
            CubeTensor::new_contiguous(client, cube.clone(), Shape::new([words.len()]), handle, DType::U32)
        };
        let (words, scales) = (upload(&packed.words), upload(&packed.scales));
        Self { d_out, d_in, dtype, format, words, scales, device: device.clone() }
    }

    pub(in crate::ops) fn dims(&self) -> [usize; 2] {
        [self.d_out, self.d_in]
    }

    pub(in crate::ops) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(in crate::ops) fn device(&self) -> Device {
        self.device.clone()
    }

    pub(in crate::ops) fn n_bytes(&self) -> usize {
        let n_words = |words: &CubeTensor| words.meta.shape().num_elements();
        let scales = if self.format.is_quantized() { n_words(&self.scales) } else { 0 };
        (n_words(&self.words) + scales) * size_of::<u32>()
    }

    /// Reads the values off the device, in row order.
    pub(in crate::ops) fn read(&self) -> Result<Vec<f32>> {
        if self.format.is_quantized() {
            let matrix = self.read_quantized()?;
            let row = |row: usize| matrix.row(row).iter().flat_map(QuantizedBlock::weights).take(self.d_in);
            return Ok((0..self.d_out).flat_map(row).collect());
        }
        let words = read_words(&self.words)?;
        let rows = words.chunks(self.units() * self.format.unit_words());
        let row = |row: &[u32]| -> Vec<f32> {
            let values: Vec<f32> = match self.format {
                Format::F16 | Format::F16Words => {
                    row.iter().flat_map(|word| [half(*word), half(word >> 16)].map(f16::to_f32)).collect()
                }
                Format::Bf16 => row.iter().flat_map(|word| [word << 16, word & HIGH].map(f32::from_bits)).collect(),
                _ => row.iter().map(|word| f32::from_bits(*word)).collect(),
            };
            values[..self.d_in].to_vec()
        };
        Ok(rows.flat_map(row).collect())
    }

    /// Reads the quantized blocks off the device.
    pub(in crate::ops) fn read_quantized(&self) -> Result<QuantizedMatrix> {
        let (words, scales) = (read_words(&self.words)?, read_words(&self.scales)?);
        let per_word = self.format.per_word();
        let n_bits = 32 / per_word;
        let row_words = self.units() * self.format.unit_words();
        let block = |row: usize, number: usize| {
            let scales = &scales[row * self.scale_words()..][..self.scale_words()];
            let (scale, minimum, high) = if self.format.shares_scale_words() {
                (half(scales[number / 2] >> (16 * (number % 2))), f16::ZERO, 0)
            } else {
                let words = &scales[self.format.block_words() * number..][..self.format.block_words()];
                (half(words[0]), half(words[0] >> 16), words.get(1).copied().unwrap_or(0))
            };
            let values = std::array::from_fn(|at| {
                let input = number * BLOCK_SIZE + at;
                let word = words[row * row_words + input / per_word] >> (n_bits * (input % per_word));
                let low = word & ((1 << n_bits) - 1);
                ((low | (high >> at & 1) << 4) as i32 - self.format.offset()) as i8
            });
            QuantizedBlock { scale, minimum, values }
        };
        let n_blocks = self.d_in.div_ceil(BLOCK_SIZE);
        let blocks = (0..self.d_out).flat_map(|row| (0..n_blocks).map(move |number| (row, number)));
        QuantizedMatrix::new(self.dims(), self.dtype(), blocks.map(|(row, number)| block(row, number)).collect())
    }

    /// Units in a row.
    pub(super) fn units(&self) -> usize {
        units(self.d_in, self.format)
    }

    /// Words of scales in a row.
    pub(super) fn scale_words(&self) -> usize {
        self.format.scale_words(self.d_in.div_ceil(BLOCK_SIZE))
    }
}

fn units(d_in: usize, format: Format) -> usize {
    let width = if format.is_quantized() { d_in.next_multiple_of(BLOCK_SIZE) } else { d_in };
    width.div_ceil(format.unit())
}

struct Packed {
    words: Vec<u32>,
    scales: Vec<u32>,
}

fn half(bits: u32) -> f16 {
    f16::from_bits(bits as u16)
}

fn read_words(tensor: &CubeTensor) -> Result<Vec<u32>> {
    let bytes = tensor.client.read_one(tensor.handle.clone());
    let bytes = bytes.map_err(|error| Error::Execution { what: format!("cannot read a weight: {error:?}") })?;
    Ok(u32::from_bytes(&bytes).to_vec())
}

fn pack_floats(values: &[f32], [d_out, d_in]: [usize; 2]) -> Vec<u32> {
    let row_words = units(d_in, Format::F32) * Format::F32.unit_words();
    let mut words = vec![0; d_out * row_words];
    for (row, values) in words.chunks_mut(row_words.max(1)).zip(values.chunks(d_in.max(1))) {
        row.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_bits());
    }
    words
}

fn pack_halves(values: &[f32], [d_out, d_in]: [usize; 2], format: Format, bits: impl Fn(f32) -> u16) -> Vec<u32> {
    let row_words = units(d_in, format) * format.unit_words();
    let mut words = vec![0; d_out * row_words];
    for (row, values) in words.chunks_mut(row_words.max(1)).zip(values.chunks(d_in.max(1))) {
        for (word, pair) in row.iter_mut().zip(values.chunks(2)) {
            let halves = pair.iter().rev().map(|value| u32::from(bits(*value)));
            *word = halves.fold(0, |word, half| word << 16 | half);
        }
    }
    words
}

fn pack_blocks(matrix: &QuantizedMatrix, format: Format) -> Packed {
    let [d_out, d_in] = matrix.dims();
    let per_word = format.per_word();
    let mut words = Vec::with_capacity(d_out * units(d_in, format) * format.unit_words());
    let mut scales = Vec::with_capacity(d_out * format.scale_words(d_in.div_ceil(BLOCK_SIZE)));
    let pair = |low: f16, high: f16| u32::from(high.to_bits()) << 16 | u32::from(low.to_bits());
    let stored = |value: i8| (i32::from(value) + format.offset()) as u32;
    for row in 0..d_out {
        if format.shares_scale_words() {
            let pairs = matrix.row(row).chunks(2);
            scales.extend(
                pairs.map(|blocks| pair(blocks[0].scale, blocks.get(1).map_or(f16::ZERO, |block| block.scale))),
            );
        } else {
            for block in matrix.row(row) {
                scales.push(pair(block.scale, block.minimum));
                if format.has_high_bits() {
                    scales.push(block.values.iter().rev().fold(0, |bits, &value| bits << 1 | stored(value) >> 4));
                }
            }
        }
        for values in matrix.row(row).iter().flat_map(|block| block.values.chunks(per_word)) {
            let n_bits = 32 / per_word;
            let low = values.iter().rev().map(|&value| stored(value) & ((1 << n_bits) - 1));
            words.push(low.fold(0, |word, value| word << n_bits | value));
        }
    }
    Packed { words, scales }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use burn::tensor::{Int, Tensor, TensorData};

    use super::*;
    use crate::{ops::cube, test_gpu::gpu};

    fn floats(tensor: Tensor<2>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    /// Devices with and without f16 read the same numbers from the same bits.
    #[test]
    fn f16_matrix_as_native_f16_or_as_words_has_equal_values() {
        let Some(device) = gpu() else { return };
        assert_eq!(Format::of(Dtype::F16, cube_device(&device)), Format::F16, "the adapter has f16");
        // All finite numbers of f16, in rows whose ends are no whole units.
        let dims @ [d_out, d_in] = [1017, 62];
        let bits = (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00);
        let mut values: Vec<f32> = bits.map(|bits| f16::from_bits(bits).to_f32()).collect();
        values.resize(d_out * d_in, 0.5);
        let ids = || Tensor::<1, Int>::arange(0..d_out as i64, &device);
        let x: Vec<f32> = (0..5 * d_in).map(|at| (at as f32).sin()).collect();
        let x = || Tensor::<2>::from_data(TensorData::new(x.clone(), [5, d_in]), &device);
        let [native, words] = [Format::F16, Format::F16Words].map(|format| {
            let matrix = Arc::new(Matrix::with_format(&values, dims, (Dtype::F16, format), &device));
            assert_eq!(matrix.dtype(), Dtype::F16);
            assert!(matrix.read().unwrap() == values);
            assert!(floats(cube::embedding(&matrix, ids())) == values, "{format:?}");
            floats(cube::linear(x(), &matrix, None, None))
        });
        for (native, words) in native.iter().zip(&words) {
            assert!((native - words).abs() <= 1e-5 * native.abs().max(1e4), "{native} and {words}");
        }
    }
}
