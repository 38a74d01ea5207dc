//! The threads that share the work of one operation, and how they meet.
//!
//! A decoding step is some 150 operations of 5 to 20 microseconds. Waking a sleeping thread takes longer than that, so
//! helpers that run out of work look out for more for a moment ([`PATIENCE`]) before they go to sleep. Nobody is waited
//! for but a thread that has a piece of work in hand: pieces are claimed one by one, and while a helper's core serves an
//! HTTP request, the others do its share. Each thread begins with a range of pieces of its own, from front to back:
//! weights are then read in long runs, which the hardware fetches ahead. Threads that took turns read them a tenth slower.
//!
//! One thread at a time leads; another that calls meanwhile does its work alone. There is one crew for the process, as
//! there is one set of cores.

use super::foresight::{Foresight, Reading};
use std::{
    any::Any,
    hint::spin_loop,
    marker::PhantomData,
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

/// How long a helper without work stays awake: longer than what a forward pass does on one thread between two shared
/// operations, shorter than what a scheduler would notice.
const PATIENCE: Duration = Duration::from_micros(60);
/// Looks at the board between two looks at the clock.
const LOOKS: usize = 32;
/// Looks of the leader at a piece in another thread's hands before it lets others have its core.
const LEADER_LOOKS: usize = 2000;

/// Runs `run` for each number in `0..n_pieces`, shared out over the threads, and returns when all have ended. Which
/// thread runs which is left open, so the result must not depend on it.
pub(super) fn share<F: Fn(usize) + Sync>(n_pieces: usize, run: F) {
    share_reading(Reading::default(), n_pieces, run);
}

/// The same, where the pieces in their order read `reading` from front to back, as they do again in the next pass.
pub(super) fn share_reading<F: Fn(usize) + Sync>(reading: Reading, n_pieces: usize, run: F) {
    crew().share(reading, n_pieces, run);
}

/// Threads that work together, the caller included.
pub(super) fn n_threads() -> usize {
    crew().helpers.len() + 1
}

struct Crew {
    board: &'static Board,
    helpers: Vec<Thread>,
}

/// Where the leader puts up work.
struct Board {
    leader: Mutex<Foresight>,
    /// What the job after this one is likely to read.
    next_reading: NextReading,
    /// For each thread's range of pieces: the number of the job, and in the low half the next piece that nobody has
    /// claimed. One number, so that a piece is claimed of the very job that was looked at. The first is the leader's.
    next: Box<[Line<AtomicU64>]>,
    /// Pieces that each thread has brought to their end since it began, in all jobs. One number for all threads would go
    /// from core to core with every piece, which takes as long as a small piece does where cores share no cache.
    n_done: Box<[Line<AtomicUsize>]>,
    n_asleep: Line<AtomicUsize>,
    n_pieces: AtomicUsize,
    /// The closure, and the function that calls it.
    run: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// What a helper's piece panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// On a cache line of its own: threads write to these all the time.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// A [`Reading`] for all threads to see. One that is put together of two does no harm: nothing is read by it.
#[derive(Default)]
struct NextReading {
    start: AtomicUsize,
    len: AtomicUsize,
    n_parts: AtomicUsize,
}

impl NextReading {
    fn store(&self, reading: Reading) {
        self.start.store(reading.start, Relaxed);
        self.len.store(reading.len, Relaxed);
        self.n_parts.store(reading.n_parts, Relaxed);
    }

    fn load(&self) -> Reading {
        let [start, len, n_parts] = [&self.start, &self.len, &self.n_parts].map(|number| number.load(Relaxed));
        Reading { start, len, n_parts }
    }
}

/// The place in [`Board::next`] of whoever leads.
const LEADER: usize = 0;

/// In the low half of [`Board::next`]: there is nothing to claim, whatever the other fields say.
const CLOSED: u64 = u32::MAX as u64;

/// As [`share`], with `width` values of `output` at a time: the number of each such chunk, and the chunk.
pub(super) fn share_chunks(output: &mut [f32], width: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
    let shared = SharedMut::new(output);
    share(shared.len().div_ceil(width.max(1)), |chunk| {
        let start = chunk * width;
        #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
        // SAFETY: chunks do not overlap, and each number is given once.
        run(chunk, unsafe { shared.part(start..shared.len().min(start + width)) });
    });
}

/// Runs `run` for pieces of work that each fill columns of `output`, a matrix with rows of `width`, cut as `pieces` says.
/// A piece is told which units of columns it has.
pub(super) fn share_columns(
    pieces: ColumnPieces,
    output: &mut [f32],
    width: usize,
    run: impl Fn(Range<usize>, Columns<'_>) + Sync,
) {
    let ColumnPieces { reading, n_pieces, unit } = pieces;
    let output = SharedMut::new(output);
    let n_units = width.div_ceil(unit);
    let first = |piece: usize| n_units * piece / n_pieces;
    let run = |piece: usize| {
        let units = first(piece)..first(piece + 1);
        // Pieces have ranges one behind the other, and each number is given once: nobody else has these columns.
        let columns = units.start * unit..width.min(units.end * unit);
        run(units, Columns { output: &output, width, columns });
    };
    if n_pieces == 1 { run(0) } else { share_reading(reading, n_pieces, run) }
}

/// How [`share_columns`] cuts a matrix.
pub(super) struct ColumnPieces {
    /// What the pieces in their order read.
    pub(super) reading: Reading,
    /// At least one.
    pub(super) n_pieces: usize,
    /// Columns that stay together.
    pub(super) unit: usize,
}

/// Columns of a matrix that one piece of work has to itself.
pub(super) struct Columns<'a> {
    output: &'a SharedMut<'a, f32>,
    width: usize,
    columns: Range<usize>,
}

impl Columns<'_> {
    /// The part of `row` in `columns`, which end where the matrix does.
    ///
    /// # Panics
    /// Where these belong to another piece of work.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let columns = columns.start..columns.end.min(self.width);
        assert!(self.columns.start <= columns.start && columns.end <= self.columns.end);
        let start = row * self.width;
        #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
        // SAFETY: `share_columns` gives each column to one piece of work, and this borrows all that the piece has.
        unsafe {
            self.output.part(start + columns.start..start + columns.end)
        }
    }
}

/// Runs `run` for each item, shared out over the threads that operations use, and returns when all have ended.
pub fn share_items<T: Send>(items: &mut [T], run: impl Fn(&mut T) + Sync) {
    let shared = SharedMut::new(items);
    share(shared.len(), |number| {
        #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
        // SAFETY: each number is given once.
        unsafe { shared.part(number..number + 1) }.iter_mut().for_each(&run);
    });
}

/// A slice that threads write disjoint parts of.
pub(super) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    _slice: PhantomData<&'a mut [T]>,
}

#[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
// SAFETY: whoever asks for a part vouches that nobody else has it.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _slice: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where a part of the slice is, for threads whose own values lie between those of others.
    pub(super) fn places(&self, range: Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len);
        self.start.wrapping_add(range.start)
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// Nobody else holds a part that overlaps this one.
    #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that parts are disjoint")]
    #[inline(always)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the slice, and the caller's alone.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

fn crew() -> &'static Crew {
    static CREW: OnceLock<Crew> = OnceLock::new();
    // As many as the pool that Flex uses has, so that one setting rules both.
    CREW.get_or_init(|| Crew::new(rayon::current_num_threads().max(1)))
}

#[expect(unsafe_code, reason = "calls the leader's closure through a plain pointer")]
/// # Safety
/// `run` points to a living `F`.
unsafe fn call<F: Fn(usize)>(run: *const (), piece: usize) {
    // SAFETY: as above.
    unsafe { (*run.cast::<F>())(piece) }
}

type Call = unsafe fn(*const (), usize);

impl Crew {
    /// `n_threads` threads, the caller included. They live as long as the process.
    fn new(n_threads: usize) -> Self {
        let board: &'static Board = Box::leak(Box::new(Board::new(n_threads)));
        let helpers = (1..n_threads).filter_map(|number| {
            let builder = thread::Builder::new().name(format!("hearth-cpu-{number}"));
            builder.spawn(move || board.help(number)).map(|handle| handle.thread().clone()).ok()
        });
        Self { board, helpers: helpers.collect() }
    }

    /// [`share_reading`].
    fn share<F: Fn(usize) + Sync>(&self, reading: Reading, n_pieces: usize, run: F) {
        let alone = || (0..n_pieces).for_each(&run);
        if self.helpers.is_empty() || n_pieces < 2 {
            return alone();
        }
        let lead = |foresight: &mut Foresight| {
            let is_read_again = reading != Reading::default();
            let next = if is_read_again { foresight.after(reading) } else { None };
            self.board.next_reading.store(next.unwrap_or_default());
            self.lead(n_pieces, &run);
        };
        match self.board.leader.try_lock() {
            Ok(mut foresight) => lead(&mut foresight),
            // A panic in a piece of work leaves nothing behind.
            Err(TryLockError::Poisoned(foresight)) => lead(&mut foresight.into_inner()),
            // Another thread leads.
            Err(TryLockError::WouldBlock) => alone(),
        }
    }

    /// Puts `run` up, takes part in it, and returns when every piece has ended. The caller holds the leader's lock.
    fn lead<F: Fn(usize) + Sync>(&self, n_pieces: usize, run: &F) {
        let board = self.board;
        let last = board.job(Relaxed);
        // From here on, nobody can claim a piece of the last job; all its pieces have ended.
        board.next.iter().for_each(|next| next.0.store(last << 32 | CLOSED, Relaxed));
        fence(Release);
        let n_done = board.n_done().wrapping_add(n_pieces);
        board.n_pieces.store(n_pieces, Relaxed);
        board.run.store(ptr::from_ref(run).cast_mut().cast(), Relaxed);
        board.call.store(call::<F> as Call as *mut (), Relaxed);
        let job = last.wrapping_add(1) << 32;
        // The first range, which tells that there is a job, opens last. Sequentially consistent, with `n_asleep`: a helper
        // sees the job before it goes to sleep, or it is seen asleep.
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
            // A helper lost its core with a piece in hand: it may want this one.
            if looks < LEADER_LOOKS { spin_loop() } else { thread::yield_now() }
        }
        // Taken off the board whoever panicked: left there, it would be raised by the next job.
        let panic_of_helper = board.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic.or(panic_of_helper) {
            resume_unwind(panic);
        }
    }
}

/// A piece of the current job that belongs to whoever holds this.
struct Piece {
    number: usize,
    run: *const (),
    call: *mut (),
}

impl Board {
    fn new(n_threads: usize) -> Self {
        Self {
            leader: Mutex::new(Foresight::new()),
            next_reading: NextReading::default(),
            next: (0..n_threads).map(|_| Line(AtomicU64::new(CLOSED))).collect(),
            n_done: (0..n_threads).map(|_| Line::default()).collect(),
            n_asleep: Line::default(),
            n_pieces: AtomicUsize::default(),
            run: AtomicPtr::default(),
            call: AtomicPtr::default(),
            panic: Mutex::default(),
        }
    }

    /// Takes note that `thread` has brought a piece to its end.
    fn count(&self, thread: usize) {
        if let Some(Line(n_done)) = self.n_done.get(thread) {
            // Nobody else writes to it.
            n_done.store(n_done.load(Relaxed).wrapping_add(1), Release);
        }
    }

    /// Pieces that have ended, in all jobs.
    fn n_done(&self) -> usize {
        self.n_done.iter().fold(0, |sum, Line(n_done)| sum.wrapping_add(n_done.load(Acquire)))
    }

    /// The pieces that `thread` begins with.
    fn range(&self, thread: usize, n_pieces: usize) -> Range<usize> {
        let n_threads = self.next.len();
        n_pieces * thread / n_threads..n_pieces * (thread + 1) / n_threads
    }

    /// The next piece of `thread`'s range; behind its end, of the next thread's that has any left.
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
            // What was read belongs to the job in `next`: had the leader begun to write the next one, it would have
            // changed `next` before, and this would fail.
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
            self.next_reading.load().fetch(thread, self.next.len(), || self.job(Relaxed) != seen);
            self.wait_for_other_than(seen);
        }
    }

    fn run(&self, piece: &Piece) {
        #[expect(unsafe_code, reason = "calls the leader's closure through a plain pointer")]
        // SAFETY: `call` was made from a `Call` for the closure behind `run`, by the leader that put this job up; it
        // keeps the closure alive until every claimed piece has ended, and this one has not.
        let run = || unsafe { std::mem::transmute::<*mut (), Call>(piece.call)(piece.run, piece.number) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// The number of the job that is up.
    fn job(&self, ordering: Ordering) -> u64 {
        self.next[LEADER].0.load(ordering) >> 32
    }

    fn wait_for_other_than(&self, seen: u64) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            for _ in 0..LOOKS {
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

    /// Every piece runs once, from many leaders at a time, with helpers asleep and awake.
    #[test]
    fn every_piece_runs_exactly_once() {
        thread::scope(|scope| {
            for leader in 0..4 {
                scope.spawn(move || {
                    for round in 0..2000 {
                        let n_pieces = (round * 7 + leader) % 40;
                        let runs: Vec<AtomicUsize> = (0..n_pieces).map(|_| AtomicUsize::new(0)).collect();
                        share(n_pieces, |piece| {
                            runs[piece].fetch_add(1, Relaxed);
                        });
                        assert!(runs.iter().all(|runs| runs.load(Relaxed) == 1));
                        if round % 500 == 0 {
                            thread::park_timeout(2 * PATIENCE);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn every_item_has_its_turn() {
        let mut items: Vec<String> = (0..1000).map(|number: usize| number.to_string()).collect();
        share_items(&mut items, |item| item.push('!'));
        assert!(items.iter().enumerate().all(|(number, item)| *item == format!("{number}!")));
        share_items(&mut Vec::<String>::new(), |item| item.clear());
    }

    /// Both threads have a piece in hand when they panic: neither panic may wait for the next job.
    #[test]
    fn panics_of_leader_and_helper_end_with_their_job() {
        let crew = Crew::new(2);
        let both = std::sync::Barrier::new(2);
        let share = |run: &(dyn Fn(usize) + Sync)| {
            catch_unwind(AssertUnwindSafe(|| crew.share(Reading::default(), 2, run))).is_ok()
        };
        let is_raised = !share(&|piece| {
            both.wait();
            assert!(piece > 1, "piece {piece}");
        });
        assert!(is_raised, "a panic is raised where the job was put up");
        assert!(share(&|_| ()), "a panic of the job before was raised");
    }

    #[test]
    fn a_panic_reaches_the_leader_and_the_crew_lives_on() {
        let outcome = catch_unwind(|| share(100, |piece| assert!(piece != 57, "piece 57")));
        let panic = outcome.err().and_then(|panic| panic.downcast::<&str>().ok());
        assert!(panic.is_some_and(|panic| panic.contains("piece 57")));
        let sum = AtomicUsize::new(0);
        share(100, |piece| {
            sum.fetch_add(piece, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 4950);
    }
}
