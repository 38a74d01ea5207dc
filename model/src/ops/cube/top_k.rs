//! The most likely tokens of rows of logits, in order.
//!
//! A workgroup sorts a tile of a row and keeps its first tokens; those are cut into tiles again until one is left.
//! Logits are compared as integers made from their bits, so that every device finds the same order, also of infinities,
//! NaN and equal logits.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    kernel::into_contiguous,
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};

use super::launch::{LANES, grid, workgroup};

/// Tokens that a workgroup sorts.
const TILE: usize = 1024;
/// The id of padding, which is sorted last.
const NONE: u32 = u32::MAX;

/// The top `n` tokens of some rows of `logits [n_all_rows, vocab_size]`, `n` below `vocab_size` and at most half a
/// tile. A row of `table [n_rows, 1 + n_also]` has the row's number, and tokens whose logits are returned whatever
/// their rank.
///
/// Returns `[n_rows, 2 n + n_also]`: ids, the bits of their logits, and the bits of the other tokens' logits.
pub(super) fn top_k(logits: CubeTensor, table: CubeTensor, [n_rows, n, n_also]: [usize; 3]) -> CubeTensor {
    let [logits, table] = [logits, table].map(into_contiguous);
    let [_, vocab_size] = logits.meta.shape().dims::<2>();
    let like = logits.clone();
    let empty = |dims: [usize; 2], dtype| {
        empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(dims), dtype)
    };
    let mut width = vocab_size;
    let mut kept: Option<CubeTensor> = None;
    loop {
        let n_tiles = width.div_ceil(TILE);
        let plan = Plan { is_first: kept.is_none(), is_last: n_tiles == 1 };
        let output = match plan.is_last {
            true => empty([n_rows, 2 * n + n_also], DType::I32),
            false => empty([n_rows, n_tiles * n], DType::U32),
        };
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: indices are kept below the width; the marker for "no token" is never used as an index; the caller guarantees
        // that the table names rows and tokens that exist.
        unsafe {
            keep_first::launch_unchecked(
                &like.client,
                grid(n_tiles, n_rows),
                CubeDim::new_1d(LANES as u32),
                logits.clone().into_buffer_arg(),
                table.clone().into_buffer_arg(),
                kept.unwrap_or_else(|| logits.clone()).into_buffer_arg(),
                output.clone().into_buffer_arg(),
                n_rows,
                vocab_size,
                width,
                n_tiles,
                n,
                n_also,
                plan,
            );
        }
        if plan.is_last {
            return output;
        }
        kept = Some(output);
        width = n_tiles * n;
    }
}

/// Writes the first column of `from [n, width]` to the first `n` numbers of `to`.
pub(super) fn copy_first_column(from: CubeTensor, to: &CubeTensor) {
    let from = into_contiguous(from);
    let [n, width] = from.meta.shape().dims::<2>();
    assert!(n <= to.meta.shape()[0], "{n} numbers");
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: a lane has one of the rows, of which there is a number in `to`.
    unsafe {
        first_column::launch_unchecked(
            &from.client,
            grid(n.div_ceil(LANES), 1),
            CubeDim::new_1d(LANES as u32),
            from.clone().into_buffer_arg(),
            to.clone().into_buffer_arg(),
            n,
            width,
        );
    }
}

#[cube(launch_unchecked)]
fn first_column(from: &[i32], to: &mut [i32], n: usize, width: usize) {
    let row = workgroup() * LANES + UNIT_POS_X as usize;
    if row < n {
        to[row] = from[row * width];
    }
}

/// A launch's position in the sequence of launches, at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    /// Whether the launch reads all tokens, not the ones that the launch before kept.
    is_first: bool,
    /// There is one tile, which writes the result.
    is_last: bool,
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn keep_first(
    logits: &[u32],
    table: &[i32],
    kept: &[u32],
    output: &mut [u32],
    n_rows: usize,
    vocab_size: usize,
    width: usize,
    n_tiles: usize,
    n: usize,
    n_also: usize,
    #[comptime] plan: Plan,
) {
    let lane = UNIT_POS_X as usize;
    let number = workgroup();
    let row = number / n_tiles;
    if row >= n_rows {
        terminate!();
    }
    let start = number % n_tiles * TILE;
    let of_row = usize::cast_from(table[row * (1 + n_also)]) * vocab_size;

    let mut keys = Shared::<[u32]>::new_slice(TILE);
    let mut ids = Shared::<[u32]>::new_slice(TILE);
    #[unroll]
    for part in 0..comptime!(TILE / LANES) {
        let at = part * LANES + lane;
        let mut id = u32::cast_from(NONE);
        let mut key = u32::new(0);
        if start + at < width {
            if comptime!(plan.is_first) {
                id = (start + at) as u32;
            } else {
                id = kept[row * width + start + at];
            }
        }
        if id != NONE {
            key = key_of(logits[of_row + id as usize]);
        }
        keys[at] = key;
        ids[at] = id;
    }
    sync_cube();
    sort(&mut keys, &mut ids);

    if comptime!(plan.is_last) {
        let output_width = 2 * n + n_also;
        let mut at = lane;
        while at < n {
            output[row * output_width + at] = ids[at];
            output[row * output_width + n + at] = logits[of_row + ids[at] as usize];
            at += LANES;
        }
        at = lane;
        while at < n_also {
            let id = usize::cast_from(table[row * (1 + n_also) + 1 + at]);
            output[row * output_width + 2 * n + at] = logits[of_row + id];
            at += LANES;
        }
    } else {
        let mut at = lane;
        while at < n {
            output[number * n + at] = ids[at];
            at += LANES;
        }
    }
}

/// A sort key: larger for a larger logit, equal for 0 and -0, largest for +infinity and NaN, which no working model
/// has. Above 0.
#[cube]
fn key_of(bits: u32) -> u32 {
    let magnitude = bits & 0x7fff_ffffu32;
    let is_positive = bits == magnitude || magnitude == 0u32;
    // Of two negative numbers, the one of smaller magnitude is larger.
    let ordered = select(is_positive, magnitude | 0x8000_0000u32, bits ^ 0xffff_ffffu32);
    let is_broken = magnitude > 0x7f80_0000u32 || bits == 0x7f80_0000u32;
    select(is_broken, 0xffff_ffffu32, ordered)
}

/// Sorts a tile, the largest key first and the lowest id among equals: a bitonic sort
/// ([Batcher 1968](https://doi.org/10.1145/1468075.1468121)).
#[cube]
fn sort(keys: &mut Shared<[u32]>, ids: &mut Shared<[u32]>) {
    let lane = UNIT_POS_X as usize;
    for size_bits in 1..comptime!(TILE.ilog2() as usize + 1) {
        for step in 0..size_bits {
            let stride = 1 << (size_bits - 1 - step);
            #[unroll]
            for part in 0..comptime!(TILE / 2 / LANES) {
                let pair = part * LANES + lane;
                let low = pair / stride * stride * 2 + pair % stride;
                let high = low + stride;
                // Runs of `size` are alternately in order and in reverse; the last one, the whole tile, is in order.
                let is_in_order = (low >> size_bits) & 1 == 0;
                let is_before = keys[low] > keys[high] || (keys[low] == keys[high] && ids[low] < ids[high]);
                // CubeCL has no SPIR-V for `!=` between booleans.
                if (is_before && !is_in_order) || (!is_before && is_in_order) {
                    let (key, id) = (keys[low], ids[low]);
                    keys[low] = keys[high];
                    ids[low] = ids[high];
                    keys[high] = key;
                    ids[high] = id;
                }
            }
            sync_cube();
        }
    }
}
