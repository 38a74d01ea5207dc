//! Memory for what every step reads from front to back: weights, keys and values.
//!
//! It is in huge pages where the system has any to give: the processor then seldom has to find out where a page lies,
//! and what it fetches ahead by itself does not stop every 4 KB. Matrices are smaller than a huge page or not much
//! larger, so they are cut from chunks, one behind the other.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    ops::Deref,
    slice,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use rayon::prelude::*;

const HUGE_PAGE: usize = 1 << 21;
/// Bytes of a chunk; the system gives them as they are written to. What is larger than half of one has memory of its own.
/// Each chunk wastes up to a huge page.
const CHUNK: usize = 1 << 28;
/// Values that a thread writes at a time.
const PART: usize = 1 << 14;

/// `len` zeros, which have their memory already: the system would give it page by page as they are written to, and might
/// have none left by then.
pub(in crate::ops) fn zeros<T: Copy + Default + Send + Sync>(len: usize) -> Vec<T> {
    let mut values: Vec<T> = Vec::with_capacity(len);
    let places = &mut values.spare_capacity_mut()[..len];
    // Before anything is written: pages that are there stay as small as they are.
    prefer(places.as_mut_ptr().cast(), size_of_val(places));
    places.par_chunks_mut(PART).for_each(|part| part.fill(MaybeUninit::new(T::default())));
    #[expect(unsafe_code, reason = "memory from the allocator")]
    // SAFETY: as many values as there is room for are written now.
    unsafe {
        values.set_len(len);
    }
    values
}

/// A hint for the huge pages that lie wholly within the `len` bytes from `start` on.
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
            tracing::debug!("the system does not give huge pages");
        }
    }
}

/// Values that do not change any more.
pub(super) struct Stored<T> {
    start: *const T,
    len: usize,
    _chunk: Arc<Chunk>,
    _values: PhantomData<T>,
}

impl<T: Copy + Send + Sync> Stored<T> {
    /// `len` values, which are all `value` before `fill` changes them.
    pub(super) fn new(len: usize, value: T, fill: impl FnOnce(&mut [T])) -> Self {
        let layout =
            Layout::array::<T>(len).unwrap_or_else(|_| unreachable!("a matrix of this size has no place in memory"));
        let (chunk, offset) = take(layout);
        let start = chunk.start.wrapping_add(offset);
        #[expect(unsafe_code, reason = "memory from the allocator")]
        // SAFETY: `take` gave these bytes to nobody else, aligned as `T` asks; the slice is gone before they are shared.
        let values = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<T>>(), len) };
        values.par_chunks_mut(PART).for_each(|part| part.fill(MaybeUninit::new(value)));
        #[expect(unsafe_code, reason = "memory from the allocator")]
        // SAFETY: as above, and every value is written now.
        fill(unsafe { slice::from_raw_parts_mut(start.cast::<T>(), len) });
        Self { start: start.cast(), len, _chunk: chunk, _values: PhantomData }
    }
}

impl<T> Deref for Stored<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        #[expect(unsafe_code, reason = "memory from the allocator")]
        // SAFETY: `new` wrote these values, nobody writes to them again, and the chunk lives as long as this does.
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

#[expect(unsafe_code, reason = "memory from the allocator")]
// SAFETY: owns values that nobody changes, as a boxed slice does.
unsafe impl<T: Send + Sync> Send for Stored<T> {}

#[expect(unsafe_code, reason = "memory from the allocator")]
// SAFETY: gives shared references and nothing else.
unsafe impl<T: Sync> Sync for Stored<T> {}

/// Memory that several [`Stored`] are cut from, and that goes when the last of them goes.
struct Chunk {
    start: *mut u8,
    layout: Layout,
}

#[expect(unsafe_code, reason = "memory from the allocator")]
// SAFETY: an address; what lies there is the business of those who were given parts of it.
unsafe impl Send for Chunk {}

#[expect(unsafe_code, reason = "memory from the allocator")]
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(n_bytes: usize) -> Self {
        let layout = Layout::from_size_align(n_bytes.next_multiple_of(HUGE_PAGE), HUGE_PAGE)
            .unwrap_or_else(|_| unreachable!("a matrix of this size has no place in memory"));
        #[expect(unsafe_code, reason = "memory from the allocator")]
        // SAFETY: there is at least one byte, as `take` sees to.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        prefer(start, layout.size());
        Self { start, layout }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "memory from the allocator")]
        // SAFETY: `new` allocated it with this layout, and nobody has a part of it any more.
        unsafe {
            dealloc(self.start, self.layout);
        }
    }
}

/// A part of a chunk, and where it begins in it.
fn take(layout: Layout) -> (Arc<Chunk>, usize) {
    /// The chunk that is being given away, and how much of it is.
    static CURRENT: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));
    if layout.size() > CHUNK / 2 {
        return (Arc::new(Chunk::new(layout.size())), 0);
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
    let next = Arc::new(Chunk::new(CHUNK));
    *current = (Arc::downgrade(&next), layout.size());
    (next, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_their_owners_alone() {
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
