//! K-quants: GGML's blocks of 256 weights, in parts with scales of few bits, times one f16 scale
//! (<https://github.com/ggml-org/llama.cpp/pull/1684>). They come from GGUF files; the CPU computes with them as they
//! are.

use std::array;

use half::f16;

use super::{BLOCK_SIZE, QuantizedBlock};

/// Weights of a block, which share an f16 scale.
pub(crate) const K_BLOCK: usize = 256;
/// Parts of 32 weights in a block.
pub(crate) const K_PARTS: usize = K_BLOCK / BLOCK_SIZE;

/// 256 weights of a row: integers times the scale times their part's scale, plus the minimum times their part's
/// minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KBlock {
    pub(crate) scale: f16,
    /// 0 in q6_k.
    pub(crate) minimum: f16,
    /// One per 16 weights; in q4_k and q5_k equal for both halves of a part.
    pub(crate) scales: [i8; 2 * K_PARTS],
    pub(crate) minima: [i8; K_PARTS],
    /// `0..=15` in q4_k, `0..=31` in q5_k, `-32..=31` in q6_k.
    pub(crate) values: [i8; K_BLOCK],
}

impl Default for KBlock {
    /// 256 zeros.
    fn default() -> Self {
        Self { scale: f16::ZERO, minimum: f16::ZERO, scales: [0; 16], minima: [0; K_PARTS], values: [0; K_BLOCK] }
    }
}

impl KBlock {
    /// The weights, each step rounded to f32 as GGML does.
    pub(crate) fn weights(&self) -> [f32; K_BLOCK] {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        array::from_fn(|at| {
            let own = scale * f32::from(self.scales[at / 16]);
            own * f32::from(self.values[at]) + minimum * f32::from(self.minima[at / BLOCK_SIZE])
        })
    }

    /// The same as blocks of 32, with scales and minima rounded to f16; not for q6_k.
    pub(crate) fn small_blocks(&self) -> [QuantizedBlock; K_PARTS] {
        array::from_fn(|part| {
            let product = |unit: f16, own: i8| f16::from_f32(unit.to_f32() * f32::from(own));
            QuantizedBlock {
                scale: product(self.scale, self.scales[2 * part]),
                minimum: product(self.minimum, self.minima[part]),
                values: array::from_fn(|at| self.values[part * BLOCK_SIZE + at]),
            }
        })
    }
}
