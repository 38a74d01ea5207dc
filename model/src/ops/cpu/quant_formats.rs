//! The quantized formats of the CPU. This file has everything about a format's layout in memory: the type of its
//! blocks, and its entries in [`quantize`] and [`pack_small`], or for K-quants in [`pack_super`].

use std::array;

use half::f16;

use super::{
    panel_layout::{Line, PANEL},
    panel_storage::{PanelValues, QuantPanels},
    quant_blocks::{Bytes, FiveBits, Nibbles, Numbers, Products, QuantBlock, SixBits},
    quant_rounding::{nearest_above_minimum, nearest_around_zero, nearest_q8},
    quant_rows::InputCorrection,
};
use crate::ops::{
    BLOCK_SIZE as BLOCK, Dtype, MatrixRows, QuantizedBlock,
    k_quants::{K_PARTS, KBlock},
};

/// `-128..=127` (rounding uses `-127..=127`) times the scale; 8.5 bits a weight.
pub(super) type Q8Block = SmallBlock<Bytes, 1>;
/// `-8..=7` times the scale; 4.5 bits a weight.
pub(super) type Q4Block = SmallBlock<Nibbles, 1>;
/// `0..=15` times the scale, plus the minimum; 5 bits a weight.
pub(super) type Q4_1Block = SmallBlock<Nibbles, 2>;
/// `0..=31` times the scale, plus the minimum; 6 bits a weight.
pub(super) type Q5_1Block = SmallBlock<FiveBits, 2>;
/// `0..=15`, with 8-bit scales and minima per 32 inputs; 4.625 bits a weight.
pub(super) type Q4KBlock = SuperBlock<Nibbles, 2>;
/// `0..=31`, with 8-bit scales and minima per 32 inputs; 5.625 bits a weight.
pub(super) type Q5KBlock = SuperBlock<FiveBits, 2>;
/// `-32..=31`, with an 8-bit scale per 16 inputs; 6.5625 bits a weight.
pub(super) type Q6KBlock = SuperBlock<SixBits, 1>;

/// Quantizes a matrix to `dtype`.
pub(super) fn quantize(rows: &MatrixRows<'_, f32>, dtype: Dtype) -> Box<dyn PanelValues> {
    match dtype {
        Dtype::Q8 => Box::new(QuantPanels::<Q8Block>::quantize(rows)),
        Dtype::Q5_1 => Box::new(QuantPanels::<Q5_1Block>::quantize(rows)),
        Dtype::Q4_1 => Box::new(QuantPanels::<Q4_1Block>::quantize(rows)),
        Dtype::Q4 => Box::new(QuantPanels::<Q4Block>::quantize(rows)),
        _ => unreachable!("weights are not quantized to `{dtype}`"),
    }
}

/// Lays out a matrix that is quantized to blocks of 32.
pub(super) fn pack_small(rows: &MatrixRows<'_, QuantizedBlock>, dtype: Dtype) -> Box<dyn PanelValues> {
    match dtype {
        Dtype::Q8 => Box::new(QuantPanels::<Q8Block>::pack(rows)),
        Dtype::Q5_1 => Box::new(QuantPanels::<Q5_1Block>::pack(rows)),
        Dtype::Q4_1 => Box::new(QuantPanels::<Q4_1Block>::pack(rows)),
        Dtype::Q4 => Box::new(QuantPanels::<Q4Block>::pack(rows)),
        _ => unreachable!("`{dtype}` has no blocks of 32"),
    }
}

/// Lays out a matrix of K-quants.
pub(super) fn pack_super(rows: &MatrixRows<'_, KBlock>, dtype: Dtype) -> Box<dyn PanelValues> {
    match dtype {
        Dtype::Q6K => Box::new(QuantPanels::<Q6KBlock>::pack(rows)),
        Dtype::Q5K => Box::new(QuantPanels::<Q5KBlock>::pack(rows)),
        Dtype::Q4K => Box::new(QuantPanels::<Q4KBlock>::pack(rows)),
        _ => unreachable!("`{dtype}` is no K-quant"),
    }
}

/// A block of 32 inputs. With `FACTORS` 1, numbers around zero times a scale; with 2, numbers from zero on times a scale,
/// plus a minimum.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SmallBlock<N, const FACTORS: usize> {
    factors: [Line<f16, PANEL>; FACTORS],
    numbers: N,
}

impl<N: Numbers, const FACTORS: usize> QuantBlock for SmallBlock<N, FACTORS> {
    type Row = QuantizedBlock;
    type Numbers = N;
    type Factors<'a> = &'a Line<f16, PANEL>;

    const OFFSET: i32 = if FACTORS == 1 { N::MIDDLE as i32 } else { 0 };
    const CORRECTION: InputCorrection =
        if FACTORS == 1 { InputCorrection::Offset(Self::OFFSET) } else { InputCorrection::Sum };
    #[cfg(target_arch = "x86_64")]
    const TOGETHER: usize = if FACTORS == 1 && size_of::<N>() > size_of::<SixBits>() { 3 } else { 1 };

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let factor = |which| Line(array::from_fn(|row: usize| [rows[row].scale, rows[row].minimum][which]));
        let numbers = N::pack(|row, group| unsigned(&rows[row].values, group, Self::OFFSET));
        Self { factors: array::from_fn(factor), numbers }
    }

    fn unpack(&self, row: usize) -> QuantizedBlock {
        let value = |input| signed(self.numbers.get(row, input), Self::OFFSET);
        let minimum = self.factors.get(1).map_or(f16::ZERO, |minima| minima.0[row]);
        QuantizedBlock { scale: self.factors[0].0[row], minimum, values: array::from_fn(value) }
    }

    #[inline(always)]
    fn numbers(&self, _run: usize) -> &N {
        &self.numbers
    }

    #[inline(always)]
    fn scales(&self, _run: usize, _half: usize) -> &Line<f16, PANEL> {
        &self.factors[0]
    }

    #[inline(always)]
    fn minima(&self, _run: usize) -> Option<&Line<f16, PANEL>> {
        self.factors.get(1)
    }

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        match (FACTORS, N::MIDDLE) {
            (1, 128) => nearest_q8(weights),
            (1, middle) => nearest_around_zero(weights, middle),
            (_, middle) => nearest_above_minimum(weights, 2 * middle - 1),
        }
    }
}

/// A block of 256 inputs (a K-quant): as [`SmallBlock`], but each run of 32 inputs, or each half of it, has 8-bit
/// factors, which are multiplied by the f16 factors of the block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SuperBlock<N, const FACTORS: usize> {
    factors: [Line<f16, PANEL>; FACTORS],
    runs: [Run<N>; K_PARTS],
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Run<N> {
    /// With one factor, the scales of both halves; with two, the scales and the minima.
    factors: [[i8; PANEL]; 2],
    numbers: N,
}

impl<N: Numbers, const FACTORS: usize> SuperBlock<N, FACTORS> {
    #[inline(always)]
    fn products(&self, run: usize, factor: usize, which: usize) -> Products<'_> {
        Products { units: &self.factors[factor], factors: &self.runs[run].factors[which] }
    }
}

impl<N: Numbers, const FACTORS: usize> QuantBlock for SuperBlock<N, FACTORS> {
    type Row = KBlock;
    type Numbers = N;
    type Factors<'a> = Products<'a>;

    const OFFSET: i32 = if FACTORS == 1 { N::MIDDLE as i32 } else { 0 };
    const CORRECTION: InputCorrection =
        if FACTORS == 1 { InputCorrection::HalfOffsets(Self::OFFSET) } else { InputCorrection::Sum };
    const RUNS: usize = K_PARTS;
    const SCALES: usize = if FACTORS == 1 { 2 } else { 1 };

    fn pack(rows: &[KBlock; PANEL]) -> Self {
        let run = |run: usize| {
            let factor = |row: &KBlock, which: usize| match (FACTORS, which) {
                (2, 1) => row.minima[run],
                (_, half) => row.scales[2 * run + half],
            };
            Run {
                factors: array::from_fn(|which| rows.each_ref().map(|row| factor(row, which))),
                numbers: N::pack(|row, group| unsigned(&rows[row].values, run * (BLOCK / 4) + group, Self::OFFSET)),
            }
        };
        let factor = |which| Line(array::from_fn(|row: usize| [rows[row].scale, rows[row].minimum][which]));
        Self { factors: array::from_fn(factor), runs: array::from_fn(run) }
    }

    fn unpack(&self, row: usize) -> KBlock {
        KBlock {
            scale: self.factors[0].0[row],
            minimum: self.factors.get(1).map_or(f16::ZERO, |minima| minima.0[row]),
            scales: array::from_fn(|half| self.runs[half / 2].factors[half % Self::SCALES][row]),
            minima: array::from_fn(|run| if FACTORS == 1 { 0 } else { self.runs[run].factors[1][row] }),
            values: array::from_fn(|at| signed(self.runs[at / BLOCK].numbers.get(row, at % BLOCK), Self::OFFSET)),
        }
    }

    #[inline(always)]
    fn numbers(&self, run: usize) -> &N {
        &self.runs[run].numbers
    }

    #[inline(always)]
    fn scales(&self, run: usize, half: usize) -> Products<'_> {
        self.products(run, 0, half)
    }

    #[inline(always)]
    fn minima(&self, run: usize) -> Option<Products<'_>> {
        (FACTORS == 2).then(|| self.products(run, 1, 1))
    }
}

/// The four numbers of a row from `4 * group` on, with the offset added.
#[inline(always)]
fn unsigned(values: &[i8], group: usize, offset: i32) -> [u8; 4] {
    values.as_chunks::<4>().0[group].map(|value| value.cast_unsigned().wrapping_add(offset as u8))
}

/// A number without the offset.
fn signed(stored: u8, offset: i32) -> i8 {
    stored.wrapping_sub(offset as u8).cast_signed()
}
