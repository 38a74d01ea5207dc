//! A matrix laid out for the CPU's kernels.

use half::f16;

/// Rows of the matrix (outputs) that lie side by side.
pub(super) const PANEL: usize = 32;

/// A matrix `[d_out, d_in]`, in panels of [`PANEL`] rows: within a panel, the values of all its rows at the first input,
/// then at the second, and so on. A kernel walks through it in order, 32 outputs at a time, with no sums across lanes.
/// The last panel is filled up with zeros.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Panels {
    pub(super) d_out: usize,
    pub(super) d_in: usize,
    pub(super) values: PanelValues,
}

/// The values of all panels, one panel after the other.
#[derive(Clone, Debug)]
pub(super) enum PanelValues {
    F32(Vec<Line<f32, 16>>),
    F16(Vec<Line<f16, 32>>),
}

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line<T, const N: usize>(pub(super) [T; N]);

impl Panels {
    /// Lays out `values`, `[d_out, d_in]` in row order, as f32.
    pub(in crate::ops) fn f32(values: &[f32], d_out: usize, d_in: usize) -> Self {
        Self { d_out, d_in, values: PanelValues::F32(lay_out(values, d_out, d_in, 0.0, |value| value)) }
    }

    /// Lays out `values`, `[d_out, d_in]` in row order, as f16.
    pub(in crate::ops) fn f16(values: &[f32], d_out: usize, d_in: usize) -> Self {
        Self { d_out, d_in, values: PanelValues::F16(lay_out(values, d_out, d_in, f16::ZERO, f16::from_f32)) }
    }

    pub(in crate::ops) fn dims(&self) -> [usize; 2] {
        [self.d_out, self.d_in]
    }

    pub(in crate::ops) fn is_f16(&self) -> bool {
        matches!(self.values, PanelValues::F16(_))
    }

    /// Row `row` of the matrix: `[d_in]`.
    pub(in crate::ops) fn row(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        let (panel, lane) = (row / PANEL, row % PANEL);
        (0..self.d_in).map(move |input| {
            let at = (panel * self.d_in + input) * PANEL + lane;
            match &self.values {
                PanelValues::F32(lines) => lines[at / 16].0[at % 16],
                PanelValues::F16(lines) => lines[at / 32].0[at % 32].to_f32(),
            }
        })
    }
}

fn lay_out<T: Copy, const N: usize>(
    values: &[f32],
    d_out: usize,
    d_in: usize,
    zero: T,
    convert: impl Fn(f32) -> T,
) -> Vec<Line<T, N>> {
    let mut lines = vec![Line([zero; N]); d_out.div_ceil(PANEL) * d_in * PANEL / N];
    for (row, values) in values.chunks_exact(d_in).enumerate() {
        let (panel, lane) = (row / PANEL, row % PANEL);
        for (input, &value) in values.iter().enumerate() {
            let at = (panel * d_in + input) * PANEL + lane;
            lines[at / N].0[at % N] = convert(value);
        }
    }
    lines
}
