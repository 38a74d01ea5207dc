//! The thread pool of the CPU's operations.
//!
//! A decoding step is some 150 operations of 5 to 20 microseconds. Waking a sleeping thread takes longer than that, so
//! helpers without work spin for [`SPIN_TIME`] before they sleep. The work of an operation is cut into pieces, which
//! threads claim one by one; the leader waits only for threads that have claimed a piece, so if a helper's core serves
//! an HTTP request, the others do its share. Each thread first claims the pieces of its own range, front to back:
//! weights are then read in long runs, which the hardware prefetches. Threads that took alternate pieces read them a
//! tenth slower.
//!
//! The thread that calls an operation leads. There is one pool per process, with one leader at a time; a second caller
//! does its work alone.

use super::prefetch::{ReadOrder, ReadRange};
use std::{
    any::Any,
    hint::spin_loop,
    marker::PhantomData,
    mem::MaybeUninit,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr, slice,
    sync::{
        Mutex, OnceLock, PoisonError, TryLockError,
        atomic::{
            AtomicPtr, AtomicU64, AtomicUsize, Ordering,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// How long a helper without work spins: longer than the single-threaded work between two parallel operations of a
/// forward pass, shorter than a scheduler would notice.
const SPIN_TIME: Duration = Duration::from_micros(60);
/// Checks of the board between two checks of the clock.
const SPINS_PER_CLOCK_CHECK: usize = 32;
/// Values that a thread sets to 0 at a time.
const ZEROS_AT_ONCE: usize = 1 << 14;
/// Checks of the leader for a piece that another thread is working on, before it yields its core.
const LEADER_SPINS: usize = 2000;

/// Calls `run` for each number in `0..n_pieces` on all threads; returns when all calls have. The result must not depend
/// on which thread runs which.
pub(super) fn parallel_for<F: Fn(usize) + Sync>(n_pieces: usize, run: F) {
    parallel_for_range(ReadRange::default(), n_pieces, run);
}

/// As [`parallel_for`], for pieces that read `range` from front to back, in their order, now and in the next pass.
pub(super) fn parallel_for_range<F: Fn(usize) + Sync>(range: ReadRange, n_pieces: usize, run: F) {
    pool().share(range, n_pieces, run);
}

/// Threads of the pool, the caller included.
pub(super) fn n_threads() -> usize {
    pool().helpers.len() + 1
}

struct ThreadPool {
    board: &'static SharedJob,
    helpers: Vec<Thread>,
}

/// The job that is running; written by the leader, read by all.
struct SharedJob {
    leader: Mutex<ReadOrder>,
    /// What the next job will probably read.
    next_read: NextRead,
    /// For each thread's range of pieces: the job number in the upper half, the next unclaimed piece in the lower. One
    /// atomic, so that a piece is claimed from the job that was checked. The first range is the leader's.
    next: Box<[CachePadded<AtomicU64>]>,
    /// Pieces that each thread has finished, in all jobs. A counter per thread: a shared one would move between cores
    /// with every piece, which takes as long as a small piece where cores share no cache.
    n_done: Box<[CachePadded<AtomicUsize>]>,
    n_asleep: CachePadded<AtomicUsize>,
    n_pieces: AtomicUsize,
    /// The job's closure, and the function that calls it.
    run: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// The panic of a helper's piece.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// On its own cache line, since threads write to it all the time.
#[derive(Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// A [`ReadRange`] that all threads see. A torn read is harmless: addresses are only prefetched.
#[derive(Default)]
struct NextRead([AtomicUsize; 3]);

impl NextRead {
    fn store(&self, ReadRange { start, len, n_parts }: ReadRange) {
        self.0.iter().zip([start, len, n_parts]).for_each(|(number, value)| number.store(value, Relaxed));
    }

    fn load(&self) -> ReadRange {
        let [start, len, n_parts] = self.0.each_ref().map(|number| number.load(Relaxed));
        ReadRange { start, len, n_parts }
    }
}

/// The leader's index in [`SharedJob::next`].
const LEADER: usize = 0;

/// Lower half of [`SharedJob::next`]: nothing can be claimed, whatever the other fields are.
const CLOSED: u64 = u32::MAX as u64;

/// [`parallel_for`] over chunks of `width` values of `output`: `run` gets a chunk's number and the chunk.
pub(super) fn parallel_chunks(output: &mut [f32], width: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
    let shared = SharedMut::new(output);
    parallel_for(shared.len().div_ceil(width.max(1)), |chunk| {
        let start = chunk * width;
        #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
        // SAFETY: chunks do not overlap, and each number is given once.
        run(chunk, unsafe { shared.part(start..shared.len().min(start + width)) });
    });
}

/// [`parallel_chunks`] of `len` new values. Each chunk is set to 0 by the thread that is about to fill it: `vec![0.0; len]` would
/// leave that to one thread.
pub(super) fn new_chunks(len: usize, width: usize, run: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut output = Vec::with_capacity(len);
    let shared = SharedMut::new(&mut output.spare_capacity_mut()[..len]);
    parallel_for(len.div_ceil(width.max(1)), |chunk| {
        let start = chunk * width;
        #[expect(unsafe_code, reason = "threads write disjoint parts of new memory")]
        // SAFETY: chunks do not overlap, and each number is given once; the values exist once they are 0.
        let chunk_values = unsafe {
            let places = shared.part(start..len.min(start + width));
            places.fill(MaybeUninit::new(0.0));
            slice::from_raw_parts_mut(places.as_mut_ptr().cast(), places.len())
        };
        run(chunk, chunk_values);
    });
    #[expect(unsafe_code, reason = "all values were written")]
    // SAFETY: the chunks are the whole length.
    unsafe {
        output.set_len(len);
    }
    output
}

/// `len` zeros, written by all threads.
pub(super) fn new_zeros(len: usize) -> Vec<f32> {
    new_chunks(len, ZEROS_AT_ONCE, |_, _| ())
}

/// [`parallel_for`] over ranges of columns of `output`, a matrix with rows of `width`, cut into `pieces`. `run` gets a
/// range of units of columns, and those columns.
pub(super) fn parallel_columns(
    pieces: ColumnPieces,
    output: &mut [f32],
    width: usize,
    run: impl Fn(Range<usize>, Columns<'_>) + Sync,
) {
    let ColumnPieces { range, n_pieces, unit } = pieces;
    let output = SharedMut::new(output);
    let n_units = width.div_ceil(unit);
    let first = |piece: usize| n_units * piece / n_pieces;
    let run = |piece: usize| {
        let units = first(piece)..first(piece + 1);
        // Pieces have consecutive ranges, and each number occurs once: these columns are this piece's alone.
        let columns = units.start * unit..width.min(units.end * unit);
        run(units, Columns { output: &output, width, first_row: 0, columns });
    };
    if n_pieces == 1 { run(0) } else { parallel_for_range(range, n_pieces, run) }
}

/// [`parallel_columns`] for groups of rows, each cut into separate pieces. `run` also gets the group's number; row
/// numbers within its columns count from the group's first row.
///
/// # Panics
/// Unless each group's rows follow those of the group before.
pub(super) fn parallel_column_groups(
    groups: &[RowPieces],
    unit: usize,
    output: &mut [f32],
    width: usize,
    run: impl Fn(usize, Range<usize>, Columns<'_>) + Sync,
) {
    assert!(groups.is_sorted_by(|one, next| one.rows.end <= next.rows.start), "rows of two groups overlap");
    let output = SharedMut::new(output);
    let n_units = width.div_ceil(unit);
    let pieces: Vec<(usize, usize)> =
        groups.iter().enumerate().flat_map(|(group, of)| (0..of.n_pieces).map(move |piece| (group, piece))).collect();
    let run = |number: usize| {
        let (group, piece) = pieces[number];
        let RowPieces { rows, n_pieces } = &groups[group];
        let units = n_units * piece / n_pieces..n_units * (piece + 1) / n_pieces;
        // Groups share no rows, and pieces of one group have consecutive ranges: these columns are this piece's alone.
        let columns = units.start * unit..width.min(units.end * unit);
        run(group, units, Columns { output: &output, width, first_row: rows.start, columns });
    };
    parallel_for(pieces.len(), run);
}

/// A group of rows, and into how many ranges of columns it is cut.
pub(super) struct RowPieces {
    pub(super) rows: Range<usize>,
    /// At least one.
    pub(super) n_pieces: usize,
}

/// How [`parallel_columns`] cuts a matrix.
pub(super) struct ColumnPieces {
    /// Memory that the pieces read, in their order.
    pub(super) range: ReadRange,
    /// At least one.
    pub(super) n_pieces: usize,
    /// Columns in a unit.
    pub(super) unit: usize,
}

/// Columns of a matrix that belong to one piece of work.
pub(super) struct Columns<'a> {
    output: &'a SharedMut<'a, f32>,
    width: usize,
    first_row: usize,
    columns: Range<usize>,
}

impl Columns<'_> {
    /// The part of `row` in `columns`, clipped to the matrix.
    ///
    /// # Panics
    /// If they belong to another piece of work.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let columns = columns.start..columns.end.min(self.width);
        assert!(self.columns.start <= columns.start && columns.end <= self.columns.end);
        let start = (self.first_row + row) * self.width;
        #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
        // SAFETY: `parallel_columns` gives each column to one piece of work, and this borrows all that the piece has.
        unsafe {
            self.output.part(start + columns.start..start + columns.end)
        }
    }
}

/// Calls `run` for each item on the threads that operations use; returns when all calls have.
pub fn parallel_for_each<T: Send>(items: &mut [T], run: impl Fn(&mut T) + Sync) {
    let shared = SharedMut::new(items);
    parallel_for(shared.len(), |number| {
        #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
        // SAFETY: each number is claimed once.
        unsafe { shared.part(number..number + 1) }.iter_mut().for_each(&run);
    });
}

/// A slice whose disjoint parts are written by different threads.
pub(super) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    _slice: PhantomData<&'a mut [T]>,
}

#[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
// SAFETY: callers of `part` guarantee that parts are disjoint.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _slice: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address of a part of the slice, for threads whose values are interleaved with other threads' values.
    pub(super) fn places(&self, range: Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len);
        self.start.wrapping_add(range.start)
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// Nobody else holds a part that overlaps this one.
    #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees that parts are disjoint")]
    #[inline(always)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is within the slice, and no other thread uses it, as the caller guarantees.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

fn pool() -> &'static ThreadPool {
    static POOL: OnceLock<ThreadPool> = OnceLock::new();
    // The same number of threads as rayon's pool, which Flex uses, so that one setting controls both.
    POOL.get_or_init(|| {
        super::threads::start_threads();
        ThreadPool::new(super::threads::n_threads())
    })
}

#[expect(unsafe_code, reason = "calls the leader's closure through a plain pointer")]
/// # Safety
/// `run` points to a live `F`.
unsafe fn call<F: Fn(usize)>(run: *const (), piece: usize) {
    // SAFETY: as above.
    unsafe { (*run.cast::<F>())(piece) }
}

type Call = unsafe fn(*const (), usize);

impl ThreadPool {
    /// A pool of `n_threads` threads, the caller included, for the life of the process.
    fn new(n_threads: usize) -> Self {
        let board: &'static SharedJob = Box::leak(Box::new(SharedJob::new(n_threads)));
        let helpers = (1..n_threads).filter_map(|number| {
            let builder = thread::Builder::new().name(format!("hearth-cpu-{number}"));
            builder.spawn(move || board.help(number)).map(|handle| handle.thread().clone()).ok()
        });
        Self { board, helpers: helpers.collect() }
    }

    /// [`parallel_for_range`].
    fn share<F: Fn(usize) + Sync>(&self, range: ReadRange, n_pieces: usize, run: F) {
        let alone = || (0..n_pieces).for_each(&run);
        if self.helpers.is_empty() || n_pieces < 2 {
            return alone();
        }
        let lead = |order: &mut ReadOrder| {
            let is_read_again = range != ReadRange::default();
            let next = if is_read_again { order.after(range) } else { None };
            self.board.next_read.store(next.unwrap_or_default());
            self.lead(n_pieces, &run);
        };
        match self.board.leader.try_lock() {
            Ok(mut order) => lead(&mut order),
            // A panic leaves no broken state behind.
            Err(TryLockError::Poisoned(order)) => lead(&mut order.into_inner()),
            // Another thread leads.
            Err(TryLockError::WouldBlock) => alone(),
        }
    }

    /// Publishes a job, works on it, and returns when every piece has ended. The caller holds the leader's lock.
    fn lead<F: Fn(usize) + Sync>(&self, n_pieces: usize, run: &F) {
        let board = self.board;
        let last = board.job(Relaxed);
        // From here on, no piece of the last job can be claimed; all its pieces have ended.
        board.next.iter().for_each(|next| next.0.store(last << 32 | CLOSED, Relaxed));
        fence(Release);
        let n_done = board.n_done().wrapping_add(n_pieces);
        board.n_pieces.store(n_pieces, Relaxed);
        board.run.store(ptr::from_ref(run).cast_mut().cast(), Relaxed);
        board.call.store(call::<F> as Call as *mut (), Relaxed);
        let job = last.wrapping_add(1) << 32;
        // The first range, which announces the job, opens last. Sequentially consistent with `n_asleep`: either a
        // helper sees the job before it sleeps, or the leader sees it asleep.
        for (thread, next) in board.next.iter().enumerate().rev() {
            next.0.store(job | board.range(thread, n_pieces).start as u64, SeqCst);
        }
        if board.n_asleep.0.load(SeqCst) > 0 {
            self.helpers.iter().for_each(Thread::unpark);
        }
        let mut panic = None;
        while let Some(piece) = board.claim(LEADER) {
            panic = panic.or(catch_unwind(AssertUnwindSafe(|| run(piece.number))).err());
            board.count(LEADER);
        }
        let mut looks = 0;
        while board.n_done() != n_done {
            looks += 1;
            // A helper was descheduled while working on a piece: it may need this core.
            if looks < LEADER_SPINS { spin_loop() } else { thread::yield_now() }
        }
        // Removed in any case: otherwise the next job would raise it.
        let panic_of_helper = board.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic.or(panic_of_helper) {
            resume_unwind(panic);
        }
    }
}

/// A claimed piece of the current job.
struct Piece {
    number: usize,
    run: *const (),
    call: *mut (),
}

impl SharedJob {
    fn new(n_threads: usize) -> Self {
        Self {
            leader: Mutex::new(ReadOrder::new()),
            next_read: NextRead::default(),
            next: (0..n_threads).map(|_| CachePadded(AtomicU64::new(CLOSED))).collect(),
            n_done: (0..n_threads).map(|_| CachePadded::default()).collect(),
            n_asleep: CachePadded::default(),
            n_pieces: AtomicUsize::default(),
            run: AtomicPtr::default(),
            call: AtomicPtr::default(),
            panic: Mutex::default(),
        }
    }

    /// Counts a finished piece of `thread`.
    fn count(&self, thread: usize) {
        if let Some(CachePadded(n_done)) = self.n_done.get(thread) {
            // Only this thread writes to it.
            n_done.store(n_done.load(Relaxed).wrapping_add(1), Release);
        }
    }

    /// Finished pieces, in all jobs.
    fn n_done(&self) -> usize {
        self.n_done.iter().fold(0, |sum, CachePadded(n_done)| sum.wrapping_add(n_done.load(Acquire)))
    }

    /// The range of pieces of `thread`.
    fn range(&self, thread: usize, n_pieces: usize) -> Range<usize> {
        let n_threads = self.next.len();
        n_pieces * thread / n_threads..n_pieces * (thread + 1) / n_threads
    }

    /// Claims the next piece of `thread`'s range; if that is empty, a piece of the next thread that has one left.
    fn claim(&self, thread: usize) -> Option<Piece> {
        let n_threads = self.next.len();
        (thread..thread + n_threads).find_map(|owner| self.claim_of(owner % n_threads))
    }

    fn claim_of(&self, owner: usize) -> Option<Piece> {
        let cursor = &self.next.get(owner)?.0;
        loop {
            let next = cursor.load(Acquire);
            let number = (next & CLOSED) as usize;
            let (run, call) = (self.run.load(Relaxed), self.call.load(Relaxed));
            if next & CLOSED == CLOSED || number >= self.range(owner, self.n_pieces.load(Relaxed)).end {
                return None;
            }
            // The job that was read belongs to `next`: if the leader had begun to write another job, it would have
            // changed `next` before, and the exchange would fail.
            fence(Acquire);
            if cursor.compare_exchange(next, next + 1, AcqRel, Relaxed).is_ok() {
                return Some(Piece { number, run, call });
            }
        }
    }

    fn help(&self, thread: usize) {
        loop {
            let seen = self.job(Relaxed);
            while let Some(piece) = self.claim(thread) {
                self.run(&piece);
                self.count(thread);
            }
            self.next_read.load().prefetch(thread, self.next.len(), || self.job(Relaxed) != seen);
            self.wait_for_other_than(seen);
        }
    }

    fn run(&self, piece: &Piece) {
        #[expect(unsafe_code, reason = "calls the leader's closure through a plain pointer")]
        // SAFETY: `call` was made from a `Call` for the closure behind `run`, by the leader that put this job up; the
        // leader keeps the closure alive until every claimed piece has ended, and this piece has not.
        let run = || unsafe { std::mem::transmute::<*mut (), Call>(piece.call)(piece.run, piece.number) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// The number of the current job.
    fn job(&self, ordering: Ordering) -> u64 {
        self.next[LEADER].0.load(ordering) >> 32
    }

    fn wait_for_other_than(&self, seen: u64) {
        let start = Instant::now();
        while start.elapsed() < SPIN_TIME {
            for _ in 0..SPINS_PER_CLOCK_CHECK {
                if self.job(Relaxed) != seen {
                    return;
                }
                spin_loop();
            }
        }
        self.n_asleep.0.fetch_add(1, SeqCst);
        while self.job(SeqCst) == seen {
            thread::park();
        }
        self.n_asleep.0.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every piece runs once, with several leaders, and with helpers asleep and awake.
    #[test]
    fn parallel_for_runs_every_piece_exactly_once() {
        thread::scope(|scope| {
            for leader in 0..4 {
                scope.spawn(move || {
                    for round in 0..2000 {
                        let n_pieces = (round * 7 + leader) % 40;
                        let runs: Vec<AtomicUsize> = (0..n_pieces).map(|_| AtomicUsize::new(0)).collect();
                        parallel_for(n_pieces, |piece| {
                            runs[piece].fetch_add(1, Relaxed);
                        });
                        assert!(runs.iter().all(|runs| runs.load(Relaxed) == 1));
                        if round % 500 == 0 {
                            thread::park_timeout(2 * SPIN_TIME);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn parallel_for_each_visits_every_item() {
        let mut items: Vec<String> = (0..1000).map(|number: usize| number.to_string()).collect();
        parallel_for_each(&mut items, |item| item.push('!'));
        assert!(items.iter().enumerate().all(|(number, item)| *item == format!("{number}!")));
        parallel_for_each(&mut Vec::<String>::new(), |item| item.clear());
    }

    /// Leader and helper panic in the same job: neither panic may reach the next job.
    #[test]
    fn panics_of_leader_and_helper_do_not_reach_the_next_job() {
        let pool = ThreadPool::new(2);
        let both = std::sync::Barrier::new(2);
        let share = |run: &(dyn Fn(usize) + Sync)| {
            catch_unwind(AssertUnwindSafe(|| pool.share(ReadRange::default(), 2, run))).is_ok()
        };
        let is_raised = !share(&|piece| {
            both.wait();
            assert!(piece > 1, "piece {piece}");
        });
        assert!(is_raised, "a panic is raised where the job was put up");
        assert!(share(&|_| ()), "a panic of the job before was raised");
    }

    #[test]
    fn parallel_for_panic_reaches_the_caller_and_threads_keep_working() {
        let outcome = catch_unwind(|| parallel_for(100, |piece| assert!(piece != 57, "piece 57")));
        let panic = outcome.err().and_then(|panic| panic.downcast::<&str>().ok());
        assert!(panic.is_some_and(|panic| panic.contains("piece 57")));
        let sum = AtomicUsize::new(0);
        parallel_for(100, |piece| {
            sum.fetch_add(piece, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 4950);
    }
}
