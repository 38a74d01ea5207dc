//! A matrix as the CPU's kernels read it.

use super::{
    narrow_f32,
    panel_layout::PANEL,
    panel_storage::{Input, PanelValues, float_panels},
    prefetch::ReadRange,
    quant_formats,
    quant_rounding::nearest_q8,
};
use crate::ops::{BLOCK_SIZE, Dtype, MatrixRows, Precision, QuantizedBlock, k_quants::BlockRows};

/// A matrix `[d_out, d_in]` in panels of [`PANEL`] rows: within a panel, the values of all its rows at the first input, then
/// at the second, and so on. A kernel reads it in order, 32 outputs at a time, without sums across lanes. The last panel is
/// padded with zeros.
#[derive(Debug)]
pub(in crate::ops) struct Panels {
    pub(super) d_out: usize,
    pub(super) d_in: usize,
    dtype: Dtype,
    stored_as: Dtype,
    precision: Precision,
    values: Box<dyn PanelValues>,
}

impl Panels {
    fn of([d_out, d_in]: [usize; 2], dtype: Dtype, values: Box<dyn PanelValues>) -> Self {
        Self { d_out, d_in, dtype, stored_as: dtype.stored_as(), precision: Precision::F32, values }
    }

    /// Lays out `values`, `[d_out, d_in]` in row order, as [`from_rows`](Self::from_rows) does.
    #[cfg(test)]
    pub(super) fn new(values: &[f32], dims: [usize; 2], dtype: Dtype) -> Self {
        Self::from_rows(&MatrixRows::of(values, dims), dtype)
    }

    /// Lays out a matrix in `dtype`; f32 [without loss](lossless) in 16 bits if the values allow it.
    pub(in crate::ops) fn from_rows(rows: &MatrixRows<'_, f32>, dtype: Dtype) -> Self {
        let values = match dtype {
            Dtype::F32 => float_panels(rows, narrow_f32::narrowest(rows)),
            _ if dtype.is_quantized() => quant_formats::quantize(rows, dtype),
            _ => float_panels(rows, dtype),
        };
        Self::of(rows.dims(), dtype, values)
    }

    /// A matrix whose dtype is f32, with its values rounded to and stored as `dtype`.
    #[cfg(test)]
    pub(super) fn f32_held_as(values: &[f32], dims: [usize; 2], dtype: Dtype) -> Self {
        Self::of(dims, Dtype::F32, float_panels(&MatrixRows::of(values, dims), dtype))
    }

    /// Lays out a matrix that is quantized to blocks of `dtype`.
    pub(in crate::ops) fn from_blocks(rows: &MatrixRows<'_, QuantizedBlock>, dtype: Dtype) -> Self {
        Self::of(rows.dims(), dtype, quant_formats::pack_small(rows, dtype))
    }

    /// Lays out a matrix of blocks as files have them, which may consist of parts of several kinds, one below the other:
    /// then each has a multiple of 32 rows.
    pub(in crate::ops) fn from_parts(parts: &[(Dtype, BlockRows<'_>)]) -> Self {
        let part =
            |(dtype, rows): &(Dtype, BlockRows<'_>)| Self::of(rows.dims(), *dtype, quant_formats::pack(rows, *dtype));
        if let [only] = parts {
            return part(only);
        }
        let parts: Vec<_> = parts.iter().map(part).collect();
        assert!(parts.iter().all(|part| part.d_out.is_multiple_of(PANEL)));
        let largest = parts.iter().max_by_key(|part| part.d_out);
        let (dtype, d_in) = largest.map_or_else(Default::default, |largest| (largest.dtype, largest.d_in));
        let d_out = parts.iter().map(|part| part.d_out).sum();
        let values = Box::new(Stacked(parts));
        Self { d_out, d_in, dtype, stored_as: Dtype::Q8, precision: Precision::F32, values }
    }

    /// Row `row` as blocks of the dtype [`stored_as`](Self::stored_as), rounded if the matrix has other blocks. `None`
    /// if the matrix is not quantized.
    pub(in crate::ops) fn quantized_row(&self, row: usize) -> Option<Vec<QuantizedBlock>> {
        self.dtype.is_quantized().then(|| {
            let padded = |part: &[f32]| {
                let mut values = [0.0; BLOCK_SIZE];
                values[..part.len()].copy_from_slice(part);
                nearest_q8(&values)
            };
            let nearest = || self.row(row).chunks(BLOCK_SIZE).map(padded).collect();
            self.values.blocks(row).unwrap_or_else(nearest)
        })
    }

    pub(in crate::ops) fn dims(&self) -> [usize; 2] {
        [self.d_out, self.d_in]
    }

    /// The requested dtype. If the matrix has parts of several dtypes, the dtype of most rows.
    pub(in crate::ops) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The dtype of [`quantized_row`](Self::quantized_row).
    pub(in crate::ops) fn stored_as(&self) -> Dtype {
        self.stored_as
    }

    pub(in crate::ops) fn n_bytes(&self) -> usize {
        self.values.n_bytes()
    }

    /// The memory of all values, to be prefetched, as `n_parts` equal parts that are read side by side.
    pub(super) fn read_range(&self, n_parts: usize) -> ReadRange {
        self.values.read_range(n_parts)
    }

    /// Row `row` of the matrix: `[d_in]`.
    pub(in crate::ops) fn row(&self, row: usize) -> Vec<f32> {
        self.values.row(row)
    }

    /// Fills `lines` with the values of the 32 rows of panel `panel` at input `first`, at the next one, and so on;
    /// values after the last row of the matrix are 0.
    pub(super) fn widen(&self, panel: usize, first: usize, lines: &mut [[f32; PANEL]]) {
        self.values.widen(panel, first, lines);
    }

    /// Prepares rows of the input for [`multiply`](Self::multiply).
    pub(super) fn input<'a>(&self, x: &'a [f32]) -> Input<'a> {
        self.values.input(x, self.precision)
    }

    /// The arithmetic of products.
    pub(in crate::ops) fn precision(&self) -> Precision {
        self.precision
    }

    /// Sets the arithmetic of products. In inference, [`Precision::Bf16`] is for matrices in bf16; others, and machines
    /// without instructions for it, ignore it.
    pub(in crate::ops) fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
    }

    /// Multiplies all rows by panel `panel`; `store` gets each row's number and sums.
    pub(super) fn multiply(&self, input: &Input<'_>, panel: usize, mut store: impl FnMut(usize, &[f32; PANEL])) {
        self.values.multiply(input, panel, &mut store);
    }
}

/// Parts of a matrix, one below the other, whole panels each.
#[derive(Debug)]
struct Stacked(Vec<Panels>);

impl Stacked {
    /// The part that has row `row`, its number, and the row's number in it.
    fn part(&self, mut row: usize) -> (usize, &Panels, usize) {
        for (number, part) in self.0.iter().enumerate() {
            match row.checked_sub(part.d_out) {
                Some(below) => row = below,
                None => return (number, part, row),
            }
        }
        unreachable!("the caller counted the rows")
    }
}

impl PanelValues for Stacked {
    fn n_bytes(&self) -> usize {
        self.0.iter().map(Panels::n_bytes).sum()
    }

    /// Only the memory of the largest part: a [`ReadRange`] is contiguous.
    fn read_range(&self, n_parts: usize) -> ReadRange {
        let largest = self.0.iter().max_by_key(|part| part.n_bytes());
        largest.map_or_else(ReadRange::default, |part| part.read_range(n_parts))
    }

    fn input<'a>(&self, x: &'a [f32], _: Precision) -> Input<'a> {
        Input::Stacked(self.0.iter().map(|part| part.input(x)).collect())
    }

    fn multiply(&self, input: &Input<'_>, panel: usize, store: &mut dyn FnMut(usize, &[f32; PANEL])) {
        let Input::Stacked(inputs) = input else { unreachable!("`input` made it") };
        let (number, part, row) = self.part(panel * PANEL);
        part.values.multiply(&inputs[number], row / PANEL, store);
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let (_, part, row) = self.part(row);
        part.row(row)
    }

    fn widen(&self, panel: usize, first: usize, lines: &mut [[f32; PANEL]]) {
        let (_, part, row) = self.part(panel * PANEL);
        part.widen(row / PANEL, first, lines);
    }

    fn blocks(&self, _: usize) -> Option<Vec<QuantizedBlock>> {
        None
    }
}
