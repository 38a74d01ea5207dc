//! Threads that compute in the background for sequences, such as the mask of the next token while the model runs.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

/// Length of the queue at which tasks of dropped owners are first removed from it.
const FIRST_PURGE: usize = 64;

/// A pool of threads for tasks that belong to an owner of type `T`. A task whose owner is dropped before its turn is
/// skipped, and does not keep the owner's memory: the queue is not longer than a multiple of the living owners' tasks.
pub(super) struct TaskThreads<T>(Arc<Queue<T>>);

struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    has_task: Condvar,
}

struct Waiting<T> {
    tasks: VecDeque<Task<T>>,
    /// Length of the queue at which tasks of dropped owners are removed from it.
    purge_at: usize,
}

struct Task<T> {
    owner: Weak<T>,
    run: Box<dyn FnOnce(&T) + Send>,
}

impl<T: Send + Sync + 'static> TaskThreads<T> {
    /// Starts `n_threads` threads for the life of the process.
    ///
    /// # Errors
    /// Not a single thread can be started.
    pub(super) fn start(name: &str, n_threads: usize) -> io::Result<Self> {
        let waiting = Waiting { tasks: VecDeque::new(), purge_at: FIRST_PURGE };
        let queue = Arc::new(Queue { waiting: Mutex::new(waiting), has_task: Condvar::new() });
        for number in 0..n_threads.max(1) {
            let queue = Arc::clone(&queue);
            match thread::Builder::new().name(name.to_owned()).spawn(move || queue.work()) {
                Err(error) if number == 0 => return Err(error),
                Err(error) => tracing::warn!("cannot start another thread `{name}`: {error}"),
                Ok(_) => {}
            }
        }
        Ok(Self(queue))
    }

    /// Queues a task of `owner`, and returns at once.
    pub(super) fn spawn(&self, owner: &Arc<T>, run: impl FnOnce(&T) + Send + 'static) {
        let mut waiting = self.0.lock();
        if waiting.tasks.len() >= waiting.purge_at {
            waiting.tasks.retain(|task| task.owner.strong_count() > 0);
            waiting.purge_at = (2 * waiting.tasks.len()).max(FIRST_PURGE);
        }
        waiting.tasks.push_back(Task { owner: Arc::downgrade(owner), run: Box::new(run) });
        drop(waiting);
        self.0.has_task.notify_one();
    }
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Task<T> {
        let mut waiting = self.lock();
        loop {
            match waiting.tasks.pop_front() {
                Some(task) => return task,
                None => waiting = self.has_task.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn work(&self) {
        loop {
            let Task { owner, run } = self.next();
            if let Some(owner) = owner.upgrade()
                && catch_unwind(AssertUnwindSafe(|| run(&owner))).is_err()
            {
                tracing::error!("a task of the thread `{}` panicked", thread::current().name().unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::sync::{Barrier, mpsc::channel};

    use super::*;

    #[test]
    fn tasks_of_dropped_owners_are_skipped_and_do_not_accumulate() {
        let threads = TaskThreads::<usize>::start("tasks", 1).unwrap();
        let (busy, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (first, last) = (Arc::new(0), Arc::new(usize::MAX));
        let (at_start, until_go) = (Arc::clone(&busy), Arc::clone(&go));
        threads.spawn(&first, move |_| {
            at_start.wait();
            until_go.wait();
        });
        busy.wait();
        // The only thread is busy while 1000 owners come and go.
        for number in 1..=1000 {
            let owner = Arc::new(number);
            threads.spawn(&owner, |number| panic!("the owner {number} was dropped"));
            assert_eq!(Arc::strong_count(&owner), 1, "a waiting task does not keep its owner");
        }
        assert!(threads.0.lock().tasks.len() <= FIRST_PURGE);
        let (done, is_done) = channel();
        threads.spawn(&last, move |number| done.send(*number).unwrap());
        go.wait();
        assert_eq!(is_done.recv().unwrap(), usize::MAX);
        assert!(threads.0.lock().tasks.is_empty());
    }

    #[test]
    fn panic_of_a_task_leaves_its_thread_working() {
        let threads = TaskThreads::<()>::start("tasks", 1).unwrap();
        let owner = Arc::new(());
        let (done, is_done) = channel();
        threads.spawn(&owner, |()| panic!("for the test"));
        threads.spawn(&owner, move |()| done.send(()).unwrap());
        is_done.recv().unwrap();
    }
}
