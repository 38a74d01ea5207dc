//! Measures the time of operations with a hand-written backward pass.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A direction in which operations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// From inputs to the output.
    Forward,
    /// From the gradient of the output to the gradients of the inputs.
    Backward,
}

/// The time of all calls of one operation in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// The operation's type, such as `Linear`.
    pub name: &'static str,
    /// The direction.
    pub pass: Pass,
    /// Calls.
    pub count: usize,
    /// Total of all calls.
    pub time: Duration,
}

static IS_ON: AtomicBool = AtomicBool::new(false);

type Times = BTreeMap<(&'static str, Pass), (usize, Duration)>;

static TIMES: Mutex<Times> = Mutex::new(BTreeMap::new());

fn times() -> MutexGuard<'static, Times> {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `run`; returns its result and the time that each training operation (`TrainingOp`) took meanwhile, on all
/// threads, the longest first. On a GPU this is the time to launch the operation, not to run it. Overlapping calls of
/// this function share one table of times, so their results are wrong.
pub fn profile_training<T>(run: impl FnOnce() -> T) -> (T, Vec<OpTime>) {
    times().clear();
    IS_ON.store(true, Ordering::SeqCst);
    let result = run();
    IS_ON.store(false, Ordering::SeqCst);
    let of_op = |((name, pass), (count, time))| OpTime { name, pass, count, time };
    let mut profile: Vec<_> = std::mem::take(&mut *times()).into_iter().map(of_op).collect();
    profile.sort_by_key(|op| std::cmp::Reverse(op.time));
    (result, profile)
}

/// Adds the time that `run` takes to the total of `name`, an operation's full type name, while profiling is on.
pub(super) fn timed<T>(name: &'static str, pass: Pass, run: impl FnOnce() -> T) -> T {
    if !IS_ON.load(Ordering::Relaxed) {
        return run();
    }
    let started = Instant::now();
    let result = run();
    let name = name.rsplit("::").next().unwrap_or(name);
    let mut times = times();
    let (count, time) = times.entry((name, pass)).or_default();
    *count += 1;
    *time += started.elapsed();
    result
}
