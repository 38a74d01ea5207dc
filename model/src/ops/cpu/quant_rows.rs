//! Rows of the input, quantized to 8 bits for products with quantized weights.

use std::{array, ops::Range};

use super::{
    Isa, isa,
    thread_pool::{self, SharedMut},
};
use crate::ops::BLOCK_SIZE as BLOCK;

/// Rows of the input per kernel call: 6 rows of 2 sums and 2 running sums leave 8 of the 32 registers.
pub(super) const MAX_ROWS: usize = 6;

/// Values of the input below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 15;
const PIECES_PER_THREAD: usize = 4;

/// 1.5 * 2^23: adding it to a small number rounds that to an integer.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Rows of the input, quantized to 8 bits in blocks. They are in groups of [`MAX_ROWS`], as kernels take them: in each
/// group the first blocks of all its rows, then the second ones, and so on.
pub(super) struct QuantRows {
    n_rows: usize,
    pub(super) n_blocks: usize,
    blocks: Vec<RoundedBlock>,
}

impl QuantRows {
    /// Quantizes `x`, rows of `d_in` values, with the correction that the weights' format needs.
    pub(super) fn new(x: &[f32], d_in: usize, correction: InputCorrection) -> Self {
        let (n_rows, n_blocks) = (x.len() / d_in, d_in.div_ceil(BLOCK));
        let mut blocks = vec![RoundedBlock::default(); n_rows * n_blocks];
        let shared = SharedMut::new(&mut blocks);
        let n_groups = n_rows.div_ceil(MAX_ROWS);
        let round = |groups: Range<usize>| {
            let rows = groups.start * MAX_ROWS..n_rows.min(groups.end * MAX_ROWS);
            #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
            // SAFETY: each group is rounded by one piece of work.
            let blocks = unsafe { shared.part(rows.start * n_blocks..rows.end * n_blocks) };
            round_rows(&x[rows.start * d_in..rows.end * d_in], d_in, correction, blocks);
        };
        if x.len() < PARALLEL_WORK {
            round(0..n_groups);
        } else {
            let n_pieces = n_groups.min(thread_pool::n_threads() * PIECES_PER_THREAD);
            thread_pool::parallel_for(n_pieces, |n| round(n_groups * n / n_pieces..n_groups * (n + 1) / n_pieces));
        }
        Self { n_rows, n_blocks, blocks }
    }

    /// Block `number` of each row in the group that begins at row `first`.
    #[inline(always)]
    pub(super) fn blocks(&self, first: usize, number: usize) -> &[RoundedBlock] {
        let n = MAX_ROWS.min(self.n_rows - first);
        &self.blocks[first * self.n_blocks + number * n..][..n]
    }

    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }
}

/// Quantizes whole groups of rows; the last one may be smaller.
fn round_rows(x: &[f32], d_in: usize, correction: InputCorrection, blocks: &mut [RoundedBlock]) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 => unsafe { round_rows_avx512(x, d_in, correction, blocks) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx2 | Isa::AvxVnni => unsafe { round_rows_avx2(x, d_in, correction, blocks) },
        _ => each_block(x, d_in, blocks, |x| RoundedBlock::new(x, correction)),
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn round_rows_avx512(x: &[f32], d_in: usize, correction: InputCorrection, blocks: &mut [RoundedBlock]) {
    // SAFETY: this function enables the target features.
    each_block(x, d_in, blocks, |x| unsafe { RoundedBlock::new_avx512(x, correction) });
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx2,fma")]
unsafe fn round_rows_avx2(x: &[f32], d_in: usize, correction: InputCorrection, blocks: &mut [RoundedBlock]) {
    // SAFETY: this function enables the target features.
    each_block(x, d_in, blocks, |x| unsafe { RoundedBlock::new_avx2(x, correction) });
}

#[inline(always)]
fn each_block(x: &[f32], d_in: usize, blocks: &mut [RoundedBlock], round: impl Fn(&[f32; BLOCK]) -> RoundedBlock) {
    let n_blocks = d_in.div_ceil(BLOCK);
    for (x, blocks) in x.chunks(MAX_ROWS * d_in).zip(blocks.chunks_mut(MAX_ROWS * n_blocks)) {
        let n = x.len() / d_in;
        for (row, x) in x.chunks_exact(d_in).enumerate() {
            let (whole, rest) = x.as_chunks();
            let mut blocks = blocks[row..].iter_mut().step_by(n);
            whole.iter().zip(&mut blocks).for_each(|(x, block)| *block = round(x));
            if let Some(block) = blocks.next() {
                let mut padded = [0.0; BLOCK];
                padded[..rest.len()].copy_from_slice(rest);
                *block = round(&padded);
            }
        }
    }
}

/// Per-block correction that the kernel needs: the offset's share of the sum, or the block's sum. Blocks are read once
/// per panel, so all kinds share one field.
#[derive(Clone, Copy, Debug)]
pub(super) enum InputCorrection {
    /// Minus the sum of the block times this offset, with which the weights are stored.
    Offset(i32),
    /// As [`Offset`](Self::Offset), for each half of the block.
    HalfOffsets(i32),
    /// The sum of the quantized values times the scale, which multiplies the weights' minimum.
    Sum,
    /// As [`Sum`](Self::Sum), for each half of the block.
    HalfSums,
    /// Both [`Offset`](Self::Offset) with this offset and [`Sum`](Self::Sum).
    OffsetAndSum(i32),
}

/// 32 values of the input, quantized to 8 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RoundedBlock {
    /// Four signed bytes per integer, the first lowest: the unit that kernels broadcast.
    pub(super) values: [i32; BLOCK / 4],
    pub(super) scale: f32,
    /// See [`InputCorrection`].
    correction: i32,
}

impl RoundedBlock {
    #[inline(always)]
    fn new(block: &[f32; BLOCK], correction: InputCorrection) -> Self {
        // Bits of numbers without a sign compare as the numbers do, and NaN compares as the largest: it must not be
        // rounded to 0.
        let largest = f32::from_bits(block.iter().fold(0, |most, value| most.max(value.abs().to_bits())));
        let (scale, inverse) = Self::scale(largest);
        // The low byte of the sum is the rounded number, without a conversion instruction.
        let bytes: [u8; BLOCK] = array::from_fn(|n| (block[n] * inverse + ROUND).to_bits() as u8);
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| i32::from(byte.cast_signed())).sum();
        let sums = [sum(&bytes[..BLOCK / 2]), sum(&bytes[BLOCK / 2..])];
        let values = array::from_fn(|n| i32::from_le_bytes(bytes.as_chunks().0[n]));
        Self::of(values, scale, sums, correction)
    }

    /// A block with these values, whose halves have these sums.
    #[inline(always)]
    fn of(values: [i32; BLOCK / 4], scale: f32, [left, right]: [i32; 2], correction: InputCorrection) -> Self {
        let correction = match correction {
            InputCorrection::Offset(offset) => -offset * (left + right),
            // Both fit into 16 bits: at most 16 times 127.
            InputCorrection::HalfOffsets(_) | InputCorrection::HalfSums => right << 16 | left & 0xffff,
            InputCorrection::OffsetAndSum(_) => left + right,
            InputCorrection::Sum => ((left + right) as f32 * scale).to_bits().cast_signed(),
        };
        Self { values, scale, correction }
    }

    /// The initial value of the sum of products over the block, or over its half `half`.
    #[inline(always)]
    pub(super) fn start(&self, correction: InputCorrection, half: usize) -> i32 {
        match correction {
            InputCorrection::Offset(_) => self.correction,
            InputCorrection::HalfOffsets(offset) => self.half_sum(half) * -offset,
            InputCorrection::OffsetAndSum(offset) => self.correction * -offset,
            InputCorrection::Sum | InputCorrection::HalfSums => 0,
        }
    }

    /// The sum of the quantized values times the scale, over the block or over its half `half`; for corrections that
    /// have it.
    #[inline(always)]
    pub(super) fn sum(&self, correction: InputCorrection, half: usize) -> f32 {
        match correction {
            InputCorrection::HalfSums => self.half_sum(half) as f32 * self.scale,
            InputCorrection::OffsetAndSum(_) => self.correction as f32 * self.scale,
            _ => f32::from_bits(self.correction.cast_unsigned()),
        }
    }

    /// The sum of the quantized values of one half.
    #[inline(always)]
    fn half_sum(&self, half: usize) -> i32 {
        self.correction << (16 * (1 - half)) >> 16
    }

    /// The same bits as [`new`](Self::new) in a fifth of the time: the compiler adds lanes one by one.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    unsafe fn new_avx512(block: &[f32; BLOCK], correction: InputCorrection) -> Self {
        use std::arch::x86_64::{
            _mm_storeu_si128, _mm512_abs_ps, _mm512_add_ps, _mm512_castps_si512, _mm512_cvtepi32_epi8, _mm512_loadu_ps,
            _mm512_max_epu32, _mm512_mul_ps, _mm512_reduce_add_epi32, _mm512_reduce_max_epu32, _mm512_set1_ps,
            _mm512_sub_epi32,
        };
        // SAFETY: two registers of 16 values are the array of 32.
        let [left, right] = unsafe { [_mm512_loadu_ps(block.as_ptr()), _mm512_loadu_ps(block.as_ptr().add(16))] };
        // Positive floats compare like their bits.
        let bits = |x| _mm512_castps_si512(_mm512_abs_ps(x));
        let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(bits(left), bits(right)));
        let (scale, inverse) = Self::scale(f32::from_bits(largest));
        let (inverse, round) = (_mm512_set1_ps(inverse), _mm512_set1_ps(ROUND));
        let whole = |x| {
            let sum = _mm512_add_ps(_mm512_mul_ps(x, inverse), round);
            _mm512_sub_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(round))
        };
        let (left, right) = (whole(left), whole(right));
        let mut values = [0; BLOCK / 4];
        // SAFETY: two registers of 16 bytes are the array of 32.
        unsafe {
            _mm_storeu_si128(values.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(left));
            _mm_storeu_si128(values.as_mut_ptr().add(4).cast(), _mm512_cvtepi32_epi8(right));
        }
        Self::of(values, scale, [left, right].map(|half| _mm512_reduce_add_epi32(half)), correction)
    }

    /// The same bits as [`new`](Self::new), but faster, as [`new_avx512`](Self::new_avx512).
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn new_avx2(block: &[f32; BLOCK], correction: InputCorrection) -> Self {
        use std::arch::x86_64::{
            __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_max_epu32, _mm_shuffle_epi32, _mm256_add_epi32,
            _mm256_add_ps, _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
            _mm256_loadu_ps, _mm256_max_epu32, _mm256_mul_ps, _mm256_packs_epi16, _mm256_packs_epi32,
            _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_storeu_si256,
            _mm256_sub_epi32,
        };
        // Reduces the eight 32-bit lanes of a register to one number.
        macro_rules! reduce {
            ($x:expr, $join:ident) => {{
                let x: __m256i = $x;
                let four = $join(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
                let two = $join(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                _mm_cvtsi128_si32($join(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
            }};
        }
        // SAFETY: four registers of 8 values are the array of 32.
        let x: [_; 4] = array::from_fn(|n| unsafe { _mm256_loadu_ps(block.as_ptr().add(8 * n)) });
        // Positive floats compare like their bits.
        let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)));
        let most = _mm256_max_epu32(_mm256_max_epu32(bits[0], bits[1]), _mm256_max_epu32(bits[2], bits[3]));
        let largest = f32::from_bits(reduce!(most, _mm_max_epu32).cast_unsigned());
        let (scale, inverse) = Self::scale(largest);
        let (inverse, round) = (_mm256_set1_ps(inverse), _mm256_set1_ps(ROUND));
        let whole = x.map(|x| {
            let sum = _mm256_add_ps(_mm256_mul_ps(x, inverse), round);
            _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_castps_si256(round))
        });
        let sums =
            [[0, 1], [2, 3]].map(|[one, other]| reduce!(_mm256_add_epi32(whole[one], whole[other]), _mm_add_epi32));
        // Packing works on halves of registers: the permutation puts the fours in order.
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        let mut values = [0; BLOCK / 4];
        // SAFETY: a register is the array of 32 bytes.
        unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), bytes) };
        Self::of(values, scale, sums, correction)
    }

    /// The scale that makes `largest` 127, and its inverse.
    #[inline(always)]
    fn scale(largest: f32) -> (f32, f32) {
        let scale = largest / 127.0;
        (scale, if scale == 0.0 { 0.0 } else { 1.0 / scale })
    }

    /// The quantized value of an input.
    #[cfg(test)]
    pub(super) fn value(&self, input: usize) -> i8 {
        self.values[input / 4].to_le_bytes()[input % 4].cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, noise, with_isa};

    #[test]
    fn quantizing_non_finite_inputs_gives_a_non_finite_block_scale() {
        for not_finite in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut x = noise(2 * BLOCK, 1);
            x[5] = not_finite;
            for level in every_isa() {
                let blocks = with_isa(level, || QuantRows::new(&x, 2 * BLOCK, InputCorrection::Sum).blocks);
                assert!(!blocks[0].scale.is_finite(), "{not_finite} with {level:?}");
                assert!(blocks[1].scale.is_finite(), "the block beside it with {level:?}");
            }
        }
    }

    #[test]
    fn input_quantization_is_bit_identical_across_instruction_sets() {
        let (n_rows, d_in) = (7, 100);
        let mut x = noise(n_rows * d_in, 1);
        x[..BLOCK].fill(0.0);
        x[BLOCK..2 * BLOCK].iter_mut().for_each(|value| *value *= 1e6);
        // The most negative numbers.
        x[2 * BLOCK..3 * BLOCK].fill(-1.0);
        for correction in [
            InputCorrection::Offset(128),
            InputCorrection::HalfOffsets(32),
            InputCorrection::Sum,
            InputCorrection::HalfSums,
            InputCorrection::OffsetAndSum(128),
        ] {
            let rounded = || QuantRows::new(&x, d_in, correction).blocks;
            for level in every_isa() {
                assert_eq!(with_isa(level, rounded), rounded(), "{level:?}");
            }
            let [first, second, third] = [0, MAX_ROWS, 2 * MAX_ROWS].map(|n| rounded()[n]);
            assert_eq!((first.values, first.scale, first.correction), ([0; BLOCK / 4], 0.0, 0));
            let whole = |block: RoundedBlock| (0..BLOCK).map(|input| i32::from(block.value(input))).collect::<Vec<_>>();
            assert!(whole(second).iter().any(|value| value.abs() == 127));
            assert_eq!(whole(third), [-127; BLOCK]);
            for (value, whole) in x[BLOCK..].iter().zip(whole(second)) {
                assert!((value - whole as f32 * second.scale).abs() <= 0.501 * second.scale, "{value}, {whole}");
            }
            for block in [second, third] {
                let sums = [0, 16].map(|half| whole(block)[half..][..16].iter().sum::<i32>());
                match correction {
                    InputCorrection::Offset(_) => assert_eq!(block.start(correction, 0), -128 * (sums[0] + sums[1])),
                    InputCorrection::HalfOffsets(_) => {
                        assert_eq!([0, 1].map(|half| block.start(correction, half)), sums.map(|sum| -32 * sum));
                    }
                    InputCorrection::Sum => {
                        assert_eq!(block.sum(correction, 0), (sums[0] + sums[1]) as f32 * block.scale);
                        assert_eq!(block.start(correction, 0), 0);
                    }
                    InputCorrection::OffsetAndSum(_) => {
                        assert_eq!(block.start(correction, 0), -128 * (sums[0] + sums[1]));
                        assert_eq!(block.sum(correction, 0), (sums[0] + sums[1]) as f32 * block.scale);
                    }
                    InputCorrection::HalfSums => {
                        let expected = sums.map(|sum| sum as f32 * block.scale);
                        assert_eq!([0, 1].map(|half| block.sum(correction, half)), expected);
                        assert_eq!(block.start(correction, 1), 0);
                    }
                }
            }
        }
    }
}
