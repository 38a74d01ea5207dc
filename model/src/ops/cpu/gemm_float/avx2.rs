//! Bodies for AVX2: 16 registers of 8 values.
//!
//! Up to 3 rows keep the sums of the whole panel in 12 registers. More rows go in tiles of up to 6 rows and half a
//! panel, which also take 12: every weight that is loaded serves 6 multiply-adds. Some inputs at a time, so that their
//! weights stay in L1 while all tiles go by.

use std::{cell::RefCell, ops::Range};

use super::{Line, PANEL, PanelLine};
use crate::ops::cpu::prefetch::{LINE, prefetch};

/// Rows of a tile.
const TILE: usize = 6;
/// Rows of a tile whose sums of the whole panel fit into 12 registers.
const WHOLE: usize = 3;
/// Rows whose sums are kept between two ranges of inputs: 6 KB.
const ROWS: usize = 48;
/// Inputs at a time: 24 KB of weights in f32. A tile reads half of them.
const CHUNK: usize = 192;
/// Prefetch distance in bytes of up to 3 rows. At the end of a panel it reaches into the next one.
const AHEAD: usize = 3 << 11;
/// Inputs for which addresses are computed once.
const UNROLLED: usize = 4;
/// Registers of a panel.
const REGISTERS: usize = PANEL / 8;

/// Multiplies all rows of `x [n_rows, d_in]` by one panel; `store` gets each row's number and sums.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<L: PanelLine>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    assert!(lines.len() == L::LINES * d_in);
    let n_rows = x.len() / d_in;
    if n_rows == 0 {
        return;
    }
    if n_rows <= WHOLE {
        let sums = &mut [[0.0; PANEL]; WHOLE][..n_rows];
        let ahead = Prefetch { start: lines.as_ptr().cast::<u8>().wrapping_add(AHEAD), step: L::BYTES };
        // SAFETY: this function enables the target features; the lines of all inputs are there.
        unsafe { full_panel(Rows { x, d_in, inputs: 0..d_in }, lines.as_ptr(), ahead, sums) };
        return sums.iter().enumerate().for_each(|(row, sums)| store(row, sums));
    }
    let n_parts = n_rows.div_ceil(ROWS);
    for part in 0..n_parts {
        let rows = n_rows * part / n_parts..n_rows * (part + 1) / n_parts;
        let sums = &mut [[0.0; PANEL]; ROWS][..rows.len()];
        // SAFETY: as above.
        unsafe { tiles(&x[rows.start * d_in..rows.end * d_in], lines, d_in, part == 0, sums) };
        sums.iter().zip(rows).for_each(|(sums, row)| store(row, sums));
    }
}

/// What a tile prefetches while it computes: the line `step` bytes ahead of each input's line. Nothing if `step` is 0.
#[derive(Clone, Copy)]
struct Prefetch {
    start: *const u8,
    step: usize,
}

/// More than [`WHOLE`] rows in tiles, a chunk of inputs at a time. If the panel `is_new`, it comes from memory: each
/// pass over the chunk then prefetches its share of the next one, so that memory is read all the time, not only by the
/// first pass. Weights in 16 bits are widened once if several tiles read them.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<L: PanelLine>(x: &[f32], lines: &[L], d_in: usize, is_new: bool, sums: &mut [[f32; PANEL]]) {
    let is_widened = is_narrow::<L>() && sums.len() > TILE;
    let n_passes = if is_widened { n_passes::<Line<f32, 16>>(sums.len()) } else { n_passes::<L>(sums.len()) };
    for start in (0..d_in).step_by(CHUNK) {
        let inputs = start..d_in.min(start + CHUNK);
        let chunk = &lines[inputs.start * L::LINES..inputs.end * L::LINES];
        let next = lines.as_ptr().wrapping_add((start + CHUNK) * L::LINES).cast::<u8>();
        let fetched = Prefetch { start: next, step: if is_new { L::BYTES.div_ceil(n_passes) } else { 0 } };
        if is_widened {
            WIDENED.with_borrow_mut(|widened| {
                // SAFETY: this function enables the target features; a line of f32 is written for each half an input.
                unsafe {
                    widen(chunk, widened);
                    each_tile(x, d_in, inputs, &*widened, fetched, sums);
                }
            });
        } else {
            // SAFETY: this function enables the target features.
            unsafe { each_tile(x, d_in, inputs, chunk, fetched, sums) };
        }
    }
}

thread_local! {
    /// The weights of some inputs in f32.
    static WIDENED: RefCell<Vec<Line<f32, 16>>> = const { RefCell::new(Vec::new()) };
}

/// All tiles of the rows of `x [n_rows, d_in]`, at some of the inputs, whose weights are `chunk`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn each_tile<L: PanelLine>(
    x: &[f32],
    d_in: usize,
    inputs: Range<usize>,
    chunk: &[L],
    Prefetch { start, step }: Prefetch,
    sums: &mut [[f32; PANEL]],
) {
    let n_rows = sums.len();
    let n_tiles = n_rows.div_ceil(if is_narrow::<L>() { WHOLE } else { TILE });
    for number in 0..n_tiles {
        let of_tile = n_rows * number / n_tiles..n_rows * (number + 1) / n_tiles;
        let x = &x[of_tile.start * d_in..of_tile.end * d_in];
        let sums = &mut sums[of_tile];
        let ahead = |pass: usize| Prefetch { start: start.wrapping_add(pass * step * inputs.len()), step };
        let rows = || Rows { x, d_in, inputs: inputs.clone() };
        // SAFETY: this function enables the target features; the chunk has the lines of its inputs.
        unsafe {
            if is_narrow::<L>() {
                full_panel(rows(), chunk.as_ptr(), ahead(number), sums);
            } else {
                half_panel::<_, 0>(rows(), chunk.as_ptr(), ahead(2 * number), sums);
                half_panel::<_, 2>(rows(), chunk.as_ptr(), ahead(2 * number + 1), sums);
            }
        }
    }
}

/// Whether weights are widened as they are loaded, so that a tile of the whole panel is better than one of half of it.
const fn is_narrow<L: PanelLine>() -> bool {
    L::BYTES < size_of::<[f32; PANEL]>()
}

/// Passes of [`each_tile`] over a chunk.
fn n_passes<L: PanelLine>(n_rows: usize) -> usize {
    if is_narrow::<L>() { n_rows.div_ceil(WHOLE) } else { 2 * n_rows.div_ceil(TILE) }
}

/// Writes some inputs' weights as f32.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<L: PanelLine>(lines: &[L], widened: &mut Vec<Line<f32, 16>>) {
    use std::arch::x86_64::_mm256_store_ps;
    widened.resize(2 * lines.len() / L::LINES, Line([0.0; 16]));
    for (lines, widened) in lines.chunks_exact(L::LINES).zip(widened.as_chunks_mut::<2>().0) {
        for register in 0..REGISTERS {
            let place = &mut widened[register / 2].0[register % 2 * 8..][..8];
            // SAFETY: this function enables the target features; these are the lines of one input; 8 values are half a
            // line.
            unsafe { _mm256_store_ps(place.as_mut_ptr(), L::load_eight(lines.as_ptr(), register)) };
        }
    }
}

/// Some inputs of some rows.
struct Rows<'a> {
    x: &'a [f32],
    d_in: usize,
    inputs: Range<usize>,
}

/// One kernel per number of rows `$n`, so that the compiler keeps all sums in registers.
macro_rules! kernels {
    ($rows:ident, $lines:ident, $ahead:ident, $sums:ident, $registers:expr, $from:expr, $($n:literal)*) => {
        match $sums.len() {
            // SAFETY: the caller guarantees the target features and the lines.
            $($n => unsafe { tile::<L, $n, { $registers }, { $from }>($rows, $lines, $ahead, $sums) },)*
            n => unreachable!("{n} rows at a time, where {:?} are possible", [$($n),*]),
        }
    };
}

/// Adds the products of up to [`WHOLE`] rows with the panel to `sums`. `lines` are the panel's lines for the inputs of
/// `rows`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn full_panel<L: PanelLine>(rows: Rows<'_>, lines: *const L, ahead: Prefetch, sums: &mut [[f32; PANEL]]) {
    kernels!(rows, lines, ahead, sums, REGISTERS, 0, 1 2 3);
}

/// Adds the products of up to [`TILE`] rows with half the panel, from register `FROM` on, to `sums`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_panel<L: PanelLine, const FROM: usize>(
    rows: Rows<'_>,
    lines: *const L,
    ahead: Prefetch,
    sums: &mut [[f32; PANEL]],
) {
    kernels!(rows, lines, ahead, sums, REGISTERS / 2, FROM, 3 4 5 6);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<L: PanelLine, const N: usize, const R: usize, const FROM: usize>(
    Rows { x, d_in, inputs }: Rows<'_>,
    lines: *const L,
    ahead: Prefetch,
    stored: &mut [[f32; PANEL]],
) {
    use std::arch::x86_64::{_mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps};
    assert!(x.len() == N * d_in && inputs.end <= d_in && stored.len() == N && FROM + R <= REGISTERS);
    let mut sums = [[_mm256_setzero_ps(); R]; N];
    for (sums, stored) in sums.iter_mut().zip(&*stored) {
        for (register, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a panel has 4 registers of 8 values.
            *sum = unsafe { _mm256_loadu_ps(stored.as_ptr().add(8 * (FROM + register))) };
        }
    }
    let first = x[inputs.start..].as_ptr();
    // Rows from the fourth on are addressed relative to the fourth, so that each address is one register plus a
    // multiple of another.
    let (mut x, mut lines) = ([first, first.wrapping_add(3 * d_in)], lines);
    let mut fetched = ahead.start;
    for _ in 0..inputs.len() / UNROLLED {
        if ahead.step > 0 {
            (0..UNROLLED * ahead.step).step_by(LINE).for_each(|at| prefetch(fetched.wrapping_add(at)));
            fetched = fetched.wrapping_add(UNROLLED * ahead.step);
        }
        for number in 0..UNROLLED {
            // SAFETY: this function enables the target features; each row has this input, and there are lines for it.
            unsafe { add_products::<L, N, R, FROM>(&mut sums, x, d_in, lines, number) };
        }
        x = x.map(|x| x.wrapping_add(UNROLLED));
        lines = lines.wrapping_add(UNROLLED * L::LINES);
    }
    for number in 0..inputs.len() % UNROLLED {
        // SAFETY: as above.
        unsafe { add_products::<L, N, R, FROM>(&mut sums, x, d_in, lines, number) };
    }
    for (sums, stored) in sums.iter().zip(stored) {
        for (register, sum) in sums.iter().enumerate() {
            // SAFETY: as for loading.
            unsafe { _mm256_storeu_ps(stored.as_mut_ptr().add(8 * (FROM + register)), *sum) };
        }
    }
}

/// Adds the products with the weights of the input `number` places further on. `x` points to that input's place in the
/// first row and in the fourth.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_products<L: PanelLine, const N: usize, const R: usize, const FROM: usize>(
    sums: &mut [[std::arch::x86_64::__m256; R]; N],
    x: [*const f32; 2],
    d_in: usize,
    lines: *const L,
    number: usize,
) {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps};
    // SAFETY: there are `LINES` lines per input.
    let lines = unsafe { lines.add(number * L::LINES) };
    // SAFETY: as above.
    let weights: [_; R] = std::array::from_fn(|register| unsafe { L::load_eight(lines, FROM + register) });
    for (row, sums) in sums.iter_mut().enumerate() {
        let x = x[row / 3].wrapping_add(row % 3 * d_in + number);
        // SAFETY: each row has this input.
        let x = _mm256_set1_ps(unsafe { *x });
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = _mm256_fmadd_ps(x, weights, *sum);
        }
    }
}
