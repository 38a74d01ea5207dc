//! What will be read next, by what was read after it the last time.
//!
//! A pass reads the same weights in the same order as the one before. So a thread that has nothing left to do in one
//! product can fetch the beginning of its part of the next, while another thread normalises or rounds what the product
//! will take: otherwise memory would be idle then.

use std::ptr;

use super::fetch::fetch_far;

/// Places to remember readings in; models with more matrices forget some.
const N_PLACES: usize = 1 << 10;
/// Bytes of each part that are fetched at most.
const FETCHED: usize = 1 << 16;
/// Bytes to fetch between two looks at whether there is work.
const STRIDE: usize = 1 << 10;

/// Memory that the threads of a job read, each its own range from front to back. Addresses only: nobody reads by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) start: usize,
    pub(super) len: usize,
    /// Parts of equal length that are read side by side.
    pub(super) n_parts: usize,
}

impl Reading {
    /// Of `values`, in `n_parts` parts.
    pub(super) fn of<T>(values: &[T], n_parts: usize) -> Self {
        Self { start: values.as_ptr().addr(), len: size_of_val(values), n_parts }
    }

    /// Asks for the beginning of `thread`'s range in each part, until `is_over`.
    pub(super) fn fetch(self, thread: usize, n_threads: usize, is_over: impl Fn() -> bool) {
        let part = self.len / self.n_parts.max(1);
        let range = part / n_threads;
        for offset in (0..range.min(FETCHED)).step_by(STRIDE) {
            if is_over() {
                return;
            }
            for number in 0..self.n_parts {
                let start = self.start + number * part + thread * range + offset;
                fetch_far(ptr::without_provenance::<u8>(start), STRIDE);
            }
        }
    }
}

/// Which reading came after which.
#[derive(Debug)]
pub(super) struct Foresight {
    last: Reading,
    /// By the first of the two.
    next: Box<[[Reading; 2]]>,
}

impl Foresight {
    pub(super) fn new() -> Self {
        Self { last: Reading::default(), next: vec![[Reading::default(); 2]; N_PLACES].into() }
    }

    /// Takes note of `now`, and tells what came after it the last time, if anything did.
    pub(super) fn after(&mut self, now: Reading) -> Option<Reading> {
        let place = place(self.last);
        self.next[place] = [self.last, now];
        self.last = now;
        let [first, next] = self.next[self::place(now)];
        (first == now).then_some(next)
    }
}

fn place(reading: Reading) -> usize {
    // Fibonacci hashing: matrices lie at regular distances.
    let product = (reading.start as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> (64 - N_PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_foreseen_after_the_first() {
        let weights = [[0u8; 64]; 5];
        let readings = weights.each_ref().map(|weights| Reading::of(weights, 1));
        let mut foresight = Foresight::new();
        let first: Vec<_> = readings.iter().map(|reading| foresight.after(*reading)).collect();
        assert_eq!(first, [None; 5]);
        let second: Vec<_> = readings.iter().map(|reading| foresight.after(*reading)).collect();
        assert_eq!(second[..4], [1, 2, 3, 4].map(|next| Some(readings[next])));
        assert_eq!(foresight.after(readings[0]), Some(readings[1]));
    }
}
