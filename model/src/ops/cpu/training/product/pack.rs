//! Operands of a product, copied to where its innermost loops read them one after the other.

use std::ops::Range;

use super::{OperandPacking, View, tile::STEP};
#[cfg(target_arch = "x86_64")]
use crate::ops::cpu::{Isa, isa};
use crate::ops::cpu::{Panels, for_each_isa, has_fast_bf16_products, panel_layout::PANEL, prefetch::prefetch};

/// Prefetch distance in lines, where the lines to copy are not contiguous.
const LINES_AHEAD: usize = 16;

/// Prefetch distance, in values of each row, for transposing: there are more rows than the hardware prefetcher can
/// follow.
#[cfg(target_arch = "x86_64")]
const VALUES_AHEAD: usize = 64;

/// Lines of f32 that are rounded at a time.
const LINES: usize = 64;

/// Puts the columns of `matrix`, at most [`PANEL`], side by side: `[n_rows, PANEL]`, undefined after the last column.
/// As [`OperandPacking::Pairs`], a word has the values of two rows: `[n_rows / 2, PANEL]`, and 0 after the last row.
pub(super) fn pack_columns(panel: &mut [f32], matrix: View<'_>, form: OperandPacking) {
    pack_as::<PANEL>(panel, matrix.transposed(), form);
}

/// [`pack_columns`] of some rows of a stored matrix, from the first of a panel on, and some of its columns.
pub(super) fn pack_stored_columns(
    packed: &mut [f32],
    matrix: &Panels,
    rows: Range<usize>,
    cols: Range<usize>,
    form: OperandPacking,
) {
    let mut lines = [[0.0; PANEL]; PANEL];
    let lines = &mut lines[..cols.len()];
    for row in rows.clone().step_by(PANEL) {
        matrix.widen(row / PANEL, cols.start, lines);
        let n_rows = PANEL.min(rows.end - row);
        let widened = View::new(lines.as_flattened(), [cols.len(), n_rows], PANEL).transposed();
        pack_columns(&mut packed[(row - rows.start) / form.per_word() * PANEL..], widened, form);
    }
}

/// [`pack_columns`] of the transpose of a stored matrix: panel `panel`, and some of its inputs.
pub(super) fn pack_stored_rows(
    packed: &mut [f32],
    matrix: &Panels,
    panel: usize,
    inputs: Range<usize>,
    form: OperandPacking,
) {
    if form == OperandPacking::Plain {
        return matrix.widen(panel, inputs.start, &mut packed.as_chunks_mut().0[..inputs.len()]);
    }
    let mut lines = [[0.0; PANEL]; LINES];
    for first in inputs.clone().step_by(LINES) {
        let lines = &mut lines[..LINES.min(inputs.end - first)];
        matrix.widen(panel, first, lines);
        let widened = View::new(lines.as_flattened(), [lines.len(), PANEL], PANEL);
        pack_columns(&mut packed[(first - inputs.start) / form.per_word() * PANEL..], widened, form);
    }
}

/// Puts the rows of `matrix`, at most [`STEP`], side by side: `[n_cols, STEP]`, or as [`OperandPacking::Pairs`]
/// `[n_cols / 2, STEP]`. Values after the last row are not used.
pub(super) fn pack_rows(packed: &mut [f32], matrix: View<'_>, form: OperandPacking) {
    pack_as::<STEP>(packed, matrix, form);
}

fn pack_as<const WIDTH: usize>(packed: &mut [f32], matrix: View<'_>, form: OperandPacking) {
    match form {
        OperandPacking::Plain => pack::<WIDTH>(packed, matrix),
        OperandPacking::Rounded => {
            pack::<WIDTH>(packed, matrix);
            round(&mut packed[..matrix.n_cols * WIDTH]);
        }
        OperandPacking::Pairs => pack_pairs::<WIDTH>(packed, matrix),
    }
}

for_each_isa!(round(values: &mut [f32]) = round_body);

/// Rounds values to the nearest bf16, of two that are equally near to the even one.
#[inline(always)]
fn round_body<const FUSED: bool>(values: &mut [f32]) {
    for value in values {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
        *value = if value.is_nan() { *value } else { f32::from_bits(rounded) };
    }
}

/// [`pack`], rounded to bf16: word `[n, row]` has values `2 n` (its lower half) and `2 n + 1` of a row.
fn pack_pairs<const WIDTH: usize>(packed: &mut [f32], matrix: View<'_>) {
    assert!(has_fast_bf16_products());
    let mut lines = [[0.0; WIDTH]; LINES];
    let words = &mut packed.as_chunks_mut::<WIDTH>().0[..matrix.n_cols.div_ceil(2)];
    for (n, words) in words.chunks_mut(LINES / 2).enumerate() {
        let cols = n * LINES..matrix.n_cols.min((n + 1) * LINES);
        lines[cols.len()..].fill([0.0; WIDTH]);
        pack::<WIDTH>(lines.as_flattened_mut(), matrix.part(0..matrix.n_rows, cols));
        for (words, [low, high]) in words.iter_mut().zip(lines.as_chunks::<2>().0) {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
            // SAFETY: the caller has asserted that there are such instructions.
            unsafe {
                round_pairs(words, low, high);
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (words, low, high);
        }
    }
}

/// Rounds `low` and `high` to bf16, the halves of each word.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn round_pairs<const WIDTH: usize>(words: &mut [f32; WIDTH], low: &[f32; WIDTH], high: &[f32; WIDTH]) {
    use std::{
        arch::x86_64::{
            __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_permutexvar_epi16,
            _mm512_storeu_si512,
        },
        array,
        mem::transmute,
    };
    const { assert!(WIDTH.is_multiple_of(16)) };
    // The lower half of `halves` has the values of `low`, the upper half the values of `high`: interleaves them.
    let turns: [u16; 32] = array::from_fn(|n| (n / 2 + n % 2 * 16) as u16);
    for first in (0..WIDTH).step_by(16) {
        // SAFETY: 16 values from `first` on are in each array; vectors of bf16 and of integers have the same size, and
        // all bits are valid.
        unsafe {
            let turns = _mm512_loadu_si512(turns.as_ptr().cast());
            let (low, high) = (_mm512_loadu_ps(low.as_ptr().add(first)), _mm512_loadu_ps(high.as_ptr().add(first)));
            let halves: __m512i = transmute(_mm512_cvtne2ps_pbh(high, low));
            let mixed = _mm512_permutexvar_epi16(turns, halves);
            _mm512_storeu_si512(words.as_mut_ptr().add(first).cast(), mixed);
        }
    }
}

/// Puts the rows of `matrix`, at most `WIDTH`, side by side: `[n_cols, WIDTH]`, undefined after the last row.
fn pack<const WIDTH: usize>(packed: &mut [f32], matrix: View<'_>) {
    let View { values, n_rows, n_cols, row_stride, col_stride } = matrix;
    let lines = &mut packed.as_chunks_mut::<WIDTH>().0[..n_cols];
    if row_stride == 1 {
        for (n, line) in lines.iter_mut().enumerate() {
            let from = &values[n * col_stride..];
            let ahead = from.as_ptr().wrapping_add(LINES_AHEAD * col_stride);
            (0..WIDTH).step_by(16).for_each(|first| prefetch(ahead.wrapping_add(first)));
            // Copies a whole line, although values after the last row may belong to something else.
            match from.first_chunk::<WIDTH>() {
                Some(from) => *line = *from,
                None => {
                    line[..n_rows].copy_from_slice(&from[..n_rows]);
                    line[n_rows..].fill(0.0);
                }
            }
        }
        return;
    }
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "other targets have no faster way"))]
    let mut n_packed = 0;
    #[cfg(target_arch = "x86_64")]
    if col_stride == 1 {
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        unsafe {
            n_packed = match isa() {
                Isa::Avx512 => pack_blocks(lines, matrix, |from, lines, first| transpose_16(from, lines, first)),
                Isa::AvxVnni | Isa::Avx2 => {
                    pack_blocks(lines, matrix, |from, lines, first| transpose_8(from, lines, first))
                }
                _ => 0,
            };
        }
    }
    for (n, line) in lines.iter_mut().enumerate().skip(n_packed) {
        for (row, value) in line.iter_mut().enumerate() {
            *value = if row < n_rows { values[row * row_stride + n * col_stride] } else { 0.0 };
        }
    }
}

/// [`pack`] for contiguous rows, in blocks of `BLOCK` rows and `BLOCK` values. `transpose` writes a block to its `lines`, from
/// a column on; its view has fewer rows at the end of the matrix. Returns the number of lines written: only whole blocks.
#[cfg(target_arch = "x86_64")]
fn pack_blocks<const WIDTH: usize, const BLOCK: usize>(
    lines: &mut [[f32; WIDTH]],
    matrix: View<'_>,
    transpose: impl Fn(View<'_>, &mut [[f32; WIDTH]; BLOCK], usize),
) -> usize {
    let View { values, n_rows, row_stride, .. } = matrix;
    let blocks = lines.as_chunks_mut::<BLOCK>().0;
    for (number, lines) in blocks.iter_mut().enumerate() {
        for first in (0..WIDTH).step_by(BLOCK) {
            let start = (first * row_stride + number * BLOCK).min(values.len());
            let n_rows = n_rows.saturating_sub(first).min(BLOCK);
            transpose(View { values: &values[start..], n_rows, ..matrix }, lines, first);
        }
    }
    blocks.len() * BLOCK
}

/// Puts 8 values of each row of `from`, at most 8 rows, into columns `first ..` of 8 lines.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_8<const WIDTH: usize>(from: View<'_>, lines: &mut [[f32; WIDTH]; 8], first: usize) {
    use std::arch::x86_64::{
        _mm_loadu_ps, _mm_setzero_ps, _mm256_castpd_ps, _mm256_castps_pd, _mm256_set_m128, _mm256_storeu_ps,
        _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
    };
    let View { values, n_rows, row_stride, .. } = from;
    assert!(n_rows == 0 || (n_rows - 1) * row_stride + 8 <= values.len(), "rows beyond their slice");
    assert!(n_rows <= 8 && first + 8 <= WIDTH, "columns beyond their lines");
    (0..n_rows).for_each(|row| prefetch(values.as_ptr().wrapping_add(row * row_stride + VALUES_AHEAD)));
    for half in [0, 4] {
        let load = |row: usize| {
            // SAFETY: asserted above.
            if row < n_rows {
                unsafe { _mm_loadu_ps(values.as_ptr().add(row * row_stride + half)) }
            } else {
                _mm_setzero_ps()
            }
        };
        // Four values of two rows that lie four apart. Single values of two of them are interleaved, then pairs of values.
        let [a, b, c, d] = [0, 1, 2, 3].map(|row| _mm256_set_m128(load(row + 4), load(row)));
        let [low, high] = [
            [_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d)],
            [_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d)],
        ]
        .map(|pair| pair.map(|values| _mm256_castps_pd(values)));
        let columns = [
            _mm256_unpacklo_pd(low[0], low[1]),
            _mm256_unpackhi_pd(low[0], low[1]),
            _mm256_unpacklo_pd(high[0], high[1]),
            _mm256_unpackhi_pd(high[0], high[1]),
        ];
        for (line, column) in lines[half..].iter_mut().zip(columns) {
            // SAFETY: asserted above.
            unsafe { _mm256_storeu_ps(line.as_mut_ptr().add(first), _mm256_castpd_ps(column)) };
        }
    }
}

/// Puts 16 values of each row of `from`, at most 16 rows, into columns `first ..` of 16 lines.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads and stores")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_16<const WIDTH: usize>(from: View<'_>, lines: &mut [[f32; WIDTH]; 16], first: usize) {
    use std::arch::x86_64::{
        _mm512_castpd_ps, _mm512_castps_pd, _mm512_loadu_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps,
        _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };
    let View { values, n_rows, row_stride, .. } = from;
    assert!(n_rows == 0 || (n_rows - 1) * row_stride + 16 <= values.len(), "rows beyond their slice");
    assert!(n_rows <= 16 && first + 16 <= WIDTH, "columns beyond their lines");
    let mut rows = [_mm512_setzero_ps(); 16];
    for (n, row) in rows.iter_mut().enumerate().take(n_rows) {
        // SAFETY: asserted above.
        *row = unsafe { _mm512_loadu_ps(values.as_ptr().add(n * row_stride)) };
        prefetch(values.as_ptr().wrapping_add(n * row_stride + VALUES_AHEAD));
    }
    // Interleaves single values of two rows, then pairs of values of four rows, then groups of four of sixteen rows.
    for pair in rows.as_chunks_mut::<2>().0 {
        *pair = [_mm512_unpacklo_ps(pair[0], pair[1]), _mm512_unpackhi_ps(pair[0], pair[1])];
    }
    for four in rows.as_chunks_mut::<4>().0 {
        let [a, b, c, d] = four.map(|row| _mm512_castps_pd(row));
        let mixed =
            [_mm512_unpacklo_pd(a, c), _mm512_unpackhi_pd(a, c), _mm512_unpacklo_pd(b, d), _mm512_unpackhi_pd(b, d)];
        *four = mixed.map(|row| _mm512_castpd_ps(row));
    }
    for n in 0..4 {
        let (low, high) = ((rows[n], rows[4 + n]), (rows[8 + n], rows[12 + n]));
        let a = _mm512_shuffle_f32x4::<0x44>(low.0, low.1);
        let b = _mm512_shuffle_f32x4::<0xee>(low.0, low.1);
        let c = _mm512_shuffle_f32x4::<0x44>(high.0, high.1);
        let d = _mm512_shuffle_f32x4::<0xee>(high.0, high.1);
        let columns = [
            _mm512_shuffle_f32x4::<0x88>(a, c),
            _mm512_shuffle_f32x4::<0xdd>(a, c),
            _mm512_shuffle_f32x4::<0x88>(b, d),
            _mm512_shuffle_f32x4::<0xdd>(b, d),
        ];
        for (quarter, column) in columns.into_iter().enumerate() {
            // SAFETY: asserted above.
            unsafe { _mm512_storeu_ps(lines[4 * quarter + n].as_mut_ptr().add(first), column) };
        }
    }
}
