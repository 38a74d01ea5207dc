//! Bodies for AVX-512: 32 registers of 16 values.

use std::{cell::RefCell, ops::Range};

use super::{Line, PANEL, PanelLine};
use crate::ops::cpu::prefetch::{LINE, prefetch};

/// Rows of the input per kernel call: 12 rows of 2 registers leave 8 of the 32.
const MAX_ROWS: usize = 12;
/// Prefetch distance in bytes. At the end of a panel it reaches into the next one.
const AHEAD: usize = 3 << 11;
/// Prefetch distance for the two-pass kernel; must exceed one chunk.
const AHEAD_IN_TURNS: usize = 3 << 12;
/// Inputs per pass of the two-pass kernel: their weights, 12 KB in f32, and as much that is being prefetched fit into
/// L1, and sums are seldom stored and loaded again.
const CHUNK: usize = 96;
/// Blocks of rows after the first ones from which a 16-bit panel is widened to f32 once, instead of once per block.
const WIDENED_FROM: usize = 4;

/// The first rows load the panel from memory, the others find it in a cache. If the first ones are too many for one
/// kernel call, they go in two halves, [`CHUNK`] inputs at a time: memory is then read continuously, not only while the
/// first half computes.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn multiply<L: PanelLine>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    let n_rows = x.len() / d_in;
    let mut n_stored = 0;
    let mut store_all = |sums: &[[f32; PANEL]]| {
        sums.iter().for_each(|sums| {
            store(n_stored, sums);
            n_stored += 1;
        });
    };
    let first = &x[..n_rows.min(2 * MAX_ROWS) * d_in];
    let n_first = first.len() / d_in;
    if n_first <= MAX_ROWS {
        let sums = &mut [[0.0; PANEL]; MAX_ROWS][..n_first];
        // SAFETY: this function's own target features.
        unsafe { block::<L, 1>(Rows { x: first, d_in, inputs: 0..d_in }, lines, 0, sums) };
        store_all(sums);
    } else {
        let sums = &mut [[0.0; PANEL]; 2 * MAX_ROWS][..n_first];
        let half = n_first.div_ceil(2);
        for start in (0..d_in).step_by(CHUNK) {
            let inputs = start..d_in.min(start + CHUNK);
            for (part, (x, sums)) in first.chunks(half * d_in).zip(sums.chunks_mut(half)).enumerate() {
                // SAFETY: as above.
                unsafe { block::<L, 2>(Rows { x, d_in, inputs: inputs.clone() }, lines, part, sums) };
            }
        }
        store_all(sums);
    }
    let rest = x[first.len()..].chunks(MAX_ROWS * d_in);
    if L::BYTES < size_of::<[f32; PANEL]>() && rest.len() >= WIDENED_FROM {
        return WIDENED.with_borrow_mut(|widened| {
            // SAFETY: as above.
            unsafe { widen(lines, widened) };
            for x in rest {
                let sums = &mut [[0.0; PANEL]; MAX_ROWS][..x.len() / d_in];
                // SAFETY: as above.
                unsafe { block::<_, 0>(Rows { x, d_in, inputs: 0..d_in }, widened, 0, sums) };
                store_all(sums);
            }
        });
    }
    for x in rest {
        let sums = &mut [[0.0; PANEL]; MAX_ROWS][..x.len() / d_in];
        // SAFETY: as above.
        unsafe { block::<L, 0>(Rows { x, d_in, inputs: 0..d_in }, lines, 0, sums) };
        store_all(sums);
    }
}

thread_local! {
    /// A panel in f32.
    static WIDENED: RefCell<Vec<Line<f32, 16>>> = const { RefCell::new(Vec::new()) };
}

/// Replaces the contents of `widened` with the panel in f32.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn widen<L: PanelLine>(lines: &[L], widened: &mut Vec<Line<f32, 16>>) {
    use std::arch::x86_64::_mm512_store_ps;
    widened.resize(2 * lines.len() / L::LINES, Line([0.0; 16]));
    for (lines, widened) in lines.chunks_exact(L::LINES).zip(widened.as_chunks_mut::<2>().0) {
        // SAFETY: this function's own target features, and these are the lines of one input.
        let values = unsafe { L::load(lines.as_ptr()) };
        for (widened, values) in widened.iter_mut().zip(values) {
            // SAFETY: a line is 16 values, aligned to 64 bytes.
            unsafe { _mm512_store_ps(widened.0.as_mut_ptr(), values) };
        }
    }
}

/// Some inputs of some rows.
struct Rows<'a> {
    x: &'a [f32],
    d_in: usize,
    inputs: Range<usize>,
}

/// Adds the products of up to [`MAX_ROWS`] rows to `sums`, and prefetches the `part`th of `N_PARTS` parts of the
/// weights ahead (nothing if `N_PARTS` is 0).
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn block<L: PanelLine, const N_PARTS: usize>(
    rows: Rows<'_>,
    lines: &[L],
    part: usize,
    sums: &mut [[f32; PANEL]],
) {
    // One kernel per number of rows, so that the compiler keeps all sums in registers.
    macro_rules! rows {
        ($($n:literal)*) => {{
            const _: () = assert!([$($n),*].len() == MAX_ROWS, "one kernel per number of rows");
            match sums.len() {
                0 => {}
                // SAFETY: this function's own target features, and the lengths are checked within.
                $($n => unsafe { block_of::<L, $n, N_PARTS>(rows, lines, part, sums) },)*
                n => unreachable!("{n} rows at a time, where {MAX_ROWS} is the maximum"),
            }
        }};
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn block_of<L: PanelLine, const N: usize, const N_PARTS: usize>(
    Rows { x, d_in, inputs }: Rows<'_>,
    lines: &[L],
    part: usize,
    stored: &mut [[f32; PANEL]],
) {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps};
    assert!(x.len() == N * d_in && lines.len() == L::LINES * d_in && inputs.end <= d_in && stored.len() == N);
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    for (sums, stored) in sums.iter_mut().zip(&*stored) {
        // SAFETY: two registers of 16 values are the array of 32.
        *sums = unsafe { [_mm512_loadu_ps(stored.as_ptr()), _mm512_loadu_ps(stored.as_ptr().add(16))] };
    }
    let lines = lines.as_ptr();
    // Each part of the rows prefetches its part of the next inputs' lines.
    let skipped = part * inputs.len() * L::BYTES / N_PARTS.max(1);
    let ahead = if N_PARTS == 1 { AHEAD } else { AHEAD_IN_TURNS };
    let fetched = lines.wrapping_byte_add(inputs.start * L::BYTES + skipped + ahead);
    for (number, input) in inputs.enumerate() {
        // SAFETY: there are `LINES` lines per input and `d_in` values per row: asserted above.
        let [left, right] = unsafe { L::load(lines.add(input * L::LINES)) };
        match N_PARTS {
            0 => {}
            1 => (0..L::BYTES).step_by(LINE).for_each(|at| prefetch(fetched.wrapping_byte_add(number * L::BYTES + at))),
            _ => prefetch(fetched.wrapping_byte_add(number * L::BYTES / N_PARTS)),
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = _mm512_set1_ps(unsafe { *x.get_unchecked(row * d_in + input) });
            sums[0] = _mm512_fmadd_ps(x, left, sums[0]);
            sums[1] = _mm512_fmadd_ps(x, right, sums[1]);
        }
    }
    for (sums, stored) in sums.iter().zip(stored) {
        // SAFETY: as for loading.
        unsafe {
            _mm512_storeu_ps(stored.as_mut_ptr(), sums[0]);
            _mm512_storeu_ps(stored.as_mut_ptr().add(16), sums[1]);
        }
    }
}
