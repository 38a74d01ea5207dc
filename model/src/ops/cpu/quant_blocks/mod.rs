//! Weights of few bits: how the 32 rows of a panel lie in memory. A block has the rows' numbers (`numbers.rs`) and what they
//! are multiplied by (`factors.rs`); `rounding.rs` finds both for weights that are not rounded yet.

use std::array;

use half::f16;

use super::{
    huge_pages::Stored,
    panels::{Line, PANEL, each_panel},
    quant_rows::Beside,
};
use crate::ops::{
    BLOCK_SIZE as BLOCK, MatrixRows, QuantizedBlock,
    k_quants::{K_PARTS, KBlock},
};

mod factors;
mod numbers;
mod rounding;

use factors::Products;
pub(super) use factors::RowFactors;
pub(super) use numbers::Numbers;
use numbers::{Bytes, FiveBits, Nibbles, SixBits};
pub(crate) use rounding::nearest_q8;
use rounding::{nearest_above_minimum, nearest_q4};

/// Inputs of the 32 rows of a panel, in runs of 32.
pub(super) trait QuantBlock: Copy + Send + Sync {
    /// One row's part of it, as files have it.
    type Row: Copy + Default + Send + Sync;
    type Numbers: Numbers;
    type Factors<'a>: RowFactors
    where
        Self: 'a;

    /// What is added to a weight to make it unsigned.
    const OFFSET: i32 = 0;
    /// What the kernels want to know of the input.
    const BESIDE: Beside;
    /// Runs of 32 inputs.
    const RUNS: usize = 1;
    /// Scales to a run: 1, or 2 where each half has its own.
    const SCALES: usize = 1;
    /// Kernels' rows that bring a panel from memory together, 1 to 3: more where the arithmetic waits for memory.
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = 1;

    /// Lays out the 32 rows' parts.
    fn pack(rows: &[Self::Row; PANEL]) -> Self;

    /// What [`pack`](Self::pack) was given of a row.
    fn unpack(&self, row: usize) -> Self::Row;

    /// The numbers of a run, the offset included.
    fn numbers(&self, run: usize) -> &Self::Numbers;

    /// What the rows' numbers are multiplied by: those of a run, or of its half `half`.
    fn scales(&self, run: usize, half: usize) -> Self::Factors<'_>;

    /// What is added to a run's weights behind the scales, in formats that have such.
    #[inline(always)]
    fn minima(&self, _run: usize) -> Option<Self::Factors<'_>> {
        None
    }

    /// The weight that is stored.
    #[cfg(test)]
    fn weight(&self, row: usize, input: usize) -> f32 {
        let (run, input) = (input / BLOCK, input % BLOCK);
        let minimum = self.minima(run).map_or(0.0, |minima| minima.get(row));
        let number = i32::from(self.numbers(run).get(row, input)) - Self::OFFSET;
        number as f32 * self.scales(run, input * Self::SCALES / BLOCK).get(row) + minimum
    }
}

/// A block of 32 inputs, which weights can be rounded to.
pub(super) trait SmallBlock: QuantBlock<Row = QuantizedBlock> {
    /// Rounds one row's 32 weights.
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock;
}

/// 8 bits a weight: `-127..=127` times the scale; 8.5 bits with it.
pub(super) type Q8Block = AroundZero<Bytes>;
/// 4 bits a weight: `-8..=7` times the scale; 4.5 bits with it.
pub(super) type Q4Block = AroundZero<Nibbles>;
/// 4 bits a weight: `0..=15` times the scale, plus the minimum; 5 bits with both.
pub(super) type Q4_1Block = AboveMinimum<Nibbles>;
/// 5 bits a weight: `0..=31` times the scale, plus the minimum; 6 bits with both.
pub(super) type Q5_1Block = AboveMinimum<FiveBits>;
/// 4 bits a weight: `0..=15`, with scales and minima in bytes; 4.625 bits with them.
pub(super) type Q4KBlock = KAboveMinimum<Nibbles>;
/// 5 bits a weight: `0..=31`, with scales and minima in bytes; 5.625 bits with them.
pub(super) type Q5KBlock = KAboveMinimum<FiveBits>;

/// Numbers on both sides of zero times a scale.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AroundZero<N> {
    scales: Line<f16, PANEL>,
    numbers: N,
}

impl<N: Numbers> QuantBlock for AroundZero<N> {
    type Row = QuantizedBlock;
    type Numbers = N;
    type Factors<'a>
        = &'a Line<f16, PANEL>
    where
        N: 'a;

    const OFFSET: i32 = N::MIDDLE as i32;
    const BESIDE: Beside = Beside::Offset(Self::OFFSET);
    // Shorter numbers keep the arithmetic busy.
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = if size_of::<N>() > size_of::<SixBits>() { 3 } else { 1 };

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let numbers = |row: usize, group| four(&rows[row].values, group).map(|number| number.wrapping_add(N::MIDDLE));
        Self { scales: Line(array::from_fn(|row| rows[row].scale)), numbers: N::pack(numbers) }
    }

    fn unpack(&self, row: usize) -> QuantizedBlock {
        let value = |input: usize| self.numbers.get(row, input).wrapping_sub(N::MIDDLE).cast_signed();
        QuantizedBlock { scale: self.scales.0[row], minimum: f16::ZERO, values: array::from_fn(value) }
    }

    #[inline(always)]
    fn numbers(&self, _run: usize) -> &N {
        &self.numbers
    }

    #[inline(always)]
    fn scales(&self, _run: usize, _half: usize) -> &Line<f16, PANEL> {
        &self.scales
    }
}

impl SmallBlock for Q8Block {
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_q8(weights)
    }
}

impl SmallBlock for Q4Block {
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_q4(weights)
    }
}

/// Numbers from zero on times a scale, plus a minimum.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AboveMinimum<N> {
    scales: Line<f16, PANEL>,
    minima: Line<f16, PANEL>,
    numbers: N,
}

impl<N: Numbers> QuantBlock for AboveMinimum<N> {
    type Row = QuantizedBlock;
    type Numbers = N;
    type Factors<'a>
        = &'a Line<f16, PANEL>
    where
        N: 'a;

    const BESIDE: Beside = Beside::Sum;

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        Self {
            scales: Line(array::from_fn(|row| rows[row].scale)),
            minima: Line(array::from_fn(|row| rows[row].minimum)),
            numbers: N::pack(|row, group| four(&rows[row].values, group)),
        }
    }

    fn unpack(&self, row: usize) -> QuantizedBlock {
        let values = array::from_fn(|input| self.numbers.get(row, input).cast_signed());
        QuantizedBlock { scale: self.scales.0[row], minimum: self.minima.0[row], values }
    }

    #[inline(always)]
    fn numbers(&self, _run: usize) -> &N {
        &self.numbers
    }

    #[inline(always)]
    fn scales(&self, _run: usize, _half: usize) -> &Line<f16, PANEL> {
        &self.scales
    }

    #[inline(always)]
    fn minima(&self, _run: usize) -> Option<&Line<f16, PANEL>> {
        Some(&self.minima)
    }
}

impl<N: Numbers> SmallBlock for AboveMinimum<N> {
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        nearest_above_minimum(weights, 2 * N::MIDDLE - 1)
    }
}

/// Numbers `4 group ..` of a row, four of them.
#[inline(always)]
fn four(values: &[i8], group: usize) -> [u8; 4] {
    values.as_chunks::<4>().0[group].map(i8::cast_unsigned)
}

/// A run of a K-quant: its numbers, and two small numbers for each row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Run<N> {
    factors: [[i8; PANEL]; 2],
    numbers: N,
}

impl<N: Numbers> Run<N> {
    fn pack(factors: impl Fn(usize, usize) -> i8, numbers: impl Fn(usize, usize) -> [u8; 4]) -> Self {
        let factors = array::from_fn(|which| array::from_fn(|row| factors(which, row)));
        Self { factors, numbers: N::pack(numbers) }
    }
}

/// As [`AboveMinimum`], with scales and minima in bytes, times those of 256 inputs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct KAboveMinimum<N> {
    scales: Line<f16, PANEL>,
    minima: Line<f16, PANEL>,
    runs: [Run<N>; K_PARTS],
}

impl<N: Numbers> QuantBlock for KAboveMinimum<N> {
    type Row = KBlock;
    type Numbers = N;
    type Factors<'a>
        = Products<'a>
    where
        N: 'a;

    const BESIDE: Beside = Beside::Sum;
    const RUNS: usize = K_PARTS;

    fn pack(rows: &[KBlock; PANEL]) -> Self {
        let run = |run: usize| {
            let factors = |which, row: usize| [rows[row].scales[2 * run], rows[row].minima[run]][which];
            Run::pack(factors, |row, group| four(&rows[row].values, run * (BLOCK / 4) + group))
        };
        Self {
            scales: Line(array::from_fn(|row| rows[row].scale)),
            minima: Line(array::from_fn(|row| rows[row].minimum)),
            runs: array::from_fn(run),
        }
    }

    fn unpack(&self, row: usize) -> KBlock {
        KBlock {
            scale: self.scales.0[row],
            minimum: self.minima.0[row],
            scales: array::from_fn(|half| self.runs[half / 2].factors[0][row]),
            minima: array::from_fn(|run| self.runs[run].factors[1][row]),
            values: array::from_fn(|at| self.runs[at / BLOCK].numbers.get(row, at % BLOCK).cast_signed()),
        }
    }

    #[inline(always)]
    fn numbers(&self, run: usize) -> &N {
        &self.runs[run].numbers
    }

    #[inline(always)]
    fn scales(&self, run: usize, _half: usize) -> Products<'_> {
        Products { units: &self.scales, factors: &self.runs[run].factors[0] }
    }

    #[inline(always)]
    fn minima(&self, run: usize) -> Option<Products<'_>> {
        Some(Products { units: &self.minima, factors: &self.runs[run].factors[1] })
    }
}

/// 6 bits a weight: `-32..=31`, with scales in bytes for every 16; 6.5625 bits with them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q6KBlock {
    scales: Line<f16, PANEL>,
    runs: [Run<SixBits>; K_PARTS],
}

impl QuantBlock for Q6KBlock {
    type Row = KBlock;
    type Numbers = SixBits;
    type Factors<'a> = Products<'a>;

    const OFFSET: i32 = SixBits::MIDDLE as i32;
    const BESIDE: Beside = Beside::HalfOffsets(Self::OFFSET);
    const RUNS: usize = K_PARTS;
    const SCALES: usize = 2;

    fn pack(rows: &[KBlock; PANEL]) -> Self {
        let run = |run: usize| {
            let numbers = |row: usize, group| {
                four(&rows[row].values, run * (BLOCK / 4) + group).map(|number| number.wrapping_add(SixBits::MIDDLE))
            };
            Run::pack(|half, row| rows[row].scales[2 * run + half], numbers)
        };
        Self { scales: Line(array::from_fn(|row| rows[row].scale)), runs: array::from_fn(run) }
    }

    fn unpack(&self, row: usize) -> KBlock {
        KBlock {
            scale: self.scales.0[row],
            minimum: f16::ZERO,
            scales: array::from_fn(|half| self.runs[half / 2].factors[half % 2][row]),
            minima: [0; K_PARTS],
            values: array::from_fn(|at| self.runs[at / BLOCK].numbers.get(row, at % BLOCK).cast_signed() - 32),
        }
    }

    #[inline(always)]
    fn numbers(&self, run: usize) -> &SixBits {
        &self.runs[run].numbers
    }

    #[inline(always)]
    fn scales(&self, run: usize, half: usize) -> Products<'_> {
        Products { units: &self.scales, factors: &self.runs[run].factors[half] }
    }
}

/// Rounds a matrix into panels of blocks; filled up with zeros in both directions.
pub(super) fn lay_out<B: SmallBlock>(rows: &MatrixRows<'_, f32>) -> Stored<B> {
    let [d_out, d_in] = rows.dims();
    let n_blocks = d_in.div_ceil(BLOCK);
    Stored::new(d_out.div_ceil(PANEL) * n_blocks, B::pack(&[QuantizedBlock::default(); PANEL]), |blocks| {
        each_panel(rows, blocks, n_blocks, |blocks, rows| {
            for (number, block) in blocks.iter_mut().enumerate() {
                let inputs = number * BLOCK..d_in.min((number + 1) * BLOCK);
                let mut packed = [QuantizedBlock::default(); PANEL];
                for (packed, row) in packed.iter_mut().zip(rows.chunks_exact(d_in)) {
                    let mut weights = [0.0; BLOCK];
                    weights[..inputs.len()].copy_from_slice(&row[inputs.clone()]);
                    *packed = B::quantize(&weights);
                }
                *block = B::pack(&packed);
            }
        });
    })
}

/// Lays out a matrix that is rounded already.
pub(super) fn pack<B: QuantBlock>(rows: &MatrixRows<'_, B::Row>) -> Stored<B> {
    let (d_out, n_blocks) = (rows.dims()[0], rows.row_len());
    Stored::new(d_out.div_ceil(PANEL) * n_blocks, B::pack(&[B::Row::default(); PANEL]), |blocks| {
        each_panel(rows, blocks, n_blocks, |blocks, rows| {
            for (number, block) in blocks.iter_mut().enumerate() {
                let row = |lane: usize| rows.get(lane * n_blocks + number).copied().unwrap_or_default();
                *block = B::pack(&array::from_fn(row));
            }
        });
    })
}

/// The blocks of row `row` of the matrix that `panels` holds, `n_blocks` to a row.
pub(super) fn unpack_row<B: QuantBlock>(panels: &[B], n_blocks: usize, row: usize) -> Vec<B::Row> {
    panels[row / PANEL * n_blocks..][..n_blocks].iter().map(|block| block.unpack(row % PANEL)).collect()
}
