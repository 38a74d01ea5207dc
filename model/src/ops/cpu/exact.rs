//! Rows against one panel of f32, in as many bytes as it is held in, f16 or bf16.
//!
//! Every output is one chain of multiply-adds (fused where the machine has that) over the inner dimension, in its order,
//! starting from zero.

#[cfg(target_arch = "x86_64")]
use std::{cell::RefCell, ops::Range};

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::fetch::{LINE, fetch};
use super::{
    BASELINE_IS_FUSED, Isa, isa, multiply_add,
    panels::{Bf16Pair, Line, PANEL, Triples},
};

/// Rows of the input that a kernel takes at a time: 12 rows of 2 registers leave 8 of the 32 AVX-512 registers.
const MAX_ROWS: usize = 12;
/// How far ahead of the arithmetic weights are fetched, in bytes. At the end of a panel that is the next one.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 3 << 11;
/// The same where two kernels' rows take turns: more than what one goes through in its turn.
#[cfg(target_arch = "x86_64")]
const AHEAD_IN_TURNS: usize = 3 << 12;
/// Inputs that two kernels' rows go through in turn: their weights, 12 KB in f32, and as much that is fetched meanwhile
/// are in the smallest cache, and the sums are seldom put down and taken up again.
#[cfg(target_arch = "x86_64")]
const CHUNK: usize = 96;

/// Blocks of rows behind the first ones from which on a narrower panel is widened to f32 once instead of for each.
#[cfg(target_arch = "x86_64")]
const WIDENED_FROM: usize = 4;

/// What a panel is made of: 32 values per input.
pub(super) trait PanelLine: Copy + Sync {
    /// Lines per input.
    const LINES: usize;
    /// The bytes of those.
    #[cfg(target_arch = "x86_64")]
    const BYTES: usize = Self::LINES * size_of::<Self>();

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

impl PanelLine for Triples {
    const LINES: usize = 1;

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|lane| lines[0].widen(lane))
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{
            _mm512_castsi512_ps, _mm512_loadu_si512, _mm512_permutexvar_epi32, _mm512_set4_epi32, _mm512_setr_epi32,
            _mm512_shuffle_epi8,
        };
        // 48 bytes make a register. The second's are the upper ones of the 64 that end with the triples.
        // SAFETY: the caller vouches for 96 bytes.
        let [left, right] =
            unsafe { [_mm512_loadu_si512(lines.cast()), _mm512_loadu_si512(lines.byte_add(32).cast())] };
        // Four triples to each quarter, then every triple above a zero byte.
        let left = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11), left);
        let right =
            _mm512_permutexvar_epi32(_mm512_setr_epi32(4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12, 13, 14, 15, 15), right);
        let places = _mm512_set4_epi32(0x0b0a_0980, 0x0807_0680, 0x0504_0380, 0x0201_0080);
        [left, right].map(|values| _mm512_castsi512_ps(_mm512_shuffle_epi8(values, places)))
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

impl PanelLine for Line<Bf16Pair, 16> {
    const LINES: usize = 1;

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        std::array::from_fn(|lane| lines[0].0[lane % 16].widen()[lane / 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{
            _mm512_and_si512, _mm512_castsi512_ps, _mm512_load_si512, _mm512_set1_epi32, _mm512_slli_epi32,
        };
        // SAFETY: the caller vouches for one line of 64 bytes, aligned as such.
        let pairs = unsafe { _mm512_load_si512(lines.cast()) };
        let high = _mm512_and_si512(pairs, _mm512_set1_epi32(-1 << 16));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high)]
    }
}

/// The rows of `x [n_rows, d_in]` against one panel; `store` is given each row's sums.
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

/// The first rows bring the panel from memory, the others find it in a cache. If the first ones are too many for one
/// kernel, they go in two halves, [`CHUNK`] inputs at a time: memory is then asked for weights all the time, not only
/// while the first half computes.
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

/// The panel in f32, in place of what is in `widened`.
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

/// Up to [`MAX_ROWS`] rows: their products are added to `sums`. Of what lies ahead, the `part`th of `N_PARTS` parts is
/// fetched on the way.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512_block<L: PanelLine, const N_PARTS: usize>(
    rows: Rows<'_>,
    lines: &[L],
    part: usize,
    sums: &mut [[f32; PANEL]],
) {
    // One kernel per number of rows: the compiler keeps all sums in registers.
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
    // Each part of the rows fetches its part of the next inputs' lines.
    let skipped = part * inputs.len() * L::BYTES / N_PARTS.max(1);
    let ahead = if N_PARTS == 1 { AHEAD } else { AHEAD_IN_TURNS };
    let fetched = lines.wrapping_byte_add(inputs.start * L::BYTES + skipped + ahead);
    for (number, input) in inputs.enumerate() {
        // SAFETY: there are `LINES` lines per input and `d_in` values per row: asserted above.
        let [left, right] = unsafe { L::load(lines.add(input * L::LINES)) };
        match N_PARTS {
            0 => {}
            // What an input takes may begin on the line that the one before ended on.
            1 => (0..L::BYTES).step_by(LINE).for_each(|at| {
                if L::BYTES.is_multiple_of(LINE) || at > 0 || number.is_multiple_of(2) {
                    fetch(fetched.wrapping_byte_add(number * L::BYTES + at));
                }
            }),
            _ => fetch(fetched.wrapping_byte_add(number * L::BYTES / N_PARTS)),
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
