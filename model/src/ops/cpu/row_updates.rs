//! Low-rank updates of some rows of a product, each by the adapter of its sequence.
//!
//! The rows of an adapter are gathered and go through its matrices together, as a product over panels does: a row's sums do
//! not depend on the others. Threads divide rows, not outputs, so nothing waits between `A` and `B`.

use super::{
    gemm_float::{PanelLine, multiply_rows},
    panel_layout::{Line, PANEL},
    thread_pool,
};
use crate::ops::{LoraPair, LoraShape};

/// Multiply-adds below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 16;
/// Maximum rows per task: the rows and their products with `A` fit in L2.
const MAX_ROWS: usize = 16;

type F32Line = Line<f32, 16>;

/// The low-rank updates of one matrix, in panels. Not in the memory of weights, which is given back in large pieces:
/// adapters come and go.
#[derive(Debug)]
pub(in crate::ops) struct LoraPanels {
    d_in: usize,
    /// Every `A`, one below the other: `[total_rank, d_in]`.
    a: Vec<F32Line>,
    pairs: Vec<PairPanels>,
    total_rank: usize,
}

#[derive(Debug)]
struct PairPanels {
    pair: LoraPair,
    /// `[pair.rows.len(), pair.rank]`.
    b: Vec<F32Line>,
}

impl LoraPanels {
    /// Lays out `values` of `shape`.
    pub(in crate::ops) fn new(values: &[f32], shape: &LoraShape) -> Self {
        let (d_in, total_rank) = (shape.d_in, shape.total_rank());
        let pairs = shape
            .pairs
            .iter()
            .zip(shape.places())
            .map(|(pair, [_, of_b])| PairPanels { pair: pair.clone(), b: panels(&values[of_b], pair.rank) });
        Self { d_in, a: panels(&values[..total_rank * d_in], d_in), pairs: pairs.collect(), total_rank }
    }

    pub(in crate::ops) fn n_bytes(&self) -> usize {
        size_of_val(self.a.as_slice()) + self.pairs.iter().map(|pair| size_of_val(pair.b.as_slice())).sum::<usize>()
    }

    /// Multiply-adds for a row.
    fn n_products(&self) -> usize {
        let of_b: usize = self.pairs.iter().map(|PairPanels { pair, .. }| pair.rows.len() * pair.rank).sum();
        self.total_rank * self.d_in + of_b
    }

    /// Adds the updates of `x [outputs.len(), d_in]` to `outputs`, each `[d_out]`.
    fn add(&self, x: &[f32], outputs: &mut [&mut [f32]]) {
        let n_rows = outputs.len();
        let mut reduced = vec![0.0; n_rows * self.total_rank];
        each_panel(x, &self.a, self.d_in, |row, panel, sums| {
            let ranks = &mut reduced[row * self.total_rank..][panel * PANEL..self.total_rank.min((panel + 1) * PANEL)];
            ranks.copy_from_slice(&sums[..ranks.len()]);
        });
        let mut own = Vec::new();
        let mut first = 0;
        for PairPanels { pair: LoraPair { rows, rank, scale }, b } in &self.pairs {
            let of_pair = reduced.chunks_exact(self.total_rank.max(1)).flat_map(|row| &row[first..first + rank]);
            own.clear();
            own.extend(of_pair.map(|value| value * scale));
            first += rank;
            each_panel(&own, b, *rank, |row, panel, sums| {
                let output = &mut outputs[row][rows.clone()][panel * PANEL..rows.len().min((panel + 1) * PANEL)];
                output.iter_mut().zip(sums).for_each(|(output, sum)| *output += sum);
            });
        }
    }
}

/// Rows of a product and the updates of their adapter.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct RowUpdate<'a> {
    pub(in crate::ops) rows: &'a [usize],
    pub(in crate::ops) matrix: &'a LoraPanels,
}

/// Some rows of one adapter.
struct Piece<'a> {
    update: RowUpdate<'a>,
    outputs: Vec<&'a mut [f32]>,
}

/// Adds `updates` of rows of `x` to the same rows of `output [n_rows, d_out]`. No row occurs twice.
pub(in crate::ops) fn add_row_updates(output: &mut [f32], d_out: usize, x: &[f32], updates: &[RowUpdate<'_>]) {
    let n_updated: usize = updates.iter().map(|update| update.rows.len()).sum();
    let work: usize = updates.iter().map(|update| update.rows.len() * update.matrix.n_products()).sum();
    let n_threads = if work < PARALLEL_WORK { 1 } else { thread_pool::n_threads() };
    let n_together = n_updated.div_ceil(n_threads).clamp(1, MAX_ROWS);
    let mut outputs: Vec<_> = output.chunks_exact_mut(d_out).map(Some).collect();
    let mut pieces = Vec::new();
    for &RowUpdate { rows, matrix } in updates {
        for rows in rows.chunks(n_together) {
            let outputs: Vec<_> = rows.iter().filter_map(|&row| outputs.get_mut(row)?.take()).collect();
            assert!(outputs.len() == rows.len(), "each row has one adapter");
            pieces.push(Piece { update: RowUpdate { rows, matrix }, outputs });
        }
    }
    let run = |piece: &mut Piece<'_>| {
        let RowUpdate { rows, matrix } = piece.update;
        let gathered: Vec<f32> = rows.iter().flat_map(|row| &x[row * matrix.d_in..][..matrix.d_in]).copied().collect();
        matrix.add(&gathered, &mut piece.outputs);
    };
    if n_threads == 1 {
        pieces.iter_mut().for_each(run);
    } else {
        thread_pool::parallel_for_each(&mut pieces, run);
    }
}

/// `matrix [n, d_in]` in panels.
fn panels(matrix: &[f32], d_in: usize) -> Vec<F32Line> {
    let (d_in, panel_lines) = (d_in.max(1), d_in * F32Line::LINES);
    let mut lines = vec![F32Line::ZERO; (matrix.len() / d_in).div_ceil(PANEL) * panel_lines];
    for (row, values) in matrix.chunks_exact(d_in).enumerate() {
        let lines = &mut lines[row / PANEL * panel_lines..][..panel_lines];
        for (lines, &value) in lines.chunks_exact_mut(F32Line::LINES).zip(values) {
            F32Line::store(lines, row % PANEL, value);
        }
    }
    lines
}

/// Multiplies all rows of `x` by each panel; `store` gets the row's number, the panel's, and the sums.
fn each_panel(x: &[f32], lines: &[F32Line], d_in: usize, mut store: impl FnMut(usize, usize, &[f32; PANEL])) {
    for (panel, lines) in lines.chunks_exact((d_in * F32Line::LINES).max(1)).enumerate() {
        multiply_rows(x, lines, d_in, &mut |row, sums: &[f32; PANEL]| store(row, panel, sums));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, noise, with_isa};

    /// Ranks around a panel, ranges of rows that overlap and that touch no boundary.
    fn shapes() -> Vec<LoraShape> {
        let pair = |rows, rank, scale| LoraPair { rows, rank, scale };
        vec![
            LoraShape { d_in: 7, pairs: vec![pair(0..5, 1, 2.0)] },
            LoraShape { d_in: 40, pairs: vec![pair(0..33, 16, 0.5), pair(64..100, 16, 2.0)] },
            LoraShape { d_in: 64, pairs: vec![pair(3..90, 40, 1.0), pair(10..20, 3, -1.0)] },
            LoraShape { d_in: 300, pairs: vec![pair(0..300, 33, 1.0)] },
        ]
    }

    #[test]
    fn lora_row_updates_match_f64_sums() {
        for shape in shapes() {
            let (d_in, d_out, n_rows) = (shape.d_in, 300, 40);
            let values = [1, 2].map(|seed| noise(shape.n_values(), seed));
            let matrices = values.each_ref().map(|values| LoraPanels::new(values, &shape));
            let (x, before) = (noise(n_rows * d_in, 3), noise(n_rows * d_out, 4));
            // Rows alternate between two adapters and none.
            let rows = [0, 1].map(|adapter| (0..n_rows).filter(|row| row % 3 == adapter).collect::<Vec<_>>());
            let updates: Vec<_> = rows.iter().zip(&matrices).map(|(rows, matrix)| RowUpdate { rows, matrix }).collect();
            for level in every_isa() {
                let mut output = before.clone();
                with_isa(level, || add_row_updates(&mut output, d_out, &x, &updates));
                for row in 0..n_rows {
                    let x = &x[row * d_in..][..d_in];
                    for column in 0..d_out {
                        let mut expected = f64::from(before[row * d_out + column]);
                        for (LoraPair { rows, rank, scale }, [of_a, of_b]) in shape.pairs.iter().zip(shape.places()) {
                            let Some(values) = values.get(row % 3).filter(|_| rows.contains(&column)) else { continue };
                            let b = &values[of_b][(column - rows.start) * rank..][..*rank];
                            for (a, b) in values[of_a].chunks_exact(d_in).zip(b) {
                                let reduced: f64 = a.iter().zip(x).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum();
                                expected += f64::from(*scale) * f64::from(*b) * reduced;
                            }
                        }
                        let found = f64::from(output[row * d_out + column]);
                        assert!((found - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{found}, {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn lora_row_update_is_bit_identical_alone_and_batched() {
        for shape in shapes() {
            let (d_in, d_out, n_rows) = (shape.d_in, 300, 70);
            let matrix = LoraPanels::new(&noise(shape.n_values(), 1), &shape);
            let (x, before) = (noise(n_rows * d_in, 3), noise(n_rows * d_out, 4));
            let rows: Vec<usize> = (0..n_rows).collect();
            let mut together = before.clone();
            add_row_updates(&mut together, d_out, &x, &[RowUpdate { rows: &rows, matrix: &matrix }]);
            let mut alone = before;
            for (row, output) in alone.chunks_exact_mut(d_out).enumerate() {
                let x = &x[row * d_in..][..d_in];
                add_row_updates(output, d_out, x, &[RowUpdate { rows: &[0], matrix: &matrix }]);
            }
            assert!(together.iter().zip(&alone).all(|(one, other)| one.to_bits() == other.to_bits()), "{shape:?}");
        }
    }
}
