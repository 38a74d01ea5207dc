use half::bf16;

use super::*;
use crate::ops::{
    Dtype,
    cpu::isa::tests::{every_isa, is_fused, noise, with_isa},
};

/// A matrix as it lies there, or transposed, in rows that are `gap` values longer.
fn view(values: &[f32], [n_rows, n_cols]: [usize; 2], gap: usize, is_transposed: bool) -> View<'_> {
    if is_transposed {
        View::new(values, [n_cols, n_rows], n_rows + gap).transposed()
    } else {
        View::new(values, [n_rows, n_cols], n_cols + gap)
    }
}

const SHAPES: &[[usize; 3]] = &[
    [1, 1, 1],
    [3, 0, 5],
    [0, 3, 5],
    [5, 3, 33],
    [12, 16, 32],
    [13, 17, 31],
    [64, 64, 64],
    [25, 600, 130],
    [24, 1100, 65],
    [3, 40, 700],
    [200, 520, 96],
    // Only some rows of the right operand are packed at a time.
    [14, 20_000, 70],
];

#[test]
fn product_matches_f64_and_is_bit_identical_in_parallel() {
    for level in every_isa() {
        for &[m, k, n] in SHAPES {
            for case in 0..16 {
                let flags = [1, 2, 4, 8].map(|bit| case & bit != 0);
                with_isa(level, || check([m, k, n], flags, &format!("{level:?}, {m} x {k} x {n}, case {case}")));
                if is_fused(level) {
                    let alone = with_isa(level, || products([m, k, n], flags)[0].clone());
                    let [_, shared] = products([m, k, n], flags);
                    assert_eq!(alone, shared, "the bits do not depend on who computes");
                }
            }
        }
    }
}

/// The operands of a case, and the previous contents of the output.
struct Case {
    lhs: Vec<f32>,
    rhs: Vec<f32>,
    before: Vec<f32>,
}

impl Case {
    fn new([m, k, n]: [usize; 3], gap: usize) -> Case {
        Case { lhs: noise((m + gap) * (k + gap), 1), rhs: noise((k + gap) * (n + gap), 2), before: noise(m * n, 3) }
    }

    fn views(&self, [m, k, n]: [usize; 3], gap: usize, [lhs_transposed, rhs_transposed]: [bool; 2]) -> [View<'_>; 2] {
        [view(&self.lhs, [m, k], gap, lhs_transposed), view(&self.rhs, [k, n], gap, rhs_transposed)]
    }
}

/// The product by one thread, and by all.
fn products(shape: [usize; 3], [lhs_transposed, rhs_transposed, adds, has_gap]: [bool; 4]) -> [Vec<f32>; 2] {
    let gap = if has_gap { 7 } else { 0 };
    let case = Case::new(shape, gap);
    let [lhs, rhs] = case.views(shape, gap, [lhs_transposed, rhs_transposed]);
    let plus = if adds { Accumulate::Itself } else { Accumulate::Nothing };
    let (mut alone, mut shared) = (case.before.clone(), case.before.clone());
    product_into(&mut alone, shape[2], lhs, rhs.into(), plus);
    shared_product(&mut shared, [lhs, rhs], plus, Precision::F32);
    let (mut of_packed, mut packed) = (case.before.clone(), Packed::default());
    packed.pack(rhs);
    // The columns from the second panel on, then those before it.
    for cols in [shape[2].min(PANEL)..shape[2], 0..shape[2].min(PANEL)].into_iter().filter(|cols| !cols.is_empty()) {
        product_into(&mut of_packed[cols.start..], shape[2], lhs, packed.columns(cols), plus);
    }
    assert_eq!(of_packed, alone, "the bits do not depend on when columns are packed");
    [alone, shared]
}

/// Rounded to bf16.
fn rounded(value: f32) -> f64 {
    bf16::from_f32(value).to_f64()
}

#[test]
fn bf16_product_matches_f64_sums_of_rounded_operands() {
    for level in every_isa() {
        for &shape in SHAPES {
            for case in 0..16 {
                let flags = [1, 2, 4, 8].map(|bit| case & bit != 0);
                with_isa(level, || check_bf16(shape, flags, &format!("{level:?}, {shape:?}, case {case}")));
            }
        }
    }
}

fn check_bf16(shape: [usize; 3], [lhs_transposed, rhs_transposed, adds, has_gap]: [bool; 4], what: &str) {
    let ([_, k, n], gap) = (shape, if has_gap { 7 } else { 0 });
    let case = Case::new(shape, gap);
    let operands = case.views(shape, gap, [lhs_transposed, rhs_transposed]);
    let plus = if adds { Accumulate::Itself } else { Accumulate::Nothing };
    let mut found = case.before.clone();
    shared_product(&mut found, operands, plus, Precision::Bf16);
    let of = |view: View<'_>, row, col| rounded(view.values[row * view.row_stride + col * view.col_stride]);
    for (at, found) in found.iter().enumerate() {
        let (row, col) = (at / n, at % n);
        let sum: f64 = (0..k).map(|k| of(operands[0], row, k) * of(operands[1], k, col)).sum();
        let expected = sum + if adds { f64::from(case.before[at]) } else { 0.0 };
        assert!(
            (f64::from(*found) - expected).abs() < 1e-4 * (k as f64 / 1e3).max(1.0),
            "{what}, {row} {col}: {found}, not {expected}"
        );
    }
}

fn check(shape: [usize; 3], flags: [bool; 4], what: &str) {
    let [lhs_transposed, rhs_transposed, adds, has_gap] = flags;
    let [_, k, n] = shape;
    let gap = if has_gap { 7 } else { 0 };
    let case = Case::new(shape, gap);
    let [lhs, rhs] = case.views(shape, gap, [lhs_transposed, rhs_transposed]);
    let of = |view: View<'_>, row, col| f64::from(view.values[row * view.row_stride + col * view.col_stride]);
    let [alone, _] = products(shape, flags);
    for (at, found) in alone.iter().enumerate() {
        let (row, col) = (at / n, at % n);
        let sum: f64 = (0..k).map(|k| of(lhs, row, k) * of(rhs, k, col)).sum();
        let expected = sum + if adds { f64::from(case.before[at]) } else { 0.0 };
        assert!(
            (f64::from(*found) - expected).abs() < 1e-4 * (k as f64 / 1e3).max(1.0),
            "{what}, {row} {col}: {found}, not {expected}"
        );
    }
}

#[test]
fn product_adds_the_bias_to_each_row() {
    let (lhs, rhs, bias) = (noise(30 * 20, 1), noise(20 * 70, 2), noise(70, 3));
    let (lhs, rhs) = (View::new(&lhs, [30, 20], 20), View::new(&rhs, [20, 70], 70));
    let product = |bias| new_product([lhs, rhs], bias, Precision::F32);
    let (plain, biased) = (product(None), product(Some(&bias)));
    for (at, (plain, biased)) in plain.iter().zip(&biased).enumerate() {
        assert_eq!(*biased, bias[at % 70] + plain);
    }
}

#[test]
fn product_into_a_column_range_leaves_other_columns_alone() {
    let (lhs, rhs) = (noise(14 * 20, 1), noise(20 * 40, 2));
    let (lhs, rhs) = (View::new(&lhs, [14, 20], 20), View::new(&rhs, [20, 40], 40));
    let mut output = vec![7.0; 14 * 100];
    let target = Target::new(&SharedMut::new(&mut output), 30, [14, 40], 100);
    #[expect(unsafe_code, reason = "writes through a pointer")]
    // SAFETY: `output` is borrowed for as long as this runs.
    unsafe {
        product(target, lhs, rhs.into(), Accumulate::Nothing);
    }
    let mut alone = vec![0.0; 14 * 40];
    product_into(&mut alone, 40, lhs, rhs.into(), Accumulate::Nothing);
    for (row, alone) in output.chunks_exact(100).zip(alone.chunks_exact(40)) {
        assert_eq!(&row[30..70], alone);
        assert!(row[..30].iter().chain(&row[70..]).all(|&value| value == 7.0));
    }
}

/// In all formats, as `[k, n]`, stored and transposed, compared with the sums of the same matrix in f32.
#[test]
fn product_with_stored_panels_matches_the_same_f32_matrix() {
    for level in every_isa() {
        for shape @ [m, k, n] in [[1, 1, 1], [5, 33, 40], [13, 600, 70], [90, 64, 96], [40, 1300, 33]] {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Q4_1] {
                for is_transposed in [false, true] {
                    for precision in [Precision::F32, Precision::Bf16] {
                        let case = Case::new(shape, 0);
                        let dims = if is_transposed { [n, k] } else { [k, n] };
                        let panels = Panels::new(&case.rhs[..k * n], dims, dtype);
                        let values: Vec<f32> = (0..dims[0]).flat_map(|row| panels.row(row)).collect();
                        let plain = View::new(&values, dims, dims[1]);
                        let lhs = view(&case.lhs, [m, k], 0, false);
                        let bias = &case.before[..n];
                        let (plain, stored) = match is_transposed {
                            false => (plain, RightOperand::Stored(&panels)),
                            true => (plain.transposed(), RightOperand::StoredTransposed(&panels)),
                        };
                        let (found, expected) = with_isa(level, || {
                            let expected = new_product([lhs, plain], Some(bias), precision);
                            (new_product_with(lhs, stored, Some(bias), precision), expected)
                        });
                        for (found, expected) in found.iter().zip(&expected) {
                            let error = (found - expected).abs();
                            assert!(
                                error < 1e-4,
                                "{level:?}, {shape:?} {dtype} {is_transposed} {precision:?}: {found}, not {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}
