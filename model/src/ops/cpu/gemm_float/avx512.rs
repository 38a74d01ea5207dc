//! Bodies for AVX-512: 32 registers of 16 values.

use std::{
    arch::x86_64::{
        __m512, __m512bh, _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_load_ps, _mm512_load_si512,
        _mm512_mask_blend_epi16, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_store_ps,
    },
    cell::RefCell,
    marker::PhantomData,
    mem::transmute,
    ops::Range,
};

use super::{Bf16Pair, Line, PANEL, PanelLine};
use crate::ops::cpu::prefetch::{LINE, prefetch};

/// Rows of the input per kernel call: 12 rows of 2 registers leave 8 of the 32.
const MAX_ROWS: usize = 12;
/// Steps for which addresses are computed once.
const UNROLLED: usize = 4;
/// Prefetch distance in bytes. At the end of a panel it reaches into the next one.
const AHEAD: usize = 3 << 11;
/// Prefetch distance for the two-pass kernel; must exceed one chunk.
const AHEAD_IN_TURNS: usize = 3 << 12;
/// Bytes of weights (as registers hold them) per pass of the two-pass kernel: two chunks, one being prefetched, fit in
/// L1, and sums are seldom stored and loaded again.
const CHUNK: usize = 96 * 128;
/// From this many blocks of rows after the first ones, a panel is [prepared](Step::prepare) once instead of once per
/// block.
const PREPARED_FROM: usize = 4;

/// A step along the inner dimension: one value of a row, or one word of two.
pub(super) trait Step {
    type Line: Copy;
    /// Lines of the panel.
    const LINES: usize;
    const BYTES: usize = Self::LINES * size_of::<Self::Line>();
    /// The weights in the form in which registers hold them.
    type Prepared: Step;
    /// Whether [`prepare`](Self::prepare) saves work.
    const IS_PREPARED_ONCE: bool;

    /// The weights of rows 0 to 15 of the panel, and of 16 to 31.
    ///
    /// # Safety
    /// The machine must have AVX-512, and `lines` points to [`Self::LINES`] lines.
    unsafe fn load(lines: *const Self::Line) -> [__m512; 2];

    /// `sums` and the products of a row's value, in all lanes, and the weights.
    ///
    /// # Safety
    /// The machine must have AVX-512, and for words [AVX512_BF16](Pairs).
    unsafe fn add(value: __m512, weights: __m512, sums: __m512) -> __m512;

    /// Calls `run` with the panel as registers hold it.
    fn prepare(lines: &[Self::Line], run: impl FnOnce(&[<Self::Prepared as Step>::Line]));
}

/// One value, in f32.
pub(super) struct Singles<L>(PhantomData<L>);

impl<L: PanelLine> Step for Singles<L> {
    type Line = L;
    const LINES: usize = L::LINES;
    type Prepared = Singles<Line<f32, 16>>;
    const IS_PREPARED_ONCE: bool = Self::BYTES < size_of::<[f32; PANEL]>();

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(lines: *const L) -> [__m512; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load(lines) }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn add(value: __m512, weights: __m512, sums: __m512) -> __m512 {
        _mm512_fmadd_ps(value, weights, sums)
    }

    fn prepare(lines: &[L], run: impl FnOnce(&[Line<f32, 16>])) {
        prepare::<Self>(lines, run);
    }
}

/// Two values in bf16, the first in the lower half of a word, multiplied by AVX512_BF16.
pub(super) struct Pairs;

impl Step for Pairs {
    type Line = Line<Bf16Pair, 16>;
    const LINES: usize = 2;
    type Prepared = PreparedPairs;
    const IS_PREPARED_ONCE: bool = true;

    /// Lines have two rows of one input in a word; registers have one row of two inputs.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(lines: *const Self::Line) -> [__m512; 2] {
        const UPPER: u32 = 0xaaaa_aaaa;
        // SAFETY: the caller guarantees two lines of 64 bytes, aligned as such.
        let [one, two] = unsafe { [_mm512_load_si512(lines.cast()), _mm512_load_si512(lines.add(1).cast())] };
        let left = _mm512_mask_blend_epi16(UPPER, one, _mm512_slli_epi32::<16>(two));
        let right = _mm512_mask_blend_epi16(UPPER, _mm512_srli_epi32::<16>(one), two);
        [_mm512_castsi512_ps(left), _mm512_castsi512_ps(right)]
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    unsafe fn add(value: __m512, weights: __m512, sums: __m512) -> __m512 {
        // SAFETY: both types have 512 bits, and every bit pattern is valid.
        let [value, weights] = unsafe { transmute::<[__m512; 2], [__m512bh; 2]>([value, weights]) };
        _mm512_dpbf16_ps(sums, value, weights)
    }

    fn prepare(lines: &[Self::Line], run: impl FnOnce(&[Line<f32, 16>])) {
        prepare::<Self>(lines, run);
    }
}

/// [`Pairs`] in words as registers hold them.
pub(super) struct PreparedPairs;

impl Step for PreparedPairs {
    type Line = Line<f32, 16>;
    const LINES: usize = 2;
    type Prepared = Self;
    const IS_PREPARED_ONCE: bool = false;

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(lines: *const Self::Line) -> [__m512; 2] {
        // SAFETY: the caller guarantees two lines, aligned to 64 bytes.
        unsafe { [_mm512_load_ps(lines.cast()), _mm512_load_ps(lines.add(1).cast())] }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    unsafe fn add(value: __m512, weights: __m512, sums: __m512) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { Pairs::add(value, weights, sums) }
    }

    fn prepare(lines: &[Self::Line], run: impl FnOnce(&[Line<f32, 16>])) {
        run(lines);
    }
}

/// Rounds `x` to bf16, to the nearest, ties to even: words of two values, the first in the lower half.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn round(x: &[f32], words: &mut [f32]) {
    use std::arch::x86_64::{_mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_storeu_ps};
    let (values, rest) = x.as_chunks::<32>();
    let (whole, part) = words.as_chunks_mut::<16>();
    let round = |values: &[f32; 32], words: &mut [f32; 16]| {
        // SAFETY: 32 values are two registers, and their words one; vectors of bf16 and of f32 have the same size, and
        // all bits are valid.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16)));
            _mm512_storeu_ps(words.as_mut_ptr(), transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)));
        }
    };
    values.iter().zip(whole).for_each(|(values, words)| round(values, words));
    if !part.is_empty() {
        let (mut padded, mut words) = ([0.0; 32], [0.0; 16]);
        padded[..rest.len()].copy_from_slice(rest);
        round(&padded, &mut words);
        part.copy_from_slice(&words[..part.len()]);
    }
}

thread_local! {
    /// A prepared panel.
    static PREPARED: RefCell<Vec<Line<f32, 16>>> = const { RefCell::new(Vec::new()) };
}

fn prepare<S: Step>(lines: &[S::Line], run: impl FnOnce(&[Line<f32, 16>])) {
    PREPARED.with_borrow_mut(|prepared| {
        prepared.resize(2 * lines.len() / S::LINES, Line([0.0; 16]));
        // SAFETY: only bodies for AVX-512 call this.
        unsafe { fill::<S>(lines, prepared) };
        run(prepared);
    });
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn fill<S: Step>(lines: &[S::Line], prepared: &mut [Line<f32, 16>]) {
    for (lines, prepared) in lines.chunks_exact(S::LINES).zip(prepared.as_chunks_mut::<2>().0) {
        // SAFETY: this function enables the target features; these are the lines of one step.
        let registers = unsafe { S::load(lines.as_ptr()) };
        for (line, register) in prepared.iter_mut().zip(registers) {
            // SAFETY: a line is 16 values, aligned to 64 bytes.
            unsafe { _mm512_store_ps(line.0.as_mut_ptr(), register) };
        }
    }
}

/// Some steps of some rows.
struct Rows<'a> {
    x: &'a [f32],
    n_steps: usize,
    steps: Range<usize>,
}

/// The product of rows and a panel, compiled for the instructions of some [`Step`]s.
macro_rules! product {
    ($(#[$doc:meta])* $name:ident, $features:literal) => {
        $(#[$doc])*
        pub(super) mod $name {
            use std::{
                arch::x86_64::{__m512, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps},
                array,
            };

            use super::{
                AHEAD, AHEAD_IN_TURNS, CHUNK, LINE, MAX_ROWS, PANEL, PREPARED_FROM, Rows, Step, UNROLLED, prefetch,
            };

            /// `x [n_rows, n_steps]` times the panel. The first rows load it from memory, the others find it in a cache. If the
            /// first ones are too many for one kernel call, they go in two halves, [`CHUNK`] bytes at a time: memory is then
            /// read continuously, not only while the first half computes.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn multiply<S: Step>(
                x: &[f32],
                lines: &[S::Line],
                n_steps: usize,
                mut store: impl FnMut(usize, &[f32; PANEL]),
            ) {
                let n_rows = x.len() / n_steps;
                let mut n_stored = 0;
                let mut store_all = |sums: &[[f32; PANEL]]| {
                    sums.iter().for_each(|sums| {
                        store(n_stored, sums);
                        n_stored += 1;
                    });
                };
                let first = &x[..n_rows.min(2 * MAX_ROWS) * n_steps];
                let n_first = first.len() / n_steps;
                if n_first <= MAX_ROWS {
                    let sums = &mut [[0.0; PANEL]; MAX_ROWS][..n_first];
                    // SAFETY: this function enables the target features.
                    unsafe { block::<S, 1>(Rows { x: first, n_steps, steps: 0..n_steps }, lines, 0, sums) };
                    store_all(sums);
                } else {
                    let sums = &mut [[0.0; PANEL]; 2 * MAX_ROWS][..n_first];
                    let half = n_first.div_ceil(2);
                    for start in (0..n_steps).step_by(CHUNK / size_of::<[f32; PANEL]>()) {
                        let steps = start..n_steps.min(start + CHUNK / size_of::<[f32; PANEL]>());
                        for (part, (x, sums)) in first.chunks(half * n_steps).zip(sums.chunks_mut(half)).enumerate() {
                            // SAFETY: as above.
                            unsafe { block::<S, 2>(Rows { x, n_steps, steps: steps.clone() }, lines, part, sums) };
                        }
                    }
                    store_all(sums);
                }
                let rest = x[first.len()..].chunks(MAX_ROWS * n_steps);
                if S::IS_PREPARED_ONCE && rest.len() >= PREPARED_FROM {
                    return S::prepare(lines, |prepared| {
                        for x in rest {
                            let sums = &mut [[0.0; PANEL]; MAX_ROWS][..x.len() / n_steps];
                            // SAFETY: as above.
                            unsafe { block::<S::Prepared, 0>(Rows { x, n_steps, steps: 0..n_steps }, prepared, 0, sums) };
                            store_all(sums);
                        }
                    });
                }
                for x in rest {
                    let sums = &mut [[0.0; PANEL]; MAX_ROWS][..x.len() / n_steps];
                    // SAFETY: as above.
                    unsafe { block::<S, 0>(Rows { x, n_steps, steps: 0..n_steps }, lines, 0, sums) };
                    store_all(sums);
                }
            }

            /// Adds the products of up to [`MAX_ROWS`] rows to `sums`, and prefetches the `part`th of `N_PARTS` parts of the
            /// weights ahead (nothing if `N_PARTS` is 0).
            #[target_feature(enable = $features)]
            unsafe fn block<S: Step, const N_PARTS: usize>(
                rows: Rows<'_>,
                lines: &[S::Line],
                part: usize,
                sums: &mut [[f32; PANEL]],
            ) {
                // One kernel per number of rows, so that the compiler keeps all sums in registers.
                // SAFETY: this function enables the target features; the lengths are checked within.
                unsafe {
                    match sums.len() {
                        0 => {}
                        1 => block_of::<S, 1, N_PARTS>(rows, lines, part, sums),
                        2 => block_of::<S, 2, N_PARTS>(rows, lines, part, sums),
                        3 => block_of::<S, 3, N_PARTS>(rows, lines, part, sums),
                        4 => block_of::<S, 4, N_PARTS>(rows, lines, part, sums),
                        5 => block_of::<S, 5, N_PARTS>(rows, lines, part, sums),
                        6 => block_of::<S, 6, N_PARTS>(rows, lines, part, sums),
                        7 => block_of::<S, 7, N_PARTS>(rows, lines, part, sums),
                        8 => block_of::<S, 8, N_PARTS>(rows, lines, part, sums),
                        9 => block_of::<S, 9, N_PARTS>(rows, lines, part, sums),
                        10 => block_of::<S, 10, N_PARTS>(rows, lines, part, sums),
                        11 => block_of::<S, 11, N_PARTS>(rows, lines, part, sums),
                        MAX_ROWS => block_of::<S, MAX_ROWS, N_PARTS>(rows, lines, part, sums),
                        n => unreachable!("{n} rows at a time, where {MAX_ROWS} is the maximum"),
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn block_of<S: Step, const N: usize, const N_PARTS: usize>(
                Rows { x, n_steps, steps }: Rows<'_>,
                lines: &[S::Line],
                part: usize,
                stored: &mut [[f32; PANEL]],
            ) {
                assert!(x.len() == N * n_steps && lines.len() == S::LINES * n_steps && steps.end <= n_steps && stored.len() == N);
                let mut sums = [[_mm512_setzero_ps(); 2]; N];
                for (sums, stored) in sums.iter_mut().zip(&*stored) {
                    // SAFETY: two registers of 16 values are the array of 32.
                    *sums = unsafe { [_mm512_loadu_ps(stored.as_ptr()), _mm512_loadu_ps(stored.as_ptr().add(16))] };
                }
                // Every third row has a separate pointer; the two rows after it are addressed as that pointer plus a
                // multiple of a register.
                let first = x[steps.start..].as_ptr();
                let mut x: [_; MAX_ROWS / 3] = array::from_fn(|third| first.wrapping_add(3 * third * n_steps));
                let mut lines = lines[steps.start * S::LINES..].as_ptr();
                // Each part of the rows prefetches its part of the next steps' lines.
                let skipped = part * steps.len() * S::BYTES / N_PARTS.max(1);
                let ahead = if N_PARTS == 1 { AHEAD } else { AHEAD_IN_TURNS };
                let mut fetched = lines.wrapping_byte_add(skipped + ahead);
                for _ in 0..steps.len() / UNROLLED {
                    for number in 0..UNROLLED {
                        let at = number * S::BYTES / N_PARTS.max(1);
                        match N_PARTS {
                            0 => {}
                            1 => (at..at + S::BYTES).step_by(LINE).for_each(|at| prefetch(fetched.wrapping_byte_add(at))),
                            _ => prefetch(fetched.wrapping_byte_add(at)),
                        }
                        // SAFETY: this function enables the target features; there are `LINES` lines for each step and
                        // `n_steps` values in each row: asserted above.
                        unsafe { add_products::<S, N>(&mut sums, x, n_steps, lines, number) };
                    }
                    fetched = fetched.wrapping_byte_add(UNROLLED * S::BYTES / N_PARTS.max(1));
                    x = x.map(|x| x.wrapping_add(UNROLLED));
                    lines = lines.wrapping_add(UNROLLED * S::LINES);
                }
                for number in 0..steps.len() % UNROLLED {
                    // SAFETY: as above.
                    unsafe { add_products::<S, N>(&mut sums, x, n_steps, lines, number) };
                }
                for (sums, stored) in sums.iter().zip(stored) {
                    // SAFETY: as for loading.
                    unsafe {
                        _mm512_storeu_ps(stored.as_mut_ptr(), sums[0]);
                        _mm512_storeu_ps(stored.as_mut_ptr().add(16), sums[1]);
                    }
                }
            }

            /// Adds the products with the weights of the step `number` places further on. `x` points to the step's
            /// place in every third row.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn add_products<S: Step, const N: usize>(
                sums: &mut [[__m512; 2]; N],
                x: [*const f32; MAX_ROWS / 3],
                n_steps: usize,
                lines: *const S::Line,
                number: usize,
            ) {
                // SAFETY: the caller guarantees these lines and places.
                unsafe {
                    let [left, right] = S::load(lines.add(number * S::LINES));
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let value = _mm512_set1_ps(*x[row / 3].wrapping_add(row % 3 * n_steps + number));
                        sums[0] = S::add(value, left, sums[0]);
                        sums[1] = S::add(value, right, sums[1]);
                    }
                }
            }
        }
    };
}

product!(
    /// In f32.
    singles, "avx512f,avx512bw"
);
product!(
    /// In words of two values in bf16.
    pairs, "avx512f,avx512bw,avx512bf16"
);
