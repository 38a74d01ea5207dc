//! Matrices of 8 or 4 bits in row order: how files hold them, and what every device's own layout is made from.

use half::f16;

use super::Dtype;
use crate::error::{Error, Result};

/// Values, side by side along `d_in`, that share a scale.
pub const BLOCK_SIZE: usize = 32;

/// [`BLOCK_SIZE`] weights: whole numbers times a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizedBlock {
    /// What the numbers are multiplied by.
    pub scale: f16,
    /// `-128..=127` in q8, `-8..=7` in q4.
    pub values: [i8; BLOCK_SIZE],
}

/// A matrix `[d_out, d_in]` of [`Dtype::Q8`] or [`Dtype::Q4`], row after row. The last block of a row is filled up with
/// zeros. GGUF's `Q8_0` and `Q4_0` are the same numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    dims: [usize; 2],
    dtype: Dtype,
    blocks: Vec<QuantizedBlock>,
}

impl QuantizedMatrix {
    /// From the blocks of each row.
    ///
    /// # Errors
    /// [`Error::Param`] when `dtype` has no blocks, when there are too few or too many of them for `dims`, or when a
    /// number has more bits than `dtype`.
    pub fn new([d_out, d_in]: [usize; 2], dtype: Dtype, blocks: Vec<QuantizedBlock>) -> Result<Self> {
        let refuse = |what: String| Err(Error::Param { name: "blocks", what });
        let range = match dtype {
            Dtype::Q8 => i8::MIN..=i8::MAX,
            Dtype::Q4 => -8..=7,
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => return refuse(format!("must be of `q8` or `q4`, got `{dtype}`")),
        };
        let expected = d_out * d_in.div_ceil(BLOCK_SIZE);
        if blocks.len() != expected {
            return refuse(format!("must be {expected} for a matrix of {d_out} by {d_in}, got {}", blocks.len()));
        }
        if !blocks.iter().all(|block| block.values.iter().all(|value| range.contains(value))) {
            return refuse(format!("must hold numbers in {range:?} for `{dtype}`"));
        }
        Ok(Self { dims: [d_out, d_in], dtype, blocks })
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// [`Dtype::Q8`] or [`Dtype::Q4`].
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The blocks, row after row.
    pub fn blocks(&self) -> &[QuantizedBlock] {
        &self.blocks
    }

    /// The blocks of row `row`.
    pub fn row(&self, row: usize) -> &[QuantizedBlock] {
        let n = self.dims[1].div_ceil(BLOCK_SIZE);
        &self.blocks[row * n..][..n]
    }
}
