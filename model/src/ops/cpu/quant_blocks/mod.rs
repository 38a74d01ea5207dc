//! Blocks of quantized weights as the CPU stores them: the rows' quantized numbers (`quants.rs`, `lookup.rs`) and their
//! scales (`scales.rs`).

use std::array;

use super::{panel_layout::PANEL, quant_rounding::nearest_q8, quant_rows::InputCorrection};
use crate::ops::{
    BLOCK_SIZE as BLOCK, QuantizedBlock,
    k_quants::{KBlock, MxBlock},
};

mod lookup;
mod quants;
mod scales;

pub(super) use lookup::{Fp4, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Lookup};
pub(super) use quants::{Bytes, FiveBits, Nibbles, Numbers, SixBits, ThreeBits, TwoBits};
#[cfg(target_arch = "aarch64")]
pub(super) use scales::REGISTERS;
pub(super) use scales::{GroupFactors, Part, Products, RowFactors};

/// A quantized format on the CPU: the weights of a panel's 32 rows at some inputs, in runs of 32 inputs. A format is an
/// implementation of this and an entry in `quant_formats.rs`.
pub(super) trait QuantBlock: Copy + Send + Sync + 'static {
    /// One row's part of a block, as files have it.
    type Row: RowBlock;
    type Numbers: Numbers;
    type Factors<'a>: RowFactors;

    /// Offset that is added to a number to store it unsigned.
    const OFFSET: i32 = 0;
    /// The correction that the kernels need for a run of the input.
    const CORRECTION: InputCorrection;
    /// Runs of 32 inputs.
    const RUNS: usize = 1;
    /// Scales per run: 1, or 2 if each half has its own.
    const SCALES: usize = 1;
    /// Groups of input rows that take turns while a panel is loaded from memory, 1 to 3: more for wider numbers, since
    /// these are memory-bound.
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = 1;

    /// Lays out the 32 rows' parts.
    fn pack(rows: &[Self::Row; PANEL]) -> Self;

    /// The part of row `row` that [`pack`](Self::pack) was given.
    fn unpack(&self, row: usize) -> Self::Row;

    /// The numbers of a run, with the offset added.
    fn numbers(&self, run: usize) -> &Self::Numbers;

    /// Scales of the rows' numbers in half `half` of a run.
    fn scales(&self, run: usize, half: usize) -> Self::Factors<'_>;

    /// Minima of half `half` of a run, added to the weights after scaling; `None` if the format has none.
    fn minima(&self, run: usize, half: usize) -> Option<Self::Factors<'_>>;

    /// The weights of a run: for each input, one weight per row.
    fn widen(&self, run: usize, lines: &mut [[f32; PANEL]; BLOCK]) {
        for (part, lines) in lines.chunks_exact_mut(BLOCK / Self::SCALES).enumerate() {
            let minima = self.minima(run, part).map_or([0.0; PANEL], |minima| array::from_fn(|row| minima.get(row)));
            let scales = self.scales(run, part);
            let scales: [f32; PANEL] = array::from_fn(|row| scales.get(row));
            for (n, lines) in lines.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let numbers = self.numbers(run).group(part * BLOCK / Self::SCALES / 4 + n);
                for (input, line) in lines.iter_mut().enumerate() {
                    *line = array::from_fn(|row| {
                        let number = i32::from(numbers[row][input]) - Self::OFFSET;
                        number as f32 * scales[row] + minima[row]
                    });
                }
            }
        }
    }

    /// Quantizes one row's 32 weights.
    fn quantize(_weights: &[f32; BLOCK]) -> Self::Row {
        unreachable!("weights are not quantized to a format that only files have")
    }

    /// The stored weight.
    #[cfg(test)]
    fn weight(&self, row: usize, input: usize) -> f32 {
        let (run, input) = (input / BLOCK, input % BLOCK);
        let half = input * Self::SCALES / BLOCK;
        let minimum = self.minima(run, half).map_or(0.0, |minima| minima.get(row));
        let number = i32::from(self.numbers(run).get(row, input)) - Self::OFFSET;
        number as f32 * self.scales(run, half).get(row) + minimum
    }
}

/// One row's part of a block, as files have it.
pub(super) trait RowBlock: Copy + Default + Send + Sync {
    fn weights(self) -> impl IntoIterator<Item = f32>;

    /// The weights as blocks of 32 with the same numbers, with scales and minima rounded to f16.
    fn small_blocks(self) -> impl IntoIterator<Item = QuantizedBlock>;
}

impl RowBlock for QuantizedBlock {
    fn weights(self) -> impl IntoIterator<Item = f32> {
        Self::weights(&self)
    }

    fn small_blocks(self) -> impl IntoIterator<Item = QuantizedBlock> {
        [self]
    }
}

impl RowBlock for KBlock {
    fn weights(self) -> impl IntoIterator<Item = f32> {
        Self::weights(&self)
    }

    fn small_blocks(self) -> impl IntoIterator<Item = QuantizedBlock> {
        Self::small_blocks(&self)
    }
}

impl RowBlock for MxBlock {
    fn weights(self) -> impl IntoIterator<Item = f32> {
        Self::weights(&self)
    }

    fn small_blocks(self) -> impl IntoIterator<Item = QuantizedBlock> {
        [self.small_block().unwrap_or_else(|| nearest_q8(&Self::weights(&self)))]
    }
}
