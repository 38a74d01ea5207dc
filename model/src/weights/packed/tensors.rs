//! Numbers in the tensors of a packed matrix, by index.

use std::array;

use half::{bf16, f16};
use safetensors::Dtype as SafeDtype;

use super::super::{
    ggml_types::ElementType,
    tensor_table::{StoredTensor, ValueKind},
};
use crate::error::Result;

/// Integers of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a>(&'a [[u8; 4]]);

impl<'a> Words<'a> {
    /// The integers of a tensor of `shape`.
    pub(super) fn of(tensor: &StoredTensor<'a>, shape: &[usize]) -> Result<Self> {
        tensor.require_shape(shape)?;
        if !matches!(tensor.kind, ValueKind::Other(SafeDtype::I32 | SafeDtype::U32)) {
            return Err(tensor.error(format!("has type {:?}; packed numbers must be I32", tensor.kind)));
        }
        Ok(Self(tensor.bytes.as_chunks().0))
    }

    #[inline(always)]
    pub(super) fn get(self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at])
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|&bytes| u32::from_le_bytes(bytes))
    }

    /// The `n`th number of `bits` bits in the integer `at`, counted from the lowest bits.
    #[inline(always)]
    pub(super) fn part(self, at: usize, n: usize, bits: u32) -> u8 {
        (self.get(at) >> (n as u32 * bits) & ((1 << bits) - 1)) as u8
    }
}

/// Floats of 32 or 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales<'a> {
    bytes: &'a [u8],
    element: ElementType,
}

impl<'a> Scales<'a> {
    /// The floats of a tensor.
    pub(super) fn of(tensor: &StoredTensor<'a>) -> Result<Self> {
        Ok(Self { bytes: tensor.bytes, element: tensor.element()? })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.element.block_bytes()
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> f32 {
        match self.element {
            ElementType::F32 => f32::from_le_bytes(self.part(at)),
            ElementType::F16 => f16::from_le_bytes(self.part(at)).to_f32(),
            _ => bf16::from_le_bytes(self.part(at)).to_f32(),
        }
    }

    #[inline(always)]
    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        array::from_fn(|n| self.bytes[N * at + n])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = f32> {
        (0..self.len()).map(|at| self.get(at))
    }

    pub(super) fn is_finite(&self) -> bool {
        self.element.is_finite(self.bytes)
    }
}
