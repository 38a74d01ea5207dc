//! State that all endpoints share: the engine, once it is loaded, and whether the server is draining.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use axum::response::Response;
use hearth_model::sampling::SamplingParams;
use tokio::{
    sync::{Semaphore, SetOnce},
    task::spawn_blocking,
};

use super::{error::ApiError, options::ApiOptions};
use crate::{
    engine::{Engine, EngineState},
    metrics::HttpMetrics,
};

/// Tokenizing a larger body takes tens of milliseconds or more.
const LONG_BODY_BYTES: usize = 1 << 16;

/// Minimum number of threads for [`AppState::prepare`]: one each for a long body, a grammar, a template, an inspection, an
/// adapter and short work.
pub(crate) const MIN_PREPARING_THREADS: usize = 6;

/// Work before a request can be submitted to the engine, by cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// Takes milliseconds.
    Short,
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
}

impl Preparation {
    /// The class of a body of `n_bytes` without grammar or template.
    pub(crate) fn of_body(n_bytes: usize) -> Self {
        if n_bytes > LONG_BODY_BYTES { Self::LongBody } else { Self::Short }
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
    draining: AtomicBool,
    /// Lets one request with a long body at a time through.
    long_body: Arc<Semaphore>,
    /// Lets one request with a grammar at a time through.
    grammar: Arc<Semaphore>,
    /// Lets one request with its own chat template at a time through.
    template: Arc<Semaphore>,
    /// Lets one inspection at a time through.
    inspection: Arc<Semaphore>,
    /// Lets one adapter at a time through.
    adapter: Arc<Semaphore>,
}

impl AppState {
    /// A server whose model is loading, with the default settings. `model_id` is its name for clients.
    pub fn loading(model_id: impl Into<String>) -> Self {
        Self::loading_with(model_id, ApiOptions::default())
    }

    /// The same with other settings.
    pub fn loading_with(model_id: impl Into<String>, options: ApiOptions) -> Self {
        let inner = Inner {
            model_id: model_id.into(),
            options,
            created: unix_seconds(),
            engine: SetOnce::new(),
            http_metrics: HttpMetrics::new(),
            draining: AtomicBool::new(false),
            long_body: Arc::new(Semaphore::new(1)),
            grammar: Arc::new(Semaphore::new(1)),
            template: Arc::new(Semaphore::new(1)),
            inspection: Arc::new(Semaphore::new(1)),
            adapter: Arc::new(Semaphore::new(1)),
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
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// The engine, if the model is loaded.
    pub fn engine(&self) -> Option<&Engine> {
        self.0.engine.get()
    }

    /// Waits until inference fails and returns the error; waits for ever if it does not.
    pub async fn inference_failure(&self) -> String {
        let mut stats = self.0.engine.wait().await.stats();
        let failed = stats.wait_for(|stats| matches!(stats.state, EngineState::Failed(_))).await;
        match failed.map(|stats| stats.state.clone()) {
            Ok(EngineState::Failed(what)) => what,
            // The engine was stopped, so it can no longer fail.
            _ => std::future::pending().await,
        }
    }

    /// The engine, if it accepts work.
    ///
    /// # Errors
    /// 503 while the model is loading, while the server drains, and after the engine has failed.
    pub fn working_engine(&self) -> Result<&Engine, ApiError> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(ApiError::shutting_down());
        }
        let engine = self.engine().ok_or_else(|| ApiError::unavailable("the model is still loading"))?;
        match &engine.stats().borrow().state {
            EngineState::Running => Ok(engine),
            EngineState::Stopped => Err(ApiError::shutting_down()),
            EngineState::Failed(what) => Err(ApiError::unavailable(format!("inference failed: {what}"))),
        }
    }

    /// Runs `work`, such as tokenizing a prompt, on a blocking thread. Of each kind of long work only one runs at a
    /// time, so that a thread is always free for the rest.
    ///
    /// # Errors
    /// Those of `work`; 500 if it panics.
    pub(crate) async fn prepare<Work, T>(&self, preparation: Preparation, work: Work) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        let turns = match preparation {
            Preparation::Short => None,
            Preparation::LongBody => Some(&self.0.long_body),
            Preparation::Grammar => Some(&self.0.grammar),
            Preparation::Template => Some(&self.0.template),
            Preparation::Inspection => Some(&self.0.inspection),
            Preparation::Adapter => Some(&self.0.adapter),
        };
        let turn = match turns {
            None => None,
            // The semaphores are never closed.
            Some(turns) => Arc::clone(turns).acquire_owned().await.ok(),
        };
        let done = spawn_blocking(move || {
            // Held until the work is done, even if the client disconnects.
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| ApiError::internal(format!("cannot prepare the request: {error}")))?
    }

    /// HTTP metrics.
    pub(crate) fn http_metrics(&self) -> &HttpMetrics {
        &self.0.http_metrics
    }

    /// Runs short `work` here, and long work as [`prepare`](Self::prepare) does.
    ///
    /// # Errors
    /// As `prepare`.
    pub(crate) async fn prepare_long<Work, T>(&self, preparation: Preparation, work: Work) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        match preparation {
            Preparation::Short => work(),
            preparation => self.prepare(preparation, work).await,
        }
    }

    /// Serializes an answer of about `n_bytes`; long ones as [`prepare`](Self::prepare) does.
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
        self.prepare(Preparation::Short, move || Ok(write())).await
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

/// The current time in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{sync::mpsc, time::Duration};

    use tokio::runtime;

    use super::*;

    #[test]
    fn however_much_takes_long_what_is_short_finds_a_thread() {
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
                tokio::spawn(async move { state.prepare(kind, work).await })
            });
            let long: Vec<_> = long.collect();
            let short = state.prepare(Preparation::of_body(LONG_BODY_BYTES), || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(30), short).await.unwrap().unwrap(), 7);
            // The order depends on the scheduler: all start before any is awaited.
            long.iter().for_each(|_| go.send(()).unwrap());
            for done in long {
                done.await.unwrap().unwrap();
            }
        });
    }
}
