//! State that all endpoints share: the engine, once it is loaded, and whether the server is draining.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum::response::Response;
use hearth_engine::{EngineState, clock::unix_time, request::MAX_CHOICES, tenant::TenantId, work_clock::WorkClock};
use hearth_model::decode::sampling::SamplingParams;
use tokio::{
    sync::{SetOnce, oneshot},
    task::spawn_blocking,
};

use crate::{
    api::{
        error::ApiError,
        guard::{
            body_memory::{BodyMemory, BodyReservation},
            options::ApiOptions,
            preparation::{AdmissionWait, Deadline, LONG_BODY_BYTES, Turns, WaitingClient, WorkClass, WorkHandle},
        },
    },
    engine::Engine,
    metrics::HttpMetrics,
};

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
    /// Set once bodies are no longer received.
    receiving_ended: SetOnce<()>,
    turns: Turns,
    work_clock: WorkClock,
    body_memory: BodyMemory,
}

impl AppState {
    /// A server whose model is loading, with the default settings. `model_id` is its name for clients.
    pub fn loading(model_id: impl Into<String>) -> Self {
        Self::loading_with(model_id, ApiOptions::default())
    }

    /// As [`loading`](Self::loading), with these settings.
    pub fn loading_with(model_id: impl Into<String>, options: ApiOptions) -> Self {
        let inner = Inner {
            model_id: model_id.into(),
            body_memory: BodyMemory::new(&options),
            options,
            created: unix_time().as_secs(),
            engine: SetOnce::new(),
            http_metrics: HttpMetrics::new(),
            draining_since: OnceLock::new(),
            receiving_ended: SetOnce::new(),
            turns: Turns::new(),
            work_clock: WorkClock::default(),
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

    /// Stops receiving request bodies: requests whose bodies have not arrived get a 503.
    pub fn stop_receiving(&self) {
        let _ = self.0.receiving_ended.set(());
    }

    /// Waits until bodies are [no longer received](Self::stop_receiving).
    pub(crate) async fn receiving_ended(&self) {
        self.0.receiving_ended.wait().await;
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

    /// The kind of work, of the engine or before it, that has made no progress for the longest time, and that time.
    /// `None` if there is no work.
    pub(crate) fn slowest_work(&self) -> Option<(&'static str, Duration)> {
        let of_engine = self.engine().and_then(|engine| engine.slowest_work());
        of_engine.into_iter().chain(self.0.work_clock.slowest()).max_by_key(|(_, time)| *time)
    }

    /// Checks whether the engine's queue has room for a tenant, before its request is read or prepared in vain.
    ///
    /// # Errors
    /// 429 if the queue is full.
    pub(crate) fn require_room(&self, tenant: TenantId) -> Result<(), ApiError> {
        // Invalid requests get a 400 also while the model is loading.
        self.engine().map_or(Ok(()), |engine| Ok(engine.require_room(tenant)?))
    }

    /// A reservation for a new request, which takes no memory yet.
    pub(crate) fn body_memory(&self) -> BodyReservation {
        self.0.body_memory.room()
    }

    /// HTTP metrics.
    pub(crate) fn http_metrics(&self) -> &HttpMetrics {
        &self.0.http_metrics
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

    /// The names that requests may choose by `model`: the served model's, its aliases, then the names of adapters.
    pub(crate) fn model_names(&self) -> Vec<String> {
        let adapters = self.engine().map(|engine| engine.adapters().list()).unwrap_or_default();
        let own = std::iter::once(self.model_id()).chain(self.options().aliases.names().iter().map(String::as_str));
        own.map(str::to_owned).chain(adapters.into_iter().map(|adapter| adapter.name)).collect()
    }

    /// Start time of the server in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.0.created
    }
}

impl AppState {
    /// Runs `work`, such as tokenizing a prompt, on a blocking thread. Long work runs one at a time for each kind, so
    /// that a thread is always free for short work. For each kind, the limit of waiting requests is the engine's.
    ///
    /// # Errors
    /// The errors of `work`; 429 if too many requests wait for the same kind of long work; 504 if long work is not done
    /// by the deadline (it is not started after the deadline); 503 if it makes no progress for the step timeout; 500 if
    /// it panics.
    pub(crate) async fn prepare<Work, T>(
        &self,
        preparation: WorkClass,
        wait: AdmissionWait,
        work: Work,
    ) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        self.prepare_in_parts(preparation, wait, |_| work()).await
    }

    /// As [`prepare`](Self::prepare), for work that reports its progress, and may end early once its client has gone.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub(crate) async fn prepare_in_parts<Work, T>(
        &self,
        preparation: WorkClass,
        wait: AdmissionWait,
        work: Work,
    ) -> Result<T, ApiError>
    where
        Work: FnOnce(&WorkHandle) -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        let max_waiting = self.engine().map_or(MAX_CHOICES, |engine| engine.max_queue());
        let turn = self.0.turns.acquire(preparation, max_waiting, wait).await?;
        if wait.submits {
            // The queue may have filled up during the wait.
            self.require_room(wait.tenant)?;
        }
        // Short work needs no deadline here: it does not wait for a turn, and the engine ends requests that are late.
        let deadline = wait.deadline.filter(|_| turn.is_some());
        let progress = Arc::new(WorkHandle::new(self.0.work_clock.start(preparation.name())));
        let (_client, gone) = WaitingClient::new(Arc::clone(&progress));
        let (ending, ended) = oneshot::channel::<()>();
        let (limit, is_long) = (self.options().step_timeout, turn.is_some());
        if let Some(turn) = turn {
            tokio::spawn(turn.hold(ended, gone, limit));
        }
        let done = spawn_blocking({
            let progress = Arc::clone(&progress);
            move || {
                // Dropped when the work is done, even if the client disconnects.
                let _ending = ending;
                deadline.map_or(Ok(()), Deadline::check)?;
                work(&progress)
            }
        });
        let done = async {
            tokio::select! {
                done = done => done.map_err(|error| ApiError::internal(format!("cannot prepare the request: {error}")))?,
                // The engine, or the client, ends short work that takes long.
                () = progress.stalled(limit), if is_long => Err(ApiError::stalled(preparation.name(), limit, limit)),
            }
        };
        match deadline {
            None => done.await,
            Some(deadline) => deadline.bound(done).await?,
        }
    }

    /// Runs short `work` on this thread, and long work as [`prepare`](Self::prepare) does.
    ///
    /// # Errors
    /// As `prepare`.
    pub(crate) async fn prepare_long<Work, T>(
        &self,
        preparation: WorkClass,
        wait: AdmissionWait,
        work: Work,
    ) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        match preparation {
            WorkClass::Short => work(),
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
        self.prepare(WorkClass::Short, AdmissionWait::default(), move || Ok(write())).await
    }
}
