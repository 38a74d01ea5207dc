//! `x W^T + b` over packed weights.
//!
//! Every output is one chain of fused multiply-adds over the inner dimension, in its order, starting from zero: in a
//! block of twelve rows, in a row by itself, on either instruction set. Threads share out the panels, so no sum is ever
//! split.

use std::ops::Range;

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::fetch::fetch_ahead;
use super::{
    BASELINE_IS_FUSED, Isa,
    crew::{self, SharedMut},
    isa, multiply_add,
    panels::{Line, PANEL, PanelValues, Panels},
    quant_blocks::QuantBlock,
    quant_rows::{self, QuantRows},
    quantized,
    rowwise::activate_row,
};
use crate::{config::Activation, ops::BLOCK_SIZE as BLOCK};

/// Rows of the input that a kernel takes at a time: 12 rows of 2 registers leave 8 of the 32 AVX-512 registers.
const MAX_ROWS: usize = 12;
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
    debug_assert!(output.len() == n_rows * width);
    let target = Target { output: SharedMut::new(output), width };
    // Rounded once, not once per panel.
    let input = match weight.values {
        PanelValues::Q8(_) | PanelValues::Q4(_) => Input::Rounded(QuantRows::new(x, d_in)),
        PanelValues::F32(_) | PanelValues::F16(_) => Input::Exact(x),
    };
    let n_panels = width.div_ceil(PANEL);
    let bias_of = |panel: usize| bias.map(|bias| &bias[panel * PANEL..bias.len().min((panel + 1) * PANEL)]);
    let run = |panels: Range<usize>| {
        for panel in panels {
            let bias = bias_of(panel);
            match store {
                Store::Set => multiply_panel(&input, weight, panel, |row, sums| {
                    target.change(row, panel, sums, bias, |output, sum| *output = sum);
                }),
                Store::Add => multiply_panel(&input, weight, panel, |row, sums| {
                    target.change(row, panel, sums, bias, |output, sum| *output += sum);
                }),
                Store::Gated(kind) => {
                    multiply_panel(&input, weight, panel, |row, sums| {
                        target.change(row, panel, sums, bias, |output, sum| *output = sum);
                        activate_row(target.part(row, panel), kind);
                    });
                    let up = panel + n_panels;
                    let bias = bias_of(up);
                    multiply_panel(&input, weight, up, |row, sums| {
                        target.change(row, panel, sums, bias, |output, sum| *output *= sum);
                    });
                }
            }
        }
    };
    if is_shared {
        let most = (weight.n_bytes() / PIECE_BYTES).max(crew::n_threads());
        let n_pieces = n_panels.min(crew::n_threads() * PIECES_PER_THREAD).min(most);
        let piece = |n: usize| n_panels * n / n_pieces;
        let n_parts = if matches!(store, Store::Gated(_)) { 2 } else { 1 };
        crew::share_reading(weight.reading(n_parts), n_pieces, |n| run(piece(n)..piece(n + 1)));
    } else {
        run(0..n_panels);
    }
}

/// The output matrix, which threads fill column by column.
struct Target<'a> {
    output: SharedMut<'a, f32>,
    width: usize,
}

impl Target<'_> {
    /// The outputs of one panel in one row.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "each piece of work has columns of its own")]
    fn part(&self, row: usize, panel: usize) -> &mut [f32] {
        let first = row * self.width + panel * PANEL;
        let last = (row + 1) * self.width;
        #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
        // SAFETY: a panel's columns belong to the one piece of work that has the panel, which holds one part at a time.
        unsafe {
            self.output.part(first..last.min(first + PANEL))
        }
    }

    /// Changes the outputs of one panel in one row by its sums.
    #[inline(always)]
    fn change(
        &self,
        row: usize,
        panel: usize,
        sums: &[f32; PANEL],
        bias: Option<&[f32]>,
        change: impl Fn(&mut f32, f32),
    ) {
        let output = self.part(row, panel);
        match bias {
            Some(bias) => {
                output.iter_mut().zip(sums).zip(bias).for_each(|((output, sum), bias)| change(output, sum + bias));
            }
            None => output.iter_mut().zip(sums).for_each(|(output, sum)| change(output, *sum)),
        }
    }
}

/// The rows of the input, in the form that the weight's kernels take.
enum Input<'a> {
    Exact(&'a [f32]),
    Rounded(QuantRows),
}

/// All rows against one panel; `store` is given each row's sums.
fn multiply_panel(input: &Input<'_>, weight: &Panels, panel: usize, mut store: impl FnMut(usize, &[f32; PANEL])) {
    let d_in = weight.d_in;
    let n_blocks = d_in.div_ceil(BLOCK);
    match (&weight.values, input) {
        (PanelValues::F32(lines), Input::Exact(x)) => {
            let lines = &lines[panel * d_in * PANEL / 16..][..d_in * PANEL / 16];
            each_block(x, d_in, |first, block| {
                multiply_block(block, lines, d_in, first == 0, |n, sums| store(first + n, sums));
            });
        }
        (PanelValues::F16(lines), Input::Exact(x)) => {
            let lines = &lines[panel * d_in * PANEL / 32..][..d_in * PANEL / 32];
            each_block(x, d_in, |first, block| {
                multiply_block(block, lines, d_in, first == 0, |n, sums| store(first + n, sums));
            });
        }
        (PanelValues::Q8(blocks), Input::Rounded(rows)) => {
            let blocks = &blocks[panel * n_blocks..][..n_blocks];
            multiply_quantized(rows, blocks, store);
        }
        (PanelValues::Q4(blocks), Input::Rounded(rows)) => {
            let blocks = &blocks[panel * n_blocks..][..n_blocks];
            multiply_quantized(rows, blocks, store);
        }
        _ => unreachable!("`linear` makes the input for its weight"),
    }
}

fn multiply_quantized<B: QuantBlock>(rows: &QuantRows, blocks: &[B], mut store: impl FnMut(usize, &[f32; PANEL])) {
    for first in (0..rows.n_rows()).step_by(quant_rows::MAX_ROWS) {
        quantized::multiply_rows(rows, first, blocks, |n, sums| store(first + n, sums));
    }
}

/// Cuts the rows of `x` into blocks of at most [`MAX_ROWS`].
fn each_block(x: &[f32], d_in: usize, mut run: impl FnMut(usize, &[f32])) {
    for (number, block) in x.chunks(MAX_ROWS * d_in).enumerate() {
        run(number * MAX_ROWS, block);
    }
}

/// What a panel is made of: 32 values per input.
trait PanelLine: Copy + Sync {
    /// Lines per input.
    const LINES: usize;

    /// The 32 values at one input, as f32.
    fn widen(lines: &[Self]) -> [f32; PANEL];

    /// The same in two registers.
    ///
    /// # Safety
    /// `lines` points to [`Self::LINES`] lines.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2];
}

impl PanelLine for Line<f32, 16> {
    const LINES: usize = 2;

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|lane| lines[lane / 16].0[lane % 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::_mm512_load_ps;
        // SAFETY: the caller vouches for two lines, and lines are aligned to 64 bytes.
        unsafe { [_mm512_load_ps(lines.cast()), _mm512_load_ps(lines.add(1).cast())] }
    }
}

impl PanelLine for Line<f16, 32> {
    const LINES: usize = 1;

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|lane| lines[0].0[lane].to_f32())
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm512_cvtph_ps};
        let halves = lines.cast::<__m256i>();
        // SAFETY: the caller vouches for one line of 64 bytes, aligned as such.
        unsafe { [_mm512_cvtph_ps(_mm256_load_si256(halves)), _mm512_cvtph_ps(_mm256_load_si256(halves.add(1)))] }
    }
}

/// Up to [`MAX_ROWS`] rows, `block [n, d_in]`, against one panel; `store` is given each row's sums. The first block of
/// rows has the weights fetched from memory, the others find them in a cache.
fn multiply_block<L: PanelLine>(
    block: &[f32],
    lines: &[L],
    d_in: usize,
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "asks for memory on x86-64 only"))]
    fetches: bool,
    store: impl FnMut(usize, &[f32; PANEL]),
) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 => unsafe { avx512(block, lines, d_in, fetches, store) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx2 => unsafe { avx2(block, lines, d_in, store) },
        Isa::Baseline => portable::<L, BASELINE_IS_FUSED>(block, lines, d_in, store),
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<L: PanelLine>(
    block: &[f32],
    lines: &[L],
    d_in: usize,
    fetches: bool,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    // One kernel per number of rows: the compiler keeps all sums in registers.
    macro_rules! rows {
        ($($n:literal)*) => {
            match block.len() / d_in {
                // SAFETY: this function's own target features, and the lengths are checked within.
                $($n => unsafe { avx512_rows::<L, $n>(block, lines, d_in, fetches, &mut store) },)*
                _ => {}
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512_rows<L: PanelLine, const N: usize>(
    block: &[f32],
    lines: &[L],
    d_in: usize,
    fetches: bool,
    store: &mut impl FnMut(usize, &[f32; PANEL]),
) {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps};
    assert!(block.len() == N * d_in && lines.len() == L::LINES * d_in);
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    for input in 0..d_in {
        // SAFETY: `lines` has `LINES` lines per input, and `block` has `d_in` values per row: asserted above.
        let [left, right] = unsafe { L::load(lines.as_ptr().add(input * L::LINES)) };
        if fetches {
            (0..L::LINES).for_each(|line| fetch_ahead(lines.as_ptr().wrapping_add(input * L::LINES + line)));
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let x = _mm512_set1_ps(unsafe { *block.get_unchecked(row * d_in + input) });
            sums[0] = _mm512_fmadd_ps(x, left, sums[0]);
            sums[1] = _mm512_fmadd_ps(x, right, sums[1]);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        let mut values = [0.0; PANEL];
        // SAFETY: two registers of 16 values fill the array of 32.
        unsafe {
            _mm512_storeu_ps(values.as_mut_ptr(), sums[0]);
            _mm512_storeu_ps(values.as_mut_ptr().add(16), sums[1]);
        }
        store(row, &values);
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<L: PanelLine>(block: &[f32], lines: &[L], d_in: usize, store: impl FnMut(usize, &[f32; PANEL])) {
    portable::<L, true>(block, lines, d_in, store);
}

/// Plain Rust, for the compiler to vectorise: two rows at a time, as 16 registers of 8 values allow.
#[inline(always)]
fn portable<L: PanelLine, const FUSED: bool>(
    block: &[f32],
    lines: &[L],
    d_in: usize,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    let rows: Vec<&[f32]> = block.chunks_exact(d_in).collect();
    for (number, pair) in rows.chunks(2).enumerate() {
        let mut sums = [[0.0; PANEL]; 2];
        for (input, lines) in lines.chunks_exact(L::LINES).enumerate() {
            let weights = L::widen(lines);
            for (row, sums) in pair.iter().zip(&mut sums) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = multiply_add::<FUSED>(row[input], weight, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().take(pair.len()).enumerate() {
            store(2 * number + row, sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        Dtype,
        cpu::levels::{is_fused, levels, noise, with_isa},
    };

    /// Sizes around every edge: a part of a panel, whole panels, enough work for threads.
    const SHAPES: [[usize; 2]; 6] = [[1, 1], [5, 3], [32, 8], [33, 7], [95, 64], [400, 330]];

    #[test]
    fn sums_are_those_of_the_definition() {
        for [d_out, d_in] in SHAPES {
            let (matrix, bias) = (noise(d_out * d_in, 1), noise(d_out, 2));
            for n_rows in [1, 2, 3, 11, 12, 13, 25, 40] {
                let x = noise(n_rows * d_in, 3);
                for dtype in [Dtype::F32, Dtype::F16] {
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
