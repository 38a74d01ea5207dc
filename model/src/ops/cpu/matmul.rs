//! `x W^T + b` over packed weights.
//!
//! Threads divide the panels among them, so no sum is ever split: additions are in the order of the inner dimension,
//! for any number of rows and every instruction set.

use std::ops::Range;

use super::{
    packed_matrix::Panels,
    panel_layout::PANEL,
    panel_storage::Input,
    rowwise::activate_row,
    thread_pool::{self, ColumnPieces, Columns, RowPieces},
};
use crate::config::Activation;

/// Multiply-adds below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 17;
/// Minimum bytes of weights in a piece of work: claiming a piece costs little in comparison.
const PIECE_BYTES: usize = 1 << 14;
/// Pieces of work per thread, at most: if a thread is descheduled, the others take the pieces that it has not begun.
const PIECES_PER_THREAD: usize = 8;

/// How a kernel stores its products.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    /// Store them in the output.
    Set,
    /// Add them to the output: `[n_rows, d_out]`.
    Add,
    /// Store `act(gate) * up`, where the weight's first half computes the gate and the second `up`: `[n_rows, d_out /
    /// 2]`.
    Gated(Activation),
}

/// `x [n_rows, d_in]` in row order, times the transposed matrix: `[n_rows, d_out]`.
pub(in crate::ops) fn linear(x: &[f32], weight: &Panels, bias: Option<&[f32]>) -> Vec<f32> {
    let mut output = vec![0.0; x.len() / weight.d_in * weight.d_out];
    linear_into(x, weight, bias, Store::Set, &mut output);
    output
}

/// Whether [`Store::Gated`] works with a weight: both halves must be whole panels.
pub(super) fn has_gated(weight: &Panels) -> bool {
    weight.d_out.is_multiple_of(2 * PANEL)
}

/// [`linear`] into `output`, stored by `store`.
pub(super) fn linear_into(x: &[f32], weight: &Panels, bias: Option<&[f32]>, store: Store, output: &mut [f32]) {
    let &Panels { d_out, d_in, .. } = weight;
    let n_rows = x.len() / d_in;
    let is_shared = n_rows * d_out * d_in >= PARALLEL_WORK;
    let width = store.width(weight);
    assert!(output.len() == n_rows * width, "an output of {} values for {n_rows} rows of {width}", output.len());
    let product = Product { input: weight.input(x), weight, bias, store };
    let n_pieces = if is_shared {
        let most = (weight.n_bytes() / PIECE_BYTES).max(thread_pool::n_threads());
        width.div_ceil(PANEL).min(thread_pool::n_threads() * PIECES_PER_THREAD).min(most)
    } else {
        1
    };
    let n_parts = if matches!(store, Store::Gated(_)) { 2 } else { 1 };
    let pieces = ColumnPieces { range: weight.read_range(n_parts), n_pieces, unit: PANEL };
    thread_pool::parallel_columns(pieces, output, width, |panels, columns| product.compute(panels, columns));
}

/// Rows that are multiplied by the same matrix.
pub(super) struct Group<'a> {
    pub(super) rows: Range<usize>,
    pub(super) weight: &'a Panels,
    pub(super) bias: Option<&'a [f32]>,
}

/// [`linear_into`] for consecutive groups of rows, each with its own matrix of the same shape; threads divide the
/// panels of all matrices. Rows outside all groups are unchanged.
pub(super) fn grouped_linear_into(x: &[f32], groups: &[Group<'_>], store: Store, output: &mut [f32]) {
    let Some(first) = groups.first() else { return };
    let ([_, d_in], width) = (first.weight.dims(), store.width(first.weight));
    let products = groups.iter().map(|Group { rows, weight, bias }| Product {
        input: weight.input(&x[rows.start * d_in..rows.end * d_in]),
        weight,
        bias: *bias,
        store,
    });
    let products: Vec<Product<'_>> = products.collect();
    let work = |group: &Group<'_>| group.rows.len() * width * d_in;
    let total: usize = groups.iter().map(work).sum();
    let n_pieces = if total >= PARALLEL_WORK { thread_pool::n_threads() * PIECES_PER_THREAD } else { 1 };
    let pieces = |group: &Group<'_>| {
        let most = width.div_ceil(PANEL).min((group.weight.n_bytes() / PIECE_BYTES).max(1));
        RowPieces { rows: group.rows.clone(), n_pieces: (n_pieces * work(group)).div_ceil(total.max(1)).clamp(1, most) }
    };
    let pieces: Vec<RowPieces> = groups.iter().map(pieces).collect();
    let run = |group: usize, panels, columns: Columns<'_>| products[group].compute(panels, columns);
    thread_pool::parallel_column_groups(&pieces, PANEL, output, width, run);
}

impl Store {
    /// The width of the output of a product with `weight`.
    fn width(self, weight: &Panels) -> usize {
        if matches!(self, Self::Gated(_)) { weight.d_out / 2 } else { weight.d_out }
    }
}

/// Rows times a matrix.
struct Product<'a> {
    input: Input<'a>,
    weight: &'a Panels,
    bias: Option<&'a [f32]>,
    store: Store,
}

impl Product<'_> {
    /// Computes the `columns` of the output that `panels` make.
    fn compute(&self, panels: Range<usize>, mut columns: Columns<'_>) {
        let Self { input, weight, bias, store } = self;
        let bias_of = |panel: usize| bias.map(|bias| &bias[panel * PANEL..bias.len().min((panel + 1) * PANEL)]);
        let n_panels = store.width(weight).div_ceil(PANEL);
        for panel in panels {
            let bias = bias_of(panel);
            let of_panel = panel * PANEL..(panel + 1) * PANEL;
            match *store {
                Store::Set => weight.multiply(input, panel, |row, sums| {
                    let output = columns.row(row, of_panel.clone());
                    change(output, sums, bias, |output, sum| *output = sum);
                }),
                Store::Add => weight.multiply(input, panel, |row, sums| {
                    let output = columns.row(row, of_panel.clone());
                    change(output, sums, bias, |output, sum| *output += sum);
                }),
                Store::Gated(kind) => {
                    weight.multiply(input, panel, |row, sums| {
                        let output = columns.row(row, of_panel.clone());
                        change(output, sums, bias, |output, sum| *output = sum);
                        activate_row(output, kind);
                    });
                    let up = panel + n_panels;
                    let bias = bias_of(up);
                    weight.multiply(input, up, |row, sums| {
                        let output = columns.row(row, of_panel.clone());
                        change(output, sums, bias, |output, sum| *output *= sum);
                    });
                }
            }
        }
    }
}

/// Updates one row's outputs of a panel with its sums.
#[inline(always)]
fn change(output: &mut [f32], sums: &[f32; PANEL], bias: Option<&[f32]>, change: impl Fn(&mut f32, f32)) {
    match bias {
        Some(bias) => {
            output.iter_mut().zip(sums).zip(bias).for_each(|((output, sum), bias)| change(output, sum + bias));
        }
        None => output.iter_mut().zip(sums).for_each(|(output, sum)| change(output, *sum)),
    }
}

#[cfg(test)]
mod tests {
    use std::array;

    use super::*;
    use crate::ops::{
        Dtype, MatrixRows, Precision,
        cpu::{
            has_fast_bf16_products, isa,
            isa::tests::{every_isa, is_fused, noise, with_isa},
        },
        k_quants::{BlockRows, K_BLOCK, KBlock},
    };

    /// Sizes around every boundary: part of a panel, whole panels, enough work for threads.
    const SHAPES: [[usize; 2]; 6] = [[1, 1], [5, 3], [32, 8], [33, 7], [95, 64], [400, 330]];

    #[test]
    fn linear_matches_f64_sums_for_f32_f16_and_bf16_panels() {
        for [d_out, d_in] in SHAPES {
            let (matrix, bias) = (noise(d_out * d_in, 1), noise(d_out, 2));
            for n_rows in [1, 2, 3, 11, 12, 13, 25, 40] {
                let x = noise(n_rows * d_in, 3);
                for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                    let panels = Panels::new(&matrix, [d_out, d_in], dtype);
                    let found = linear(&x, &panels, Some(&bias));
                    for row in 0..n_rows {
                        for (output, weights) in (0..d_out).map(|output| (output, panels.row(output))) {
                            let products =
                                weights.iter().zip(&x[row * d_in..]).map(|(w, x)| f64::from(*w) * f64::from(*x));
                            let expected = products.sum::<f64>() + f64::from(bias[output]);
                            let found = f64::from(found[row * d_out + output]);
                            assert!((found - expected).abs() < 1e-4, "{d_out}x{d_in}, row {row}: {found}, {expected}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn linear_of_no_rows_is_empty() {
        for (_, dtype) in Dtype::ALL {
            let panels = Panels::new(&noise(64 * 33, 1), [64, 33], *dtype);
            for level in every_isa() {
                assert!(with_isa(level, || linear(&[], &panels, None)).is_empty());
            }
        }
    }

    #[test]
    fn linear_row_is_bit_identical_for_any_number_of_rows() {
        for [d_out, d_in] in SHAPES {
            for (_, dtype) in Dtype::ALL {
                let panels = Panels::new(&noise(d_out * d_in, 4), [d_out, d_in], *dtype);
                let x = noise(40 * d_in, 5);
                let alone: Vec<f32> = x.chunks(d_in).flat_map(|row| linear(row, &panels, None)).collect();
                for n_rows in 1..=40 {
                    assert_eq!(linear(&x[..n_rows * d_in], &panels, None), alone[..n_rows * d_out]);
                }
            }
        }
    }

    /// Kernels with fused multiply-add agree to the bit, so a text does not depend on the processor.
    #[test]
    fn linear_agrees_across_instruction_sets() {
        let ([d_out, d_in], n_rows) = ([37, 77], 15);
        let x = noise(n_rows * d_in, 7);
        for (_, dtype) in Dtype::ALL {
            let panels = Panels::new(&noise(d_out * d_in, 6), [d_out, d_in], *dtype);
            let expected = linear(&x, &panels, None);
            for level in every_isa() {
                let found = with_isa(level, || linear(&x, &panels, None));
                if is_fused(level) == is_fused(isa()) {
                    assert_eq!(found, expected, "{dtype} with {level:?}");
                }
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-4, "{dtype} with {level:?}: {found}, {expected}");
                }
            }
        }
    }

    /// Matches sums of products of bf16 operands, with the same bits for any number of rows. Without bf16 instructions,
    /// or for an odd number of inputs, it is the product in f32.
    #[test]
    fn bf16_precision_linear_matches_products_of_rounded_rows() {
        let n_all = 90;
        for [d_out, d_in] in [[1, 2], [33, 8], [95, 64], [400, 330], [37, 77]] {
            let mut panels = Panels::new(&noise(d_out * d_in, 1), [d_out, d_in], Dtype::Bf16);
            let x = noise(n_all * d_in, 3);
            let in_f32 = linear(&x, &panels, None);
            panels.set_precision(Precision::Bf16);
            let found = linear(&x, &panels, None);
            if !has_fast_bf16_products() || d_in % 2 == 1 {
                assert!(found == in_f32, "{d_out}x{d_in}");
                continue;
            }
            for row in 0..n_all {
                for (output, weights) in (0..d_out).map(|output| (output, panels.row(output))) {
                    let x = x[row * d_in..].iter().map(|x| half::bf16::from_f32(*x).to_f64());
                    let expected: f64 = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                    let found = f64::from(found[row * d_out + output]);
                    assert!((found - expected).abs() < 1e-4, "{d_out}x{d_in}, row {row}: {found}, {expected}");
                }
            }
            for n_rows in [1, 2, 11, 12, 13, 24, 25, 40, 61, 72] {
                let last = &x[(n_all - n_rows) * d_in..];
                assert!(linear(last, &panels, None) == found[(n_all - n_rows) * d_out..], "{d_out}x{d_in}, {n_rows}");
            }
        }
    }

    /// f32 stored in 16 bits gives the bits of f32, for all rows, shapes and processors.
    #[test]
    fn f32_matrix_stored_in_16_bits_gives_bit_identical_products() {
        for [d_out, d_in] in SHAPES {
            let dims = [d_out, d_in];
            for dtype in [Dtype::Bf16, Dtype::F16] {
                let held = Panels::f32_held_as(&noise(d_out * d_in, 8), dims, dtype);
                let values: Vec<f32> = (0..d_out).flat_map(|row| held.row(row)).collect();
                let full = Panels::f32_held_as(&values, dims, Dtype::F32);
                assert_eq!(2 * held.n_bytes(), full.n_bytes());
                for n_rows in [1, 2, 12, 13, 16, 24, 25, 40, 61, 90] {
                    let x = noise(n_rows * d_in, 9);
                    let is_shared = n_rows * d_out * d_in >= PARALLEL_WORK;
                    // Other threads use the machine's own instruction set.
                    for level in every_isa().filter(|level| !is_shared || *level == isa()) {
                        let [found, expected] =
                            [&held, &full].map(|panels| with_isa(level, || linear(&x, panels, None)));
                        assert!(found == expected, "{dtype}, {d_out}x{d_in}, {n_rows} rows with {level:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn widened_panels_have_the_values_of_their_rows() {
        for dims @ [d_out, d_in] in SHAPES {
            let matrix = noise(d_out * d_in, 8);
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4] {
                check_widened(&Panels::new(&matrix, dims, dtype));
            }
        }
        let block = |n: usize| KBlock {
            scale: n as f32 - 20.0,
            values: array::from_fn(|at| ((at + n) % 16) as i8),
            scales: array::from_fn(|at| (at / 2 + n % 7) as i8),
            ..KBlock::default()
        };
        let [above, below]: [Vec<_>; 2] = [64, 32].map(|n_rows| (0..2 * n_rows).map(block).collect());
        let stacked = [
            (Dtype::Q4K, BlockRows::Super(MatrixRows::of(&above, [64, 2 * K_BLOCK]))),
            (Dtype::Q6K, BlockRows::Super(MatrixRows::of(&below, [32, 2 * K_BLOCK]))),
        ];
        check_widened(&Panels::from_parts(&stacked));
    }

    fn check_widened(panels: &Panels) {
        let [d_out, d_in] = panels.dims();
        let rows: Vec<Vec<f32>> = (0..d_out).map(|row| panels.row(row)).collect();
        for first in [0, d_in / 3, d_in - 1] {
            for n in [1, d_in - first] {
                for panel in 0..d_out.div_ceil(PANEL) {
                    let mut lines = vec![[f32::NAN; PANEL]; n];
                    panels.widen(panel, first, &mut lines);
                    for (input, line) in lines.iter().enumerate() {
                        let value = |lane: usize| rows.get(panel * PANEL + lane).map_or(0.0, |row| row[first + input]);
                        assert_eq!(*line, array::from_fn(value), "{panels:?}");
                    }
                }
            }
        }
    }

    /// A matrix in f32 may be stored in fewer bytes, but its dtype is f32.
    #[test]
    fn f32_matrix_is_stored_in_the_narrowest_lossless_format() {
        let dims = [64, 33];
        let values = noise(dims[0] * dims[1], 3);
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let held = Panels::f32_held_as(&values, dims, dtype);
            let numbers: Vec<f32> = (0..dims[0]).flat_map(|row| held.row(row)).collect();
            let found = Panels::new(&numbers, dims, Dtype::F32);
            assert_eq!((found.n_bytes(), found.dtype()), (held.n_bytes(), Dtype::F32));
            assert_eq!((0..dims[0]).flat_map(|row| found.row(row)).collect::<Vec<_>>(), numbers);
        }
    }

    /// Fused stores give the same as separate steps.
    #[test]
    fn fused_add_and_gated_stores_equal_separate_steps() {
        for (d_out, d_in, n_rows) in [(64, 33, 1), (128, 50, 14), (768, 288, 3)] {
            let (x, bias) = (noise(n_rows * d_in, 1), noise(d_out, 2));
            for (_, dtype) in Dtype::ALL {
                let panels = Panels::new(&noise(d_out * d_in, 3), [d_out, d_in], *dtype);
                let products = linear(&x, &panels, Some(&bias));
                let mut added = noise(n_rows * d_out, 4);
                let expected: Vec<f32> = added.iter().zip(&products).map(|(old, product)| old + product).collect();
                linear_into(&x, &panels, Some(&bias), Store::Add, &mut added);
                assert_eq!(added, expected);
                assert!(has_gated(&panels));
                let mut gated = vec![0.0; n_rows * d_out / 2];
                linear_into(&x, &panels, Some(&bias), Store::Gated(Activation::Silu), &mut gated);
                assert_eq!(gated, crate::ops::cpu::gated(&products, d_out / 2, Activation::Silu));
            }
        }
    }
}
