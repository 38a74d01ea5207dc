//! A matrix laid out for the CPU's kernels.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{
    foresight::Reading,
    huge_pages::Stored,
    lossless::{self, Width},
    quant_blocks::{self, Q4_1Block, Q4Block, Q4KBlock, Q5_1Block, Q5KBlock, Q6KBlock, Q8Block},
};
use crate::ops::{
    BLOCK_SIZE as BLOCK, Dtype, MatrixRows, QuantizedBlock,
    k_quants::{K_BLOCK, KBlock},
    nearest_q8,
};

/// Rows of the matrix (outputs) that lie side by side.
pub(super) const PANEL: usize = 32;

/// A matrix `[d_out, d_in]`, in panels of [`PANEL`] rows: within a panel, the values of all its rows at the first input,
/// then at the second, and so on. A kernel walks through it in order, 32 outputs at a time, with no sums across lanes.
/// The last panel is filled up with zeros.
#[derive(Debug)]
pub(in crate::ops) struct Panels {
    pub(super) d_out: usize,
    pub(super) d_in: usize,
    dtype: Dtype,
    pub(super) values: PanelValues,
}

/// The values of all panels, one panel after the other.
#[derive(Debug)]
pub(super) enum PanelValues {
    F32(Stored<Line<f32, 16>>),
    /// Numbers of f32 whose lowest 8 bits are zero.
    F24(Stored<Triples>),
    F16(Stored<Line<f16, 32>>),
    Bf16(Stored<Line<Bf16Pair, 16>>),
    /// Not by single inputs but in blocks of 32 of them.
    Q8(Stored<Q8Block>),
    /// As Q8.
    Q5_1(Stored<Q5_1Block>),
    /// As Q8.
    Q4_1(Stored<Q4_1Block>),
    /// As Q8.
    Q4(Stored<Q4Block>),
    /// In blocks of 256 inputs.
    Q6K(Stored<Q6KBlock>),
    /// As Q6K.
    Q5K(Stored<Q5KBlock>),
    /// As Q6K.
    Q4K(Stored<Q4KBlock>),
    /// K-quants of several kinds below each other, whole panels of each.
    Stacked(Vec<Panels>),
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

/// The upper three bytes of the 32 values at one input. Half a line and a whole one, so every other begins on a line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(super) struct Triples(pub(super) [[u8; 3]; PANEL]);

impl Triples {
    /// The value of output `lane`.
    #[inline(always)]
    pub(super) fn widen(&self, lane: usize) -> f32 {
        let [low, middle, high] = self.0[lane];
        f32::from_le_bytes([0, low, middle, high])
    }
}

impl Panels {
    /// Lays out `values`, `[d_out, d_in]` in row order, as [`from_rows`](Self::from_rows) does.
    #[cfg(test)]
    pub(super) fn new(values: &[f32], dims: [usize; 2], dtype: Dtype) -> Self {
        Self::from_rows(&MatrixRows::of(values, dims), dtype)
    }

    /// Lays out a matrix as `dtype` says; f32 in no more bytes than its values need.
    pub(in crate::ops) fn from_rows(rows: &MatrixRows<'_, f32>, dtype: Dtype) -> Self {
        let [d_out, d_in] = rows.dims();
        let held = match dtype {
            Dtype::F32 => hold(rows, lossless::width(rows)),
            Dtype::F16 => hold(rows, Width::Half),
            Dtype::Bf16 => hold(rows, Width::Bf16),
            Dtype::Q8 => PanelValues::Q8(quant_blocks::lay_out(rows)),
            Dtype::Q5_1 => PanelValues::Q5_1(quant_blocks::lay_out(rows)),
            Dtype::Q4_1 => PanelValues::Q4_1(quant_blocks::lay_out(rows)),
            Dtype::Q4 => PanelValues::Q4(quant_blocks::lay_out(rows)),
            Dtype::Q6K | Dtype::Q5K | Dtype::Q4K => unreachable!("nothing is rounded to K-quants"),
        };
        Self { d_out, d_in, dtype, values: held }
    }

    /// The same in f32 of `width`, to which values are rounded if they need more.
    #[cfg(test)]
    pub(super) fn of_width(values: &[f32], dims: [usize; 2], width: Width) -> Self {
        let [d_out, d_in] = dims;
        Self { d_out, d_in, dtype: Dtype::F32, values: hold(&MatrixRows::of(values, dims), width) }
    }

    /// Lays out a matrix that is rounded to blocks of `dtype`.
    pub(in crate::ops) fn from_blocks(rows: &MatrixRows<'_, QuantizedBlock>, dtype: Dtype) -> Self {
        let values = match dtype {
            Dtype::Q8 => PanelValues::Q8(quant_blocks::pack(rows)),
            Dtype::Q5_1 => PanelValues::Q5_1(quant_blocks::pack(rows)),
            Dtype::Q4_1 => PanelValues::Q4_1(quant_blocks::pack(rows)),
            Dtype::Q4 => PanelValues::Q4(quant_blocks::pack(rows)),
            _ => unreachable!("no matrix of such blocks is of these"),
        };
        let [d_out, d_in] = rows.dims();
        Self { d_out, d_in, dtype, values }
    }

    /// Lays out a matrix of K-quants: its rows in parts below each other, each of one kind and, where there are several,
    /// whole panels.
    pub(in crate::ops) fn from_k_quants(parts: &[(Dtype, MatrixRows<'_, KBlock>)]) -> Self {
        let part = |(dtype, rows): &(Dtype, MatrixRows<'_, KBlock>)| {
            let values = match dtype {
                Dtype::Q6K => PanelValues::Q6K(quant_blocks::pack(rows)),
                Dtype::Q5K => PanelValues::Q5K(quant_blocks::pack(rows)),
                Dtype::Q4K => PanelValues::Q4K(quant_blocks::pack(rows)),
                _ => unreachable!("these are no K-quants"),
            };
            let [d_out, d_in] = rows.dims();
            Self { d_out, d_in, dtype: *dtype, values }
        };
        if let [only] = parts {
            return part(only);
        }
        let panels: Vec<_> = parts.iter().map(part).collect();
        assert!(panels.iter().all(|panels| panels.d_out.is_multiple_of(PANEL)));
        let largest = panels.iter().max_by_key(|panels| panels.d_out);
        let (dtype, d_in) = largest.map_or_else(Default::default, |largest| (largest.dtype, largest.d_in));
        let d_out = panels.iter().map(|panels| panels.d_out).sum();
        Self { d_out, d_in, dtype, values: PanelValues::Stacked(panels) }
    }

    /// The blocks of row `row`, if the matrix is rounded to blocks. Those of K-quants are the nearest.
    pub(in crate::ops) fn quantized_row(&self, row: usize) -> Option<Vec<QuantizedBlock>> {
        let n_blocks = self.d_in.div_ceil(BLOCK);
        Some(match &self.values {
            PanelValues::Q8(blocks) => quant_blocks::unpack_row(blocks, n_blocks, row),
            PanelValues::Q5_1(blocks) => quant_blocks::unpack_row(blocks, n_blocks, row),
            PanelValues::Q4_1(blocks) => quant_blocks::unpack_row(blocks, n_blocks, row),
            PanelValues::Q4(blocks) => quant_blocks::unpack_row(blocks, n_blocks, row),
            PanelValues::Q5K(_) | PanelValues::Q4K(_) => {
                self.k_row(row)?.iter().flat_map(KBlock::small_blocks).collect()
            }
            PanelValues::Q6K(_) | PanelValues::Stacked(_) => {
                self.row(row).as_chunks().0.iter().map(nearest_q8).collect()
            }
            PanelValues::F32(_) | PanelValues::F24(_) | PanelValues::F16(_) | PanelValues::Bf16(_) => return None,
        })
    }

    /// The blocks of row `row` of K-quants.
    fn k_row(&self, row: usize) -> Option<Vec<KBlock>> {
        let n_blocks = self.d_in / K_BLOCK;
        match &self.values {
            PanelValues::Q6K(blocks) => Some(quant_blocks::unpack_row(blocks, n_blocks, row)),
            PanelValues::Q5K(blocks) => Some(quant_blocks::unpack_row(blocks, n_blocks, row)),
            PanelValues::Q4K(blocks) => Some(quant_blocks::unpack_row(blocks, n_blocks, row)),
            PanelValues::Stacked(parts) => {
                let mut above = 0;
                parts.iter().find_map(|part| {
                    above += part.d_out;
                    (row < above).then(|| part.k_row(row + part.d_out - above))?
                })
            }
            _ => None,
        }
    }

    pub(in crate::ops) fn dims(&self) -> [usize; 2] {
        [self.d_out, self.d_in]
    }

    /// What the values were asked to be held as; of several kinds, what most are.
    pub(in crate::ops) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The dtype of [`quantized_row`](Self::quantized_row).
    pub(in crate::ops) fn stored_as(&self) -> Dtype {
        if matches!(self.values, PanelValues::Stacked(_)) { Dtype::Q8 } else { self.dtype.stored_as() }
    }

    pub(in crate::ops) fn n_bytes(&self) -> usize {
        match &self.values {
            PanelValues::F32(lines) => size_of_val(&**lines),
            PanelValues::F24(lines) => size_of_val(&**lines),
            PanelValues::F16(lines) => size_of_val(&**lines),
            PanelValues::Bf16(lines) => size_of_val(&**lines),
            PanelValues::Q8(blocks) => size_of_val(&**blocks),
            PanelValues::Q5_1(blocks) => size_of_val(&**blocks),
            PanelValues::Q4_1(blocks) => size_of_val(&**blocks),
            PanelValues::Q4(blocks) => size_of_val(&**blocks),
            PanelValues::Q6K(blocks) => size_of_val(&**blocks),
            PanelValues::Q5K(blocks) => size_of_val(&**blocks),
            PanelValues::Q4K(blocks) => size_of_val(&**blocks),
            PanelValues::Stacked(parts) => parts.iter().map(Self::n_bytes).sum(),
        }
    }

    /// The whole of it, in `n_parts` parts that are read side by side.
    pub(super) fn reading(&self, n_parts: usize) -> Reading {
        match &self.values {
            PanelValues::F32(lines) => Reading::of(lines, n_parts),
            PanelValues::F24(lines) => Reading::of(lines, n_parts),
            PanelValues::F16(lines) => Reading::of(lines, n_parts),
            PanelValues::Bf16(lines) => Reading::of(lines, n_parts),
            PanelValues::Q8(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q5_1(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q4_1(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q4(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q6K(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q5K(blocks) => Reading::of(blocks, n_parts),
            PanelValues::Q4K(blocks) => Reading::of(blocks, n_parts),
            // The largest stands for all.
            PanelValues::Stacked(parts) => {
                let largest = parts.iter().max_by_key(|part| part.n_bytes());
                largest.map_or_else(Reading::default, |part| part.reading(n_parts))
            }
        }
    }

    /// Row `row` of the matrix: `[d_in]`.
    pub(in crate::ops) fn row(&self, row: usize) -> Vec<f32> {
        if let Some(blocks) = self.k_row(row) {
            return blocks.iter().flat_map(KBlock::weights).collect();
        }
        if let Some(blocks) = self.quantized_row(row) {
            return blocks.iter().flat_map(QuantizedBlock::weights).take(self.d_in).collect();
        }
        let (panel, lane) = (row / PANEL, row % PANEL);
        let inputs = panel * self.d_in..(panel + 1) * self.d_in;
        match &self.values {
            PanelValues::F32(lines) => inputs.map(|at| lines[2 * at + lane / 16].0[lane % 16]).collect(),
            PanelValues::F24(lines) => inputs.map(|at| lines[at].widen(lane)).collect(),
            PanelValues::F16(lines) => inputs.map(|at| lines[at].0[lane].to_f32()).collect(),
            PanelValues::Bf16(lines) => inputs.map(|at| lines[at].0[lane % 16].widen()[lane / 16]).collect(),
            _ => unreachable!("these have rows of blocks"),
        }
    }
}

fn hold(rows: &MatrixRows<'_, f32>, width: Width) -> PanelValues {
    match width {
        Width::Full => PanelValues::F32(lay_out::<_, 2>(rows, Line([0.0; 16]), |lines, lane, value| {
            lines[lane / 16].0[lane % 16] = value;
        })),
        Width::Triple => PanelValues::F24(lay_out::<_, 1>(rows, Triples([[0; 3]; PANEL]), |[line], lane, value| {
            let [_, low, middle, high] = value.to_le_bytes();
            line.0[lane] = [low, middle, high];
        })),
        Width::Half => PanelValues::F16(lay_out::<_, 1>(rows, Line([f16::ZERO; 32]), |[line], lane, value| {
            line.0[lane] = f16::from_f32(value);
        })),
        Width::Bf16 => PanelValues::Bf16(lay_out::<_, 1>(rows, Line([Bf16Pair::ZERO; 16]), |[line], lane, value| {
            line.0[lane % 16].fill(lane, value);
        })),
    }
}

/// `LINES` lines hold the values of a panel at one input; `fill` is given them, the output within the panel and its
/// value.
fn lay_out<L: Copy + Send + Sync, const LINES: usize>(
    rows: &MatrixRows<'_, f32>,
    zero: L,
    fill: impl Fn(&mut [L; LINES], usize, f32) + Sync,
) -> Stored<L> {
    /// Inputs that are moved together: a cache line of each row, and lines of the panel that stay in the smallest cache.
    const TOGETHER: usize = 16;
    let [d_out, d_in] = rows.dims();
    let panel_lines = d_in * LINES;
    Stored::new(d_out.div_ceil(PANEL) * panel_lines, zero, |lines| {
        each_panel(rows, lines, panel_lines, |lines, rows| {
            let (lines, _) = lines.as_chunks_mut();
            for (part, lines) in lines.chunks_mut(TOGETHER).enumerate() {
                for (lane, row) in rows.chunks_exact(d_in).enumerate() {
                    for (lines, &value) in lines.iter_mut().zip(&row[part * TOGETHER..]) {
                        fill(lines, lane, value);
                    }
                }
            }
        });
    })
}

/// Calls `fill` with every panel, which are `len` of `values` each, and the rows that belong to it, one behind the other: 32,
/// but in the last.
pub(super) fn each_panel<T: Copy + Default + Send + Sync, V: Send>(
    rows: &MatrixRows<'_, T>,
    values: &mut [V],
    len: usize,
    fill: impl Fn(&mut [V], &[T]) + Sync,
) {
    let (d_out, row_len) = (rows.dims()[0], rows.row_len());
    if len == 0 {
        return;
    }
    values.par_chunks_mut(len).enumerate().for_each_init(Vec::new, |read, (panel, values)| {
        let first = panel * PANEL;
        read.resize(PANEL.min(d_out - first) * row_len, T::default());
        read.chunks_exact_mut(row_len).enumerate().for_each(|(lane, out)| rows.read(first + lane, out));
        fill(values, read);
    });
}
