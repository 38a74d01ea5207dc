//! The quantized formats of the CPU, but for integers with zero points (`group_formats.rs`) and 8-bit floats
//! (`fp8_panels.rs`). This file has everything about a format's layout in memory: the type of its blocks, and its
//! entries in [`quantize`] and [`pack_small`], or in [`pack`] for formats that occur only in files.

use std::array;

use half::{bf16, f16};

use super::{
    fp8_panels::Fp8Panels,
    group_formats,
    panel_layout::{Line, PANEL},
    panel_storage::{PanelValues, QuantPanels},
    quant_blocks::{
        Bytes, FiveBits, Fp4, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Lookup, Nibbles, Numbers, Part, Products, QuantBlock,
        SixBits, ThreeBits, TwoBits,
    },
    quant_rounding::{nearest_above_minimum, nearest_around_zero, nearest_q8},
    quant_rows::InputCorrection,
};
use crate::ops::{
    BLOCK_SIZE as BLOCK, Dtype, MatrixRows, QuantizedBlock,
    k_quants::{BlockRows, K_PARTS, KBlock, MxBlock},
};

/// `-128..=127` (rounding uses `-127..=127`) times the scale; 8.5 bits a weight.
pub(super) type Q8Block = SmallBlock<Bytes, 1>;
/// `-8..=7` times the scale; 4.5 bits a weight.
pub(super) type Q4Block = SmallBlock<Nibbles, 1>;
/// `0..=15` times the scale, plus the minimum; 5 bits a weight.
pub(super) type Q4_1Block = SmallBlock<Nibbles, 2>;
/// `0..=31` times the scale, plus the minimum; 6 bits a weight.
pub(super) type Q5_1Block = SmallBlock<FiveBits, 2>;
/// `-1..=2` times the scale; 2.5 bits a weight.
pub(super) type Q2Block = SmallBlock<TwoBits, 1>;
/// 16 levels times the scale; 4.5 bits a weight.
pub(super) type Iq4NlBlock = SmallBlock<Lookup<Nibbles, Iq4>, 1>;
/// `0..=15`, with 8-bit scales and minima per 32 inputs; 4.625 bits a weight.
pub(super) type Q4KBlock = SuperBlock<Nibbles, 2, 2, 1>;
/// `0..=31`, with 8-bit scales and minima per 32 inputs; 5.625 bits a weight.
pub(super) type Q5KBlock = SuperBlock<FiveBits, 2, 2, 1>;
/// `-32..=31`, with an 8-bit scale per 16 inputs; 6.5625 bits a weight.
pub(super) type Q6KBlock = SuperBlock<SixBits, 1, 2, 2>;
/// `-4..=3`, with an 8-bit scale per 16 inputs; 3.5625 bits a weight.
pub(super) type Q3KBlock = SuperBlock<ThreeBits, 1, 2, 2>;
/// `0..=3`, with 4-bit scales and minima per 16 inputs; 2.625 bits a weight.
pub(super) type Q2KBlock = SuperBlock<TwoBits, 2, 2, 2>;
/// 16 levels, with an 8-bit scale per 32 inputs; 4.5625 bits a weight.
pub(super) type Iq4XsBlock = SuperBlock<Lookup<Nibbles, Iq4>, 1, 1, 1>;
/// As [`Iq4XsBlock`], with other levels.
pub(super) type Iq3SBlock = SuperBlock<Lookup<Nibbles, Iq3S>, 1, 1, 1>;
/// As [`Iq4XsBlock`], with other levels.
pub(super) type Iq3XxsBlock = SuperBlock<Lookup<Nibbles, Iq3Xxs>, 1, 1, 1>;
/// 6 levels, with an 8-bit scale per 16 inputs; 3.5625 bits a weight.
pub(super) type Iq2Block = SuperBlock<Lookup<ThreeBits, Iq2>, 1, 2, 2>;
/// As [`Iq2Block`], with other levels.
pub(super) type Iq1Block = SuperBlock<Lookup<ThreeBits, Iq1>, 1, 2, 2>;

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

/// Lays out a matrix of blocks.
pub(super) fn pack(rows: &BlockRows<'_>, dtype: Dtype) -> Box<dyn PanelValues> {
    match rows {
        BlockRows::Small(rows) => pack_small(rows, dtype),
        BlockRows::Super(rows) => pack_super(rows, dtype),
        BlockRows::Mx(rows) => Box::new(QuantPanels::<Mxfp4Block>::pack(rows)),
        BlockRows::Fp8(rows, scales) => Box::new(Fp8Panels::new(rows, scales)),
        BlockRows::Groups { rows, n_runs, order } => group_formats::pack(rows, dtype, *n_runs, order.as_deref()),
    }
}

/// Lays out a matrix that is quantized to blocks of 32 with scales of f16.
pub(super) fn pack_small(rows: &MatrixRows<'_, QuantizedBlock>, dtype: Dtype) -> Box<dyn PanelValues> {
    match dtype {
        Dtype::Q8 => Box::new(QuantPanels::<Q8Block>::pack(rows)),
        Dtype::Q5_1 => Box::new(QuantPanels::<Q5_1Block>::pack(rows)),
        Dtype::Q4_1 => Box::new(QuantPanels::<Q4_1Block>::pack(rows)),
        Dtype::Q4 => Box::new(QuantPanels::<Q4Block>::pack(rows)),
        Dtype::Q2 => Box::new(QuantPanels::<Q2Block>::pack(rows)),
        Dtype::Iq4Nl => Box::new(QuantPanels::<Iq4NlBlock>::pack(rows)),
        _ => unreachable!("`{dtype}` has no blocks of 32"),
    }
}

/// Lays out a matrix that is quantized to blocks of 256.
fn pack_super(rows: &MatrixRows<'_, KBlock>, dtype: Dtype) -> Box<dyn PanelValues> {
    match dtype {
        Dtype::Q6K => Box::new(QuantPanels::<Q6KBlock>::pack(rows)),
        Dtype::Q5K => Box::new(QuantPanels::<Q5KBlock>::pack(rows)),
        Dtype::Q4K => Box::new(QuantPanels::<Q4KBlock>::pack(rows)),
        Dtype::Q3K => Box::new(QuantPanels::<Q3KBlock>::pack(rows)),
        Dtype::Q2K => Box::new(QuantPanels::<Q2KBlock>::pack(rows)),
        Dtype::Iq4Xs => Box::new(QuantPanels::<Iq4XsBlock>::pack(rows)),
        Dtype::Iq3S => Box::new(QuantPanels::<Iq3SBlock>::pack(rows)),
        Dtype::Iq3Xxs => Box::new(QuantPanels::<Iq3XxsBlock>::pack(rows)),
        Dtype::Iq2 => Box::new(QuantPanels::<Iq2Block>::pack(rows)),
        Dtype::Iq1 => Box::new(QuantPanels::<Iq1Block>::pack(rows)),
        _ => unreachable!("`{dtype}` has no blocks of 256"),
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
    fn minima(&self, _run: usize, _half: usize) -> Option<&Line<f16, PANEL>> {
        self.factors.get(1)
    }

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        match (FACTORS, N::MIDDLE) {
            (1, 128) => nearest_q8(weights),
            (1, middle) => nearest_around_zero(weights, middle),
            _ => nearest_above_minimum(weights, N::LARGEST),
        }
    }
}

/// A block of 32 inputs in MXFP4.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Mxfp4Block {
    scales: Line<bf16, PANEL>,
    numbers: Lookup<Nibbles, Fp4>,
}

impl QuantBlock for Mxfp4Block {
    type Row = MxBlock;
    type Numbers = Lookup<Nibbles, Fp4>;
    type Factors<'a> = &'a Line<bf16, PANEL>;

    const OFFSET: i32 = Self::Numbers::MIDDLE as i32;
    const CORRECTION: InputCorrection = InputCorrection::Offset(Self::OFFSET);

    fn pack(rows: &[MxBlock; PANEL]) -> Self {
        Self {
            scales: Line(rows.map(|row| row.scale)),
            numbers: Lookup::pack(|row, group| unsigned(&rows[row].values, group, Self::OFFSET)),
        }
    }

    fn unpack(&self, row: usize) -> MxBlock {
        let value = |input| signed(self.numbers.get(row, input), Self::OFFSET);
        MxBlock { scale: self.scales.0[row], values: array::from_fn(value) }
    }

    #[inline(always)]
    fn numbers(&self, _run: usize) -> &Self::Numbers {
        &self.numbers
    }

    #[inline(always)]
    fn scales(&self, _run: usize, _half: usize) -> &Line<bf16, PANEL> {
        &self.scales
    }

    #[inline(always)]
    fn minima(&self, _run: usize, _half: usize) -> Option<&Line<bf16, PANEL>> {
        None
    }
}

/// A block of 256 inputs: as [`SmallBlock`], but each of the `SCALES` parts of a run of 32 inputs has factors of few bits,
/// which are multiplied by the f16 factors of the block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SuperBlock<N, const FACTORS: usize, const LINES: usize, const SCALES: usize> {
    factors: [Line<f16, PANEL>; FACTORS],
    runs: [Run<N, LINES>; K_PARTS],
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Run<N, const LINES: usize> {
    /// With one factor, the scales of all parts; with two, the scales and the minima, or for two parts both in one byte, the
    /// scale in the lower half.
    factors: [[i8; PANEL]; LINES],
    numbers: N,
}

impl<N: Numbers, const FACTORS: usize, const LINES: usize, const SCALES: usize> SuperBlock<N, FACTORS, LINES, SCALES> {
    /// Whether scales and minima share a byte.
    const SHARED: bool = FACTORS == 2 && SCALES == 2;

    #[inline(always)]
    fn products(&self, run: usize, factor: usize, half: usize) -> Products<'_> {
        let (line, part) = match (Self::SHARED, factor) {
            (true, 0) => (half, Part::Low),
            (true, _) => (half, Part::High),
            (false, 0) => (if SCALES == 2 { half } else { 0 }, Part::Whole),
            (false, _) => (1, Part::Whole),
        };
        let factors = &self.runs[run].factors[line];
        Products { units: &self.factors[factor], factors, part, constant: N::UNIT }
    }
}

impl<N: Numbers, const FACTORS: usize, const LINES: usize, const SCALES: usize> QuantBlock
    for SuperBlock<N, FACTORS, LINES, SCALES>
{
    type Row = KBlock;
    type Numbers = N;
    type Factors<'a> = Products<'a>;

    const OFFSET: i32 = if FACTORS == 1 { N::MIDDLE as i32 } else { 0 };
    const CORRECTION: InputCorrection = match (FACTORS, SCALES) {
        (1, 1) => InputCorrection::Offset(Self::OFFSET),
        (1, _) => InputCorrection::HalfOffsets(Self::OFFSET),
        (_, 1) => InputCorrection::Sum,
        _ => InputCorrection::HalfSums,
    };
    const RUNS: usize = K_PARTS;
    const SCALES: usize = SCALES;

    fn pack(rows: &[KBlock; PANEL]) -> Self {
        let run = |run: usize| {
            let factor = |row: &KBlock, line: usize| match (Self::SHARED, FACTORS, line) {
                (true, ..) => row.scales[2 * run + line] | row.minima[2 * run + line] << 4,
                (false, 2, 1) => row.minima[2 * run],
                _ => row.scales[2 * run + line],
            };
            Run {
                factors: array::from_fn(|line| rows.each_ref().map(|row| factor(row, line))),
                numbers: N::pack(|row, group| unsigned(&rows[row].values, run * (BLOCK / 4) + group, Self::OFFSET)),
            }
        };
        let factor = |which| {
            Line(array::from_fn(|row: usize| f16::from_f32([rows[row].scale, rows[row].minimum][which] / N::UNIT)))
        };
        Self { factors: array::from_fn(factor), runs: array::from_fn(run) }
    }

    fn unpack(&self, row: usize) -> KBlock {
        let factor = |which: usize| self.factors.get(which).map_or(0.0, |line| line.0[row].to_f32() * N::UNIT);
        let own = |which, at: usize| self.products(at / 2, which, at % 2).factor(row);
        KBlock {
            scale: factor(0),
            minimum: factor(1),
            scales: array::from_fn(|at| own(0, at)),
            minima: array::from_fn(|at| if FACTORS == 1 { 0 } else { own(1, at) }),
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
    fn minima(&self, run: usize, half: usize) -> Option<Products<'_>> {
        (FACTORS == 2).then(|| self.products(run, 1, half))
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
