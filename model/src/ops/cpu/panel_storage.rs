//! The values of all panels of a matrix in one format, and the product with them.

use std::{array, fmt};

use super::{
    gemm_float::{self, PanelLine},
    gemm_quant, has_fast_bf16_products,
    huge_pages::Stored,
    panel_layout::{Line, PANEL, each_panel},
    prefetch::ReadRange,
    quant_blocks::{QuantBlock, RowBlock},
    quant_rows::QuantRows,
};
use crate::ops::{BLOCK_SIZE as BLOCK, Dtype, MatrixRows, Precision, QuantizedBlock};

/// The values of all panels, one panel after the other.
pub(super) trait PanelValues: fmt::Debug + Send + Sync {
    fn n_bytes(&self) -> usize;

    /// The memory of all values, to be prefetched, as `n_parts` equal parts that are read side by side.
    fn read_range(&self, n_parts: usize) -> ReadRange;

    /// Prepares `x [n_rows, d_in]` for [`multiply`](Self::multiply): rounds it once, not once per panel.
    fn input<'a>(&self, x: &'a [f32], precision: Precision) -> Input<'a>;

    /// Multiplies all rows by panel `panel`; `store` gets each row's number and sums.
    fn multiply(&self, input: &Input<'_>, panel: usize, store: &mut dyn FnMut(usize, &[f32; PANEL]));

    /// Row `row` of the matrix: `[d_in]`.
    fn row(&self, row: usize) -> Vec<f32>;

    /// Fills `lines` with the values of the 32 rows of panel `panel` at input `first`, at the next one, and so on.
    fn widen(&self, panel: usize, first: usize, lines: &mut [[f32; PANEL]]);

    /// Row `row` as blocks of 32 with one scale each; `None` if the format has no such blocks.
    fn blocks(&self, row: usize) -> Option<Vec<QuantizedBlock>>;
}

/// The rows of the input, in the form that the weight's kernels take.
pub(super) enum Input<'a> {
    Float(&'a [f32]),
    /// Rounded to bf16, two values to a word.
    Bf16(Vec<f32>),
    Quantized(QuantRows),
    /// For each of the parts of a stacked matrix.
    Stacked(Vec<Input<'a>>),
}

/// A matrix in f32, f16 or bf16.
struct FloatPanels<L> {
    d_in: usize,
    lines: Stored<L>,
}

/// Lays out a matrix as f32, f16 or bf16, to which values are rounded.
pub(super) fn float_panels(rows: &MatrixRows<'_, f32>, dtype: Dtype) -> Box<dyn PanelValues> {
    match dtype {
        Dtype::F16 => Box::new(FloatPanels::<Line<half::f16, 32>>::new(rows)),
        Dtype::Bf16 => Box::new(FloatPanels::<Line<gemm_float::Bf16Pair, 16>>::new(rows)),
        _ => Box::new(FloatPanels::<Line<f32, 16>>::new(rows)),
    }
}

impl<L: PanelLine> FloatPanels<L> {
    fn new(rows: &MatrixRows<'_, f32>) -> Self {
        /// Inputs that are moved together: a cache line of each row, and lines of the panel that stay in the L1 cache.
        const TOGETHER: usize = 16;
        let [d_out, d_in] = rows.dims();
        let panel_lines = d_in * L::LINES;
        let lines = Stored::new(d_out.div_ceil(PANEL) * panel_lines, L::ZERO, |lines| {
            each_panel(rows, lines, panel_lines, |lines, rows| {
                for (part, lines) in lines.chunks_mut(TOGETHER * L::LINES).enumerate() {
                    for (lane, row) in rows.chunks_exact(d_in).enumerate() {
                        for (lines, &value) in lines.chunks_exact_mut(L::LINES).zip(&row[part * TOGETHER..]) {
                            L::store(lines, lane, value);
                        }
                    }
                }
            });
        });
        Self { d_in, lines }
    }
}

impl<L: PanelLine> PanelValues for FloatPanels<L> {
    fn n_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    fn read_range(&self, n_parts: usize) -> ReadRange {
        ReadRange::of(&self.lines, n_parts)
    }

    fn input<'a>(&self, x: &'a [f32], precision: Precision) -> Input<'a> {
        let is_rounded = precision == Precision::Bf16 && L::IS_BF16 && self.d_in.is_multiple_of(2);
        if is_rounded && has_fast_bf16_products() { Input::Bf16(gemm_float::rounded(x)) } else { Input::Float(x) }
    }

    fn multiply(&self, input: &Input<'_>, panel: usize, store: &mut dyn FnMut(usize, &[f32; PANEL])) {
        let n_lines = self.d_in * L::LINES;
        let lines = &self.lines[panel * n_lines..][..n_lines];
        match input {
            Input::Float(x) => gemm_float::multiply_rows(x, lines, self.d_in, store),
            Input::Bf16(words) => gemm_float::multiply_rounded(words, lines, self.d_in, store),
            _ => unreachable!("`input` made it"),
        }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let n_lines = self.d_in * L::LINES;
        let lines = &self.lines[row / PANEL * n_lines..][..n_lines];
        lines.chunks_exact(L::LINES).map(|lines| L::widen(lines)[row % PANEL]).collect()
    }

    fn widen(&self, panel: usize, first: usize, lines: &mut [[f32; PANEL]]) {
        let stored = &self.lines[(panel * self.d_in + first) * L::LINES..];
        for (line, stored) in lines.iter_mut().zip(stored.chunks_exact(L::LINES)) {
            *line = L::widen(stored);
        }
    }

    fn blocks(&self, _: usize) -> Option<Vec<QuantizedBlock>> {
        None
    }
}

/// A matrix in blocks of a quantized format.
pub(super) struct QuantPanels<B> {
    d_in: usize,
    /// Blocks of a row.
    n_blocks: usize,
    pub(super) blocks: Stored<B>,
}

impl<B: QuantBlock> QuantPanels<B> {
    /// Lays out a matrix that is quantized already.
    pub(super) fn pack(rows: &MatrixRows<'_, B::Row>) -> Self {
        let n_blocks = rows.row_len();
        Self::new(rows, n_blocks, |rows, number| {
            array::from_fn(|lane| rows.get(lane * n_blocks + number).copied().unwrap_or_default())
        })
    }

    /// Lays out a matrix whose rows become `n_blocks` blocks each. `block` makes the blocks of one number from the rows of a
    /// panel, which are fewer than 32 in the last one.
    fn new<T: Copy + Default + Send + Sync>(
        rows: &MatrixRows<'_, T>,
        n_blocks: usize,
        block: impl Fn(&[T], usize) -> [B::Row; PANEL] + Sync,
    ) -> Self {
        let [d_out, d_in] = rows.dims();
        let zero = B::pack(&[B::Row::default(); PANEL]);
        let blocks = Stored::new(d_out.div_ceil(PANEL) * n_blocks, zero, |blocks| {
            each_panel(rows, blocks, n_blocks, |blocks, rows| {
                blocks.iter_mut().enumerate().for_each(|(number, out)| *out = B::pack(&block(rows, number)));
            });
        });
        Self { d_in, n_blocks, blocks }
    }

    /// The blocks of row `row`.
    pub(super) fn row_blocks(&self, row: usize) -> impl Iterator<Item = B::Row> {
        self.blocks[row / PANEL * self.n_blocks..][..self.n_blocks].iter().map(move |block| block.unpack(row % PANEL))
    }
}

impl<B: QuantBlock<Row = QuantizedBlock>> QuantPanels<B> {
    /// Quantizes a matrix; filled up with zeros in both directions.
    pub(super) fn quantize(rows: &MatrixRows<'_, f32>) -> Self {
        let d_in = rows.dims()[1];
        Self::new(rows, d_in.div_ceil(BLOCK), |rows, number| {
            let inputs = number * BLOCK..d_in.min((number + 1) * BLOCK);
            let mut blocks = [QuantizedBlock::default(); PANEL];
            for (block, row) in blocks.iter_mut().zip(rows.chunks_exact(d_in)) {
                let mut weights = [0.0; BLOCK];
                weights[..inputs.len()].copy_from_slice(&row[inputs.clone()]);
                *block = B::quantize(&weights);
            }
            blocks
        })
    }
}

impl<B: QuantBlock> PanelValues for QuantPanels<B> {
    fn n_bytes(&self) -> usize {
        size_of_val(&*self.blocks)
    }

    fn read_range(&self, n_parts: usize) -> ReadRange {
        ReadRange::of(&self.blocks, n_parts)
    }

    fn input<'a>(&self, x: &'a [f32], _: Precision) -> Input<'a> {
        Input::Quantized(QuantRows::new(x, self.d_in, B::CORRECTION))
    }

    fn multiply(&self, input: &Input<'_>, panel: usize, store: &mut dyn FnMut(usize, &[f32; PANEL])) {
        let Input::Quantized(rows) = input else { unreachable!("`input` made it") };
        gemm_quant::multiply_rows(rows, &self.blocks[panel * self.n_blocks..][..self.n_blocks], store);
    }

    fn row(&self, row: usize) -> Vec<f32> {
        self.row_blocks(row).flat_map(RowBlock::weights).take(self.d_in).collect()
    }

    fn widen(&self, panel: usize, mut first: usize, mut lines: &mut [[f32; PANEL]]) {
        let blocks = &self.blocks[panel * self.n_blocks..][..self.n_blocks];
        let mut widened = [[0.0; PANEL]; BLOCK];
        while !lines.is_empty() {
            let (run, skipped) = (first / BLOCK, first % BLOCK);
            let (next, rest) = lines.split_at_mut(lines.len().min(BLOCK - skipped));
            blocks[run / B::RUNS].widen(run % B::RUNS, &mut widened);
            next.copy_from_slice(&widened[skipped..][..next.len()]);
            (first, lines) = (first + next.len(), rest);
        }
    }

    fn blocks(&self, row: usize) -> Option<Vec<QuantizedBlock>> {
        (B::SCALES == 1).then(|| self.row_blocks(row).flat_map(RowBlock::small_blocks).collect())
    }
}

impl<L> fmt::Debug for FloatPanels<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines of panels", self.lines.len())
    }
}

impl<B> fmt::Debug for QuantPanels<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of panels", self.blocks.len())
    }
}
