//! Rows of the input, rounded to 8 bits as they go into a product with weights of few bits.

use std::ops::Range;

use super::{
    BASELINE_IS_FUSED, Isa,
    crew::{self, SharedMut},
    isa,
    rowwise::for_each_isa,
};
use crate::ops::BLOCK_SIZE as BLOCK;

/// Rows of the input that a kernel takes at a time: 6 rows of 2 sums and 2 running sums leave 8 of the 32 registers.
pub(super) const MAX_ROWS: usize = 6;

/// Values of the input below which other threads cost more than they bring.
const PARALLEL_WORK: usize = 1 << 15;
const PIECES_PER_THREAD: usize = 4;

/// 1.5 * 2^23: what is added to it loses its fraction.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Rows of the input, rounded to 8 bits in blocks. They lie in groups of [`MAX_ROWS`], as kernels take them: in each, the
/// first blocks of all its rows, then the second ones, and so on.
pub(super) struct QuantRows {
    n_rows: usize,
    pub(super) n_blocks: usize,
    blocks: Vec<RoundedBlock>,
}

impl QuantRows {
    /// Rounds `x`, rows of `d_in` values, to go with weights that are stored with `offset`.
    pub(super) fn new(x: &[f32], d_in: usize, offset: i32) -> Self {
        let (n_rows, n_blocks) = (x.len() / d_in, d_in.div_ceil(BLOCK));
        let mut blocks = vec![RoundedBlock::default(); n_rows * n_blocks];
        let shared = SharedMut::new(&mut blocks);
        let n_groups = n_rows.div_ceil(MAX_ROWS);
        let round = |groups: Range<usize>| {
            let rows = groups.start * MAX_ROWS..n_rows.min(groups.end * MAX_ROWS);
            #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
            // SAFETY: each group is rounded by one piece of work.
            let blocks = unsafe { shared.part(rows.start * n_blocks..rows.end * n_blocks) };
            round_rows(&x[rows.start * d_in..rows.end * d_in], d_in, offset, blocks);
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
    pub(super) fn blocks(&self, first: usize, number: usize) -> &[RoundedBlock] {
        let n = MAX_ROWS.min(self.n_rows - first);
        &self.blocks[first * self.n_blocks + number * n..][..n]
    }

    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }
}

for_each_isa!(round_rows(x: &[f32], d_in: usize, offset: i32, blocks: &mut [RoundedBlock]) = round_rows_body);

/// Whole groups of rows; the last one may be smaller.
#[inline(always)]
fn round_rows_body<const FUSED: bool>(x: &[f32], d_in: usize, offset: i32, blocks: &mut [RoundedBlock]) {
    let n_blocks = d_in.div_ceil(BLOCK);
    for (x, blocks) in x.chunks(MAX_ROWS * d_in).zip(blocks.chunks_mut(MAX_ROWS * n_blocks)) {
        let n = x.len() / d_in;
        for (row, x) in x.chunks_exact(d_in).enumerate() {
            for (x, rounded) in x.chunks(BLOCK).zip(blocks[row..].iter_mut().step_by(n)) {
                match x.as_array() {
                    Some(x) => rounded.round(x, offset),
                    None => {
                        let mut padded = [0.0; BLOCK];
                        padded[..x.len()].copy_from_slice(x);
                        rounded.round(&padded, offset);
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
    pub(super) values: [i32; BLOCK / 4],
    pub(super) scale: f32,
    /// What the sum of products starts at: what the weights' offset adds to it, taken away.
    pub(super) start: i32,
}

impl RoundedBlock {
    /// Adding [`ROUND`] puts the nearest whole number into the low bits. All loops are over whole numbers, which may be
    /// put together in any order, so the compiler vectorises them.
    #[inline(always)]
    fn round(&mut self, block: &[f32; BLOCK], offset: i32) {
        // The bits of positive numbers are in the order of the numbers.
        let largest = block.iter().fold(0, |most: u32, value| most.max(value.abs().to_bits()));
        self.scale = f32::from_bits(largest) / 127.0;
        let inverse = if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale };
        let rounded = block.map(|value| (value * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()));
        self.start =
            offset.wrapping_neg().wrapping_mul(rounded.iter().fold(0, |sum: u32, n| sum.wrapping_add(*n)) as i32);
        let bytes = rounded.map(|n| n as u8);
        for (values, bytes) in self.values.iter_mut().zip(bytes.as_chunks().0) {
            *values = i32::from_le_bytes(*bytes);
        }
    }

    /// The rounded value of an input.
    #[cfg(test)]
    pub(super) fn value(&self, input: usize) -> i8 {
        self.values[input / 4].to_le_bytes()[input % 4].cast_signed()
    }
}
