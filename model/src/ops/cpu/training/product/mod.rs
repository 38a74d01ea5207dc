//! Products of matrices that lie in slices with any strides, or are stored for inference.
//!
//! Each value is a chain of multiply-adds in the order of the inner dimension, in blocks of [`MAX_DEPTH`], whatever
//! part of the product a thread computes: results do not depend on how the work is shared. With [`Precision::Bf16`],
//! operands are rounded where they are packed. The loops are nested as in [BLIS](https://github.com/flame/blis): packed
//! columns stay in a cache while the rows are multiplied.

mod pack;
#[cfg(test)]
mod tests;
mod tile;

use std::{cell::RefCell, ops::Range};

use self::{
    pack::{pack_columns, pack_rows, pack_stored_columns, pack_stored_rows},
    tile::{Operands, Output, ROWS, STEP, tile},
};
use super::scratch::resized;
use crate::ops::{
    Precision,
    cpu::{
        Panels, has_fast_bf16_products, huge_pages,
        panel_layout::PANEL,
        thread_pool::{self, SharedMut},
    },
};

/// Values that are multiplied for each sum before it is added to the output.
const MAX_DEPTH: usize = 512;

/// Values of the right operand that are packed at once.
const MAX_PACKED: usize = 1 << 19;

/// The inner dimension is cut so that this many columns, or all if there are fewer, are packed together.
const WIDE: usize = 1024;

/// Contiguous rows of the right operand that begin further apart than this many values are packed: they would lie in many
/// pages, and their lines in few sets of a cache.
const MAX_DIRECT_STRIDE: usize = 256;

/// Rows of the left operand up to which the right one is read where it is: it is read too seldom for packing to pay.
const FEW_ROWS: usize = 64;

/// Panels from which on packing rows of the left operand pays.
const MIN_PANELS: usize = 4;

/// Multiply-adds of the smallest piece of work that a thread takes.
const MIN_PIECE: usize = 1 << 18;

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    values: &'a [f32],
    n_rows: usize,
    n_cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> View<'a> {
    /// `n_rows` rows of `n_cols` values, `row_stride` values apart.
    ///
    /// # Panics
    /// If `values` is too short.
    pub(super) fn new(values: &'a [f32], [n_rows, n_cols]: [usize; 2], row_stride: usize) -> Self {
        assert!(n_rows * n_cols == 0 || (n_rows - 1) * row_stride + n_cols <= values.len(), "a view beyond its slice");
        Self { values, n_rows, n_cols, row_stride, col_stride: 1 }
    }

    /// The transpose.
    pub(super) fn transposed(self) -> Self {
        Self {
            values: self.values,
            n_rows: self.n_cols,
            n_cols: self.n_rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    pub(super) fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(super) fn part(self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.end <= self.n_rows && cols.end <= self.n_cols, "a part beyond its matrix");
        let start = rows.start * self.row_stride + cols.start * self.col_stride;
        Self { values: &self.values[start.min(self.values.len())..], n_rows: rows.len(), n_cols: cols.len(), ..self }
    }
}

/// The right operand of a product.
#[derive(Clone, Copy)]
pub(super) enum RightOperand<'a> {
    View(View<'a>),
    /// A matrix in the layout of inference, in whatever format. It is widened to f32 where it is packed, so never whole.
    Stored(&'a Panels),
    /// The transpose of a stored matrix.
    StoredTransposed(&'a Panels),
    /// Columns packed by [`Packed`], `[n_rows, n_cols]`.
    Packed(&'a [f32], [usize; 2]),
}

/// Columns that are packed once for several products, in f32: `[n_panels, n_rows, PANEL]`.
#[derive(Default)]
pub(super) struct Packed {
    panels: Vec<f32>,
    dims: [usize; 2],
}

impl Packed {
    /// Packs the columns of `matrix`, replacing the current ones.
    pub(super) fn pack(&mut self, matrix: View<'_>) {
        let View { n_rows, n_cols, .. } = matrix;
        self.dims = [n_rows, n_cols];
        let panels = resized(&mut self.panels, n_cols.div_ceil(PANEL) * n_rows * PANEL);
        for (number, panel) in panels.chunks_exact_mut((n_rows * PANEL).max(1)).enumerate() {
            let cols = number * PANEL..n_cols.min((number + 1) * PANEL);
            pack_columns(panel, matrix.part(0..n_rows, cols), OperandPacking::Plain);
        }
    }

    /// A range of columns that starts at a panel.
    pub(super) fn columns(&self, cols: Range<usize>) -> RightOperand<'_> {
        assert!(cols.start.is_multiple_of(PANEL) && cols.end <= self.dims[1], "columns {cols:?} of {:?}", self.dims);
        RightOperand::Packed(&self.panels[cols.start * self.dims[0]..], [self.dims[0], cols.len()])
    }
}

impl<'a> From<View<'a>> for RightOperand<'a> {
    fn from(view: View<'a>) -> Self {
        Self::View(view)
    }
}

impl RightOperand<'_> {
    fn dims(&self) -> [usize; 2] {
        match self {
            Self::View(view) => [view.n_rows, view.n_cols],
            Self::Stored(panels) => panels.dims(),
            Self::StoredTransposed(panels) => {
                let [d_out, d_in] = panels.dims();
                [d_in, d_out]
            }
            Self::Packed(_, dims) => *dims,
        }
    }

    /// How many panels of `n_cols` columns of this operand a product with `n_rows` rows reads in place, without
    /// packing.
    fn n_direct(&self, n_rows: usize, n_cols: usize) -> usize {
        match self {
            Self::View(view) if view.col_stride != 1 => 0,
            Self::View(view) if view.row_stride > MAX_DIRECT_STRIDE && n_rows > FEW_ROWS => 0,
            Self::View(_) => n_cols / PANEL,
            Self::Stored(_) | Self::StoredTransposed(_) => 0,
            Self::Packed(..) => n_cols.div_ceil(PANEL),
        }
    }
}

/// What a product is added to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Accumulate<'a> {
    /// Nothing: the product replaces the target's values.
    Nothing,
    /// The values that are in its place.
    Itself,
    /// This bias, `[n_cols]`, in each row.
    Bias(&'a [f32]),
}

/// The target of a product: rows `row_stride` values apart, from `start` on.
#[derive(Clone, Copy)]
pub(super) struct Target {
    start: *mut f32,
    row_stride: usize,
}

#[expect(unsafe_code, reason = "threads write disjoint parts of one matrix")]
// SAFETY: only functions whose callers guarantee exclusive access write through it.
unsafe impl Sync for Target {}

impl Target {
    /// The matrix with rows of `n_cols` values, `row_stride` apart, from `start` on in `slice`.
    ///
    /// # Panics
    /// If the slice is too short for `n_rows` rows.
    pub(super) fn new(
        slice: &SharedMut<'_, f32>,
        start: usize,
        [n_rows, n_cols]: [usize; 2],
        row_stride: usize,
    ) -> Self {
        let end = if n_rows * n_cols == 0 { start } else { start + (n_rows - 1) * row_stride + n_cols };
        Self { start: slice.places(start..end), row_stride }
    }
}

/// Computes `lhs [m, k]` times `rhs [k, n]` on the calling thread.
///
/// # Safety
/// `target` must be for `m` rows of `n` values in a slice that is still borrowed, and no other thread may access them.
#[expect(unsafe_code, reason = "writes rows that lie between those of other threads")]
pub(super) unsafe fn product(target: Target, lhs: View<'_>, rhs: RightOperand<'_>, plus: Accumulate<'_>) {
    assert_eq!(lhs.n_cols, rhs.dims()[0], "inner dimensions");
    PANELS.with_borrow_mut(|packed| {
        for columns in Columns::chunks(rhs, lhs.n_rows, OperandPacking::Plain) {
            let packed = resized(packed, columns.packed_len());
            packed.chunks_exact_mut(columns.panel_len()).enumerate().for_each(|(n, panel)| columns.pack(n, panel));
            // SAFETY: guaranteed by the caller.
            unsafe {
                columns.multiply(packed, target, lhs, [0..lhs.n_rows, 0..columns.n_panels()], plus);
            }
        }
    });
}

/// [`product`] into the caller's slice.
pub(super) fn product_into(
    output: &mut [f32],
    row_stride: usize,
    lhs: View<'_>,
    rhs: RightOperand<'_>,
    plus: Accumulate<'_>,
) {
    let target = Target::new(&SharedMut::new(output), 0, [lhs.n_rows, rhs.dims()[1]], row_stride);
    #[expect(unsafe_code, reason = "writes through a pointer")]
    // SAFETY: `output` is borrowed for as long as this runs.
    unsafe {
        product(target, lhs, rhs, plus);
    }
}

/// `lhs [m, k]` times `rhs [k, n]` into `output [m, n]`, by all threads.
pub(super) fn shared_product(output: &mut [f32], operands: [View<'_>; 2], plus: Accumulate<'_>, precision: Precision) {
    let [lhs, rhs] = operands;
    assert_eq!(output.len(), lhs.n_rows * rhs.n_cols, "the output's length");
    product_at(output, (0, rhs.n_cols), operands, plus, precision);
}

/// `lhs [m, k]` times `rhs [k, n]` by all threads, into `m` rows of `output` that begin `row_stride` values apart, the first
/// at `start`.
pub(super) fn product_at(
    output: &mut [f32],
    (start, row_stride): (usize, usize),
    [lhs, rhs]: [View<'_>; 2],
    plus: Accumulate<'_>,
    precision: Precision,
) {
    let target = Target::new(&SharedMut::new(output), start, [lhs.n_rows, rhs.n_cols], row_stride);
    #[expect(unsafe_code, reason = "writes through a pointer")]
    // SAFETY: `output` is borrowed for as long as this runs.
    unsafe {
        by_all_threads(target, lhs, RightOperand::View(rhs), plus, precision);
    }
}

/// `lhs [m, k]` times `rhs [k, n]` plus `bias [n]`, if there is one, in each row, by all threads: `[m, n]`. Faster than
/// [`shared_product`] into zeros: memory is written once.
pub(super) fn new_product([lhs, rhs]: [View<'_>; 2], bias: Option<&[f32]>, precision: Precision) -> Vec<f32> {
    new_product_with(lhs, RightOperand::View(rhs), bias, precision)
}

/// [`new_product`] of any right operand.
pub(super) fn new_product_with(
    lhs: View<'_>,
    rhs: RightOperand<'_>,
    bias: Option<&[f32]>,
    precision: Precision,
) -> Vec<f32> {
    let [_, n] = rhs.dims();
    let len = lhs.n_rows * n;
    let mut output = huge_pages::with_room_for(len);
    let target = Target { start: output.as_mut_ptr(), row_stride: n };
    #[expect(unsafe_code, reason = "writes memory that has no values yet")]
    // SAFETY: the memory has `m` rows of `n` values, and all of them are written without being read.
    unsafe {
        by_all_threads(target, lhs, rhs, bias.map_or(Accumulate::Nothing, Accumulate::Bias), precision);
        output.set_len(len);
    }
    output
}

/// [`product`] by all threads.
///
/// # Safety
/// As for [`product`].
#[expect(unsafe_code, reason = "threads write disjoint parts of one matrix")]
unsafe fn by_all_threads(
    target: Target,
    lhs: View<'_>,
    rhs: RightOperand<'_>,
    plus: Accumulate<'_>,
    precision: Precision,
) {
    let m = lhs.n_rows;
    assert_eq!(lhs.n_cols, rhs.dims()[0], "inner dimensions");
    PANELS.with_borrow_mut(|packed| {
        for columns in Columns::chunks(rhs, m, OperandPacking::of(precision)) {
            let packed = resized(packed, columns.packed_len());
            thread_pool::parallel_chunks(packed, columns.panel_len(), |number, panel| columns.pack(number, panel));
            let packed = &*packed;
            let n_panels = columns.n_panels();
            // A few pieces for each thread: the last ones end at about the same time.
            let wanted =
                (m * columns.rows.len() * columns.cols.len() / MIN_PIECE).clamp(1, 8 * thread_pool::n_threads());
            let row_pieces = wanted.min(m.div_ceil(2 * ROWS)).max(1);
            let panel_pieces = wanted.div_ceil(row_pieces).min(n_panels).max(1);
            thread_pool::parallel_for(row_pieces * panel_pieces, |piece| {
                // Captures the whole `Target`, which is `Sync`: a closure that captured only its pointer would not be.
                let target = &target;
                let rows = share(m.div_ceil(ROWS), piece / panel_pieces, row_pieces);
                let rows = rows.start * ROWS..m.min(rows.end * ROWS);
                let panels = share(n_panels, piece % panel_pieces, panel_pieces);
                // SAFETY: pieces do not overlap, and each number is claimed once; the caller guarantees the rest.
                unsafe {
                    columns.multiply(packed, *target, lhs, [rows, panels], plus);
                }
            });
        }
    });
}

/// Part `number` of `n_parts` of `len`.
fn share(len: usize, number: usize, n_parts: usize) -> Range<usize> {
    len * number / n_parts..len * (number + 1) / n_parts
}

thread_local! {
    /// Panels that this thread has packed.
    static PANELS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Rows that this thread has packed.
    static PACKED_ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// How operands are packed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OperandPacking {
    /// As they are.
    Plain,
    /// Rounded to bf16.
    Rounded,
    /// Rounded to bf16, two in each 32-bit word: neighbours along the inner dimension.
    Pairs,
}

impl OperandPacking {
    fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::Plain,
            Precision::Bf16 if has_fast_bf16_products() => Self::Pairs,
            Precision::Bf16 => Self::Rounded,
        }
    }

    /// Values in a word.
    const fn per_word(self) -> usize {
        match self {
            Self::Plain | Self::Rounded => 1,
            Self::Pairs => 2,
        }
    }
}

/// Columns of a right operand in panels of [`PANEL`]. Without rounding, whole panels of contiguous rows that lie close
/// together are read where they are; the others are packed.
struct Columns<'a> {
    rhs: RightOperand<'a>,
    form: OperandPacking,
    rows: Range<usize>,
    cols: Range<usize>,
    /// Rows of a block.
    depth: usize,
    /// Panels that are not packed; they come first.
    n_direct: usize,
}

impl<'a> Columns<'a> {
    /// Divides `rhs` into chunks that are packed at once for `m` rows: blocks of rows, and within each block ranges of
    /// columns. Blocks come in order, so that sums do not depend on the size of a chunk.
    fn chunks(rhs: RightOperand<'a>, m: usize, form: OperandPacking) -> impl Iterator<Item = Columns<'a>> {
        let ([k, n], per_word) = (rhs.dims(), form.per_word());
        let unit = match rhs {
            // Rows are stored in panels.
            RightOperand::Stored(_) => PANEL,
            RightOperand::View(_) | RightOperand::StoredTransposed(_) | RightOperand::Packed(..) => per_word,
        };
        let depth = k.div_ceil(k.div_ceil(MAX_DEPTH).max(1)).max(1).next_multiple_of(unit);
        // As many rows as allow `wanted` columns to be packed with them: all threads then have work, and rows of the
        // left operand are packed seldom.
        let wanted = n.clamp(1, WIDE);
        let height = (MAX_PACKED * per_word / wanted / depth).max(1) * depth;
        let width = (MAX_PACKED / height.min(k).div_ceil(per_word).max(1)).next_multiple_of(PANEL).max(PANEL);
        (0..k.max(1)).step_by(height).flat_map(move |first_row| {
            let rows = first_row..k.min(first_row + height);
            (0..n).step_by(width).map(move |first| {
                let cols = first..n.min(first + width);
                let n_direct = if form == OperandPacking::Plain { rhs.n_direct(m, cols.len()) } else { 0 };
                Columns { rhs, form, rows: rows.clone(), cols, depth, n_direct }
            })
        })
    }

    fn n_panels(&self) -> usize {
        self.cols.len().div_ceil(PANEL)
    }

    /// Words of a packed panel; never 0.
    fn panel_len(&self) -> usize {
        self.rows.len().div_ceil(self.form.per_word()).max(1) * PANEL
    }

    fn packed_len(&self) -> usize {
        (self.n_panels() - self.n_direct) * self.panel_len()
    }

    /// Packs the panel that follows `number` panels after the packed ones: `[n_words, PANEL]`.
    fn pack(&self, number: usize, panel: &mut [f32]) {
        let first = self.cols.start + (self.n_direct + number) * PANEL;
        let (rows, cols) = (self.rows.clone(), first..self.cols.end.min(first + PANEL));
        match self.rhs {
            RightOperand::View(view) => pack_columns(panel, view.part(rows, cols), self.form),
            RightOperand::Stored(panels) => pack_stored_columns(panel, panels, rows, cols, self.form),
            RightOperand::StoredTransposed(panels) => {
                pack_stored_rows(panel, panels, cols.start / PANEL, rows, self.form)
            }
            RightOperand::Packed(..) => unreachable!("it is packed"),
        }
    }

    /// Panel `number` from row `start` of these on, and how far apart its rows are.
    fn panel<'b>(&'b self, packed: &'b [f32], number: usize, start: usize) -> (&'b [f32], usize) {
        match (number.checked_sub(self.n_direct), self.rhs) {
            (None, RightOperand::View(view)) => {
                let place = (self.rows.start + start) * view.row_stride + self.cols.start + number * PANEL;
                (&view.values[place.min(view.values.len())..], view.row_stride)
            }
            (None, RightOperand::Packed(panels, [k, _])) => {
                let panel = self.cols.start / PANEL + number;
                (&panels[(panel * k + self.rows.start + start) * PANEL..], PANEL)
            }
            (None, _) => unreachable!("stored matrices are packed"),
            (Some(number), _) => {
                let start = start / self.form.per_word();
                (&packed[number * self.panel_len() + start * PANEL..], PANEL)
            }
        }
    }

    /// Some rows of `lhs` times some panels, to their place in `target`, which has all rows and the columns of the whole
    /// operand.
    ///
    /// # Safety
    /// As for [`product`], of these rows and columns.
    #[expect(unsafe_code, reason = "writes rows that lie between those of other threads")]
    unsafe fn multiply(
        &self,
        packed: &[f32],
        target: Target,
        lhs: View<'_>,
        [rows, panels]: [Range<usize>; 2],
        plus: Accumulate<'_>,
    ) {
        let k = self.rows.len();
        let form = self.form;
        PACKED_ROWS.with_borrow_mut(|packed_rows| {
            for start in (0..k.max(1)).step_by(self.depth) {
                let depth = self.depth.min(k - start);
                let first_row = self.rows.start + start;
                for row in rows.clone().step_by(ROWS) {
                    let n_rows = ROWS.min(rows.end - row);
                    let part = lhs.part(row..row + n_rows, first_row..first_row + depth);
                    let n_words = depth.div_ceil(form.per_word());
                    let lhs = if panels.len() < MIN_PANELS && form == OperandPacking::Plain {
                        (part.values, part.row_stride, part.col_stride)
                    } else {
                        let packed_rows = resized(packed_rows, n_words * STEP);
                        pack_rows(packed_rows, part, form);
                        (&*packed_rows, 1, STEP)
                    };
                    for panel in panels.clone() {
                        let rhs = self.panel(packed, panel, start);
                        let operands = Operands::new([n_rows, n_words], lhs, rhs, form == OperandPacking::Pairs);
                        let n_cols = PANEL.min(self.cols.len() - panel * PANEL);
                        let column = self.cols.start + panel * PANEL;
                        // SAFETY: the caller guarantees the rows and columns, and no panel is wider than the remaining
                        // columns.
                        unsafe {
                            let place = target.start.add(row * target.row_stride + column);
                            let added = match plus {
                                Accumulate::Bias(bias) if first_row == 0 => {
                                    Some((bias[column..column + n_cols].as_ptr(), 0))
                                }
                                Accumulate::Nothing if first_row == 0 => None,
                                _ => Some((place.cast_const(), target.row_stride)),
                            };
                            let output = Output { start: place, stride: target.row_stride, added };
                            tile(operands, output, n_cols);
                        }
                    }
                }
            }
        });
    }
}
