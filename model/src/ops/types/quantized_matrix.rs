//! Quantized matrices in row order: the exchange format between files and devices.

use half::f16;

use super::{BLOCK_SIZE, BlockLayout, Dtype};
use crate::error::{Error, Result};

/// [`BLOCK_SIZE`] weights: integers times a scale, plus a minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantizedBlock {
    /// Multiplies the numbers.
    pub scale: f16,
    /// Is added then: 0 in q8 and q4.
    pub minimum: f16,
    /// `-128..=127` in q8, `0..=31` in q5_1, `0..=15` in q4_1, `-8..=7` in q4.
    pub values: [i8; BLOCK_SIZE],
}

impl QuantizedBlock {
    /// The weights.
    pub fn weights(&self) -> [f32; BLOCK_SIZE] {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        self.values.map(|value| f32::from(value) * scale + minimum)
    }

    /// The same weights with `below` added to each number and the minimum lowered to match: numbers of at least
    /// `-below` become unsigned.
    pub(crate) fn above_minimum(self, below: i8) -> Self {
        let minimum = f16::from_f32(self.minimum.to_f32() - self.scale.to_f32() * f32::from(below));
        Self { minimum, values: self.values.map(|value| value + below), ..self }
    }
}

/// A matrix `[d_out, d_in]` of a dtype that [is quantized](Dtype::is_quantized), row after row. The last block of a row is
/// padded with zeros, which no input is multiplied by. GGUF's `Q8_0`, `Q5_1`, `Q4_1` and `Q4_0` are the same numbers.
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
    /// number has more bits than `dtype` or a minimum where it has none.
    pub fn new([d_out, d_in]: [usize; 2], dtype: Dtype, blocks: Vec<QuantizedBlock>) -> Result<Self> {
        let refuse = |what: String| Err(Error::Param { name: "blocks", what });
        let Some(layout) = dtype.layout().filter(|_| !dtype.is_from_files()) else {
            return refuse(format!("must be of {}, got `{dtype}`", Dtype::names(Dtype::is_quantized)));
        };
        let range = layout.range();
        let expected = d_out * d_in.div_ceil(BLOCK_SIZE);
        if blocks.len() != expected {
            return refuse(format!("must be {expected} for a matrix of {d_out} by {d_in}, got {}", blocks.len()));
        }
        // Without an early exit, so that the compiler vectorizes it.
        let is_beyond = |block: &QuantizedBlock| {
            block.values.iter().fold(false, |is_beyond, value| is_beyond | !range.contains(value))
        };
        if blocks.iter().any(is_beyond) {
            return refuse(format!("must have numbers in {range:?} for `{dtype}`"));
        }
        if !layout.has_minimum && !blocks.iter().all(|block| block.minimum == f16::ZERO) {
            return refuse(format!("must have no minima for `{dtype}`"));
        }
        Ok(Self { dims: [d_out, d_in], dtype, blocks })
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// The dtype of the blocks.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The same weights in a dtype that has minima, or in q8: q4 becomes q4_1, or q8 if a minimum would be beyond f16.
    /// Other dtypes are returned unchanged.
    pub(crate) fn with_minima(self) -> Self {
        let layout = self.dtype.layout().filter(|layout| layout.bits < 8 && !layout.has_minimum);
        let Some(BlockLayout { bits, offset, .. }) = layout else { return self };
        let blocks: Vec<_> = self.blocks.iter().map(|block| block.above_minimum(offset as i8)).collect();
        match Dtype::with_layout(|layout| layout.bits == bits && layout.has_minimum) {
            Some(dtype) if blocks.iter().all(|block| block.minimum.is_finite()) => Self { dtype, blocks, ..self },
            // The minimum, `-offset` times the scale, is beyond f16.
            _ => Self { dtype: Dtype::Q8, ..self },
        }
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Also where eight times the scale overflows f16: the matrix becomes Q8.
    #[test]
    fn with_minima_keeps_the_weights_of_a_q4_matrix() {
        for (scale, expected) in [(0.25, Dtype::Q4_1), (9000.0, Dtype::Q8)] {
            let values = std::array::from_fn(|n| n as i8 % 16 - 8);
            let block = QuantizedBlock { scale: f16::from_f32(scale), minimum: f16::ZERO, values };
            let matrix = QuantizedMatrix::new([1, 32], Dtype::Q4, vec![block]).unwrap();
            let found = matrix.clone().with_minima();
            assert_eq!(found.dtype(), expected);
            assert_eq!(found.blocks()[0].weights(), block.weights());
        }
    }
}
