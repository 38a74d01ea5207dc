//! What all endpoints share: the engine, once it is there, and whether the server still takes work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use hearth_model::sampling::SamplingParams;
use tokio::{
    sync::{Semaphore, SetOnce},
    task::spawn_blocking,
};

use super::{error::ApiError, options::ApiOptions};
use crate::engine::{Engine, EngineState};

/// A body of more bytes takes long to tokenize: tens of milliseconds and more.
const LONG_BODY_BYTES: usize = 1 << 16;

/// Shared by all requests; clones are the same state.
#[derive(Clone, Debug)]
pub struct AppState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    model_id: String,
    options: ApiOptions,
    created: u64,
    engine: SetOnce<Engine>,
    draining: AtomicBool,
    /// Whose turn it is among the requests with long bodies.
    long_body: Arc<Semaphore>,
}

impl AppState {
    /// A server whose model is still being loaded, with the default settings. `model_id` is its name for clients.
    pub fn loading(model_id: impl Into<String>) -> Self {
        Self::loading_with(model_id, ApiOptions::default())
    }

    /// The same, with other settings.
    pub fn loading_with(model_id: impl Into<String>, options: ApiOptions) -> Self {
        let inner = Inner {
            model_id: model_id.into(),
            options,
            created: unix_seconds(),
            engine: SetOnce::new(),
            draining: AtomicBool::new(false),
            long_body: Arc::new(Semaphore::new(1)),
        };
        Self(Arc::new(inner))
    }

    /// A server that is ready.
    pub fn ready(model_id: impl Into<String>, engine: Engine) -> Self {
        let state = Self::loading(model_id);
        state.set_engine(engine);
        state
    }

    /// The model is loaded. Later calls change nothing.
    pub fn set_engine(&self, engine: Engine) {
        let _ = self.0.engine.set(engine);
    }

    /// From now on no new work is taken.
    pub fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// The engine, if the model is loaded.
    pub fn engine(&self) -> Option<&Engine> {
        self.0.engine.get()
    }

    /// What made inference fail, once it has: waits for the model and then for as long as it works.
    pub async fn inference_failure(&self) -> String {
        let mut stats = self.0.engine.wait().await.stats();
        let failed = stats.wait_for(|stats| matches!(stats.state, EngineState::Failed(_))).await;
        match failed.map(|stats| stats.state.clone()) {
            Ok(EngineState::Failed(what)) => what,
            // The engine was stopped, so it cannot fail any more.
            _ => std::future::pending().await,
        }
    }

    /// The engine, if it takes work.
    ///
    /// # Errors
    /// 503 while the model is loading, while the server drains, and after the engine has failed.
    pub fn working_engine(&self) -> Result<&Engine, ApiError> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(ApiError::shutting_down());
        }
        let engine = self.engine().ok_or_else(|| ApiError::unavailable("the model is still being loaded"))?;
        match &engine.stats().borrow().state {
            EngineState::Running => Ok(engine),
            EngineState::Stopped => Err(ApiError::shutting_down()),
            EngineState::Failed(what) => Err(ApiError::unavailable(format!("inference failed: {what}"))),
        }
    }

    /// Does `work`, such as tokenizing a prompt that came in a body of `n_bytes`, on a thread that serves nobody else.
    /// Long bodies take turns, so that there is always a thread for short ones, whatever is sent.
    ///
    /// # Errors
    /// What `work` reports; 500 if it panics.
    pub(crate) async fn prepare<Work, T>(&self, n_bytes: usize, work: Work) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        let turn = match n_bytes {
            0..=LONG_BODY_BYTES => None,
            // Never closed, so there is a turn for everybody.
            _ => Arc::clone(&self.0.long_body).acquire_owned().await.ok(),
        };
        let done = spawn_blocking(move || {
            // Kept to the end, even when the client does not wait for it.
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| ApiError::internal(format!("preparing the request failed: {error}")))?
    }

    /// The API's settings.
    pub fn options(&self) -> &ApiOptions {
        &self.0.options
    }

    /// The sampling parameters where a request does not say: the served model's.
    pub fn sampling_defaults(&self) -> SamplingParams {
        self.engine().map(|engine| engine.model().sampling_defaults.clone()).unwrap_or_default()
    }

    /// The served model's name.
    pub fn model_id(&self) -> &str {
        &self.0.model_id
    }

    /// When the server started, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.0.created
    }
}

/// Now, in seconds since 1970.
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
    fn however_many_long_bodies_there_are_a_short_one_finds_a_thread() {
        let runtime = runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(2).build().unwrap();
        runtime.block_on(async {
            let state = AppState::loading("x");
            let (go, goes) = mpsc::channel::<()>();
            let goes = Arc::new(std::sync::Mutex::new(goes));
            let long = (0..5).map(|_| {
                let (state, goes) = (state.clone(), Arc::clone(&goes));
                let work = move || {
                    goes.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                tokio::spawn(async move { state.prepare(LONG_BODY_BYTES + 1, work).await })
            });
            let long: Vec<_> = long.collect();
            let short = state.prepare(LONG_BODY_BYTES, || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(30), short).await.unwrap().unwrap(), 7);
            // Whose turn it is depends on the scheduler: all may go before any is waited for.
            long.iter().for_each(|_| go.send(()).unwrap());
            for done in long {
                done.await.unwrap().unwrap();
            }
        });
    }
}
