//! Work before a request can be submitted to the engine, such as tokenizing. It runs on blocking threads; long work of
//! the same kind runs one at a time.
//!
//! Work cannot be interrupted from outside. If the client of long work has gone, or the work takes longer than
//! `--step-timeout`, its turn is given to the next request, and the work continues beside it; the number of such
//! leftovers is limited. So work that hangs does not block others.

use std::{
    array,
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hearth_engine::{
    tenant::{Queue, TenantId},
    work_clock::RunningWork,
};
use tokio::{
    sync::{Semaphore, oneshot},
    time::{sleep, timeout_at},
};

use crate::api::error::ApiError;

/// Size in bytes above which a body counts as long: tokenizing it takes tens of milliseconds or more.
pub(crate) const LONG_BODY_BYTES: usize = 1 << 16;

/// Number of kinds of long [`WorkClass`].
const N_LONG: usize = WorkClass::Short as usize;

/// Maximum number of works of each long kind that may continue after their turn was given back.
const MAX_LEFT_BEHIND: usize = 1;

/// Minimum number of threads for [`AppState::prepare`](crate::api::wire::state::AppState::prepare): for each kind of
/// long work, one for the current turn and one for each leftover; and one for short work.
pub(crate) const MIN_PREPARING_THREADS: usize = N_LONG * (1 + MAX_LEFT_BEHIND) + 1;

/// Work before a request can be submitted to the engine, by cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkClass {
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

impl WorkClass {
    /// The class of a body of `n_bytes` without grammar or template.
    pub(crate) fn of_body(n_bytes: usize) -> Self {
        if n_bytes > LONG_BODY_BYTES { Self::LongBody } else { Self::Short }
    }

    /// The work's name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LongBody => "the preparation of a long request",
            Self::Grammar => "the compilation of a grammar",
            Self::Template => "a chat template of a request",
            Self::Inspection => "the inspection of a text",
            Self::Adapter => "the reading of an adapter",
            Self::Short => "the preparation of a request",
        }
    }
}

/// How a request waits for its turn of a long [`WorkClass`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdmissionWait {
    /// The tenant that sent the request: tenants take turns.
    pub(crate) tenant: TenantId,
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
    pub(crate) async fn bound<F: Future>(self, future: F) -> Result<F::Output, ApiError> {
        timeout_at(self.at.into(), future).await.map_err(|_| ApiError::timed_out(self.limit))
    }

    /// Checks, before work begins, that the deadline has not passed.
    ///
    /// # Errors
    /// 504 if it has.
    pub(crate) fn check(self) -> Result<(), ApiError> {
        if Instant::now() < self.at { Ok(()) } else { Err(ApiError::timed_out(self.limit)) }
    }
}

/// State shared by work and those who wait for it.
#[derive(Debug)]
pub(crate) struct WorkHandle {
    work: RunningWork,
    is_abandoned: AtomicBool,
}

impl WorkHandle {
    pub(crate) fn new(work: RunningWork) -> Self {
        Self { work, is_abandoned: AtomicBool::new(false) }
    }

    /// The work has made progress. Returns whether it is still wanted.
    pub(crate) fn report(&self) -> bool {
        self.work.progress();
        !self.is_abandoned.load(Ordering::Relaxed)
    }

    /// Waits until the work has made no progress for `limit`.
    pub(crate) async fn stalled(&self, limit: Duration) {
        loop {
            match limit.checked_sub(self.work.idle()) {
                None | Some(Duration::ZERO) => return,
                Some(rest) => sleep(rest).await,
            }
        }
    }
}

/// The client of some work. Dropping it marks the work as abandoned.
#[derive(Debug)]
pub(crate) struct WaitingClient {
    progress: Arc<WorkHandle>,
    /// Dropped with the client.
    _is_here: oneshot::Sender<()>,
}

impl WaitingClient {
    /// The client, and a future that ends when it has gone.
    pub(crate) fn new(progress: Arc<WorkHandle>) -> (Self, oneshot::Receiver<()>) {
        let (is_here, has_gone) = oneshot::channel();
        (Self { progress, _is_here: is_here }, has_gone)
    }
}

impl Drop for WaitingClient {
    fn drop(&mut self) {
        self.progress.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Allows one long [`WorkClass`] of a kind at a time. Waiting tenants take turns, and a tenant's requests keep the
/// order of their arrival.
#[derive(Debug)]
struct ClassSlot {
    lines: Arc<Mutex<Lines>>,
    queue: Queue,
    left_behind: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Lines {
    is_taken: bool,
    /// The waiting requests, by tenant; no queue is empty.
    waiting: VecDeque<(TenantId, VecDeque<oneshot::Sender<TurnPermit>>)>,
}

impl Lines {
    fn add(&mut self, tenant: TenantId, request: oneshot::Sender<TurnPermit>) {
        match self.waiting.iter_mut().find(|(other, _)| *other == tenant) {
            Some((_, line)) => {
                // Removes requests that have gone.
                line.retain(|request| !request.is_closed());
                line.push_back(request);
            }
            None => self.waiting.push_back((tenant, [request].into())),
        }
    }

    fn next(&mut self) -> Option<oneshot::Sender<TurnPermit>> {
        let (tenant, mut line) = self.waiting.pop_front()?;
        let request = line.pop_front();
        if !line.is_empty() {
            self.waiting.push_back((tenant, line));
        }
        request
    }
}

/// A turn; its drop passes it on.
#[derive(Debug)]
struct TurnPermit(Arc<Mutex<Lines>>);

impl Drop for TurnPermit {
    fn drop(&mut self) {
        loop {
            let next = {
                let mut lines = lock(&self.0);
                let next = lines.next();
                lines.is_taken = next.is_some();
                next
            };
            match next {
                None => return,
                Some(request) if request.is_closed() => {}
                // If it has gone meanwhile, this drops the permit, which passes on the turn.
                Some(request) => return drop(request.send(Self(Arc::clone(&self.0)))),
            }
        }
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClassSlot {
    fn new() -> Self {
        Self { lines: Arc::default(), queue: Queue::default(), left_behind: Arc::new(Semaphore::new(MAX_LEFT_BEHIND)) }
    }

    /// Waits for the turn. At most `max_waiting` requests of a tenant may wait at the same time, and another
    /// `max_waiting` of other tenants.
    ///
    /// # Errors
    /// 429 if that many are waiting already; 504 if the deadline passes.
    async fn acquire(&self, max_waiting: usize, wait: AdmissionWait) -> Result<TakenTurn, ApiError> {
        let (permit, _place) = {
            let mut lines = lock(&self.lines);
            if !lines.is_taken {
                lines.is_taken = true;
                return Ok(self.taken(TurnPermit(Arc::clone(&self.lines))));
            }
            let place = self.queue.take(max_waiting, wait.tenant, 1).ok_or_else(|| {
                let message = format!("the queue is full: at most {max_waiting} requests may wait to be prepared");
                ApiError::queue_full(message)
            })?;
            let (sender, permit) = oneshot::channel();
            lines.add(wait.tenant, sender);
            (permit, place)
        };
        let permit = match wait.deadline {
            None => permit.await,
            Some(deadline) => deadline.bound(permit).await?,
        };
        // Not reached: a waiting request is dropped only if it has gone.
        Ok(self.taken(permit.map_err(|error| ApiError::internal(error.to_string()))?))
    }

    fn taken(&self, permit: TurnPermit) -> TakenTurn {
        TakenTurn { permit, left_behind: Arc::clone(&self.left_behind) }
    }
}

/// The turn for some work.
#[derive(Debug)]
pub(crate) struct TakenTurn {
    permit: TurnPermit,
    left_behind: Arc<Semaphore>,
}

impl TakenTurn {
    /// Keeps the turn until the work has `ended`, or until its client has gone or the work takes longer than `limit`,
    /// if not too many works are running without a turn already.
    pub(crate) async fn hold(self, ended: oneshot::Receiver<()>, gone: oneshot::Receiver<()>, limit: Duration) {
        tokio::pin!(ended);
        tokio::select! {
            _ = &mut ended => return,
            _ = gone => {}
            () = sleep(limit) => {}
        }
        tokio::select! {
            biased;
            _ = &mut ended => {}
            _place = self.left_behind.acquire_owned() => {
                drop(self.permit);
                let _ = ended.await;
            }
        }
    }
}

/// One turn for each long kind of [`WorkClass`].
#[derive(Debug)]
pub(crate) struct Turns([ClassSlot; N_LONG]);

impl Turns {
    pub(crate) fn new() -> Self {
        Self(array::from_fn(|_| ClassSlot::new()))
    }

    /// Waits for the turn of long work; short work needs none.
    ///
    /// # Errors
    /// 429 if `max_waiting` requests are waiting for the same kind already; 504 if the deadline passes.
    pub(crate) async fn acquire(
        &self,
        preparation: WorkClass,
        max_waiting: usize,
        wait: AdmissionWait,
    ) -> Result<Option<TakenTurn>, ApiError> {
        match self.0.get(preparation as usize) {
            None => Ok(None),
            Some(turn) => turn.acquire(max_waiting, wait).await.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc;

    use axum::{http::StatusCode, response::IntoResponse};
    use tokio::{runtime, task::yield_now};

    use super::{super::options::ApiOptions, *};
    use crate::api::wire::state::AppState;

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
            let goes = Arc::new(Mutex::new(goes));
            let kinds = [
                WorkClass::of_body(LONG_BODY_BYTES + 1),
                WorkClass::Grammar,
                WorkClass::Template,
                WorkClass::Inspection,
                WorkClass::Adapter,
            ];
            let long = kinds.into_iter().cycle().take(15).map(|kind| {
                let (state, goes) = (state.clone(), Arc::clone(&goes));
                let work = move || {
                    goes.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                tokio::spawn(async move { state.prepare(kind, AdmissionWait::default(), work).await })
            });
            let long: Vec<_> = long.collect();
            let short = state.prepare(WorkClass::of_body(LONG_BODY_BYTES), AdmissionWait::default(), || Ok(7));
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
        let wait = |limit| AdmissionWait { deadline: Deadline::new(Instant::now(), limit), ..AdmissionWait::default() };
        let never = || -> Result<(), _> { unreachable!("begun") };
        let passed = state.prepare(WorkClass::LongBody, wait(Duration::ZERO), never).await;
        assert_eq!(status(passed.unwrap_err()), StatusCode::GATEWAY_TIMEOUT);
        // Work that has begun is not interrupted, but the request does not wait for it beyond the deadline.
        let (go, goes) = mpsc::channel::<()>();
        let work = move || {
            let _ = goes.recv();
            Ok(())
        };
        let late = state.prepare(WorkClass::Grammar, wait(Duration::from_millis(5)), work).await;
        assert_eq!(status(late.unwrap_err()), StatusCode::GATEWAY_TIMEOUT);
        drop(go);
    }

    #[tokio::test]
    async fn waiting_for_preparation_is_limited_in_number_and_time() {
        let turn = ClassSlot::new();
        let wait = |tenant, deadline| AdmissionWait { tenant: TenantId(tenant), deadline, ..AdmissionWait::default() };
        let held = turn.acquire(0, wait(1, None)).await.unwrap();
        {
            let waiting = turn.acquire(1, wait(1, None));
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("two have the turn"),
                () = yield_now() => {}
            }
            let refused = turn.acquire(1, wait(1, None)).await.unwrap_err();
            assert_eq!(refused.message(), "the queue is full: at most 1 requests may wait to be prepared");
            assert_eq!(status(refused), StatusCode::TOO_MANY_REQUESTS);
        }
        // The waiting request has left.
        let deadline = Deadline::new(Instant::now(), Duration::from_millis(5));
        assert_eq!(status(turn.acquire(1, wait(1, deadline)).await.unwrap_err()), StatusCode::GATEWAY_TIMEOUT);
        drop(held);
        assert!(turn.acquire(0, wait(1, deadline)).await.is_ok());
        assert!(Deadline::new(Instant::now(), Duration::MAX).is_none());
    }

    #[tokio::test]
    async fn tenants_get_turns_one_after_the_other() {
        let turn = Arc::new(ClassSlot::new());
        let held = turn.acquire(9, AdmissionWait::default()).await.unwrap();
        let (order, mut in_order) = tokio::sync::mpsc::unbounded_channel();
        // Requests as (tenant, number); the fourth goes away while it waits.
        let mut waiting = Vec::new();
        for (tenant, number) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (3, 7)] {
            let (turn, order) = (Arc::clone(&turn), order.clone());
            waiting.push(tokio::spawn(async move {
                let wait = AdmissionWait { tenant: TenantId(tenant), ..AdmissionWait::default() };
                let _taken = turn.acquire(9, wait).await.unwrap();
                order.send(number).unwrap();
            }));
            yield_now().await;
        }
        waiting.remove(3).abort();
        yield_now().await;
        drop(held);
        for task in waiting {
            task.await.unwrap();
        }
        let order: Vec<i32> = std::iter::from_fn(|| in_order.try_recv().ok()).collect();
        assert_eq!(order, [1, 5, 7, 2, 6, 3]);
        assert!(turn.acquire(0, AdmissionWait::default()).await.is_ok());
    }

    /// Work that hangs until the test lets it continue.
    #[tokio::test]
    async fn turn_is_given_back_when_its_client_has_gone_or_its_work_takes_too_long() {
        for step_timeout in [Duration::from_secs(3600), Duration::from_millis(5)] {
            let options = ApiOptions { step_timeout, ..ApiOptions::default() };
            let state = AppState::loading_with("x", options);
            let (go, goes) = mpsc::channel::<()>();
            let goes = Arc::new(Mutex::new(goes));
            let hang = || {
                let goes = Arc::clone(&goes);
                move || {
                    let _ = goes.lock().unwrap().recv();
                    Ok(())
                }
            };
            for _ in 0..MAX_LEFT_BEHIND {
                let hanging = state.prepare(WorkClass::Inspection, AdmissionWait::default(), hang());
                if step_timeout < Duration::from_secs(1) {
                    let error = hanging.await.unwrap_err();
                    assert_eq!(status(error), StatusCode::SERVICE_UNAVAILABLE);
                } else {
                    // Its client goes away once it has begun.
                    tokio::select! {
                        biased;
                        _ = hanging => panic!("it hangs"),
                        () = async { while state.slowest_work().is_none() { yield_now().await } } => {}
                    }
                }
            }
            let next = state.prepare(WorkClass::Inspection, AdmissionWait::default(), || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(30), next).await.unwrap().unwrap(), 7);
            let (what, _) = state.slowest_work().unwrap();
            assert_eq!(what, "the inspection of a text");
            drop(go);
            while state.slowest_work().is_some() {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn work_learns_that_its_client_has_gone() {
        let state = AppState::loading("x");
        let (seen, is_seen) = oneshot::channel();
        let work = |progress: &WorkHandle| {
            while progress.report() {
                std::thread::yield_now();
            }
            seen.send(()).unwrap();
            Ok(())
        };
        {
            let working = state.prepare_in_parts(WorkClass::Inspection, AdmissionWait::default(), work);
            tokio::pin!(working);
            let begun = async {
                while state.slowest_work().is_none() {
                    yield_now().await
                }
            };
            tokio::select! { biased; _ = &mut working => panic!("it waits for its client"), () = begun => {} }
        }
        is_seen.await.unwrap();
    }

    fn status(error: ApiError) -> StatusCode {
        error.into_response().status()
    }
}
