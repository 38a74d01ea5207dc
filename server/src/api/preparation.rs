//! Work before a request can be submitted to the engine, such as tokenizing: on blocking threads, and long work of a kind
//! one at a time.

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time::timeout_at,
};

use super::error::ApiError;

/// Size in bytes above which a body counts as long: tokenizing it takes tens of milliseconds or more.
pub(super) const LONG_BODY_BYTES: usize = 1 << 16;

/// Number of kinds of long [`Preparation`].
const N_LONG: usize = Preparation::Short as usize;

/// Minimum number of threads for [`AppState::prepare`]: one for each kind of long work, and one for short work.
pub(crate) const MIN_PREPARING_THREADS: usize = N_LONG + 1;

/// Work before a request can be submitted to the engine, by cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// A body that takes long to parse, or text that takes long to tokenize.
    LongBody,
    /// A grammar to compile: usually milliseconds, sometimes a hundred times that.
    Grammar,
    /// A chat template in the request: may run for seconds.
    Template,
    /// A text to inspect: may run for seconds.
    Inspection,
    /// An adapter to read: may take seconds.
    Adapter,
    /// Takes milliseconds. The last kind: see [`N_LONG`].
    Short,
}

impl Preparation {
    /// The class of a body of `n_bytes` without grammar or template.
    pub(crate) fn of_body(n_bytes: usize) -> Self {
        if n_bytes > LONG_BODY_BYTES { Self::LongBody } else { Self::Short }
    }
}

/// How a request waits for its turn of a long [`Preparation`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnWait {
    /// Whether the request will be submitted to the engine, whose queue must then have room.
    pub(crate) submits: bool,
    /// The wait ends with an error at this time.
    pub(crate) deadline: Option<Deadline>,
}

/// The end of a request's time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    limit: Duration,
    at: Instant,
}

impl Deadline {
    /// The deadline of a request with the time limit `limit`. `None` if it is further away than the clock can express.
    pub(crate) fn new(arrived: Instant, limit: Duration) -> Option<Self> {
        Some(Self { limit, at: arrived.checked_add(limit)? })
    }

    /// Waits for `future` until the deadline.
    ///
    /// # Errors
    /// 504 if `future` is not ready in time.
    pub(super) async fn bound<F: Future>(self, future: F) -> Result<F::Output, ApiError> {
        timeout_at(self.at.into(), future).await.map_err(|_| ApiError::timed_out(self.limit))
    }

    /// Checks, before work begins, that the deadline has not passed.
    ///
    /// # Errors
    /// 504 if it has.
    pub(super) fn check(self) -> Result<(), ApiError> {
        if Instant::now() < self.at { Ok(()) } else { Err(ApiError::timed_out(self.limit)) }
    }
}

/// Allows one long [`Preparation`] of a kind at a time.
#[derive(Debug)]
struct Turn {
    permit: Arc<Semaphore>,
    n_waiting: AtomicUsize,
}

/// Counts a request that waits for its turn, until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turn {
    fn new() -> Self {
        Self { permit: Arc::new(Semaphore::new(1)), n_waiting: AtomicUsize::new(0) }
    }

    /// Waits for the turn. At most `max_waiting` requests may wait at the same time.
    ///
    /// # Errors
    /// 429 if that many are waiting already; 504 if the deadline passes.
    async fn acquire(&self, max_waiting: usize, deadline: Option<Deadline>) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(permit) = Arc::clone(&self.permit).try_acquire_owned() {
            return Ok(permit);
        }
        let n_before = self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.n_waiting);
        if n_before >= max_waiting {
            let message = format!("the queue is full: at most {max_waiting} requests may wait to be prepared");
            return Err(ApiError::queue_full(message));
        }
        let permit = Arc::clone(&self.permit).acquire_owned();
        let permit = match deadline {
            None => permit.await,
            Some(deadline) => deadline.bound(permit).await?,
        };
        // Not reached: the semaphore is never closed.
        permit.map_err(|closed: AcquireError| ApiError::internal(closed.to_string()))
    }
}

/// One turn for each long kind of [`Preparation`].
#[derive(Debug)]
pub(super) struct Turns([Turn; N_LONG]);

impl Turns {
    pub(super) fn new() -> Self {
        Self(array::from_fn(|_| Turn::new()))
    }

    /// Waits for the turn of long work; short work needs none.
    ///
    /// # Errors
    /// 429 if `max_waiting` requests are waiting for the same kind already; 504 if the deadline passes.
    pub(super) async fn acquire(
        &self,
        preparation: Preparation,
        max_waiting: usize,
        deadline: Option<Deadline>,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        match self.0.get(preparation as usize) {
            None => Ok(None),
            Some(turn) => turn.acquire(max_waiting, deadline).await.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc;

    use axum::{http::StatusCode, response::IntoResponse};
    use tokio::{runtime, task::yield_now};

    use super::{super::state::AppState, *};

    #[test]
    fn short_preparation_runs_while_long_preparations_wait() {
        let runtime = runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(MIN_PREPARING_THREADS)
            .build()
            .unwrap();
        runtime.block_on(async {
            let state = AppState::loading("x");
            let (go, goes) = mpsc::channel::<()>();
            let goes = Arc::new(std::sync::Mutex::new(goes));
            let kinds = [
                Preparation::of_body(LONG_BODY_BYTES + 1),
                Preparation::Grammar,
                Preparation::Template,
                Preparation::Inspection,
                Preparation::Adapter,
            ];
            let long = kinds.into_iter().cycle().take(15).map(|kind| {
                let (state, goes) = (state.clone(), Arc::clone(&goes));
                let work = move || {
                    goes.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                tokio::spawn(async move { state.prepare(kind, TurnWait::default(), work).await })
            });
            let long: Vec<_> = long.collect();
            let short = state.prepare(Preparation::of_body(LONG_BODY_BYTES), TurnWait::default(), || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(30), short).await.unwrap().unwrap(), 7);
            // The order depends on the scheduler: all start before any is awaited.
            long.iter().for_each(|_| go.send(()).unwrap());
            for done in long {
                done.await.unwrap().unwrap();
            }
        });
    }

    #[tokio::test]
    async fn long_preparation_answers_504_at_the_request_deadline() {
        let state = AppState::loading("x");
        let wait = |limit| TurnWait { submits: false, deadline: Deadline::new(Instant::now(), limit) };
        let status = |error: ApiError| error.into_response().status();
        let never = || -> Result<(), _> { unreachable!("begun") };
        let passed = state.prepare(Preparation::LongBody, wait(Duration::ZERO), never).await;
        assert_eq!(status(passed.unwrap_err()), StatusCode::GATEWAY_TIMEOUT);
        // Work that has begun is not interrupted, but the request does not wait for it beyond the deadline.
        let (go, goes) = mpsc::channel::<()>();
        let work = move || {
            let _ = goes.recv();
            Ok(())
        };
        let late = state.prepare(Preparation::Grammar, wait(Duration::from_millis(5)), work).await;
        assert_eq!(status(late.unwrap_err()), StatusCode::GATEWAY_TIMEOUT);
        drop(go);
    }

    #[tokio::test]
    async fn waiting_for_preparation_is_limited_in_number_and_time() {
        let status = |error: ApiError| error.into_response().status();
        let turn = Turn::new();
        let held = turn.acquire(0, None).await.unwrap();
        {
            let waiting = turn.acquire(1, None);
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("two have the turn"),
                () = yield_now() => {}
            }
            let refused = turn.acquire(1, None).await.unwrap_err();
            assert_eq!(refused.message(), "the queue is full: at most 1 requests may wait to be prepared");
            assert_eq!(status(refused), StatusCode::TOO_MANY_REQUESTS);
        }
        // The one that waited has left.
        let deadline = Deadline::new(Instant::now(), Duration::from_millis(5));
        assert_eq!(status(turn.acquire(1, deadline).await.unwrap_err()), StatusCode::GATEWAY_TIMEOUT);
        drop(held);
        assert!(turn.acquire(0, deadline).await.is_ok());
        assert!(Deadline::new(Instant::now(), Duration::MAX).is_none());
    }
}
