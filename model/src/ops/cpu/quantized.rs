//! `x W^T + b` over weights of 8 or 4 bits.
//!
//! Weights are symmetric in blocks of 32 along the inner dimension, each with an f16 scale, as in GGUF's `Q8_0` and
//! `Q4_0`. A row of the input is rounded to 8 bits in the same blocks, by itself; products are summed exactly, in i32,
//! within a block, and the blocks' sums are added in order, in f32. So a row's outputs do not depend on its neighbours.
//!
//! In memory, the 32 rows of a panel lie side by side and every register holds 4 inputs of 16 rows: what `vpdpbusd`
//! multiplies and adds in one go. It takes unsigned by signed bytes, so weights are stored with an offset, and the
//! offset times the sum of the input's block is where the sum starts.

use std::{array, ops::Range};

use half::f16;
use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::fetch::fetch_ahead;
use super::{
    BASELINE_IS_FUSED, Isa,
    crew::{self, SharedMut},
    huge_pages::Stored,
    isa, multiply_add,
    panels::{Line, PANEL},
    rowwise::for_each_isa,
};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock, QuantizedMatrix};

/// Rows of the input that a kernel takes at a time: 6 rows of 2 sums and 2 running sums leave 8 of the 32 registers.
pub(super) const MAX_ROWS: usize = 6;

/// Values of the input below which other threads cost more than they bring.
const PARALLEL_WORK: usize = 1 << 13;
const PIECES_PER_THREAD: usize = 4;
/// 1.5 * 2^23: what is added to it loses its fraction.
const ROUND: f32 = 12_582_912.0;

/// 32 inputs of the 32 rows of a panel.
pub(super) trait QuantBlock: Copy + Send + Sync {
    /// What is added to a weight to make it unsigned.
    const OFFSET: i32;

    /// Rounds one row's 32 weights.
    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock;

    /// Lays out the 32 rows' blocks.
    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self;

    /// The rows' scales.
    fn scales(&self) -> &Line<f16, PANEL>;

    /// The stored number, offset included, of a row and an input.
    fn stored(&self, row: usize, input: usize) -> u8;

    /// The stored numbers of inputs `4 group ..`, four of them, of all rows.
    fn group(&self, group: usize) -> [[u8; 4]; PANEL];

    /// Inputs `8 half ..` and `8 half + 4 ..`, four each, of rows 0 to 15 and of rows 16 to 31.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load(&self, half: usize) -> [[std::arch::x86_64::__m512i; 2]; 2];

    /// Inputs `4 group ..`, four of them, of rows 0 to 7, 8 to 15, 16 to 23 and 24 to 31.
    ///
    /// # Safety
    /// The machine must have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
    unsafe fn load_group(&self, group: usize) -> [std::arch::x86_64::__m256i; 4];

    /// The weight that is stored.
    #[cfg(test)]
    fn weight(&self, row: usize, input: usize) -> f32 {
        (i32::from(self.stored(row, input)) - Self::OFFSET) as f32 * self.scales().0[row].to_f32()
    }
}

/// 8 bits a weight: `-127..=127` times the scale; 8.5 bits with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q8Block {
    scales: Line<f16, PANEL>,
    /// For every 4 inputs: rows 0 to 15, then rows 16 to 31.
    values: [Line<u8, 64>; 16],
}

impl QuantBlock for Q8Block {
    const OFFSET: i32 = 128;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        let scale = f16::from_f32(largest(weights) / 127.0);
        let inverse = inverse(scale);
        QuantizedBlock { scale, values: weights.map(|weight| whole((weight * inverse).clamp(-127.0, 127.0)) as i8) }
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let mut block = Self { scales: Line(array::from_fn(|row| rows[row].scale)), values: [Line([0; 64]); 16] };
        for (row, QuantizedBlock { values, .. }) in rows.iter().enumerate() {
            for (input, value) in values.iter().enumerate() {
                // Plus the offset, as an unsigned byte.
                block.values[input / 4 * 2 + row / 16].0[row % 16 * 4 + input % 4] = value.cast_unsigned() ^ 0x80;
            }
        }
        block
    }

    fn scales(&self) -> &Line<f16, PANEL> {
        &self.scales
    }

    fn stored(&self, row: usize, input: usize) -> u8 {
        self.values[input / 4 * 2 + row / 16].0[row % 16 * 4 + input % 4]
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| self.values[2 * group + row / 16].0.as_chunks::<4>().0[row % 16])
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[std::arch::x86_64::__m512i; 2]; 2] {
        use std::arch::x86_64::_mm512_load_si512;
        // SAFETY: a line is 64 bytes, aligned as such.
        let load = |line: usize| unsafe { _mm512_load_si512(self.values[line].0.as_ptr().cast()) };
        [[load(4 * half), load(4 * half + 1)], [load(4 * half + 2), load(4 * half + 3)]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_group(&self, group: usize) -> [std::arch::x86_64::__m256i; 4] {
        // SAFETY: a line is 64 bytes, aligned as such: two registers.
        array::from_fn(|n| unsafe { half_line(&self.values[2 * group + n / 2], n % 2) })
    }
}

/// 4 bits a weight: `-8..=7` times the scale; 4.5 bits with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q4Block {
    scales: Line<f16, PANEL>,
    /// For every 8 inputs: rows 0 to 15, then rows 16 to 31; the first 4 inputs in the low halves of the bytes.
    values: [Line<u8, 64>; 8],
}

impl QuantBlock for Q4Block {
    const OFFSET: i32 = 8;

    fn quantize(weights: &[f32; BLOCK]) -> QuantizedBlock {
        let mut scale = 0.0;
        search_q4_scale(weights, &mut scale);
        let scale = f16::from_f32(scale);
        let inverse = inverse(scale);
        QuantizedBlock { scale, values: weights.map(|weight| q4_level(weight * inverse) as i8) }
    }

    fn pack(rows: &[QuantizedBlock; PANEL]) -> Self {
        let mut block = Self { scales: Line(array::from_fn(|row| rows[row].scale)), values: [Line([0; 64]); 8] };
        for (row, QuantizedBlock { values, .. }) in rows.iter().enumerate() {
            for (input, value) in values.iter().enumerate() {
                let stored = (value + Self::OFFSET as i8).cast_unsigned();
                let byte = &mut block.values[input / 8 * 2 + row / 16].0[row % 16 * 4 + input % 4];
                *byte |= if input % 8 < 4 { stored } else { stored << 4 };
            }
        }
        block
    }

    fn scales(&self) -> &Line<f16, PANEL> {
        &self.scales
    }

    fn stored(&self, row: usize, input: usize) -> u8 {
        let byte = self.values[input / 8 * 2 + row / 16].0[row % 16 * 4 + input % 4];
        if input % 8 < 4 { byte & 0x0f } else { byte >> 4 }
    }

    #[inline(always)]
    fn group(&self, group: usize) -> [[u8; 4]; PANEL] {
        array::from_fn(|row| {
            let bytes = self.values[group / 2 * 2 + row / 16].0.as_chunks::<4>().0[row % 16];
            if group.is_multiple_of(2) { bytes.map(|byte| byte & 0x0f) } else { bytes.map(|byte| byte >> 4) }
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn load(&self, half: usize) -> [[std::arch::x86_64::__m512i; 2]; 2] {
        use std::arch::x86_64::{_mm512_and_si512, _mm512_load_si512, _mm512_set1_epi8, _mm512_srli_epi16};
        // SAFETY: a line is 64 bytes, aligned as such.
        let load = |line: usize| unsafe { _mm512_load_si512(self.values[line].0.as_ptr().cast()) };
        let low = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(0x0f));
        let [left, right] = [load(2 * half), load(2 * half + 1)];
        [[low(left), low(right)], [low(_mm512_srli_epi16::<4>(left)), low(_mm512_srli_epi16::<4>(right))]]
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load_group(&self, group: usize) -> [std::arch::x86_64::__m256i; 4] {
        use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi8, _mm256_srli_epi16};
        array::from_fn(|n| {
            // SAFETY: as above.
            let bytes = unsafe { half_line(&self.values[group / 2 * 2 + n / 2], n % 2) };
            let bytes = if group.is_multiple_of(2) { bytes } else { _mm256_srli_epi16::<4>(bytes) };
            _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f))
        })
    }
}

/// Half a line of bytes.
///
/// # Safety
/// The machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "raw loads in the innermost loop")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn half_line(line: &Line<u8, 64>, half: usize) -> std::arch::x86_64::__m256i {
    // SAFETY: a line is 64 bytes, aligned as such.
    unsafe { std::arch::x86_64::_mm256_load_si256(line.0.as_ptr().cast::<std::arch::x86_64::__m256i>().add(half)) }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, value| most.max(value.abs()))
}

fn inverse(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

/// The nearest whole number of a small value. Adding 1.5 * 2^23 rounds without a call, so the compiler vectorises it.
#[inline(always)]
fn whole(value: f32) -> f32 {
    (value + ROUND) - ROUND
}

/// The numbers of 8 bits that are nearest to `weights`.
pub fn nearest_q8(weights: &[f32; BLOCK]) -> QuantizedBlock {
    Q8Block::quantize(weights)
}

/// The nearest of the 16 levels.
#[inline(always)]
fn q4_level(value: f32) -> f32 {
    whole(value.clamp(-8.0, 7.0))
}

for_each_isa!(search_q4_scale(weights: &[f32; BLOCK], scale: &mut f32) = search_q4_scale_body);

/// The scale with the smallest sum of squared errors that a search finds. It puts the value farthest from zero at a level
/// from -5 to -9 (beyond -8 it is cut off), so that the side with the larger values has the extra level, rounds with
/// that, and takes the scale that fits those levels best.
#[inline(always)]
fn search_q4_scale_body<const FUSED: bool>(weights: &[f32; BLOCK], scale: &mut f32) {
    const STEPS: usize = 32;
    const LANES: usize = 16;
    let extreme = weights.iter().fold(0.0, |most: f32, value| if value.abs() > most.abs() { *value } else { most });
    let mut best = 0.0;
    *scale = 0.0;
    for step in 0..=STEPS {
        let inverse = -(5.0 + 4.0 * step as f32 / STEPS as f32) / extreme;
        let (mut dots, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for weights in weights.as_chunks::<LANES>().0 {
            for ((weight, dot), square) in weights.iter().zip(&mut dots).zip(&mut squares) {
                let level = q4_level(weight * inverse);
                *dot += weight * level;
                *square += level * level;
            }
        }
        let (dot, square): (f32, f32) = (dots.iter().sum(), squares.iter().sum());
        // For these levels the best scale is `dot / square`, and leaves `|weights|^2 - dot^2 / square`.
        if dot * dot > best * square {
            best = dot * dot / square;
            *scale = dot / square;
        }
    }
}

/// Rounds `values`, `[d_out, d_in]` in row order, into panels of blocks; filled up with zeros in both directions.
pub(super) fn lay_out<B: QuantBlock>(values: &[f32], d_out: usize, d_in: usize) -> Stored<B> {
    from_rows(d_out, d_in.div_ceil(BLOCK), |row, number| {
        let inputs = number * BLOCK..d_in.min((number + 1) * BLOCK);
        let mut weights = [0.0; BLOCK];
        weights[..inputs.len()].copy_from_slice(&values[row * d_in..][inputs]);
        B::quantize(&weights)
    })
}

/// Lays out a matrix that is rounded already.
pub(super) fn pack<B: QuantBlock>(matrix: &QuantizedMatrix) -> Stored<B> {
    let [d_out, d_in] = matrix.dims();
    from_rows(d_out, d_in.div_ceil(BLOCK), |row, number| matrix.row(row)[number])
}

/// Panels of blocks from a function of row and block.
fn from_rows<B: QuantBlock>(
    d_out: usize,
    n_blocks: usize,
    block: impl Fn(usize, usize) -> QuantizedBlock + Sync,
) -> Stored<B> {
    let zeros = QuantizedBlock { scale: f16::ZERO, values: [0; BLOCK] };
    let packed = |panel: usize, number: usize| {
        B::pack(&array::from_fn(|lane| {
            let row = panel * PANEL + lane;
            if row < d_out { block(row, number) } else { zeros }
        }))
    };
    Stored::new(d_out.div_ceil(PANEL) * n_blocks, B::pack(&[zeros; PANEL]), |blocks| {
        blocks.par_iter_mut().enumerate().for_each(|(n, block)| *block = packed(n / n_blocks, n % n_blocks));
    })
}

/// The blocks of row `row` of the matrix that `panels` holds, `n_blocks` to a row.
pub(super) fn unpack_row<B: QuantBlock>(panels: &[B], n_blocks: usize, row: usize) -> Vec<QuantizedBlock> {
    let panel = &panels[row / PANEL * n_blocks..][..n_blocks];
    let lane = row % PANEL;
    let unpack = |block: &B| QuantizedBlock {
        scale: block.scales().0[lane],
        values: array::from_fn(|input| (i32::from(block.stored(lane, input)) - B::OFFSET) as i8),
    };
    panel.iter().map(unpack).collect()
}

/// Rows of the input, rounded to 8 bits in blocks. They lie in groups of [`MAX_ROWS`], as kernels take them: in each, the
/// first blocks of all its rows, then the second ones, and so on.
pub(super) struct QuantRows {
    n_rows: usize,
    n_blocks: usize,
    blocks: Vec<RoundedBlock>,
}

impl QuantRows {
    /// Rounds `x`, rows of `d_in` values.
    pub(super) fn new(x: &[f32], d_in: usize) -> Self {
        let (n_rows, n_blocks) = (x.len() / d_in, d_in.div_ceil(BLOCK));
        let mut blocks = vec![RoundedBlock::default(); n_rows * n_blocks];
        let shared = SharedMut::new(&mut blocks);
        let n_groups = n_rows.div_ceil(MAX_ROWS);
        let round = |groups: Range<usize>| {
            let rows = groups.start * MAX_ROWS..n_rows.min(groups.end * MAX_ROWS);
            #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
            // SAFETY: each group is rounded by one piece of work.
            let blocks = unsafe { shared.part(rows.start * n_blocks..rows.end * n_blocks) };
            round_rows(&x[rows.start * d_in..rows.end * d_in], d_in, blocks);
        };
        if x.len() < PARALLEL_WORK {
            round(0..n_groups);
        } else {
            let n_pieces = n_groups.min(crew::n_threads() * PIECES_PER_THREAD);
            crew::share(n_pieces, |n| round(n_groups * n / n_pieces..n_groups * (n + 1) / n_pieces));
        }
        Self { n_rows, n_blocks, blocks }
    }

    /// The blocks `number` of the rows from `first` on that go together.
    #[inline(always)]
    fn blocks(&self, first: usize, number: usize) -> &[RoundedBlock] {
        let n = MAX_ROWS.min(self.n_rows - first);
        &self.blocks[first * self.n_blocks + number * n..][..n]
    }

    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }
}

for_each_isa!(round_rows(x: &[f32], d_in: usize, blocks: &mut [RoundedBlock]) = round_rows_body);

/// Whole groups of rows; the last one may be smaller.
#[inline(always)]
fn round_rows_body<const FUSED: bool>(x: &[f32], d_in: usize, blocks: &mut [RoundedBlock]) {
    let n_blocks = d_in.div_ceil(BLOCK);
    for (x, blocks) in x.chunks(MAX_ROWS * d_in).zip(blocks.chunks_mut(MAX_ROWS * n_blocks)) {
        let n = x.len() / d_in;
        for (row, x) in x.chunks_exact(d_in).enumerate() {
            for (x, rounded) in x.chunks(BLOCK).zip(blocks[row..].iter_mut().step_by(n)) {
                match x.as_array() {
                    Some(x) => rounded.round(x),
                    None => {
                        let mut padded = [0.0; BLOCK];
                        padded[..x.len()].copy_from_slice(x);
                        rounded.round(&padded);
                    }
                }
            }
        }
    }
}

/// 32 values of the input, rounded to 8 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundedBlock {
    /// Four signed bytes to a number, the first lowest, as they are broadcast.
    values: [i32; BLOCK / 4],
    scale: f32,
    sum: i32,
}

impl RoundedBlock {
    #[inline(always)]
    fn round(&mut self, block: &[f32; BLOCK]) {
        let mut largest = [0.0; 8];
        for values in block.as_chunks::<8>().0 {
            for (largest, value) in largest.iter_mut().zip(values) {
                *largest = if value.abs() > *largest { value.abs() } else { *largest };
            }
        }
        self.scale = largest.into_iter().fold(0.0, f32::max) / 127.0;
        let inverse = if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale };
        // As `whole`, but the low byte of the sum is the number: no conversion.
        let mut bytes = [0; BLOCK];
        for (byte, value) in bytes.iter_mut().zip(block) {
            *byte = (value * inverse + ROUND).to_bits() as u8;
        }
        self.sum = bytes.iter().map(|&byte| i32::from(byte.cast_signed())).sum();
        for (values, bytes) in self.values.iter_mut().zip(bytes.as_chunks().0) {
            *values = i32::from_le_bytes(*bytes);
        }
    }

    /// The rounded value of an input.
    #[cfg(test)]
    fn value(&self, input: usize) -> i8 {
        self.values[input / 4].to_le_bytes()[input % 4].cast_signed()
    }
}

/// Rows `first ..` (at most [`MAX_ROWS`]) against one panel; `store` is given each row's sums.
pub(super) fn multiply_rows<B: QuantBlock>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    store: impl FnMut(usize, &[f32; PANEL]),
) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: both instruction sets were found.
        Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => unsafe { vnni(rows, first, panel, store) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 | Isa::Avx2 => unsafe { avx2(rows, first, panel, store) },
        Isa::Baseline => portable::<B, BASELINE_IS_FUSED>(rows, first, panel, store),
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni<B: QuantBlock>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    macro_rules! rows {
        ($($n:literal)*) => {
            match (rows.n_rows() - first).min(MAX_ROWS) {
                // SAFETY: this function's own target features, and the lengths are checked within.
                $($n => unsafe { vnni_rows::<B, $n>(rows, first, panel, &mut store) },)*
                _ => {}
            }
        };
    }
    rows!(1 2 3 4 5 6);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni_rows<B: QuantBlock, const N: usize>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    store: &mut impl FnMut(usize, &[f32; PANEL]),
) {
    use std::arch::x86_64::{
        __m256i, _mm256_load_si256, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
        _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };
    assert!(panel.len() == rows.n_blocks);
    let mut totals = [[_mm512_setzero_ps(); 2]; N];
    for (number, block) in panel.iter().enumerate() {
        // Later rows find it in a cache.
        if first == 0 {
            fetch_ahead(block);
        }
        let inputs = rows.blocks(first, number).as_array::<N>();
        let inputs = inputs.unwrap_or_else(|| unreachable!("the caller counted the rows"));
        let mut sums: [[_; 2]; N] = array::from_fn(|row| [_mm512_set1_epi32(-B::OFFSET * inputs[row].sum); 2]);
        for half in 0..4 {
            // SAFETY: this function's own target features.
            for (part, weights) in unsafe { block.load(half) }.into_iter().enumerate() {
                for (input, sums) in inputs.iter().zip(&mut sums) {
                    let x = _mm512_set1_epi32(input.values[2 * half + part]);
                    sums[0] = _mm512_dpbusd_epi32(sums[0], weights[0], x);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], weights[1], x);
                }
            }
        }
        let scales = block.scales().0.as_ptr().cast::<__m256i>();
        // SAFETY: a line of 32 f16 is 64 bytes, aligned as such.
        let scales =
            unsafe { [_mm512_cvtph_ps(_mm256_load_si256(scales)), _mm512_cvtph_ps(_mm256_load_si256(scales.add(1)))] };
        for ((totals, sums), input) in totals.iter_mut().zip(sums).zip(inputs) {
            let x_scale = _mm512_set1_ps(input.scale);
            for part in 0..2 {
                let scale = _mm512_mul_ps(scales[part], x_scale);
                totals[part] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[part]), scale, totals[part]);
            }
        }
    }
    for (row, totals) in totals.iter().enumerate() {
        let mut values = [0.0; PANEL];
        // SAFETY: two registers of 16 values fill the array of 32.
        unsafe {
            _mm512_storeu_ps(values.as_mut_ptr(), totals[0]);
            _mm512_storeu_ps(values.as_mut_ptr().add(16), totals[1]);
        }
        store(row, &values);
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<B: QuantBlock>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    use std::arch::x86_64::{
        __m128i, _mm_load_si128, _mm_set1_epi32, _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepi8_epi16,
        _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtph_ps, _mm256_extracti128_si256, _mm256_fmadd_ps,
        _mm256_hadd_epi32, _mm256_madd_epi16, _mm256_mul_ps, _mm256_permute4x64_epi64, _mm256_set1_epi32,
        _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_ps,
    };
    for row in 0..MAX_ROWS.min(rows.n_rows() - first) {
        let mut totals = [_mm256_setzero_ps(); 4];
        for (number, block) in panel.iter().enumerate() {
            let input = &rows.blocks(first, number)[row];
            // Two numbers to each of four rows, which are added up at the end.
            let mut sums = [_mm256_setzero_si256(); 8];
            for (group, x) in input.values.iter().enumerate() {
                let x = _mm256_cvtepi8_epi16(_mm_set1_epi32(*x));
                // SAFETY: this function's own target features.
                for (n, weights) in unsafe { block.load_group(group) }.into_iter().enumerate() {
                    let low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(weights));
                    let high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(weights));
                    sums[2 * n] = _mm256_add_epi32(sums[2 * n], _mm256_madd_epi16(low, x));
                    sums[2 * n + 1] = _mm256_add_epi32(sums[2 * n + 1], _mm256_madd_epi16(high, x));
                }
            }
            let offset = _mm256_set1_epi32(-B::OFFSET * input.sum);
            let x_scale = _mm256_set1_ps(input.scale);
            for (n, total) in totals.iter_mut().enumerate() {
                // Rows 0, 1, 4, 5, 2, 3, 6, 7, and then in order.
                let pairs = _mm256_hadd_epi32(sums[2 * n], sums[2 * n + 1]);
                let sum = _mm256_add_epi32(_mm256_permute4x64_epi64::<0b11_01_10_00>(pairs), offset);
                // SAFETY: a line of 32 f16 is 64 bytes, aligned as such.
                let scale = unsafe { _mm_load_si128(block.scales().0.as_ptr().cast::<__m128i>().add(n)) };
                let scale = _mm256_mul_ps(_mm256_cvtph_ps(scale), x_scale);
                *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, *total);
            }
        }
        let mut values = [0.0; PANEL];
        for (values, total) in values.as_chunks_mut::<8>().0.iter_mut().zip(totals) {
            // SAFETY: a register of 8 values fills the chunk.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), total) };
        }
        store(row, &values);
    }
}

fn portable<B: QuantBlock, const FUSED: bool>(
    rows: &QuantRows,
    first: usize,
    panel: &[B],
    mut store: impl FnMut(usize, &[f32; PANEL]),
) {
    for row in 0..MAX_ROWS.min(rows.n_rows() - first) {
        let mut totals = [0.0; PANEL];
        for (number, block) in panel.iter().enumerate() {
            let input = &rows.blocks(first, number)[row];
            let mut sums = [-B::OFFSET * input.sum; PANEL];
            for (group, x) in input.values.iter().enumerate() {
                let x = x.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
                for (sum, weights) in sums.iter_mut().zip(block.group(group)) {
                    let products = weights.iter().zip(x).map(|(weight, x)| i32::from(*weight) * x);
                    *sum += products.sum::<i32>();
                }
            }
            for ((total, sum), scale) in totals.iter_mut().zip(sums).zip(&block.scales().0) {
                *total = multiply_add::<FUSED>(sum as f32, scale.to_f32() * input.scale, *total);
            }
        }
        store(row, &totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::levels::{is_fused, levels, noise, with_isa};

    fn outputs<B: QuantBlock>(rows: &QuantRows, blocks: &[B]) -> Vec<Vec<[f32; PANEL]>> {
        let mut found = vec![Vec::new(); rows.n_rows()];
        for panel in blocks.chunks(rows.n_blocks) {
            for first in (0..rows.n_rows()).step_by(MAX_ROWS) {
                multiply_rows(rows, first, panel, |row, sums| found[first + row].push(*sums));
            }
        }
        found
    }

    /// What the stored weights and the rounded input say, in f64.
    fn check<B: QuantBlock>() {
        for [d_out, d_in, n_rows] in [[1, 1, 1], [33, 31, 2], [64, 96, 7], [40, 100, 13]] {
            let blocks: Stored<B> = lay_out(&noise(d_out * d_in, 1), d_out, d_in);
            let rows = QuantRows::new(&noise(n_rows * d_in, 2), d_in);
            let found = outputs(&rows, &blocks);
            for (row, found) in found.iter().enumerate() {
                for (output, found) in found.iter().flatten().enumerate() {
                    let expected: f64 = (0..rows.n_blocks * BLOCK)
                        .map(|input| {
                            let block = &blocks[output / PANEL * rows.n_blocks + input / BLOCK];
                            let group = row / MAX_ROWS * MAX_ROWS;
                            let rounded = rows.blocks(group, input / BLOCK)[row - group];
                            let x = f64::from(rounded.value(input % BLOCK)) * f64::from(rounded.scale);
                            f64::from(block.weight(output % PANEL, input % BLOCK)) * x
                        })
                        .sum();
                    assert!((f64::from(*found) - expected).abs() < 1e-4, "{found}, expected {expected}");
                }
            }
            for level in levels().filter(|level| is_fused(*level) == is_fused(isa())) {
                assert_eq!(found, with_isa(level, || outputs(&rows, &blocks)), "{level:?}");
            }
            let alone: Vec<_> = noise(n_rows * d_in, 2)
                .chunks(d_in)
                .flat_map(|row| outputs(&QuantRows::new(row, d_in), &blocks))
                .collect();
            assert_eq!(found, alone, "rows do not depend on their neighbours");
        }
    }

    #[test]
    fn sums_are_those_of_the_definition() {
        check::<Q8Block>();
        check::<Q4Block>();
    }

    #[test]
    fn rounding_is_as_good_as_its_bits() {
        let weights = noise(32 * 32, 3);
        let rows: [[f32; BLOCK]; PANEL] = array::from_fn(|row| array::from_fn(|input| weights[row * 32 + input]));
        let error = |weight: &dyn Fn(usize, usize) -> f32| -> f32 {
            let squares = (0..32 * 32).map(|n| (weights[n] - weight(n / 32, n % 32)).powi(2));
            (squares.sum::<f32>() / weights.iter().map(|w| w * w).sum::<f32>()).sqrt()
        };
        let q8 = Q8Block::pack(&rows.map(|row| Q8Block::quantize(&row)));
        let q4 = Q4Block::pack(&rows.map(|row| Q4Block::quantize(&row)));
        let (q8, q4) = (error(&|r, i| q8.weight(r, i)), error(&|r, i| q4.weight(r, i)));
        assert!(q8 < 0.005 && q4 < 0.07, "relative errors {q8} and {q4}");
    }
}
