//! The innermost loops of a product: some rows of one matrix times [`PANEL`] columns of another.

#[cfg(target_arch = "x86_64")]
use std::{
    arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps},
    mem::transmute,
};

#[cfg(target_arch = "x86_64")]
use super::share;
#[cfg(target_arch = "x86_64")]
use crate::ops::cpu::{Isa, has_fast_bf16_products};
use crate::ops::cpu::{PORTABLE_IS_FUSED, isa, multiply_add, panel_layout::PANEL};

/// Rows of the largest tile: at two registers a row, their sums take 24 of the 32 registers of AVX-512.
pub(super) const ROWS: usize = 12;

/// Words of packed rows per step of the inner dimension: a cache line. [`ROWS`] of them are used.
pub(super) const STEP: usize = 16;

/// Steps of the inner dimension that columns are prefetched ahead.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 16;

/// Words of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

/// Operands of a tile: word `k` of row `r` of the left operand is `lhs[r * lhs_row + k * lhs_step]`, word `k` of column
/// `c` of the right operand is `rhs[k * rhs_step + c]`. A word is one f32, or two bf16.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    lhs: &'a [f32],
    lhs_row: usize,
    lhs_step: usize,
    rhs: &'a [f32],
    rhs_step: usize,
    n_rows: usize,
    depth: usize,
    /// Words have two bf16 each. Only for machines with products of bf16.
    are_pairs: bool,
}

impl<'a> Operands<'a> {
    /// `n_rows` rows of `depth` words each: the left operand with its strides of rows and words, the right one with its
    /// stride of words.
    ///
    /// # Panics
    /// When a slice ends before its operand does, or for more than [`ROWS`] rows.
    pub(super) fn new(
        [n_rows, depth]: [usize; 2],
        (lhs, lhs_row, lhs_step): (&'a [f32], usize, usize),
        (rhs, rhs_step): (&'a [f32], usize),
        are_pairs: bool,
    ) -> Self {
        assert!((1..=ROWS).contains(&n_rows), "{n_rows} rows of a tile of {ROWS}");
        if let Some(last) = depth.checked_sub(1) {
            assert!((n_rows - 1) * lhs_row + last * lhs_step < lhs.len(), "a left operand beyond its slice");
            assert!(last * rhs_step + PANEL <= rhs.len(), "a right operand beyond its slice");
        }
        Self { lhs, lhs_row, lhs_step, rhs, rhs_step, n_rows, depth, are_pairs }
    }

    /// From row `row` and column `column` on.
    #[inline(always)]
    fn from(self, row: usize, column: usize) -> Self {
        let n_rows = self.n_rows - row;
        // If the inner dimension is 0, the slices may be empty.
        let (row, column) = if self.depth == 0 { (0, 0) } else { (row, column) };
        Self { lhs: &self.lhs[row * self.lhs_row..], rhs: &self.rhs[column..], n_rows, ..self }
    }
}

/// Where the products of a tile go: rows `stride` values apart from `start` on, which are replaced by the sums plus
/// `added`.
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub(super) start: *mut f32,
    pub(super) stride: usize,
    /// Rows to add, with their own stride; may be the output itself.
    pub(super) added: Option<(*const f32, usize)>,
}

impl Output {
    /// From row `row` and column `column` on.
    #[inline(always)]
    fn from(self, row: usize, column: usize) -> Self {
        Self {
            start: self.start.wrapping_add(row * self.stride + column),
            added: self.added.map(|(added, stride)| (added.wrapping_add(row * stride + column), stride)),
            ..self
        }
    }
}

/// Puts the products of `n_cols` (at most [`PANEL`]) columns into `output`.
///
/// # Safety
/// The rows and columns of the output are valid for writes, and those of `added` for reads. No other thread writes
/// them.
#[expect(unsafe_code, reason = "writes rows that lie between those of other threads")]
pub(super) unsafe fn tile(operands: Operands<'_>, output: Output, n_cols: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { if n_cols == PANEL { whole_tile(operands, output) } else { part_of_tile(operands, output, n_cols) } }
}

/// The first `n_cols` columns. A separate function, so that it does not slow down whole tiles.
#[inline(never)]
#[expect(unsafe_code, reason = "writes rows that lie between those of other threads")]
unsafe fn part_of_tile(operands: Operands<'_>, output: Output, n_cols: usize) {
    let mut sums = [[0.0; PANEL]; ROWS];
    // SAFETY: the output is an array with at least these rows and columns.
    unsafe { whole_tile(operands, Output { start: sums.as_mut_ptr().cast(), stride: PANEL, added: None }) };
    for (row, sums) in sums.iter().enumerate().take(operands.n_rows) {
        let output = output.from(row, 0);
        for (column, sum) in sums.iter().enumerate().take(n_cols) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let added = output.added.map_or(0.0, |(added, _)| *added.add(column));
                output.start.add(column).write(added + sum);
            }
        }
    }
}

#[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
unsafe fn whole_tile(operands: Operands<'_>, output: Output) {
    // SAFETY: `isa` and `has_fast_bf16_products` found the instructions; the caller guarantees the rest.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            _ if operands.are_pairs => {
                assert!(has_fast_bf16_products());
                avx512_bf16::tile(operands, output);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::tile(operands, output),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni | Isa::Avx2 => avx2::tile(operands, output),
            _ => halves::<PORTABLE_IS_FUSED, 4>(operands, output),
        }
    }
}

/// Kernels for an instruction set with registers of `$lanes` words, one for each number of rows `$n`, so that the
/// compiler keeps all sums in registers; `$most` is the largest `$n`. A kernel computes as many columns as two
/// registers have. `$step` adds the products of a row's word, in all lanes, and the words of `$lanes` columns to their
/// sums.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    (
        $name:ident, $features:literal, $lanes:literal,
        $register:ident, [$zero:ident $load:ident $broadcast:ident $add:ident $store:ident], $step:path, $most:literal, $($n:literal)*
    ) => {
        mod $name {
            use std::arch::x86_64::{$add, $broadcast, $load, $register, $store, $zero};

            use super::{AHEAD, LINE, Operands, Output, ROWS, STEP, share};
            use crate::ops::cpu::{panel_layout::PANEL, prefetch::prefetch};

            /// Columns of a kernel.
            const WIDTH: usize = 2 * $lanes;

            /// Whether columns are prefetched. Kernels of half a panel are faster without (docs/lab/training.md).
            const PREFETCHES: bool = WIDTH == PANEL;

            /// Steps in a round of the innermost loop. With few products in a step, two are faster.
            const UNROLLED: usize = PANEL / WIDTH;

            #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn tile(operands: Operands<'_>, output: Output) {
                let is_packed = (operands.lhs_row, operands.lhs_step) == (1, STEP);
                // Parts of nearly equal height: a kernel of few rows takes as long as one of several.
                let n_parts = if ROWS <= $most { 1 } else { operands.n_rows.div_ceil($most) };
                for column in (0..PANEL).step_by(WIDTH) {
                    for part in 0..n_parts {
                        let of_part = share(operands.n_rows, part, n_parts);
                        let (operands, output) =
                            (operands.from(of_part.start, column), output.from(of_part.start, column));
                        match of_part.len() {
                            // SAFETY: this function enables the target features; the caller guarantees the rest.
                            $($n => unsafe {
                                if is_packed {
                                    rows::<$n, true>(operands, output);
                                } else {
                                    rows::<$n, false>(operands, output);
                                }
                            },)*
                            n => unreachable!("{n} rows of a kernel of {}", $most),
                        }
                    }
                }
            }

            /// If the rows are packed, the compiler knows where their words are, and computes no addresses.
            #[expect(
                unsafe_code,
                reason = "compiled for instructions beyond the target's baseline, with raw loads and stores"
            )]
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn rows<const N: usize, const PACKED: bool>(operands: Operands<'_>, output: Output) {
                let Operands { lhs, lhs_row, lhs_step, rhs, rhs_step, depth, .. } = operands;
                let (lhs_row, lhs_step) = if PACKED { (1, STEP) } else { (lhs_row, lhs_step) };
                let (mut lhs, mut rhs) = (lhs.as_ptr(), rhs.as_ptr());
                for row in 0..N {
                    [0, WIDTH - 1].into_iter().for_each(|column| prefetch(output.from(row, column).start));
                }
                let mut sums = [[$zero(); 2]; N];
                for _ in 0..depth / UNROLLED {
                    for _ in 0..UNROLLED {
                        // SAFETY: `Operands` has checked its slices.
                        unsafe { add_products(&mut sums, (lhs, lhs_row), (rhs, rhs_step)) };
                        (lhs, rhs) = (lhs.wrapping_add(lhs_step), rhs.wrapping_add(rhs_step));
                    }
                }
                for _ in depth / UNROLLED * UNROLLED..depth {
                    // SAFETY: as above.
                    unsafe { add_products(&mut sums, (lhs, lhs_row), (rhs, rhs_step)) };
                    (lhs, rhs) = (lhs.wrapping_add(lhs_step), rhs.wrapping_add(rhs_step));
                }
                for (row, sums) in sums.into_iter().enumerate() {
                    for (register, sum) in sums.into_iter().enumerate() {
                        // SAFETY: guaranteed by the caller.
                        unsafe {
                            let output = output.from(row, $lanes * register);
                            let sum = match output.added {
                                Some((added, _)) => $add($load(added), sum),
                                None => sum,
                            };
                            $store(output.start, sum);
                        }
                    }
                }
            }

            /// Adds the products of one step of the inner dimension.
            #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn add_products<const N: usize>(
                sums: &mut [[$register; 2]; N],
                (lhs, lhs_row): (*const f32, usize),
                (rhs, rhs_step): (*const f32, usize),
            ) {
                if PREFETCHES {
                    (0..WIDTH).step_by(LINE).for_each(|word| prefetch(rhs.wrapping_add(AHEAD * rhs_step + word)));
                }
                // SAFETY: guaranteed by the caller.
                let columns = unsafe { [$load(rhs), $load(rhs.add($lanes))] };
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let value = $broadcast(unsafe { *lhs.add(row * lhs_row) });
                    for (sum, columns) in sums.iter_mut().zip(columns) {
                        *sum = $step(value, columns, *sum);
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(
    avx2, "avx2,fma", 8, __m256, [_mm256_setzero_ps _mm256_loadu_ps _mm256_set1_ps _mm256_add_ps _mm256_storeu_ps],
    std::arch::x86_64::_mm256_fmadd_ps, 6, 1 2 3 4 5 6
);
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512, "avx512f", 16, __m512, [_mm512_setzero_ps _mm512_loadu_ps _mm512_set1_ps _mm512_add_ps _mm512_storeu_ps],
    std::arch::x86_64::_mm512_fmadd_ps, 12, 1 2 3 4 5 6 7 8 9 10 11 12
);
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512_bf16, "avx512f,avx512bf16", 16, __m512,
    [_mm512_setzero_ps _mm512_loadu_ps _mm512_set1_ps _mm512_add_ps _mm512_storeu_ps],
    super::add_pairs, 12, 1 2 3 4 5 6 7 8 9 10 11 12
);

/// `sums` and the products of the two values in each word.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vectors of bf16 have no other form than of other vectors")]
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn add_pairs(value: __m512, columns: __m512, sums: __m512) -> __m512 {
    // SAFETY: both types have 512 bits, and every bit pattern is valid.
    let [value, columns] = unsafe { transmute::<[__m512; 2], [__m512bh; 2]>([value, columns]) };
    _mm512_dpbf16_ps(sums, value, columns)
}

/// Half the columns and at most `N` rows at a time, in plain Rust that the compiler vectorizes: for `N` of 4, the sums take 16
/// registers of NEON.
#[inline(always)]
#[expect(unsafe_code, reason = "writes rows that lie between those of other threads")]
unsafe fn halves<const FUSED: bool, const N: usize>(operands: Operands<'_>, output: Output) {
    for column in [0, PANEL / 2] {
        let mut row = 0;
        while row < operands.n_rows {
            let rest = operands.from(row, column);
            // SAFETY: the caller guarantees these rows and columns.
            row += unsafe {
                let output = output.from(row, column);
                match rest.n_rows {
                    n if n >= N => half_tile::<FUSED, N>(rest, output),
                    n if n >= 2 => half_tile::<FUSED, 2>(rest, output),
                    _ => half_tile::<FUSED, 1>(rest, output),
                }
            };
        }
    }
}

/// The first `N` rows and half the columns. Returns `N`.
#[inline(always)]
#[expect(unsafe_code, reason = "nothing in the inner loop may panic: otherwise the compiler uses scalar instructions")]
unsafe fn half_tile<const FUSED: bool, const N: usize>(operands: Operands<'_>, output: Output) -> usize {
    type Half = [f32; PANEL / 2];
    let Operands { lhs, lhs_row, lhs_step, rhs, rhs_step, depth, .. } = operands;
    let (mut lhs, mut rhs) = (lhs.as_ptr(), rhs.as_ptr());
    let mut sums = [[0.0; PANEL / 2]; N];
    for _ in 0..depth {
        // SAFETY: `Operands` has checked its slices, and an array is aligned as its values are.
        let columns = unsafe { *rhs.cast::<Half>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let value = unsafe { *lhs.add(row * lhs_row) };
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = multiply_add::<FUSED>(value, column, *sum);
            }
        }
        (lhs, rhs) = (lhs.wrapping_add(lhs_step), rhs.wrapping_add(rhs_step));
    }
    for (row, mut sums) in sums.into_iter().enumerate() {
        let output = output.from(row, 0);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if let Some((added, _)) = output.added {
                let added = *added.cast::<Half>();
                sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
            }
            output.start.cast::<Half>().write(sums);
        }
    }
    N
}
