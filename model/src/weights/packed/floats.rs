//! Matrices of 8-bit floats with scales, and of bitsandbytes' 4-bit levels.

use half::{bf16, f16};

use crate::ops::{
    Dtype,
    k_quants::{Fp8Scales, e4m3},
};

/// A matrix `[d_out, d_in]`.
#[derive(Debug)]
pub(super) enum Floats<'a> {
    Fp8(Fp8<'a>),
    Levels(Levels<'a>),
}

/// Bytes of the format E4M3, and their scales.
#[derive(Debug)]
pub(super) struct Fp8<'a> {
    pub(super) d_in: usize,
    pub(super) bytes: &'a [u8],
    pub(super) scales: Fp8Scales,
}

impl Fp8<'_> {
    /// The bytes of row `row`.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.d_in..][..self.d_in]
    }

    /// Whether the CPU computes with it: blocks fit its panels, and all values are numbers.
    fn is_computed_with(&self) -> bool {
        let [rows, _] = self.scales.block;
        let is_whole =
            (rows == 1 && self.scales.n_blocks == 1) || rows.is_multiple_of(32) || rows >= self.bytes.len() / self.d_in;
        is_whole && self.bytes.iter().fold(true, |all, byte| all & (byte & 0x7f != 0x7f))
    }
}

/// Numbers of 16 levels, two to a byte, the first in the upper half; and the size of the largest for each block of values.
#[derive(Debug)]
pub(super) struct Levels<'a> {
    pub(super) d_in: usize,
    pub(super) bytes: &'a [u8],
    pub(super) levels: [f32; 16],
    /// Number of values that share a scale; blocks continue across rows.
    pub(super) block: usize,
    pub(super) sizes: Vec<f32>,
    /// The dtype to which the values are rounded.
    pub(super) dtype: Dtype,
}

impl Floats<'_> {
    pub(super) fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Fp8(fp8) => fp8.is_computed_with().then_some(Dtype::Fp8),
            Self::Levels(levels) => Some(levels.dtype),
        }
    }

    pub(super) fn is_finite(&self) -> bool {
        match self {
            Self::Fp8(fp8) => {
                fp8.scales.values.iter().all(|scale| scale.is_finite())
                    && fp8.bytes.iter().all(|byte| byte & 0x7f != 0x7f)
            }
            Self::Levels(levels) => levels.levels.iter().chain(&levels.sizes).all(|value| value.is_finite()),
        }
    }

    pub(super) fn decode(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Fp8(fp8) => {
                let (bytes, width) = (fp8.row(row), fp8.scales.block[1]);
                for ((out, bytes), scale) in out.chunks_mut(width).zip(bytes.chunks(width)).zip(fp8.scales.of_row(row))
                {
                    out.iter_mut().zip(bytes).for_each(|(out, &byte)| *out = e4m3(byte) * scale);
                }
            }
            Self::Levels(levels) => {
                for (at, out) in (row * levels.d_in..).zip(out) {
                    let byte = levels.bytes[at / 2];
                    let code = if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                    let value = levels.levels[usize::from(code)] * levels.sizes[at / levels.block];
                    *out = match levels.dtype {
                        Dtype::F16 => f16::from_f32(value).to_f32(),
                        Dtype::Bf16 => bf16::from_f32(value).to_f32(),
                        _ => value,
                    };
                }
            }
        }
    }
}
