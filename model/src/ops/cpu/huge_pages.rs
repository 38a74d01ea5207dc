//! Memory for weights, keys and values, in huge pages if the system has them: fewer TLB misses, and the hardware prefetcher
//! does not stop every 4 KB. Matrices are smaller than a huge page or not much larger, so they are allocated from chunks, one
//! after the other.

use std::{
    alloc::{Layout, handle_alloc_error},
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    ops::Deref,
    slice,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use memmap2::{MmapOptions, MmapRaw};
use rayon::prelude::*;

use super::allocator::MAX_KEPT_BYTES;

const HUGE_PAGE: usize = 1 << 21;
/// Bytes of a chunk, which the system provides as they are written to. A matrix larger than half a chunk gets a
/// separate memory map.
const CHUNK: usize = 1 << 28;
/// Values that a thread writes at a time.
const PART: usize = 1 << 14;

/// Allocates `len` zeros and touches every page now, so that memory cannot run out later.
pub(in crate::ops) fn zeros<T: Copy + Default + Send + Sync>(len: usize) -> Vec<T> {
    let mut values: Vec<T> = Vec::with_capacity(len);
    let places = &mut values.spare_capacity_mut()[..len];
    // Before anything is written: pages that exist already would stay small.
    prefer(places.as_mut_ptr().cast(), size_of_val(places));
    places.par_chunks_mut(PART).for_each(|part| part.fill(MaybeUninit::new(T::default())));
    #[expect(unsafe_code, reason = "memory from the system")]
    // SAFETY: there is room for exactly the values that are written now.
    unsafe {
        values.set_len(len);
    }
    values
}

/// An empty vector with room for `len` values. From [`MAX_KEPT_BYTES`] on, the allocator does not keep its memory but
/// requests it from the system each time; it is then in huge pages, since each small page would cost a page fault.
pub(super) fn with_room_for<T>(len: usize) -> Vec<T> {
    let mut values: Vec<T> = Vec::with_capacity(len);
    let places = values.spare_capacity_mut();
    if size_of_val(places) >= MAX_KEPT_BYTES {
        prefer(places.as_mut_ptr().cast(), size_of_val(places));
    }
    values
}

/// Asks for huge pages where they fit into the `len` bytes from `start`.
fn prefer(start: *mut u8, len: usize) {
    let skipped = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let len = len.saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    if len == 0 {
        return;
    }
    #[cfg(target_os = "linux")]
    {
        #[expect(unsafe_code, reason = "a hint to the system")]
        // SAFETY: the range is the caller's own, and the hint changes nothing that a program can see.
        let status = unsafe { libc::madvise(start.wrapping_add(skipped).cast(), len, libc::MADV_HUGEPAGE) };
        if status != 0 {
            tracing::debug!("the system has no huge pages");
        }
    }
}

/// Immutable values.
pub(super) struct Stored<T> {
    start: *const T,
    len: usize,
    _map: Arc<MmapRaw>,
    _values: PhantomData<T>,
}

impl<T: Copy + Send + Sync> Stored<T> {
    /// `len` values: all `value`, then changed by `fill`.
    pub(super) fn new(len: usize, value: T, fill: impl FnOnce(&mut [T])) -> Self {
        let layout =
            Layout::array::<T>(len).unwrap_or_else(|_| unreachable!("a matrix of this size has no place in memory"));
        let (map, offset) = take(layout);
        let start = map.as_mut_ptr().wrapping_add(offset);
        #[expect(unsafe_code, reason = "memory from the system")]
        // SAFETY: `take` returned these bytes once, aligned for `T` (maps begin on a page); the slice is gone before they are
        // shared.
        let values = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<T>>(), len) };
        values.par_chunks_mut(PART).for_each(|part| part.fill(MaybeUninit::new(value)));
        #[expect(unsafe_code, reason = "memory from the system")]
        // SAFETY: as above, and every value is written now.
        fill(unsafe { slice::from_raw_parts_mut(start.cast::<T>(), len) });
        Self { start: start.cast(), len, _map: map, _values: PhantomData }
    }
}

impl<T> Deref for Stored<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        #[expect(unsafe_code, reason = "memory from the system")]
        // SAFETY: `new` wrote these values, nothing writes to them again, and the map lives as long as `self`.
        unsafe {
            slice::from_raw_parts(self.start, self.len)
        }
    }
}

impl<T> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stored values", self.len)
    }
}

#[expect(unsafe_code, reason = "memory from the system")]
// SAFETY: owns values that are never changed, like a boxed slice.
unsafe impl<T: Send + Sync> Send for Stored<T> {}

#[expect(unsafe_code, reason = "memory from the system")]
// SAFETY: provides shared references only.
unsafe impl<T: Sync> Sync for Stored<T> {}

/// Memory for `layout`: a part of a map, at an offset.
fn take(layout: Layout) -> (Arc<MmapRaw>, usize) {
    /// The map that parts are taken from, and how much of it is taken.
    static CURRENT: Mutex<(Weak<MmapRaw>, usize)> = Mutex::new((Weak::new(), 0));
    let new = |n_bytes: usize| {
        let map = MmapOptions::new().len(n_bytes).map_anon();
        let map = MmapRaw::from(map.unwrap_or_else(|_| handle_alloc_error(layout)));
        prefer(map.as_mut_ptr(), n_bytes);
        Arc::new(map)
    };
    if layout.size() > CHUNK / 2 {
        return (new(layout.size()), 0);
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (chunk, used) = &mut *current;
    let offset = used.next_multiple_of(layout.align());
    if let Some(chunk) = chunk.upgrade()
        && offset + layout.size() <= CHUNK
    {
        *used = offset + layout.size();
        return (chunk, offset);
    }
    let next = new(CHUNK);
    *current = (Arc::downgrade(&next), layout.size());
    (next, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_allocations_do_not_overlap_and_are_aligned() {
        let sizes = [1, 3, 1000, 1 << 20, CHUNK / 32, CHUNK / 7, 5];
        let stored: Vec<Stored<u32>> = (0..4)
            .flat_map(|round| sizes.map(|len| (round, len)))
            .map(|(round, len)| {
                Stored::new(len, round, |values| values.iter_mut().zip(0..).for_each(|(value, n)| *value += n))
            })
            .collect();
        for (number, stored) in stored.iter().enumerate() {
            let round = (number / sizes.len()) as u32;
            assert_eq!(stored.len(), sizes[number % sizes.len()]);
            assert!(stored.iter().zip(round..).all(|(value, expected)| *value == expected));
            assert_eq!(stored.as_ptr().addr() % align_of::<u32>(), 0);
        }
    }
}
