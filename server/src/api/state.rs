//! State that all endpoints share: the engine, once it is loaded, and whether the server is draining.

use std::{
    array,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::response::Response;
use hearth_model::sampling::SamplingParams;
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SetOnce},
    task::spawn_blocking,
    time::timeout_at,
};

use super::{bounded_json::OTHER_BYTES_PER_BYTE, error::ApiError, options::ApiOptions};
use crate::{
    clock::unix_time,
    engine::{Engine, EngineState, request::MAX_CHOICES},
    metrics::HttpMetrics,
};

/// Size in bytes above which a body counts as long: tokenizing it takes tens of milliseconds or more.
pub(super) const LONG_BODY_BYTES: usize = 1 << 16;

/// Memory limit in bytes for the bodies of all requests that are being received or prepared, parsed values included. If
/// the settings allow a single request more memory than this, that is the limit (see [`max_bodies_bytes`]).
pub(super) const MAX_BODIES_BYTES: usize = 512 << 20;

/// Memory in bytes beyond that limit, reserved for requests that take at most [`LONG_BODY_BYTES`], so that long
/// requests cannot keep short ones out.
const SHORT_BODIES_BYTES: usize = 64 << 20;

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
    async fn bound<F: Future>(self, future: F) -> Result<F::Output, ApiError> {
        timeout_at(self.at.into(), future).await.map_err(|_| ApiError::timed_out(self.limit))
    }

    /// Checks, before work begins, that the deadline has not passed.
    ///
    /// # Errors
    /// 504 if it has.
    fn check(self) -> Result<(), ApiError> {
        if Instant::now() < self.at { Ok(()) } else { Err(ApiError::timed_out(self.limit)) }
    }
}

/// Allows one long [`Preparation`] of a kind at a time.
#[derive(Debug)]
struct Turn {
    permit: Arc<Semaphore>,
    n_waiting: AtomicUsize,
}

/// The memory that a request's body and its parsed values take of the limit for all requests ([`MAX_BODIES_BYTES`]).
/// Released when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    free: Arc<AtomicUsize>,
    n_bytes: usize,
    /// Limit in bytes for all long requests together, for error messages.
    most: usize,
}

impl BodyRoom {
    /// Takes `n_bytes` more.
    ///
    /// # Errors
    /// 429 if too little memory is left, because other requests take it.
    pub(crate) fn grow(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        let wanted = self.n_bytes.saturating_add(n_bytes);
        let is_short = wanted <= LONG_BODY_BYTES;
        let rest = |free: usize| {
            let rest = free.checked_sub(n_bytes)?;
            (is_short || rest >= SHORT_BODIES_BYTES).then_some(rest)
        };
        if self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_err() {
            let message = format!("too many long requests: they may take {} bytes while they are prepared", self.most);
            return Err(ApiError::queue_full(message));
        }
        self.n_bytes = wanted;
        Ok(())
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        self.free.fetch_add(self.n_bytes, Ordering::Relaxed);
    }
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

/// The state of the server; clones share it.
#[derive(Clone, Debug)]
pub struct AppState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    model_id: String,
    options: ApiOptions,
    created: u64,
    engine: SetOnce<Engine>,
    http_metrics: HttpMetrics,
    draining_since: OnceLock<Instant>,
    /// One for each long kind of [`Preparation`].
    turns: [Turn; N_LONG],
    /// Free bytes for the bodies of requests.
    body_room: Arc<AtomicUsize>,
}

impl AppState {
    /// A server whose model is loading, with the default settings. `model_id` is its name for clients.
    pub fn loading(model_id: impl Into<String>) -> Self {
        Self::loading_with(model_id, ApiOptions::default())
    }

    /// The same with these settings.
    pub fn loading_with(model_id: impl Into<String>, options: ApiOptions) -> Self {
        let inner = Inner {
            model_id: model_id.into(),
            body_room: Arc::new(max_bodies_bytes(&options).saturating_add(SHORT_BODIES_BYTES).into()),
            options,
            created: unix_time().as_secs(),
            engine: SetOnce::new(),
            http_metrics: HttpMetrics::new(),
            draining_since: OnceLock::new(),
            turns: array::from_fn(|_| Turn::new()),
        };
        Self(Arc::new(inner))
    }

    /// A server that is ready.
    pub fn ready(model_id: impl Into<String>, engine: Engine) -> Self {
        let state = Self::loading(model_id);
        state.set_engine(engine);
        state
    }

    /// Sets the loaded engine. Later calls have no effect.
    pub fn set_engine(&self, engine: Engine) {
        let _ = self.0.engine.set(engine);
    }

    /// Stops accepting new work.
    pub fn start_draining(&self) {
        let _ = self.0.draining_since.set(Instant::now());
    }

    /// The engine, if the model is loaded.
    pub fn engine(&self) -> Option<&Engine> {
        self.0.engine.get()
    }

    /// Waits until inference fails and returns the error; waits for ever if it does not.
    pub async fn inference_failure(&self) -> String {
        let engine = self.0.engine.wait().await;
        // An error means that the inference thread has ended.
        let _ = engine.stats().wait_for(|stats| matches!(stats.state, EngineState::Failed(_))).await;
        match engine.state() {
            EngineState::Failed(what) => what,
            // The engine was stopped, so it can no longer fail.
            EngineState::Running | EngineState::Stopped => std::future::pending().await,
        }
    }

    /// The engine, if it accepts work.
    ///
    /// # Errors
    /// 503 while the model is loading, while the server drains, and after the engine has failed.
    pub fn working_engine(&self) -> Result<&Engine, ApiError> {
        self.engine_for(Instant::now())
    }

    /// The engine, if it accepts a request that arrived at `arrived`. A request that arrived before the server began to
    /// drain is still accepted, even if it was received and prepared only afterwards.
    ///
    /// # Errors
    /// As [`working_engine`](Self::working_engine).
    pub(crate) fn engine_for(&self, arrived: Instant) -> Result<&Engine, ApiError> {
        self.require_open(arrived)?;
        let engine = self.engine().ok_or_else(|| ApiError::unavailable("the model is still loading"))?;
        match engine.state() {
            EngineState::Running => Ok(engine),
            EngineState::Stopped => Err(ApiError::shutting_down()),
            EngineState::Failed(what) => Err(ApiError::unavailable(format!("inference failed: {what}"))),
        }
    }

    /// Checks that a request arrived before the server began to drain.
    ///
    /// # Errors
    /// 503 if it did not.
    pub(crate) fn require_open(&self, arrived: Instant) -> Result<(), ApiError> {
        match self.0.draining_since.get() {
            Some(since) if *since <= arrived => Err(ApiError::shutting_down()),
            _ => Ok(()),
        }
    }

    /// Checks whether the engine's queue has room, before a request is read or prepared in vain.
    ///
    /// # Errors
    /// 429 if the queue is full.
    pub(crate) fn require_room(&self) -> Result<(), ApiError> {
        // Invalid requests get a 400 also while the model is loading.
        self.engine().map_or(Ok(()), |engine| Ok(engine.require_room()?))
    }

    /// The memory of a new request, which takes nothing yet.
    pub(crate) fn body_room(&self) -> BodyRoom {
        BodyRoom { free: Arc::clone(&self.0.body_room), n_bytes: 0, most: max_bodies_bytes(&self.0.options) }
    }

    /// Runs `work`, such as tokenizing a prompt, on a blocking thread. Long work runs one at a time for each kind, so
    /// that a thread is always free for short work. As many requests may wait for each kind as for the engine.
    ///
    /// # Errors
    /// Those of `work`; 429 if too many requests wait for the same kind of long work; 504 if long work is not done by
    /// the deadline (it is not started after the deadline); 500 if it panics.
    pub(crate) async fn prepare<Work, T>(
        &self,
        preparation: Preparation,
        wait: TurnWait,
        work: Work,
    ) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        let turn = match self.0.turns.get(preparation as usize) {
            None => None,
            Some(turn) => {
                let max_waiting = self.engine().map_or(MAX_CHOICES, Engine::max_queue);
                Some(turn.acquire(max_waiting, wait.deadline).await?)
            }
        };
        if wait.submits {
            // The queue may have filled up during the wait.
            self.require_room()?;
        }
        // Short work needs no deadline here: it does not wait for a turn, and the engine ends requests that are late.
        let deadline = wait.deadline.filter(|_| turn.is_some());
        let done = spawn_blocking(move || {
            // Held until the work is done, even if the client disconnects.
            let _turn = turn;
            deadline.map_or(Ok(()), Deadline::check)?;
            work()
        });
        let done = match deadline {
            None => done.await,
            Some(deadline) => deadline.bound(done).await?,
        };
        done.map_err(|error| ApiError::internal(format!("cannot prepare the request: {error}")))?
    }

    /// HTTP metrics.
    pub(crate) fn http_metrics(&self) -> &HttpMetrics {
        &self.0.http_metrics
    }

    /// Runs short `work` on this thread, and long work as [`prepare`](Self::prepare) does.
    ///
    /// # Errors
    /// As `prepare`.
    pub(crate) async fn prepare_long<Work, T>(
        &self,
        preparation: Preparation,
        wait: TurnWait,
        work: Work,
    ) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        match preparation {
            Preparation::Short => work(),
            preparation => self.prepare(preparation, wait, work).await,
        }
    }

    /// Serializes an answer of about `n_bytes`; long ones on a blocking thread.
    ///
    /// # Errors
    /// 500 if it panics.
    pub(crate) async fn write<Write>(&self, n_bytes: usize, write: Write) -> Result<Response, ApiError>
    where
        Write: FnOnce() -> Response + Send + 'static,
    {
        if n_bytes <= LONG_BODY_BYTES {
            return Ok(write());
        }
        self.prepare(Preparation::Short, TurnWait::default(), move || Ok(write())).await
    }

    /// The API's settings.
    pub fn options(&self) -> &ApiOptions {
        &self.0.options
    }

    /// The served model's defaults for sampling parameters.
    pub fn sampling_defaults(&self) -> SamplingParams {
        self.engine().map(|engine| engine.model().sampling_defaults.clone()).unwrap_or_default()
    }

    /// The served model's name.
    pub fn model_id(&self) -> &str {
        &self.0.model_id
    }

    /// The names that requests may choose by `model`: the served model's, then those of adapters.
    pub(crate) fn model_names(&self) -> Vec<String> {
        let adapters = self.engine().map(|engine| engine.adapters().list()).unwrap_or_default();
        std::iter::once(self.model_id().to_owned()).chain(adapters.into_iter().map(|adapter| adapter.name)).collect()
    }

    /// Start time of the server in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.0.created
    }
}

fn max_bodies_bytes(options: &ApiOptions) -> usize {
    let one = options.max_body_bytes.saturating_mul(1 + OTHER_BYTES_PER_BYTE);
    MAX_BODIES_BYTES.max(one)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc;

    use axum::{http::StatusCode, response::IntoResponse};
    use tokio::{runtime, task::yield_now};

    use super::*;

    #[test]
    fn short_work_runs_however_much_long_work_waits() {
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

    #[test]
    fn bodies_may_have_any_size_that_the_limit_allows() {
        const GIB: usize = 1 << 30;
        let state = AppState::loading_with("x", ApiOptions { max_body_bytes: GIB, ..ApiOptions::default() });
        let mut room = state.body_room();
        room.grow(GIB).unwrap();
        room.grow(5 * GIB).unwrap();
        assert!(state.body_room().grow(3 * GIB + 1).is_err());
        room.grow(3 * GIB).unwrap();
        drop(room);
        assert!(state.body_room().grow(9 * GIB).is_ok());
        let unlimited = AppState::loading_with("x", ApiOptions { max_body_bytes: usize::MAX, ..ApiOptions::default() });
        assert!(unlimited.body_room().grow(usize::MAX / 2).is_ok());
    }

    #[test]
    fn long_bodies_leave_room_for_short_ones() {
        let state = AppState::loading("x");
        let mut long = state.body_room();
        long.grow(MAX_BODIES_BYTES).unwrap();
        let mut short = state.body_room();
        short.grow(LONG_BODY_BYTES - 1).unwrap();
        short.grow(1).unwrap();
        assert!(short.grow(1).is_err(), "it is no longer short");
        let more = (1..SHORT_BODIES_BYTES / LONG_BODY_BYTES).map(|_| {
            let mut room = state.body_room();
            room.grow(LONG_BODY_BYTES).unwrap();
            room
        });
        let more: Vec<_> = more.collect();
        assert!(state.body_room().grow(1).is_err());
        drop((short, more));
        assert!(state.body_room().grow(1).is_ok());
        assert!(long.grow(1).is_err());
    }

    #[tokio::test]
    async fn long_work_ends_at_the_deadline() {
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
    async fn waiting_for_a_turn_is_limited_in_number_and_time() {
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
