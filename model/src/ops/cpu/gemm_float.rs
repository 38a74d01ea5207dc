//! Rows times one panel of f32, f16 or bf16.
//!
//! Every output is one chain of multiply-adds (fused where the machine has that) along the inner dimension, in order,
//! starting from zero.

#[cfg(target_arch = "x86_64")]
use std::{cell::RefCell, ops::Range};

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::prefetch::{LINE, prefetch};
use super::{
    BASELINE_IS_FUSED, Isa, isa, multiply_add,
    panel_layout::{Line, PANEL},
};

/// Rows of the input per kernel call: 12 rows of 2 registers leave 8 of the 32 AVX-512 registers.
const MAX_ROWS: usize = 12;
/// Prefetch distance in bytes. At the end of a panel it reaches into the next one.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 3 << 11;
/// Prefetch distance for the two-pass kernel; must exceed one chunk.
#[cfg(target_arch = "x86_64")]
const AHEAD_IN_TURNS: usize = 3 << 12;
/// Inputs per pass of the two-pass kernel: their weights, 12 KB in f32, and as much that is being prefetched fit into
/// L1, and sums are seldom stored and loaded again.
#[cfg(target_arch = "x86_64")]
const CHUNK: usize = 96;

/// Blocks of rows after the first ones from which a 16-bit panel is widened to f32 once, instead of once per block.
#[cfg(target_arch = "x86_64")]
const WIDENED_FROM: usize = 4;

/// Rows `r` and `r + 16` of a panel in bf16, the second in the upper half: a shift and a mask widen a line to two registers.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Bf16Pair(u32);

/// The values of a panel's 32 rows at one input, in one or two cache lines.
pub(super) trait PanelLine: Copy + Send + Sync + 'static {
    /// Lines per input.
    const LINES: usize;
    /// A line of zeros.
    const ZERO: Self;
    /// Bytes per input.
    #[cfg(target_arch = "x86_64")]
    const BYTES: usize = Self::LINES * size_of::<Self>();

    /// Stores the value of row `row` at one input, rounded to the nearest, in lines that hold [`ZERO`](Self::ZERO) at
    /// that row.
    fn store(lines: &mut [Self], row: usize, value: f32);

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
    const ZERO: Self = Line([0.0; 16]);

    #[inline(always)]
    fn store(lines: &mut [Self], row: usize, value: f32) {
        lines[row / 16].0[row % 16] = value;
    }

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|row| lines[row / 16].0[row % 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::_mm512_load_ps;
        // SAFETY: the caller guarantees two lines, and lines are aligned to 64 bytes.
        unsafe { [_mm512_load_ps(lines.cast()), _mm512_load_ps(lines.add(1).cast())] }
    }
}

impl PanelLine for Line<f16, 32> {
    const LINES: usize = 1;
    const ZERO: Self = Line([f16::ZERO; 32]);

    #[inline(always)]
    fn store(lines: &mut [Self], row: usize, value: f32) {
        lines[0].0[row] = f16::from_f32(value);
    }

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|row| lines[0].0[row].to_f32())
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm512_cvtph_ps};
        let halves = lines.cast::<__m256i>();
        // SAFETY: the caller guarantees one line of 64 bytes, aligned as such.
        unsafe { [_mm512_cvtph_ps(_mm256_load_si256(halves)), _mm512_cvtph_ps(_mm256_load_si256(halves.add(1)))] }
    }
}

impl PanelLine for Line<Bf16Pair, 16> {
    const LINES: usize = 1;
    const ZERO: Self = Line([Bf16Pair(0); 16]);

    #[inline(always)]
    fn store(lines: &mut [Self], row: usize, value: f32) {
        lines[0].0[row % 16].0 |= u32::from(bf16::from_f32(value).to_bits()) << (row / 16 * 16);
    }

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|row| {
            let pair = lines[0].0[row % 16].0;
            f32::from_bits(if row < 16 { pair << 16 } else { pair & 0xffff_0000 })
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{
            _mm512_and_si512, _mm512_castsi512_ps, _mm512_load_si512, _mm512_set1_epi32, _mm512_slli_epi32,
        };
        // SAFETY: the caller guarantees one line of 64 bytes, aligned as such.
        let pairs = unsafe { _mm512_load_si512(lines.cast()) };
        let high = _mm512_and_si512(pairs, _mm512_set1_epi32(-1 << 16));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high)]
    }
}

/// Multiplies the rows of `x [n_rows, d_in]` by one panel; `store` gets each row's number and sums.
pub(super) fn multiply_rows<L: PanelLine>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    let isa = isa();
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        return unsafe { avx512(x, lines, d_in, store) };
    }
    for (number, block) in x.chunks(MAX_ROWS * d_in).enumerate() {
        let store = |row: usize, sums: &[f32; PANEL]| store(number * MAX_ROWS + row, sums);
        match isa {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
            // SAFETY: `isa` found the instructions.
            Isa::Avx512 | Isa::Avx2 => unsafe { avx2(block, lines, d_in, store) },
            Isa::Baseline => portable::<L, BASELINE_IS_FUSED>(block, lines, d_in, store),
        }
    }
}

/// The first rows load the panel from memory, the others find it in a cache. If the first ones are too many for one
/// kernel call, they go in two halves, [`CHUNK`] inputs at a time: memory is then read continuously, not only while the
/// first half computes.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512<L: PanelLine>(x: &[f32], lines: &[L], d_in: usize, mut store: impl FnMut(usize, &[f32; PANEL])) {
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
        unsafe { avx512_block::<L, 1>(Rows { x: first, d_in, inputs: 0..d_in }, lines, 0, sums) };
        store_all(sums);
    } else {
        let sums = &mut [[0.0; PANEL]; 2 * MAX_ROWS][..n_first];
        let half = n_first.div_ceil(2);
        for start in (0..d_in).step_by(CHUNK) {
            let inputs = start..d_in.min(start + CHUNK);
            for (part, (x, sums)) in first.chunks(half * d_in).zip(sums.chunks_mut(half)).enumerate() {
                // SAFETY: as above.
                unsafe { avx512_block::<L, 2>(Rows { x, d_in, inputs: inputs.clone() }, lines, part, sums) };
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
                unsafe { avx512_block::<_, 0>(Rows { x, d_in, inputs: 0..d_in }, widened, 0, sums) };
                store_all(sums);
            }
        });
    }
    for x in rest {
        let sums = &mut [[0.0; PANEL]; MAX_ROWS][..x.len() / d_in];
        // SAFETY: as above.
        unsafe { avx512_block::<L, 0>(Rows { x, d_in, inputs: 0..d_in }, lines, 0, sums) };
        store_all(sums);
    }
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// A panel in f32.
    static WIDENED: RefCell<Vec<Line<f32, 16>>> = const { RefCell::new(Vec::new()) };
}

/// Replaces the contents of `widened` with the panel in f32.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw stores")]
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
#[cfg(target_arch = "x86_64")]
struct Rows<'a> {
    x: &'a [f32],
    d_in: usize,
    inputs: Range<usize>,
}

/// Adds the products of up to [`MAX_ROWS`] rows to `sums`, and prefetches the `part`th of `N_PARTS` parts of the
/// weights ahead (nothing if `N_PARTS` is 0).
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512_block<L: PanelLine, const N_PARTS: usize>(
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
                $($n => unsafe { avx512_rows::<L, $n, N_PARTS>(rows, lines, part, sums) },)*
                n => unreachable!("{n} rows at a time, where {MAX_ROWS} is the maximum"),
            }
        }};
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512_rows<L: PanelLine, const N: usize, const N_PARTS: usize>(
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

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<L: PanelLine>(block: &[f32], lines: &[L], d_in: usize, store: impl FnMut(usize, &[f32; PANEL])) {
    portable::<L, true>(block, lines, d_in, store);
}

/// Plain Rust, which the compiler vectorizes: two rows at a time, as 16 registers of 8 values allow.
#[inline(always)]
fn portable<L: PanelLine, const FUSED: bool>(
    block: &[f32],
    lines: &[L],
    d_in: usize,
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    for (number, rows) in block.chunks(2 * d_in).enumerate() {
        if rows.len() == 2 * d_in {
            let [first, second] = portable_rows::<L, FUSED, 2>(rows, lines, d_in);
            store(2 * number, &first);
            store(2 * number + 1, &second);
        } else {
            let [only] = portable_rows::<L, FUSED, 1>(rows, lines, d_in);
            store(2 * number, &only);
        }
    }
}

/// The sums of `N` rows. Their number is known at compile time, and nothing in the inner loop can panic: otherwise the
/// compiler uses scalar instructions.
#[inline(always)]
fn portable_rows<L: PanelLine, const FUSED: bool, const N: usize>(
    x: &[f32],
    lines: &[L],
    d_in: usize,
) -> [[f32; PANEL]; N] {
    let rows: [&[f32]; N] = std::array::from_fn(|n| &x[n * d_in..][..d_in]);
    let mut sums = [[0.0; PANEL]; N];
    for (input, lines) in lines.chunks_exact(L::LINES).take(d_in).enumerate() {
        let weights = L::widen(lines);
        for (row, sums) in rows.iter().zip(&mut sums) {
            let x = row[input];
            for (sum, weight) in sums.iter_mut().zip(&weights) {
                *sum = multiply_add::<FUSED>(x, *weight, *sum);
            }
        }
    }
    sums
}
