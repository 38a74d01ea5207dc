//! `x W^T + b` over packed weights.
//!
//! Threads share out the panels, so no sum is ever split, and the order of its additions is that of the inner dimension:
//! among other rows or by itself, whatever the instruction set.

use std::ops::Range;

use super::{
    crew::{self, ColumnPieces, Columns},
    exact,
    panels::{PANEL, PanelValues, Panels},
    quant_blocks::{Q4_1Block, Q4Block, Q4KBlock, Q5_1Block, Q5KBlock, Q6KBlock, Q8Block, QuantBlock},
    quant_rows::{Beside, QuantRows},
    quantized,
    rowwise::activate_row,
};
use crate::{
    config::Activation,
    ops::{BLOCK_SIZE as BLOCK, k_quants::K_BLOCK},
};

/// Work below which other threads cost more than they bring, in multiply-adds.
const PARALLEL_WORK: usize = 1 << 17;
/// Bytes of weights to a piece of work at least: enough that claiming one costs little beside it.
const PIECE_BYTES: usize = 1 << 14;
/// Pieces of work per thread at most: when one thread is held up, the others take over what it has not begun.
const PIECES_PER_THREAD: usize = 8;

/// What becomes of the products.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    /// They are the output.
    Set,
    /// They are added to the output: `[n_rows, d_out]`.
    Add,
    /// `act(gate) * up`, where the weight's first half makes the gate and the second `up`: `[n_rows, d_out / 2]`.
    Gated(Activation),
}

/// `x [n_rows, d_in]` in row order, times the transposed matrix: `[n_rows, d_out]`.
pub(in crate::ops) fn linear(x: &[f32], weight: &Panels, bias: Option<&[f32]>) -> Vec<f32> {
    let mut output = vec![0.0; x.len() / weight.d_in * weight.d_out];
    linear_into(x, weight, bias, Store::Set, &mut output);
    output
}

/// Whether [`Store::Gated`] can be had of a weight: the two halves must be whole panels.
pub(super) fn has_gated(weight: &Panels) -> bool {
    weight.d_out.is_multiple_of(2 * PANEL)
}

/// [`linear`] into `output`, as `store` says.
pub(super) fn linear_into(x: &[f32], weight: &Panels, bias: Option<&[f32]>, store: Store, output: &mut [f32]) {
    let &Panels { d_out, d_in, .. } = weight;
    let n_rows = x.len() / d_in;
    let is_shared = n_rows * d_out * d_in >= PARALLEL_WORK;
    let width = if matches!(store, Store::Gated(_)) { d_out / 2 } else { d_out };
    assert!(output.len() == n_rows * width, "an output of {} values for {n_rows} rows of {width}", output.len());
    // Rounded once, not once per panel.
    let input = Input::new(x, weight);
    let n_panels = width.div_ceil(PANEL);
    let bias_of = |panel: usize| bias.map(|bias| &bias[panel * PANEL..bias.len().min((panel + 1) * PANEL)]);
    let run = |panels: Range<usize>, mut columns: Columns<'_>| {
        for panel in panels {
            let bias = bias_of(panel);
            let of_panel = panel * PANEL..(panel + 1) * PANEL;
            match store {
                Store::Set => multiply_panel(&input, weight, panel, |row, sums| {
                    let output = columns.row(row, of_panel.clone());
                    change(output, sums, bias, |output, sum| *output = sum);
                }),
                Store::Add => multiply_panel(&input, weight, panel, |row, sums| {
                    let output = columns.row(row, of_panel.clone());
                    change(output, sums, bias, |output, sum| *output += sum);
                }),
                Store::Gated(kind) => {
                    multiply_panel(&input, weight, panel, |row, sums| {
                        let output = columns.row(row, of_panel.clone());
                        change(output, sums, bias, |output, sum| *output = sum);
                        activate_row(output, kind);
                    });
                    let up = panel + n_panels;
                    let bias = bias_of(up);
                    multiply_panel(&input, weight, up, |row, sums| {
                        let output = columns.row(row, of_panel.clone());
                        change(output, sums, bias, |output, sum| *output *= sum);
                    });
                }
            }
        }
    };
    let n_pieces = if is_shared {
        let most = (weight.n_bytes() / PIECE_BYTES).max(crew::n_threads());
        n_panels.min(crew::n_threads() * PIECES_PER_THREAD).min(most)
    } else {
        1
    };
    let n_parts = if matches!(store, Store::Gated(_)) { 2 } else { 1 };
    let pieces = ColumnPieces { reading: weight.reading(n_parts), n_pieces, unit: PANEL };
    crew::share_columns(pieces, output, width, run);
}

/// Changes the outputs of one panel in one row by its sums.
#[inline(always)]
fn change(output: &mut [f32], sums: &[f32; PANEL], bias: Option<&[f32]>, change: impl Fn(&mut f32, f32)) {
    match bias {
        Some(bias) => {
            output.iter_mut().zip(sums).zip(bias).for_each(|((output, sum), bias)| change(output, sum + bias));
        }
        None => output.iter_mut().zip(sums).for_each(|(output, sum)| change(output, *sum)),
    }
}

/// The rows of the input, in the form that the weight's kernels take.
enum Input<'a> {
    Exact(&'a [f32]),
    Rounded(QuantRows),
    /// For each of the parts below each other.
    Stacked(Vec<Input<'a>>),
}

impl<'a> Input<'a> {
    fn new(x: &'a [f32], weight: &Panels) -> Self {
        let rounded = |beside: Beside| Self::Rounded(QuantRows::new(x, weight.d_in, beside));
        match &weight.values {
            PanelValues::F32(_) | PanelValues::F24(_) | PanelValues::F16(_) | PanelValues::Bf16(_) => Self::Exact(x),
            PanelValues::Q8(_) => rounded(Q8Block::BESIDE),
            PanelValues::Q5_1(_) => rounded(Q5_1Block::BESIDE),
            PanelValues::Q4_1(_) => rounded(Q4_1Block::BESIDE),
            PanelValues::Q4(_) => rounded(Q4Block::BESIDE),
            PanelValues::Q6K(_) => rounded(Q6KBlock::BESIDE),
            PanelValues::Q5K(_) => rounded(Q5KBlock::BESIDE),
            PanelValues::Q4K(_) => rounded(Q4KBlock::BESIDE),
            PanelValues::Stacked(parts) => Self::Stacked(parts.iter().map(|part| Self::new(x, part)).collect()),
        }
    }
}

/// All rows against one panel; `store` is given each row's sums.
fn multiply_panel(input: &Input<'_>, weight: &Panels, panel: usize, store: impl FnMut(usize, &[f32; PANEL])) {
    let d_in = weight.d_in;
    let n_blocks = d_in.div_ceil(BLOCK);
    match (&weight.values, input) {
        (PanelValues::F32(lines), Input::Exact(x)) => {
            exact::multiply_rows(x, part(lines, panel, 2 * d_in), d_in, store)
        }
        (PanelValues::F24(lines), Input::Exact(x)) => exact::multiply_rows(x, part(lines, panel, d_in), d_in, store),
        (PanelValues::F16(lines), Input::Exact(x)) => exact::multiply_rows(x, part(lines, panel, d_in), d_in, store),
        (PanelValues::Bf16(lines), Input::Exact(x)) => exact::multiply_rows(x, part(lines, panel, d_in), d_in, store),
        (PanelValues::Q8(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, n_blocks), store);
        }
        (PanelValues::Q5_1(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, n_blocks), store);
        }
        (PanelValues::Q4_1(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, n_blocks), store);
        }
        (PanelValues::Q4(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, n_blocks), store);
        }
        (PanelValues::Q6K(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, d_in / K_BLOCK), store);
        }
        (PanelValues::Q5K(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, d_in / K_BLOCK), store);
        }
        (PanelValues::Q4K(blocks), Input::Rounded(rows)) => {
            quantized::multiply_rows(rows, part(blocks, panel, d_in / K_BLOCK), store);
        }
        (PanelValues::Stacked(parts), Input::Stacked(inputs)) => {
            let mut panel = panel;
            for (part, input) in parts.iter().zip(inputs) {
                let n_panels = part.d_out / PANEL;
                if panel < n_panels {
                    return multiply_panel(input, part, panel, store);
                }
                panel -= n_panels;
            }
        }
        _ => unreachable!("`linear` makes the input for its weight"),
    }
}

/// The `number`th of parts of `len` lines or blocks.
fn part<T>(all: &[T], number: usize, len: usize) -> &[T] {
    &all[number * len..][..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        Dtype,
        cpu::{
            isa,
            levels::{is_fused, levels, noise, with_isa},
            lossless::Width,
        },
    };

    /// Sizes around every edge: a part of a panel, whole panels, enough work for threads.
    const SHAPES: [[usize; 2]; 6] = [[1, 1], [5, 3], [32, 8], [33, 7], [95, 64], [400, 330]];

    #[test]
    fn sums_are_those_of_the_definition() {
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
    fn no_rows_make_no_output() {
        for (_, dtype) in Dtype::ALL {
            let panels = Panels::new(&noise(64 * 33, 1), [64, 33], *dtype);
            for level in levels() {
                assert!(with_isa(level, || linear(&[], &panels, None)).is_empty());
            }
        }
    }

    #[test]
    fn a_row_is_the_same_bits_whatever_its_neighbours() {
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

    /// The fused kernels agree to the bit, so a text does not depend on which processor wrote it.
    #[test]
    fn instruction_sets_agree() {
        let ([d_out, d_in], n_rows) = ([37, 77], 15);
        let x = noise(n_rows * d_in, 7);
        for (_, dtype) in Dtype::ALL {
            let panels = Panels::new(&noise(d_out * d_in, 6), [d_out, d_in], *dtype);
            let expected = linear(&x, &panels, None);
            for level in levels() {
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

    /// f32 in fewer bytes than four is f32: whatever the rows, the shape and the processor.
    #[test]
    fn fewer_bytes_are_the_same_f32_to_the_bit() {
        for [d_out, d_in] in SHAPES {
            let dims = [d_out, d_in];
            for (width, bytes) in [(Width::Bf16, 2), (Width::Half, 2), (Width::Triple, 3)] {
                let held = Panels::of_width(&noise(d_out * d_in, 8), dims, width);
                let values: Vec<f32> = (0..d_out).flat_map(|row| held.row(row)).collect();
                let full = Panels::of_width(&values, dims, Width::Full);
                assert_eq!(4 * held.n_bytes(), bytes * full.n_bytes());
                for n_rows in [1, 2, 12, 13, 16, 24, 25, 40, 61, 90] {
                    let x = noise(n_rows * d_in, 9);
                    let is_shared = n_rows * d_out * d_in >= PARALLEL_WORK;
                    // Other threads have the machine's own level.
                    for level in levels().filter(|level| !is_shared || *level == isa()) {
                        let [found, expected] =
                            [&held, &full].map(|panels| with_isa(level, || linear(&x, panels, None)));
                        assert!(found == expected, "{width:?}, {d_out}x{d_in}, {n_rows} rows with {level:?}");
                    }
                }
            }
        }
    }

    /// A matrix in f32 is held in what its numbers need, and is still called one in f32.
    #[test]
    fn f32_takes_no_more_bytes_than_its_numbers() {
        let dims = [64, 33];
        let values = noise(dims[0] * dims[1], 3);
        for width in [Width::Bf16, Width::Full] {
            let held = Panels::of_width(&values, dims, width);
            let numbers: Vec<f32> = (0..dims[0]).flat_map(|row| held.row(row)).collect();
            let found = Panels::new(&numbers, dims, Dtype::F32);
            assert_eq!((found.n_bytes(), found.dtype()), (held.n_bytes(), Dtype::F32));
            assert_eq!((0..dims[0]).flat_map(|row| found.row(row)).collect::<Vec<_>>(), numbers);
        }
    }

    /// What is done with the products on the way is what would be done with them afterwards.
    #[test]
    fn stores_are_separate_steps() {
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
