//! Columns of a matrix, where they are.

/// Rows of `width` values, the first of every `stride`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct StridedRows<'a> {
    values: &'a [f32],
    stride: usize,
    width: usize,
}

impl<'a> StridedRows<'a> {
    /// The whole of a matrix with rows of `width`.
    pub(in crate::ops) fn of(values: &'a [f32], width: usize) -> Self {
        Self { values, stride: width, width }
    }

    /// The first `width` of every `stride` values.
    pub(in crate::ops) fn within(values: &'a [f32], stride: usize, width: usize) -> Self {
        Self { values, stride, width }
    }

    pub(in crate::ops) fn width(&self) -> usize {
        self.width
    }

    #[inline(always)]
    pub(in crate::ops) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.width]
    }
}
