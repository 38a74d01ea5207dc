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
const PARALLEL_WORK: usize = 1 << 13;
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
    pub(super) fn blocks(&self, first: usize, number: usize) -> &[RoundedBlock] {
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
    pub(super) values: [i32; BLOCK / 4],
    pub(super) scale: f32,
    /// Of the rounded values.
    pub(super) sum: i32,
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
    pub(super) fn value(&self, input: usize) -> i8 {
        self.values[input / 4].to_le_bytes()[input % 4].cast_signed()
    }
}
