//! How matrices are laid out in panels of 32 rows.

use rayon::prelude::*;

use crate::ops::MatrixRows;

/// Rows of the matrix (outputs) that are stored side by side.
pub(in crate::ops::cpu) const PANEL: usize = 32;

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line<T, const N: usize>(pub(super) [T; N]);

/// Calls `fill` with each panel, `len` of `values`, and with the rows that belong to it, one after the other: 32, fewer in
/// the last panel.
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
