//! A matrix laid out for the CPU's kernels.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{
    foresight::Reading,
    huge_pages::Stored,
    quant_blocks::{self, Q4Block, Q8Block},
};
use crate::ops::{BLOCK_SIZE as BLOCK, Dtype, QuantizedBlock, QuantizedMatrix};

/// Rows of the matrix (outputs) that lie side by side.
pub(super) const PANEL: usize = 32;

/// A matrix `[d_out, d_in]`, in panels of [`PANEL`] rows: within a panel, the values of all its rows at the first input,
/// then at the second, and so on. A kernel walks through it in order, 32 outputs at a time, with no sums across lanes.
/// The last panel is filled up with zeros.
#[derive(Debug)]
pub(in crate::ops) struct Panels {
    pub(super) d_out: usize,
    pub(super) d_in: usize,
    pub(super) values: PanelValues,
}

/// The values of all panels, one panel after the other.
#[derive(Debug)]
pub(super) enum PanelValues {
    F32(Stored<Line<f32, 16>>),
    F16(Stored<Line<f16, 32>>),
    Bf16(Stored<Line<Bf16Pair, 16>>),
    /// Not by single inputs but in blocks of 32 of them.
    Q8(Stored<Q8Block>),
    /// As Q8.
    Q4(Stored<Q4Block>),
}

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line<T, const N: usize>(pub(super) [T; N]);

/// Two outputs of a panel in bf16, the second 16 behind the first: a line in two registers is a shift and a mask.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Bf16Pair(u32);

impl Bf16Pair {
    const ZERO: Self = Self(0);

    /// The two values.
    #[inline(always)]
    pub(super) fn widen(self) -> [f32; 2] {
        [f32::from_bits(self.0 << 16), f32::from_bits(self.0 & 0xffff_0000)]
    }

    /// Fills the place of output `lane`, which is still zero.
    fn fill(&mut self, lane: usize, value: f32) {
        self.0 |= u32::from(bf16::from_f32(value).to_bits()) << (lane / (PANEL / 2) * 16);
    }
}

impl Panels {
    /// Lays out `values`, `[d_out, d_in]` in row order, as `dtype` says.
    pub(in crate::ops) fn new(values: &[f32], [d_out, d_in]: [usize; 2], dtype: Dtype) -> Self {
        let values = match dtype {
            Dtype::F32 => {
                PanelValues::F32(lay_out::<_, _, PANEL>(values, [d_out, d_in], 0.0, |place, _, value| *place = value))
            }
            Dtype::F16 => {
                let fill = |place: &mut f16, _, value| *place = f16::from_f32(value);
                PanelValues::F16(lay_out::<_, _, PANEL>(values, [d_out, d_in], f16::ZERO, fill))
            }
            Dtype::Bf16 => {
                let zero = Bf16Pair::ZERO;
                PanelValues::Bf16(lay_out::<_, _, { PANEL / 2 }>(values, [d_out, d_in], zero, Bf16Pair::fill))
            }
            Dtype::Q8 => PanelValues::Q8(quant_blocks::lay_out(values, d_out, d_in)),
            Dtype::Q4 => PanelValues::Q4(quant_blocks::lay_out(values, d_out, d_in)),
        };
        Self { d_out, d_in, values }
    }

    /// Lays out a matrix that is rounded already.
    pub(in crate::ops) fn from_quantized(matrix: &QuantizedMatrix) -> Self {
        let values = match matrix.dtype() {
            Dtype::Q8 => PanelValues::Q8(quant_blocks::pack(matrix)),
            Dtype::Q4 => PanelValues::Q4(quant_blocks::pack(matrix)),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("no quantized matrix is of these"),
        };
        let [d_out, d_in] = matrix.dims();
        Self { d_out, d_in, values }
    }

    /// The blocks of row `row`, if the matrix is rounded to blocks.
    pub(in crate::ops) fn quantized_row(&self, row: usize) -> Option<Vec<QuantizedBlock>> {
        let n_blocks = self.d_in.div_ceil(BLOCK);
        match &self.values {
            PanelValues::Q8(blocks) => Some(quant_blocks::unpack_row(blocks, n_blocks, row)),
            PanelValues::Q4(blocks) => Some(quant_blocks::unpack_row(blocks, n_blocks, row)),
            PanelValues::F32(_) | PanelValues::F16(_) | PanelValues::Bf16(_) => None,
        }
    }

    pub(in crate::ops) fn dims(&self) -> [usize; 2] {
        [self.d_out, self.d_in]
    }

    pub(in crate::ops) fn dtype(&self) -> Dtype {
        match self.values {
            PanelValues::F32(_) => Dtype::F32,
            PanelValues::F16(_) => Dtype::F16,
            PanelValues::Bf16(_) => Dtype::Bf16,
            PanelValues::Q8(_) => Dtype::Q8,
            PanelValues::Q4(_) => Dtype::Q4,
        }
    }

    pub(in crate::ops) fn n_bytes(&self) -> usize {
        match &self.values {
            PanelValues::F32(lines) => size_of_val(&**lines),
            PanelValues::F16(lines) => size_of_val(&**lines),
            PanelValues::Bf16(lines) => size_of_val(&**lines),
            PanelValues::Q8(blocks) => size_of_val(&**blocks),
            PanelValues::Q4(blocks) => size_of_val(&**blocks),
        }
    }

    /// The whole of it, in `n_parts` parts that are read side by side.
    pub(super) fn reading(&self, n_parts: usize) -> Reading {
        match &self.values {
            PanelValues::F32(lines) => Reading::of(lines, n_parts),
            PanelValues::F16(lines) => Reading::of(lines, n_parts),
            PanelValues::Bf16(lines) => Reading::of(lines, n_parts),
            PanelValues::Q8(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q4(blocks) => Reading::of(blocks, n_parts),
        }
    }

    /// Row `row` of the matrix: `[d_in]`.
    pub(in crate::ops) fn row(&self, row: usize) -> Vec<f32> {
        if let Some(blocks) = self.quantized_row(row) {
            let values = blocks.iter().flat_map(|block| {
                let scale = block.scale.to_f32();
                block.values.map(|value| f32::from(value) * scale)
            });
            return values.take(self.d_in).collect();
        }
        let (panel, lane) = (row / PANEL, row % PANEL);
        let places = (0..self.d_in).map(|input| (panel * self.d_in + input) * PANEL + lane);
        match &self.values {
            PanelValues::F32(lines) => places.map(|at| lines[at / 16].0[at % 16]).collect(),
            PanelValues::F16(lines) => places.map(|at| lines[at / 32].0[at % 32].to_f32()).collect(),
            PanelValues::Bf16(lines) => {
                let pairs = lines[panel * self.d_in..][..self.d_in].iter().map(|line| line.0[lane % 16]);
                pairs.map(|pair| pair.widen()[lane / 16]).collect()
            }
            PanelValues::Q8(_) | PanelValues::Q4(_) => unreachable!("these have rows of blocks"),
        }
    }
}

/// `PER_INPUT` places hold the values of a panel at one input; `fill` is given the place, the output within the panel and
/// the value.
fn lay_out<T: Copy + Send + Sync, const N: usize, const PER_INPUT: usize>(
    values: &[f32],
    [d_out, d_in]: [usize; 2],
    zero: T,
    fill: impl Fn(&mut T, usize, f32) + Sync,
) -> Stored<Line<T, N>> {
    let panel_lines = d_in * PER_INPUT / N;
    Stored::new(d_out.div_ceil(PANEL) * panel_lines, Line([zero; N]), |lines| {
        lines.par_chunks_mut(panel_lines).zip(values.par_chunks(PANEL * d_in)).for_each(|(lines, rows)| {
            for (lane, row) in rows.chunks_exact(d_in).enumerate() {
                for (input, &value) in row.iter().enumerate() {
                    let at = input * PER_INPUT + lane % PER_INPUT;
                    fill(&mut lines[at / N].0[at % N], lane, value);
                }
            }
        });
    })
}
