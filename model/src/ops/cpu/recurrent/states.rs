//! States in the slots of a pool.

use crate::ops::cpu::thread_pool::SharedMut;

/// The states of one operation.
pub(in crate::ops) struct States<'a> {
    pool: SharedMut<'a, f32>,
    slot_len: usize,
    first: usize,
}

impl<'a> States<'a> {
    /// The states in the slots of `pool [n_slots, slot_len]`, from value `first` of each slot on.
    pub(in crate::ops) fn new(pool: &'a mut [f32], slot_len: usize, first: usize) -> Self {
        Self { pool: SharedMut::new(pool), slot_len, first }
    }

    /// `len` values from `start` on, of the state in `slot`.
    ///
    /// # Safety
    /// Nobody else holds a part that overlaps this one.
    #[expect(unsafe_code, reason = "threads change disjoint parts of states")]
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees that parts are disjoint")]
    pub(super) unsafe fn part(&self, slot: usize, start: usize, len: usize) -> &mut [f32] {
        let first = slot * self.slot_len + self.first + start;
        // SAFETY: the caller upholds the contract.
        unsafe { self.pool.part(first..first + len) }
    }
}
