//! Matrices that other programs quantized, in model dirs: each consists of several tensors with its numbers, scales,
//! zero points and perhaps the order of its inputs. `fold` finds them by their names; `ints` reads matrices of
//! integers, `floats` 8-bit floats and bitsandbytes' 4-bit levels, `mxfp4` experts in MXFP4. Rows are decoded on
//! demand.

pub(super) mod described;
mod floats;
mod fold;
mod ints;
mod mxfp4;
mod tensors;

use std::collections::HashMap;

use self::{described::Stated, floats::Floats, ints::Ints, mxfp4::Mxfp4};
pub(super) use self::{fold::fold, ints::RunLayout};
use super::tensor_table::StoredTensor;
use crate::{
    error::{Error, Result},
    ops::{
        Dtype, QuantizedBlock,
        k_quants::{Fp8Scales, GroupRun, MxBlock},
        nearest_q8,
    },
};

/// The matrices of a model by the names that their tensors would have if they were not quantized.
pub(super) type PackedMatrices<'a> = HashMap<String, PackedMatrix<'a>>;

/// The quantization method in `quantization_config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    CompressedTensors(Stated),
    /// With the number of bits, and what is added to each zero point: 1 in the first version of the format. `has_order`: inputs are
    /// grouped in an order of their own.
    Gptq {
        bits: u32,
        added: u8,
        has_order: bool,
    },
    Awq,
    /// 8-bit floats with a scale for each tensor, row or block, whose rows and inputs the file may say.
    Fp8 {
        block: Option<[usize; 2]>,
    },
    BitsAndBytes,
    /// gpt-oss's experts.
    Mxfp4,
}

/// A quantized matrix `[d_out, d_in]`.
#[derive(Debug)]
pub(super) struct PackedMatrix<'a> {
    /// The tensor of the numbers, for messages.
    tensor: StoredTensor<'a>,
    dims: [usize; 2],
    /// Bytes in the file.
    n_bytes: usize,
    values: Values<'a>,
}

#[derive(Debug)]
enum Values<'a> {
    Ints(Ints<'a>),
    Floats(Floats<'a>),
    Mxfp4(Mxfp4<'a>),
}

impl PackedMatrix<'_> {
    /// `[d_out, d_in]`.
    pub(super) fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// Bytes that the matrix takes in the file.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The dtype that represents the values exactly, if any does.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        match &self.values {
            Values::Ints(ints) => ints.dtype(),
            Values::Floats(floats) => floats.dtype(),
            Values::Mxfp4(_) => Some(Dtype::Mxfp4),
        }
    }

    /// For [`Dtype::Int4`] and [`Dtype::Int8`]: how [`runs`](Self::runs) are laid out.
    pub(super) fn layout(&self) -> Option<&RunLayout> {
        match &self.values {
            Values::Ints(ints) => ints.layout(),
            Values::Floats(_) | Values::Mxfp4(_) => None,
        }
    }

    /// For [`Dtype::Fp8`]: the scales.
    pub(super) fn fp8_scales(&self) -> Option<&Fp8Scales> {
        match &self.values {
            Values::Floats(Floats::Fp8(fp8)) => Some(&fp8.scales),
            _ => None,
        }
    }

    /// For [`Dtype::Fp8`]: row `row`.
    pub(super) fn fp8_row(&self, row: usize, out: &mut [u8]) {
        if let Values::Floats(Floats::Fp8(fp8)) = &self.values {
            out.copy_from_slice(fp8.row(row));
        }
    }

    /// Whether all scales are numbers, and finite.
    pub(super) fn is_finite(&self) -> bool {
        match &self.values {
            Values::Ints(ints) => ints.is_finite(),
            Values::Floats(floats) => floats.is_finite(),
            Values::Mxfp4(blocks) => blocks.is_finite(),
        }
    }

    /// The values of row `row`.
    pub(super) fn decode(&self, row: usize, out: &mut [f32]) {
        match &self.values {
            Values::Ints(ints) => ints.decode(row, out),
            Values::Floats(floats) => floats.decode(row, out),
            Values::Mxfp4(blocks) => blocks.decode(row, out),
        }
    }

    /// For [`Dtype::Mxfp4`]: row `row`.
    pub(super) fn mx_blocks(&self, row: usize, out: &mut [MxBlock]) {
        if let Values::Mxfp4(blocks) = &self.values {
            out.iter_mut().zip(blocks.row(row)).for_each(|(out, block)| *out = block);
        }
    }

    /// Row `row` in runs of 32 values, in the order of the [layout](Self::layout).
    pub(super) fn runs(&self, row: usize, out: &mut [GroupRun]) {
        if let Values::Ints(ints) = &self.values {
            ints.runs(row, out);
        }
    }

    /// Row `row` in blocks of `dtype`: exact if that represents the values, otherwise rounded to 8 bits.
    pub(super) fn small_blocks(&self, row: usize, dtype: Dtype, out: &mut [QuantizedBlock]) {
        match &self.values {
            Values::Ints(ints) if matches!(ints.dtype(), Some(Dtype::Q4 | Dtype::Q8)) => {
                ints.small_blocks(row, out);
                if dtype.has_minima() && ints.dtype() == Some(Dtype::Q4) {
                    out.iter_mut().for_each(|block| *block = block.above_minimum(8));
                }
            }
            Values::Mxfp4(blocks) => {
                let nearest = |block: MxBlock| block.small_block().unwrap_or_else(|| nearest_q8(&block.weights()));
                out.iter_mut().zip(blocks.row(row)).for_each(|(out, block)| *out = nearest(block));
            }
            _ => {
                let mut values = vec![0.0; self.dims[1]];
                self.decode(row, &mut values);
                let mut parts = values.chunks(32);
                for (out, part) in out.iter_mut().zip(&mut parts) {
                    let mut padded = [0.0; 32];
                    padded[..part.len()].copy_from_slice(part);
                    *out = nearest_q8(&padded);
                }
            }
        }
    }

    /// An error about the matrix.
    pub(super) fn error(&self, what: impl Into<String>) -> Error {
        self.tensor.error(what)
    }

    /// Rejects another shape than `expected`.
    pub(super) fn require_shape(&self, expected: &[usize]) -> Result<()> {
        if self.dims == expected {
            return Ok(());
        }
        let (dims, asked_by) = (self.dims, self.tensor.asked_by);
        Err(self.error(format!("holds a matrix {dims:?}, but {asked_by} requires {expected:?}")))
    }
}
