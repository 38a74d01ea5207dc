//! Matrices on their way to a device, read row by row while they are laid out, so that no whole copy is in memory in
//! between.

use std::fmt;

use rayon::prelude::*;

/// A matrix whose rows are computed on demand, on any thread and repeatedly: of f32, or of quantized blocks.
pub struct MatrixRows<'a, T> {
    dims: [usize; 2],
    row_len: usize,
    read: Box<ReadRow<'a, T>>,
}

type ReadRow<'a, T> = dyn Fn(usize, &mut [T]) + Send + Sync + 'a;

impl<'a, T: Copy + Default + Send + Sync> MatrixRows<'a, T> {
    /// A matrix of `dims`, `[d_out, d_in]`, whose rows are `row_len` values or blocks. `read` writes the row with the
    /// given number.
    pub(crate) fn new(dims: [usize; 2], row_len: usize, read: impl Fn(usize, &mut [T]) + Send + Sync + 'a) -> Self {
        Self { dims, row_len, read: Box::new(read) }
    }

    /// From all rows, one after the other.
    pub(crate) fn of(values: &'a [T], dims: [usize; 2]) -> Self {
        let row_len = values.len() / dims[0].max(1);
        Self::new(dims, row_len, move |row, out| out.copy_from_slice(&values[row * row_len..][..row_len]))
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// Values or blocks in a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Writes row `row` to `out`, of length [`row_len`](Self::row_len).
    pub fn read(&self, row: usize, out: &mut [T]) {
        (self.read)(row, out);
    }

    /// All rows, one after the other.
    pub fn collect(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.dims[0] * self.row_len];
        values.par_chunks_mut(self.row_len.max(1)).enumerate().for_each(|(row, out)| self.read(row, out));
        values
    }
}

impl MatrixRows<'_, f32> {
    /// The largest magnitude; NaN if any value is NaN.
    pub(crate) fn largest(&self) -> f32 {
        let [n_rows, d_in] = self.dims;
        // Without the sign, floats compare like their bits, NaN above all: one instruction.
        let of_row = |values: &mut Vec<f32>, row| {
            values.resize(d_in, 0.0);
            self.read(row, values);
            values.iter().map(|value| value.abs().to_bits()).fold(0, u32::max)
        };
        f32::from_bits((0..n_rows).into_par_iter().map_init(Vec::new, of_row).reduce(|| 0, u32::max))
    }
}

impl<T> fmt::Debug for MatrixRows<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows of a matrix {:?}", self.dims)
    }
}
