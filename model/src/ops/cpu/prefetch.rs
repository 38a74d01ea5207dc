//! Explicit prefetching: of the weights ahead within a product, and of the next product.
//!
//! The hardware prefetcher does not look far enough ahead where several rows use each weight: 16 rows in f32 read
//! memory at 31 GB/s without this and at 40 with it.
//!
//! A pass reads the same weights in the same order as the one before. So a thread that has nothing left to do in a product
//! prefetches the beginning of its range of the next one, while another thread still normalizes or quantizes the input. That
//! is worth 6 % for one sequence in q4 (docs/lab/threads-and-memory.md).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::ptr;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Prefetches the cache line at `address`, which may be any address.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a hint to the processor")]
    // SAFETY: a prefetch reads nothing, and ignores invalid addresses.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
}

/// As [`prefetch`], into L2.
#[inline(always)]
pub(super) fn prefetch_l2<T>(address: *const T) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a hint to the processor")]
    // SAFETY: a prefetch reads nothing, and ignores invalid addresses.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
}

/// Prefetches `len` bytes from `address`, which may be any address, into L2: L1 is in use by other work.
fn prefetch_far(address: *const u8, len: usize) {
    (0..len).step_by(LINE).for_each(|line| prefetch_l2(address.wrapping_add(line)));
}

/// Entries of [`ReadOrder`]; models with more matrices lose some.
const N_ENTRIES: usize = 1 << 10;
/// Bytes prefetched per part and thread, at most.
const MAX_BYTES: usize = 1 << 16;
/// Bytes prefetched between two checks for work.
const STRIDE: usize = 1 << 10;

/// Memory that the threads of a job read, each its own range from front to back. Only addresses to prefetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadRange {
    pub(super) start: usize,
    pub(super) len: usize,
    /// Parts of equal length that are read side by side.
    pub(super) n_parts: usize,
}

impl ReadRange {
    /// The memory of `values`, in `n_parts` parts.
    pub(super) fn of<T>(values: &[T], n_parts: usize) -> Self {
        Self { start: values.as_ptr().addr(), len: size_of_val(values), n_parts }
    }

    /// Prefetches the beginning of `thread`'s range in each part, until `is_over`.
    pub(super) fn prefetch(self, thread: usize, n_threads: usize, is_over: impl Fn() -> bool) {
        let part = self.len / self.n_parts.max(1);
        let range = part / n_threads;
        for offset in (0..range.min(MAX_BYTES)).step_by(STRIDE) {
            if is_over() {
                return;
            }
            for number in 0..self.n_parts {
                let start = self.start + number * part + thread * range + offset;
                prefetch_far(ptr::without_provenance::<u8>(start), STRIDE);
            }
        }
    }
}

/// The order in which ranges were read in the last pass.
#[derive(Debug)]
pub(super) struct ReadOrder {
    last: ReadRange,
    /// Pairs of consecutive ranges, by the hash of the first.
    next: Box<[[ReadRange; 2]]>,
}

impl ReadOrder {
    pub(super) fn new() -> Self {
        Self { last: ReadRange::default(), next: vec![[ReadRange::default(); 2]; N_ENTRIES].into() }
    }

    /// Records that `now` is read, and returns the range that was read after it in the last pass, if known.
    pub(super) fn after(&mut self, now: ReadRange) -> Option<ReadRange> {
        let place = place(self.last);
        self.next[place] = [self.last, now];
        self.last = now;
        let [first, next] = self.next[self::place(now)];
        (first == now).then_some(next)
    }
}

fn place(range: ReadRange) -> usize {
    // Fibonacci hashing, since matrices are at regular distances.
    let product = (range.start as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> (64 - N_ENTRIES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_order_predicts_the_next_range_after_one_pass() {
        let weights = [[0u8; 64]; 5];
        let ranges = weights.each_ref().map(|weights| ReadRange::of(weights, 1));
        let mut order = ReadOrder::new();
        let first: Vec<_> = ranges.iter().map(|range| order.after(*range)).collect();
        assert_eq!(first, [None; 5]);
        let second: Vec<_> = ranges.iter().map(|range| order.after(*range)).collect();
        assert_eq!(second[..4], [1, 2, 3, 4].map(|next| Some(ranges[next])));
        assert_eq!(order.after(ranges[0]), Some(ranges[1]));
    }
}
