//! Block formats that occur only in files, and that the CPU computes with directly: GGML's blocks of 256 weights, in
//! parts with scales of few bits times one f16 scale (K-quants, <https://github.com/ggml-org/llama.cpp/pull/1684>, and
//! the formats whose names begin with `IQ`), and blocks of MXFP4.

use std::array;

use half::{bf16, f16};

use super::{BLOCK_SIZE, MatrixRows, QuantizedBlock};

/// Weights of a block, which share an f16 scale.
pub(crate) const K_BLOCK: usize = 256;
/// Parts of 32 weights in a block.
pub(crate) const K_PARTS: usize = K_BLOCK / BLOCK_SIZE;

/// 256 weights of a row: integers times the scale times their part's scale, plus the minimum times their part's
/// minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KBlock {
    /// An f16; in some formats a fraction of one, which may have too few bits left in f16.
    pub(crate) scale: f32,
    /// An f16; 0 in formats without minima.
    pub(crate) minimum: f32,
    /// One per 16 weights; equal for both halves of a part in formats with a scale per 32.
    pub(crate) scales: [i8; 2 * K_PARTS],
    /// As the scales.
    pub(crate) minima: [i8; 2 * K_PARTS],
    /// `0..=15` in q4_k, `0..=31` in q5_k, `0..=3` in q2_k; around zero in the others.
    pub(crate) values: [i8; K_BLOCK],
}

impl Default for KBlock {
    /// 256 zeros.
    fn default() -> Self {
        Self { scale: 0.0, minimum: 0.0, scales: [0; 2 * K_PARTS], minima: [0; 2 * K_PARTS], values: [0; K_BLOCK] }
    }
}

impl KBlock {
    /// The weights, each step rounded to f32 as GGML does.
    pub(crate) fn weights(&self) -> [f32; K_BLOCK] {
        array::from_fn(|at| {
            let own = self.scale * f32::from(self.scales[at / 16]);
            own * f32::from(self.values[at]) + self.minimum * f32::from(self.minima[at / 16])
        })
    }

    /// The block as blocks of 32, with scales and minima rounded to f16; only for formats with one scale per 32.
    pub(crate) fn small_blocks(&self) -> [QuantizedBlock; K_PARTS] {
        array::from_fn(|part| {
            let product = |unit: f32, own: i8| f16::from_f32(unit * f32::from(own));
            QuantizedBlock {
                scale: product(self.scale, self.scales[2 * part]),
                minimum: product(self.minimum, self.minima[2 * part]),
                values: array::from_fn(|at| self.values[part * BLOCK_SIZE + at]),
            }
        })
    }
}

/// 32 weights of a row in MXFP4: integers times the scale, a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MxBlock {
    /// Half the block's scale, since the numbers are doubled: a power of two, or 0 for zeros.
    pub(crate) scale: bf16,
    /// Twice the weights over the scale: `0`, `1`, `2`, `3`, `4`, `6`, `8`, `12` of either sign.
    pub(crate) values: [i8; BLOCK_SIZE],
}

impl MxBlock {
    /// The weights.
    pub(crate) fn weights(&self) -> [f32; BLOCK_SIZE] {
        self.values.map(|value| self.scale.to_f32() * f32::from(value))
    }

    /// The block with an f16 scale, if f16 has the scale's exponent.
    pub(crate) fn small_block(&self) -> Option<QuantizedBlock> {
        let scale = f16::from_f32(self.scale.to_f32());
        let is_exact = scale.to_f32() == self.scale.to_f32();
        is_exact.then_some(QuantizedBlock { scale, minimum: f16::ZERO, values: self.values })
    }
}

/// 32 weights of a row in integers of 4 or 8 bits: a number minus the zero point, times the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GroupRun {
    pub(crate) scale: f32,
    /// `0..=16` for 4 bits, any for 8.
    pub(crate) zero: i8,
    /// `0..=15` for 4 bits, any for 8.
    pub(crate) values: [i8; BLOCK_SIZE],
}

/// The scales of a matrix of 8-bit floats.
#[derive(Clone, Debug)]
pub(crate) struct Fp8Scales {
    /// The scale of each block, one row of blocks after the other.
    pub(crate) values: Vec<f32>,
    /// Rows and inputs of a block; the last blocks may be smaller.
    pub(crate) block: [usize; 2],
    /// Blocks of a row.
    pub(crate) n_blocks: usize,
}

impl Fp8Scales {
    /// The scales of row `row`; empty after the last row.
    pub(crate) fn of_row(&self, row: usize) -> &[f32] {
        self.values
            .get(row / self.block[0] * self.n_blocks..)
            .unwrap_or_default()
            .get(..self.n_blocks)
            .unwrap_or_default()
    }
}

/// The value of a float of four bits for the exponent and three for the fraction, without infinities.
#[inline(always)]
pub(crate) fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (u32::from(byte >> 3 & 15), u32::from(byte & 7));
    let size = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        (0, fraction) => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | fraction << 20),
    };
    if byte >> 7 == 1 { -size } else { size }
}

/// Rows of a matrix in blocks, in the form in which a file has them.
#[derive(Debug)]
pub(crate) enum BlockRows<'a> {
    /// Blocks of 32 with an f16 scale.
    Small(MatrixRows<'a, QuantizedBlock>),
    /// Blocks of 256.
    Super(MatrixRows<'a, KBlock>),
    /// Blocks of MXFP4.
    Mx(MatrixRows<'a, MxBlock>),
    /// Integers in runs of 32, where `n_runs` (1, 2 or 4) runs share scale and zero point. `order` gives the matrix's
    /// input at each place of a row; `None` if inputs are in order.
    Groups { rows: MatrixRows<'a, GroupRun>, n_runs: usize, order: Option<Vec<u32>> },
    /// 8-bit floats, and their scales.
    Fp8(MatrixRows<'a, u8>, Fp8Scales),
}

impl BlockRows<'_> {
    /// `[d_out, d_in]`.
    pub(crate) fn dims(&self) -> [usize; 2] {
        match self {
            Self::Small(rows) => rows.dims(),
            Self::Super(rows) => rows.dims(),
            Self::Mx(rows) => rows.dims(),
            Self::Groups { rows, .. } => rows.dims(),
            Self::Fp8(rows, _) => rows.dims(),
        }
    }
}
